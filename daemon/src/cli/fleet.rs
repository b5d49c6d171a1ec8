//! `members`, `placement`, `claims`, `drain`; databases of a fleet.

use kvdb::DatabaseName;
use serde_json::{Map, Value, json};
use ureq::http::Method;

use super::args::{ClaimsArgs, DrainArgs, MembersArgs, MembersCommand, PlacementArgs, ServerArgs};
use super::client::{Client, encode, read_json};
use super::failure::Failure;
use super::node::{items, pages, print, word};

/// `kvdb members`
pub(super) fn members(args: &MembersArgs) -> Result<(), Failure> {
    if let Some(MembersCommand::Forget { peer, yes, server }) = &args.command {
        let client = Client::new(server)?;
        if !yes {
            let detail = format!("this declares {peer} gone for good, with all that only it has; say --yes");
            return Err(Failure::bad_input(detail));
        }
        let _: Value = client.post_json(&format!("/v1/fleet/members/{}/forget", encode(peer)), &json!({}))?;
        return print(&format!("member {peer} forgotten"));
    }
    let members: Value = Client::new(&args.show.server)?.get_json("/v1/fleet/members")?;
    let line = |member: &Value| {
        let is = |field: &str| member.get(field).and_then(Value::as_bool) == Some(true);
        let marks = [("this", " this"), ("draining", " draining")].map(|(field, mark)| if is(field) { mark } else { "" });
        let capacity = member.get("capacity").and_then(Value::as_u64).map_or("-".to_owned(), |capacity| capacity.to_string());
        format!("member {} {} capacity={capacity}{}\n", word(member, "peer_id"), word(member, "standing"), marks.concat())
    };
    let lines = || items(&members, "members").map(line).collect::<String>();
    print(&if args.show.json { members.to_string() } else { lines() })
}

/// `kvdb placement`
pub(super) fn placement(args: &PlacementArgs) -> Result<(), Failure> {
    let client = Client::new(&args.show.server)?;
    let databases = match &args.database {
        Some(name) => vec![client.get_json::<Value>(&format!("/v1/fleet/placement/{name}"))?],
        None => pages(&client, "/v1/fleet/placement", "databases")?,
    };
    print(&if args.show.json {
        json!({ "databases": databases }).to_string()
    } else {
        databases.iter().map(database_lines).collect()
    })
}

fn database_lines(database: &Value) -> String {
    let peers = |field: &str| items(database, field).map(super::node::plain).collect::<Vec<_>>().join(",");
    let fields = ["holders", "durability", "generation", "id"].map(|field| format!("{field}={}", word(database, field)));
    let claims: String = items(database, "claims").fold(String::new(), |lines, claim| lines + "  " + &claim_line(claim));
    format!(
        "database {} {}\n  wanted {}\n  ready {}\n{}",
        word(database, "name"),
        fields.join(" "),
        peers("desired"),
        peers("ready"),
        claims
    )
}

/// `kvdb claims`
pub(super) fn claims(args: &ClaimsArgs) -> Result<(), Failure> {
    let claims = pages(&Client::new(&args.show.server)?, "/v1/fleet/claims", "claims")?;
    print(&if args.show.json { json!({ "claims": claims }).to_string() } else { claims.iter().map(claim_line).collect() })
}

fn claim_line(claim: &Value) -> String {
    let wanted = if claim.get("wanted").and_then(Value::as_bool) == Some(true) { "" } else { " unwanted" };
    format!("claim {} {} {}{wanted}\n", word(claim, "name"), word(claim, "peer_id"), word(claim, "state"))
}

/// `kvdb drain`
pub(super) fn drain(args: &DrainArgs) -> Result<(), Failure> {
    let mut document = json!({ "draining": !args.undo });
    if let (Some(node), Some(fields)) = (&args.node, document.as_object_mut()) {
        fields.insert("peer_id".into(), json!(node));
    }
    let answer: Value = Client::new(&args.server)?.post_json("/v1/fleet/drain", &document)?;
    let what = if args.undo { "may hold databases again" } else { "is to hold nothing: see kvdb claims for what is left" };
    print(&format!("member {} {what}", word(&answer, "peer_id")))
}

/// `kvdb db create`
pub(super) fn create(
    name: &DatabaseName,
    holders: Option<u8>,
    durability: Option<&str>,
    server: &ServerArgs,
) -> Result<(), Failure> {
    let mut settings = Map::new();
    settings.extend(holders.map(|holders| ("holders".to_owned(), json!(holders))));
    settings.extend(durability.map(|word| ("durability".to_owned(), json!(word))));
    // A node that is in no fleet takes no settings.
    let body = if settings.is_empty() { String::new() } else { json!(settings).to_string() };
    let kind = if body.is_empty() { "" } else { "application/json" };
    let response = Client::new(server)?.send(Method::PUT, &format!("/v1/databases/{name}"), kind, body.as_bytes())?;
    let new = response.status().as_u16() == 201;
    let answer: Value = read_json(response, false)?;
    let what = if new { "made" } else { "there already" };
    let holders = answer.get("holders").map(|holders| format!(", holders {holders}")).unwrap_or_default();
    print(&format!("database {name} {what}, id {}{holders}", word(&answer, "id")))
}

/// `kvdb db holders`
pub(super) fn change_holders(name: &DatabaseName, holders: u8, server: &ServerArgs) -> Result<(), Failure> {
    let body = json!({ "holders": holders }).to_string();
    let path = format!("/v1/databases/{name}");
    let sent = Client::new(server)?.send(Method::PATCH, &path, "application/json", body.as_bytes())?;
    let answer: Value = read_json(sent, false)?;
    print(&format!("database {name} is to have {} holders", word(&answer, "holders")))
}
