//! `verify`.

use std::io::Write as _;
use std::path::Path;

use kvdb::store::{DatabaseRecord, RocksStore};
use kvdb::{StoreOptions, Verified};
use serde_json::Value;

use super::args::VerifyArgs;
use super::client::{Client, encode};
use super::failure::{Exit, Failure};

/// `kvdb verify`
pub(super) fn verify(args: &VerifyArgs) -> Result<(), Failure> {
    if args.repair {
        return repair(args);
    }
    let reports = match &args.data_dir {
        Some(dir) => offline(dir, args)?,
        None => online(args)?,
    };
    let mut stdout = std::io::stdout().lock();
    for (name, report) in &reports {
        let sound = report.damages.is_empty();
        let verdict = if sound { "sound" } else { "DAMAGED" };
        let Report { keys, siblings, blocks, .. } = report;
        let line = writeln!(stdout, "database {name} keys={keys} values={siblings} blocks={blocks} {verdict}");
        line.map_err(|error| Failure::output(&error))?;
        for damage in &report.damages {
            writeln!(stdout, "  {damage}").map_err(|error| Failure::output(&error))?;
        }
        if report.more > 0 {
            writeln!(stdout, "  and {} more", report.more).map_err(|error| Failure::output(&error))?;
        }
        for line in report.compared.iter().flat_map(differences) {
            writeln!(stdout, "  {line}").map_err(|error| Failure::output(&error))?;
        }
    }
    if let Some((name, _)) = reports.iter().find(|(_, report)| report.compared.as_ref().is_some_and(|found| !is_equal(found))) {
        return Err(Failure::new(Exit::Absent, format!("{name} is not equal to the peer's")));
    }
    match reports.iter().filter(|(_, report)| !report.damages.is_empty()).count() {
        0 => Ok(()),
        damaged => Err(Failure::new(Exit::Absent, format!("{damaged} of {} databases are damaged", reports.len()))),
    }
}

struct Report {
    keys: u64,
    siblings: u64,
    blocks: u64,
    damages: Vec<String>,
    more: u64,
    /// What a comparison with a peer has found.
    compared: Option<Value>,
}

fn is_equal(compared: &Value) -> bool {
    compared.get("equal").and_then(Value::as_bool).unwrap_or(false)
}

/// What a comparison has found, a line for each key.
fn differences(compared: &Value) -> Vec<String> {
    let text = |value: &Value, field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let list = |field: &str| compared.get(field).and_then(Value::as_array).cloned().unwrap_or_default();
    let (peer, state) = (text(compared, "peer_id"), text(compared, "state"));
    let verdict = if is_equal(compared) { "equal".to_owned() } else { format!("NOT EQUAL, {state}") };
    let mut lines = vec![format!("compared with {peer}: {verdict}")];
    lines.extend(list("keys").iter().map(|key| format!("{} differs, at {}", text(key, "key"), text(key, "at"))));
    lines.extend(list("two_blocks").iter().filter_map(Value::as_str).map(|dot| format!("two blocks bear the name {dot}")));
    match compared.get("more").and_then(Value::as_u64).unwrap_or(0) {
        0 => {}
        more => lines.push(format!("and {more} more keys")),
    }
    lines
}

/// `kvdb verify --repair`
fn repair(args: &VerifyArgs) -> Result<(), Failure> {
    // Both are required by the arguments.
    let (Some(name), Some(from)) = (&args.db, &args.from) else { return Err(Failure::bad_input("--db and --from are needed")) };
    let path = format!("/v1/databases/{name}/repair?from={}&lose={}", encode(from), args.lose);
    let done: Value = Client::new(&args.server)?.post_json(&path, &Value::Null)?;
    let word = |field: &str| done.get(field).map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    let (keys, path) = (word("saved_keys").unwrap_or_default(), word("saved_to").unwrap_or_default());
    let line = format!("database {name} repaired from {from}; values of {keys} keys that went were saved to {path}");
    writeln!(std::io::stdout(), "{line}").map_err(|error| Failure::output(&error))
}

impl From<Verified> for Report {
    fn from(verified: Verified) -> Self {
        let Verified { keys, siblings, blocks, damages, more } = verified;
        Self { keys, siblings, blocks, damages: damages.iter().map(ToString::to_string).collect(), more, compared: None }
    }
}

/// Without a node: the directory must not be in use.
fn offline(dir: &Path, args: &VerifyArgs) -> Result<Vec<(String, Report)>, Failure> {
    let path = dir.join("store");
    // Opening would make one.
    if !path.join("kvdb.format").exists() {
        return Err(Failure::bad_input(format!("there is no store at {}", path.display())));
    }
    let store = RocksStore::open(&path, &StoreOptions::default()).map_err(Failure::bad_input)?;
    let wanted = |record: &DatabaseRecord| args.db.as_ref().is_none_or(|name| *name == record.name);
    let records: Vec<DatabaseRecord> = store.databases().map_err(Failure::bad_input)?.into_iter().filter(wanted).collect();
    if let (Some(name), true) = (&args.db, records.is_empty()) {
        return Err(Failure::new(Exit::Absent, format!("there is no database {name}")));
    }
    let verify = |record: DatabaseRecord| {
        let verified = store.verify(&record.id).map_err(Failure::bad_input)?;
        Ok((record.name.to_string(), verified.into()))
    };
    records.into_iter().map(verify).collect()
}

fn online(args: &VerifyArgs) -> Result<Vec<(String, Report)>, Failure> {
    let client = Client::new(&args.server)?;
    let names: Vec<String> = match &args.db {
        Some(name) => vec![name.to_string()],
        None => {
            let list: Value = client.get_json("/v1/databases")?;
            let names = list.get("databases").and_then(Value::as_array).into_iter().flatten();
            names.filter_map(|database| database.get("name")?.as_str().map(str::to_owned)).collect()
        }
    };
    let verify = |name: String| {
        let from = args.from.as_ref().map(|from| format!("?from={}", encode(from))).unwrap_or_default();
        let report: Value = client.get_json(&format!("/v1/databases/{name}/verify{from}"))?;
        let number = |field: &str| report.get(field).and_then(Value::as_u64).unwrap_or(0);
        let damages = report.get("damages").and_then(Value::as_array).into_iter().flatten();
        let damages = damages.filter_map(|damage| damage.as_str().map(str::to_owned)).collect();
        let (keys, siblings, blocks, more) = (number("keys"), number("values"), number("blocks"), number("more"));
        let compared = report.get("compared").cloned();
        Ok((name, Report { keys, siblings, blocks, damages, more, compared }))
    };
    names.into_iter().map(verify).collect()
}
