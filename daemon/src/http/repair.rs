//! Replicas that disagree or are damaged: where, and replacing this node's by a peer's.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use axum::response::Response;
use kvdb::{
    CompareError, CompareState, Comparison, Database, Key, PeerId, RepairError, RepairFailure, RepairLoss, Repaired, Salvage,
    SavedSibling, Side, Verified,
};
use serde_json::{Value, json};

use super::app::{App, Call, json};
use super::route::Query;
use crate::encoding::Encoding;
use crate::problem::{Code, Problem};

/// `GET …/disagreements`
pub(super) async fn disagreements(database: &Database, call: Call) -> Result<Response, Problem> {
    call.query.finish()?;
    let comparisons: Vec<Value> = database.disagreements().await.iter().map(comparison).collect();
    json(StatusCode::OK, &json!({ "disagreements": comparisons }))
}

/// `GET …/verify`: everything that is stored, looked at; with `from`, compared with a peer's.
pub(super) async fn verify(database: &Database, mut call: Call) -> Result<Response, Problem> {
    let from = peer(&mut call.query)?;
    call.query.finish()?;
    let verified = database.verify().await?;
    let mut report = report(&verified);
    if let Some(from) = from {
        let compared = database.compare(from).await?;
        report.as_object_mut().map(|fields| fields.insert("compared".into(), comparison(&compared)));
    }
    json(StatusCode::OK, &report)
}

/// `POST …/repair?from=`
pub(super) async fn repair(app: &App, database: &Database, mut call: Call) -> Result<Response, Problem> {
    let from = peer(&mut call.query)?.ok_or_else(|| Problem::new(Code::BadRequest, "the parameter \"from\" is missing"))?;
    let loss = if call.query.take_flag("lose")? { RepairLoss::Accept } else { RepairLoss::Refuse };
    call.query.finish()?;
    let (file, path) = SalvageFile::create(app, database).map_err(|error| Problem::from(RepairError::Save(error)))?;
    let Repaired { verified, compared, saved, unreadable, .. } = database.repair(from, loss, Box::new(file)).await?;
    let unreadable = json!({ "keys": unreadable.rows, "values": unreadable.values, "ended": unreadable.ended });
    let document = json!({
        "repaired": true, "from": from.to_string(), "saved_keys": saved, "saved_to": path.display().to_string(),
        "unreadable": unreadable, "verified": report(&verified), "compared": compared.as_ref().map(comparison),
    });
    json(StatusCode::OK, &document)
}

fn peer(query: &mut Query) -> Result<Option<PeerId>, Problem> {
    let parse = |text: String| {
        text.parse().map_err(|error| Problem::new(Code::BadRequest, format!("from={text:?} is not a peer id: {error}")))
    };
    query.take("from").map(parse).transpose()
}

fn report(verified: &Verified) -> Value {
    let Verified { keys, siblings, blocks, damages, more } = verified;
    let said: Vec<String> = damages.iter().map(ToString::to_string).collect();
    json!({
        "sound": damages.is_empty(), "keys": keys, "values": siblings, "blocks": blocks, "damages": said, "more": more,
    })
}

fn comparison(comparison: &Comparison) -> Value {
    let keys = comparison.keys.iter().map(|(key, side)| {
        let at = match side {
            Side::Here => "here",
            Side::There => "there",
            Side::Both => "both",
        };
        json!({ "key": key.as_str(), "at": at })
    });
    let keys: Vec<Value> = keys.collect();
    let dots: Vec<String> = comparison.two_blocks.iter().map(ToString::to_string).collect();
    json!({
        "peer_id": comparison.peer.to_string(), "running": comparison.state == CompareState::Running,
        "complete": comparison.state == CompareState::Done, "state": comparison.state.to_string(),
        "equal": comparison.is_equal(), "keys": keys, "more": comparison.more, "two_blocks": dots,
    })
}

/// The file with the values that a repair gives up: a JSON record a line, one for each key, all values with it.
struct SalvageFile(BufWriter<File>);

impl SalvageFile {
    fn create(app: &App, database: &Database) -> std::io::Result<(Self, PathBuf)> {
        let home = app.node().data_dir().join("salvage");
        std::fs::create_dir_all(&home)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let path = home.join(format!("{}-{}.ndjson", database.name(), now.as_millis()));
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true);
        // Values are for whoever may read the store.
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        Ok((Self(BufWriter::new(options.open(&path)?)), path))
    }
}

impl Salvage for SalvageFile {
    fn save(&mut self, key: &Key, siblings: &[SavedSibling]) -> std::io::Result<()> {
        let sibling = |sibling: &SavedSibling| {
            let value = sibling.value.as_deref().map(Encoding::encode);
            let (encoding, value) = value.map_or((None, None), |(encoding, value)| (Some(encoding), Some(value)));
            json!({
                "dot": sibling.dot.to_string(), "stamp": sibling.stamp.to_string(),
                "expires_unix_ms": sibling.expiry.map(kvdb::Expiry::unix_ms), "encoding": encoding, "value": value,
            })
        };
        let siblings: Vec<Value> = siblings.iter().map(sibling).collect();
        writeln!(self.0, "{}", json!({ "key": key.as_str(), "siblings": siblings }))
    }

    fn finish(&mut self) -> std::io::Result<()> {
        self.0.flush()?;
        self.0.get_ref().sync_all()
    }
}

impl From<CompareError> for Problem {
    fn from(error: CompareError) -> Self {
        let code = match error {
            CompareError::NoNetwork => Code::NoNetwork,
            CompareError::Closed => Code::Closed,
            _ => Code::PeerNotConnected,
        };
        Self::new(code, error.to_string())
    }
}

impl From<RepairError> for Problem {
    fn from(error: RepairError) -> Self {
        let code = match error {
            RepairError::Compare(error) => return error.into(),
            RepairError::Read(error) => return error.into(),
            RepairError::Engine(error) => return error.into(),
            RepairError::Failed(RepairFailure::NotConnected) => Code::PeerNotConnected,
            RepairError::Failed(RepairFailure::Lacking(_)) => Code::WouldLose,
            _ => Code::RepairFailed,
        };
        Self::new(code, error.to_string())
    }
}
