//! `status`, `peers`, `db`, `databases`, `wait`.

use std::io::Write as _;

use serde_json::{Value, json};
use ureq::http::Method;

use super::args::{DbArgs, DbCommand, DropArgs, PeersArgs, ShowArgs, WaitArgs};
use super::client::{Client, DatabaseClient, encode, read_json};
use super::failure::Failure;
use super::fleet;

/// `kvdb status`
pub(super) fn status(args: &ShowArgs) -> Result<(), Failure> {
    let status: Value = Client::new(&args.server)?.get_json("/v1/status")?;
    if args.json {
        return print(&status.to_string());
    }
    let mut lines = vec![
        format!("peer {}", word(&status, "peer_id")),
        format!("version {}", word(&status, "version")),
        format!("uptime {} s", word(&status, "uptime_seconds")),
    ];
    lines.extend(items(&status, "listen").map(|address| format!("listens on {}", plain(address))));
    lines.extend(status.get("poisoned").and_then(Value::as_str).map(|cause| format!("REFUSES WRITES: {cause}")));
    let directories: Vec<&Value> = items(&status, "directories").collect();
    let shown = directories
        .iter()
        .filter(|directory| directories.len() > 1 || directory.get("unavailable").is_some_and(Value::is_string));
    lines.extend(shown.map(|directory| directory_line(directory)));
    if let Some(disk) = status.get("disk") {
        let kinds = ["live_bytes", "history_bytes", "engine_bytes"].map(|kind| format!("{kind}={}", word(disk, kind)));
        lines.push(format!("disk {}", kinds.join(" ")));
    }
    if let Some(fleet) = status.get("fleet") {
        let fields = ["members", "live", "databases", "serving", "waiting_writes", "frozen", "draining"];
        lines.push(format!("fleet {}", fields.map(|field| format!("{field}={}", word(fleet, field))).join(" ")));
    }
    lines.extend(items(&status, "databases").map(database_line));
    lines.extend(items(&status, "peers").map(peer_line));
    print(&lines.join("\n"))
}

fn directory_line(directory: &Value) -> String {
    let failure = [("unavailable", "NOT OPENED"), ("poisoned", "REFUSES WRITES")].into_iter().find_map(|(field, what)| {
        let cause = directory.get(field)?.as_str()?;
        Some(format!(" {what}: {cause}"))
    });
    let (path, open) = (word(directory, "directory"), word(directory, "open_databases"));
    format!("directory {path} open_databases={open}{}", failure.unwrap_or_default())
}

fn database_line(database: &Value) -> String {
    let fields =
        ["keys", "digest", "heads", "replicas", "revision", "pending_blocks", "disk_bytes", "history_bytes", "unsafe_bytes"];
    let fields = fields.map(|field| format!("{field}={}", word(database, field)));
    format!("database {} {}", word(database, "name"), fields.join(" "))
}

/// `kvdb peers`
pub(super) fn peers(args: &PeersArgs) -> Result<(), Failure> {
    let client = Client::new(&args.show.server)?;
    if let Some(address) = &args.dial {
        let _: Value = client.post_json("/v1/peers", &json!({ "address": address }))?;
    }
    let peers: Value = client.get_json("/v1/peers")?;
    let lines = || items(&peers, "peers").map(peer_line).collect::<Vec<_>>().join("\n");
    print(&if args.show.json { peers.to_string() } else { lines() })
}

/// `kvdb db`
pub(super) fn db(args: &DbArgs) -> Result<(), Failure> {
    match &args.command {
        DbCommand::Create { name, holders, durability, server } => fleet::create(name, *holders, durability.as_deref(), server),
        DbCommand::Holders { name, holders, server } => fleet::change_holders(name, *holders, server),
        DbCommand::Drop(args) => drop_database(args),
        DbCommand::List(args) => {
            let all = catalogue(&Client::new(&args.server)?)?;
            let names = || all.iter().map(|database| word(database, "name") + "\n").collect::<String>();
            print(&if args.json { json!({ "databases": all }).to_string() } else { names() })
        }
        DbCommand::Move(args) => super::offline::move_database(args),
    }
}

/// `kvdb drop`
pub(super) fn drop_database(args: &DropArgs) -> Result<(), Failure> {
    let name = &args.name;
    if !args.yes {
        return Err(Failure::bad_input(format!(
            "this drops database {name} with all its data, on that node or in its whole fleet; say --yes"
        )));
    }
    Client::new(&args.server)?.send(Method::DELETE, &format!("/v1/databases/{name}"), "", &[])?;
    print(&format!("database {name} dropped"))
}

/// `kvdb databases`
pub(super) fn databases(args: &ShowArgs) -> Result<(), Failure> {
    let all = catalogue(&Client::new(&args.server)?)?;
    let line = |database: &Value| {
        let is = |field: &str| database.get(field).is_some_and(|value| value.is_string() || value.as_bool() == Some(true));
        let state = if is("unavailable") {
            "UNAVAILABLE"
        } else if is("open") {
            "open"
        } else {
            "closed"
        };
        let fields = ["keys", "digest", "revision", "id"].map(|field| format!("{field}={}", word(database, field)));
        format!("database {} {state} {}\n", word(database, "name"), fields.join(" "))
    };
    print(&if args.json { json!({ "databases": all }).to_string() } else { all.iter().map(line).collect() })
}

/// All databases of a node, page by page.
fn catalogue(client: &Client) -> Result<Vec<Value>, Failure> {
    pages(client, "/v1/databases", "databases")
}

/// All items of a list that comes in pages.
pub(super) fn pages(client: &Client, path: &str, field: &str) -> Result<Vec<Value>, Failure> {
    let mut all = Vec::new();
    let mut at = path.to_owned();
    loop {
        let page: Value = client.get_json(&at)?;
        all.extend(items(&page, field).cloned());
        let Some(next) = page.get("next").and_then(Value::as_str) else { return Ok(all) };
        at = format!("{path}?after={}", encode(next));
    }
}

/// `kvdb wait`
pub(super) fn wait(args: &WaitArgs) -> Result<(), Failure> {
    let holders = args.holders.map(|count| format!("&holders={count}")).unwrap_or_default();
    let path = format!("wait?dot={}&timeout_ms={}{holders}", args.dot, args.wait.as_millis());
    let answer: Value = read_json(DatabaseClient::new(&args.client)?.send(Method::GET, &path, "", &[])?, true)?;
    print(&items(&answer, "holders").map(|peer| plain(peer) + "\n").collect::<String>())
}

fn peer_line(peer: &Value) -> String {
    let is = |database: &&Value, field: &str| database.get(field).and_then(Value::as_bool) == Some(true);
    let count = |field: &str| items(peer, "databases").filter(|database| is(database, field)).count();
    let fields = ["connected_seconds", "outgoing", "syncing", "round_trip_ms", "misbehaviour"];
    let fields = fields.map(|field| format!("{field}={}", word(peer, field))).join(" ");
    let all = items(peer, "databases").count();
    let disagreeing = match count("disagrees") {
        0 => String::new(),
        some => format!(" DISAGREES={some}"),
    };
    let below = match (count("below_floor"), count("needs_snapshot")) {
        (0, 0) => String::new(),
        (here, there) => format!(" BELOW_FLOOR={here} NEEDS_SNAPSHOT={there}"),
    };
    let address = items(peer, "addresses").next().map(plain).unwrap_or_default();
    format!("peer {} {address} {fields} synced={}/{all}{disagreeing}{below}", word(peer, "peer_id"), count("synced"))
}

pub(super) fn items<'a>(document: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    document.get(field).and_then(Value::as_array).into_iter().flatten()
}

pub(super) fn word(document: &Value, field: &str) -> String {
    document.get(field).map(plain).unwrap_or_default()
}

pub(super) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

pub(super) fn print(text: &str) -> Result<(), Failure> {
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    let mut stdout = std::io::stdout().lock();
    write!(stdout, "{text}{end}").and_then(|()| stdout.flush()).map_err(|error| Failure::output(&error))
}
