//! What is done to databases, and the bytes of operations.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use crdt::codec::cbor::{CborError, Reader, Writer};
use crdt::{Dot, Key, RequestId, Signer};
use kvdb::{Batch, Database, ListItem, ListOptions, Prefix, ReadError, WriteError};
use tokio::sync::mpsc;

use super::Event;
use crate::controller::Input;
use crate::wire::Code;

/// The node's identity, as far as signing goes.
pub(super) struct NodeSigner(pub(super) Arc<dyn Signer + Send + Sync>);

impl Signer for NodeSigner {
    fn public_key(&self) -> [u8; 32] {
        self.0.public_key()
    }

    fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.0.sign(message)
    }
}

/// The wall clock in Unix milliseconds, to be shown only.
#[expect(clippy::disallowed_methods, reason = "the driver is where time comes from")]
pub(super) fn wall_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(0) & (u64::MAX >> 1)
}

/// `[[key, value or null], …]`
pub(super) fn encode_changes(changes: &[(Key, Option<Bytes>)]) -> Bytes {
    let mut writer = Writer::default();
    writer.array(changes.len());
    for (key, value) in changes {
        writer.array(2).text(key.as_str());
        match value {
            Some(value) => writer.bytes(value),
            None => writer.null(),
        };
    }
    writer.into_bytes()
}

fn decode_changes(bytes: Bytes) -> Result<Batch, String> {
    let malformed = |error: CborError| error.to_string();
    let mut reader = Reader::new(bytes);
    let mut batch = Batch::new();
    for _ in 0..reader.array("changes", crdt::limits::MAX_BLOCK_OPS).map_err(malformed)? {
        reader.array_of("a change", 2).map_err(malformed)?;
        let key = reader.text("a key", 2 * crdt::limits::MAX_KEY_BYTES).map_err(malformed)?;
        let key = std::str::from_utf8(&key).map_err(|error| error.to_string())?;
        let key = Key::parse(key).map_err(|error| error.to_string())?;
        let value = reader.bytes_or_null("a value", crdt::limits::MAX_VALUE_BYTES).map_err(malformed)?;
        batch = match value {
            Some(value) => batch.put(key, value),
            None => batch.delete(key),
        };
    }
    reader.finish().map_err(malformed)?;
    Ok(batch)
}

/// Everything in a database.
pub(super) fn list_all(database: &Database) -> Result<BTreeMap<Key, Bytes>, ReadError> {
    let mut all = BTreeMap::new();
    let mut options = ListOptions::new(Prefix::root());
    loop {
        let page = database.list(&options)?;
        for item in page.items {
            if let ListItem::Entry(entry) = item {
                all.insert(entry.key, entry.value);
            }
        }
        match page.next {
            Some(next) => options.after = Some(next),
            None => return Ok(all),
        }
    }
}

fn tell(events: mpsc::Sender<Event>, answer: impl Future<Output = Input> + Send + 'static) {
    tokio::spawn(async move {
        let input = answer.await;
        // The driver being gone is the end of everything.
        let _ = events.send(Event::Input(Box::new(input))).await;
    });
}

pub(super) fn write_registry(registry: Database, token: u64, changes: Vec<(Key, Option<Bytes>)>, events: mpsc::Sender<Event>) {
    tell(events, async move {
        let batch = changes.into_iter().fold(Batch::new(), |batch, (key, value)| match value {
            Some(value) => batch.put(key, value),
            None => batch.delete(key),
        });
        let written: Result<Option<Dot>, WriteError> =
            registry.batch(batch.durability(crdt::Durability::Sync)).await.map(|written| written.dot);
        let dot = written.unwrap_or_else(|error| {
            tracing::warn!(%error, "the fleet's registry cannot be written");
            None
        });
        Input::RegistryWritten(token, dot)
    });
}

pub(super) fn commit(database: Option<Database>, call: u64, request: RequestId, payload: Bytes, events: mpsc::Sender<Event>) {
    tell(events, async move {
        let said = |code, text: String| Input::Answered(call, code, text.into());
        let Some(database) = database else { return said(Code::NotReady, String::new()) };
        let batch = match decode_changes(payload) {
            Ok(batch) => batch.request(request).durability(crdt::Durability::Sync),
            Err(cause) => return said(Code::Refused, cause),
        };
        match database.batch(batch).await {
            Ok(written) => Input::Committed(call, written.dot, Bytes::new()),
            Err(error @ WriteError::Refused(_)) => said(Code::Refused, error.to_string()),
            Err(error @ WriteError::Unknown { .. }) => said(Code::Broken, error.to_string()),
            Err(error) => said(Code::NotReady, error.to_string()),
        }
    });
}

pub(super) fn read(database: Option<Database>, call: u64, payload: Bytes, events: mpsc::Sender<Event>) {
    tell(events, async move {
        let said = |code, payload: Bytes| Input::Answered(call, code, payload);
        let Some(database) = database else { return said(Code::NotReady, Bytes::new()) };
        let key = std::str::from_utf8(&payload).ok().and_then(|text| Key::parse(text).ok());
        let Some(key) = key else { return said(Code::Refused, Bytes::from_static(b"no key")) };
        match tokio::task::spawn_blocking(move || database.get(&key)).await {
            Ok(Ok(Some(entry))) => said(Code::Done, entry.value),
            Ok(Ok(None)) => said(Code::Absent, Bytes::new()),
            _ => said(Code::NotReady, Bytes::new()),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_round_trip_and_garbage_is_refused() {
        let key = Key::parse("/a").unwrap();
        let bytes = encode_changes(&[(key.clone(), Some(Bytes::from_static(b"v"))), (key, None)]);
        assert_eq!(bytes.as_ref(), b"\x82\x82\x62/a\x41v\x82\x62/a\xf6");
        assert_eq!(decode_changes(bytes.clone()).unwrap().len(), 2);
        for end in 0..bytes.len() {
            assert!(decode_changes(bytes.slice(..end)).is_err());
        }
    }
}
