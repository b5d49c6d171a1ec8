//! What is done to databases.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use crdt::{DatabaseId, DatabaseName, Dot, Key, RequestId, Signer};
use kvdb::{
    Batch, Database, DropError, ListItem, ListOptions, Node, OpenDatabaseError, Prefix, ReadError, WaitError, WriteError,
};
use tokio::sync::mpsc;

use super::Event;
use crate::controller::Input;
use crate::limits::DOT_PATIENCE;
use crate::wire::{Code, Get, Refusal, decode_ops, encode_entry, encode_outcomes};

/// Pause after the store has failed.
const RETRY: Duration = Duration::from_secs(1);

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

/// Opens a database, making it if it is not there. An older generation that is here was dropped, or there were no newer one.
pub(super) fn open(node: Node, name: DatabaseName, generation: u64, events: mpsc::Sender<Event>) {
    tokio::spawn(async move {
        while !events.is_closed() {
            match node.database_at(&name, generation).await {
                Ok(open) => return drop(events.send(Event::Opened(open.id(), open)).await),
                Err(OpenDatabaseError::Generation { here }) if here < generation => {
                    if let Err(error) = node.drop_generation(&name, here).await {
                        tracing::error!(%name, %error, "cannot drop an older generation");
                        tokio::time::sleep(RETRY).await;
                    }
                }
                // Dropped here meanwhile, or the node is closed.
                Err(OpenDatabaseError::Generation { .. } | OpenDatabaseError::Closed) => return,
                Err(error) => {
                    tracing::error!(%name, %error, "cannot open a database that this node is to hold");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    });
}

/// Deletes what is here of one generation of a database, and says so when it is unlinked on disk.
pub(super) fn destroy(node: Node, place: (DatabaseName, u64, DatabaseId), dropped: bool, events: mpsc::Sender<Event>) {
    let (name, generation, database) = place;
    tokio::spawn(async move {
        while !events.is_closed() {
            let gone =
                if dropped { node.drop_generation(&name, generation).await } else { node.remove_copy(&name, generation).await };
            match gone {
                Ok(()) | Err(DropError::NotFound(_)) => {
                    return drop(events.send(Event::Input(Box::new(Input::Destroyed(database)))).await);
                }
                Err(DropError::Closed) => return,
                Err(error) => {
                    tracing::error!(%name, %error, "cannot delete a database that is not to be here any more");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
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
        let said = |code, payload| Input::Answered(call, code, payload);
        let Some(database) = database else { return said(Code::NotReady, Bytes::new()) };
        let batch = match decode_ops(payload) {
            Ok(ops) => ops.into_iter().fold(Batch::new(), |batch, op| batch.op(op.into())),
            Err(error) => return said(Code::Refused, Refusal::Malformed { cause: error.to_string() }.encode()),
        };
        match database.batch(batch.request(request).durability(crdt::Durability::Sync)).await {
            Ok(written) => Input::Committed(call, written.dot, encode_outcomes(&written.ops)),
            Err(error @ WriteError::Unknown { .. }) => {
                tracing::error!(database = %database.name(), %error, "a write failed");
                said(Code::Broken, Bytes::new())
            }
            Err(error) => match Refusal::of(&error) {
                Some(refusal) => said(Code::Refused, refusal.encode()),
                // Another holder may be able to.
                None => said(Code::NotReady, Bytes::new()),
            },
        }
    });
}

pub(super) fn read(database: Option<Database>, call: u64, payload: Bytes, events: mpsc::Sender<Event>) {
    tell(events, async move {
        let said = |code, payload: Bytes| Input::Answered(call, code, payload);
        let Some(database) = database else { return said(Code::NotReady, Bytes::new()) };
        let get = match Get::decode(payload) {
            Ok(get) => get,
            Err(error) => return said(Code::Refused, Refusal::Malformed { cause: error.to_string() }.encode()),
        };
        if let Some(dot) = get.at {
            let wait = Duration::from_millis(get.wait_ms).min(DOT_PATIENCE);
            match database.wait_for(dot, wait).await {
                Ok(()) => {}
                Err(WaitError::NotCovered { .. }) => return said(Code::Behind, Bytes::new()),
                Err(_) => return said(Code::NotReady, Bytes::new()),
            }
        }
        match tokio::task::spawn_blocking(move || database.get(&get.key)).await {
            Ok(Ok(Some(entry))) => said(Code::Done, encode_entry(&entry)),
            Ok(Ok(None)) => said(Code::Absent, Bytes::new()),
            _ => said(Code::NotReady, Bytes::new()),
        }
    });
}
