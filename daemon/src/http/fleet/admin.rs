//! The fleet itself: members, who holds what, making, changing and dropping databases, draining.

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;
use hoarder::controller::{DatabaseView, MemberView};
use hoarder::membership::Standing;
use hoarder::{DatabaseSettings, FleetError, PeerId};
use kvdb::{DatabaseInfo, DatabaseName};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::app::{App, Call, blocking, json};
use super::super::body;
use super::figures::claim_state;
use super::forward::Passed;
use super::read::no_database;
use super::write::{Asked, durability, durability_word};
use super::{Asker, Member};
use crate::limits::{CREATE_AGAIN, MAX_DATABASES_PAGE, MAX_JSON_BODY_BYTES};
use crate::problem::{Code, Problem};

/// `GET /v1/fleet/members`
pub(super) async fn members(member: &Member, call: Call) -> Result<Response, Problem> {
    call.query.finish()?;
    let (members, figures) = member.fleet().look(|fleet, now| (fleet.members_view(now), fleet.figures(now))).await?;
    let members: Vec<Value> = members.iter().map(|view| describe_member(view, member.0.me)).collect();
    json(StatusCode::OK, &json!({ "members": members, "fleet": super::describe(&figures) }))
}

fn describe_member(view: &MemberView, me: PeerId) -> Value {
    let MemberView { peer, standing, draining, capacity } = view;
    let standing = match standing {
        Standing::Live => "live",
        Standing::Suspect => "suspect",
        Standing::Dead => "dead",
        Standing::Twice => "twice",
    };
    json!({
        "peer_id": peer.to_string(), "standing": standing, "this": *peer == me, "draining": draining, "capacity": capacity,
    })
}

/// `POST /v1/fleet/members/{peer}/forget`
pub(super) async fn forget(member: &Member, peer: PeerId, call: Call) -> Result<Response, Problem> {
    call.query.finish()?;
    if peer == member.0.me {
        return Err(Problem::new(Code::BadRequest, "a node cannot forget itself; ask another member"));
    }
    member.fleet().forget(peer).await.map_err(|error| match error {
        FleetError::Registry(hoarder::controller::RegistryError::NotThere) => {
            Problem::new(Code::NoMember, format!("{peer} is no member of this fleet"))
        }
        error => error.into(),
    })?;
    json(StatusCode::OK, &json!({ "peer_id": peer.to_string(), "forgotten": true }))
}

/// `GET /v1/fleet/placement`
pub(super) async fn placements(member: &Member, mut call: Call) -> Result<Response, Problem> {
    let (views, next) = page(member, &mut call).await?;
    call.query.finish()?;
    let databases: Vec<Value> = views.iter().map(describe_database).collect();
    json(StatusCode::OK, &json!({ "databases": databases, "next": next }))
}

/// `GET /v1/fleet/placement/{db}`
pub(super) async fn placement(member: &Member, name: DatabaseName, call: Call) -> Result<Response, Problem> {
    call.query.finish()?;
    json(StatusCode::OK, &describe_database(&member.view(name).await?))
}

/// `GET /v1/fleet/claims`: by database, paged as these are.
pub(super) async fn claims(member: &Member, mut call: Call) -> Result<Response, Problem> {
    let (views, next) = page(member, &mut call).await?;
    call.query.finish()?;
    let claims: Vec<Value> = views.iter().flat_map(describe_claims).collect();
    json(StatusCode::OK, &json!({ "claims": claims, "next": next }))
}

/// One page of the fleet's databases, and the name after which the next one begins.
async fn page(member: &Member, call: &mut Call) -> Result<(Vec<DatabaseView>, Option<String>), Problem> {
    let after = call.query.take("after").map(|name| DatabaseName::parse(&name)).transpose()?;
    let limit = call.query.take_number("limit", 1..=MAX_DATABASES_PAGE)?.unwrap_or(MAX_DATABASES_PAGE);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    // One more than asked tells whether there is more.
    let mut views = member.fleet().look(move |fleet, _| fleet.databases_view(after.as_ref(), limit + 1)).await?;
    let more = views.len() > limit;
    views.truncate(limit);
    let next = views.last().filter(|_| more).map(|view| view.name.to_string());
    Ok((views, next))
}

fn describe_database(view: &DatabaseView) -> Value {
    let peers = |peers: &[PeerId]| peers.iter().map(ToString::to_string).collect::<Vec<_>>();
    json!({
        "name": view.name.as_str(), "id": view.database.to_string(), "generation": view.generation, "holders": view.holders,
        "durability": durability_word(view.durability), "desired": peers(&view.desired), "ready": peers(&view.ready),
        "claims": describe_claims(view),
    })
}

fn describe_claims(view: &DatabaseView) -> Vec<Value> {
    let claim = |(peer, claim): &(PeerId, hoarder::registry::Claim)| {
        json!({
            "name": view.name.as_str(), "id": view.database.to_string(), "peer_id": peer.to_string(), "state": claim_state(claim.state),
            "store": format!("{:?}", claim.store), "was_ready": claim.was_ready, "wanted": view.desired.contains(peer),
        })
    };
    view.claims.iter().map(claim).collect()
}

/// `GET /v1/databases` of a fleet: all of its databases, with what is known here of those that are here.
pub(super) async fn databases(app: &App, member: &Member, mut call: Call) -> Result<Response, Problem> {
    let (views, next) = page(member, &mut call).await?;
    call.query.finish()?;
    let node = app.node().clone();
    let here = blocking(move || Ok(node.databases()?)).await?;
    let databases: Vec<Value> = views
        .iter()
        .map(|view| {
            let info: Option<&DatabaseInfo> = here.iter().find(|info| info.id == view.database);
            json!({
                "name": view.name.as_str(), "id": view.database.to_string(), "generation": view.generation, "holders": view.holders,
                "open": info.is_some_and(|info| info.open), "keys": info.map(|info| info.keys),
                "digest": info.map(|info| info.digest.to_string()), "revision": info.map(|info| info.revision),
            })
        })
        .collect();
    json(StatusCode::OK, &json!({ "databases": databases, "next": next }))
}

/// What a database may ask for.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettingsDocument {
    holders: Option<u8>,
    durability: Option<String>,
}

async fn settings(call: Call) -> Result<SettingsDocument, Problem> {
    call.query.finish()?;
    let body = body::read(call.body, &call.headers, MAX_JSON_BODY_BYTES, Code::BodyTooLong).await?;
    if body.is_empty() {
        return Ok(SettingsDocument::default());
    }
    serde_json::from_slice(&body).map_err(|_| {
        let most = hoarder::limits::MAX_HOLDERS;
        let wanted = format!("{{\"holders\": n, \"durability\": word}}, with n from 1 to {most}, or empty");
        Problem::new(Code::BadRequest, format!("the body must be {wanted}"))
    })
}

/// `PUT /v1/databases/{db}`: 201 when it is new, 200 when it was there with this number of holders.
pub(super) async fn create(member: &Member, name: &DatabaseName, call: Call) -> Result<Response, Problem> {
    let SettingsDocument { holders: asked, durability: word } = settings(call).await?;
    let durability = match word.as_deref().map(durability).transpose()? {
        None => None,
        Some(Asked::Fleet(durability)) => Some(durability),
        Some(Asked::Store(_)) => {
            return Err(Problem::new(Code::BadRequest, "a database of a fleet has durability require(k), prefer(k) or local"));
        }
    };
    let wanted = asked.unwrap_or(member.0.holders);
    let known = usize::from(wanted);
    let members = member.fleet().look(|fleet, _| fleet.membership().known()).await?;
    if known > members {
        let detail = format!("{wanted} holders are more than the fleet has members, {members}");
        return Err(Problem::new(Code::BadRequest, detail).with_limit(members));
    }
    let status = match member.fleet().create(name, DatabaseSettings { holders: wanted, durability }).await {
        Ok(_) => StatusCode::CREATED,
        Err(FleetError::Registry(hoarder::controller::RegistryError::Exists)) => StatusCode::OK,
        Err(error) => return Err(error.into()),
    };
    let view = member.view(name.clone()).await?;
    if let Some(asked) = asked.filter(|asked| *asked != view.holders) {
        let detail = format!("{name} is there already, with {} holders, not {asked}; PATCH changes that", view.holders);
        return Err(Problem::new(Code::DatabaseExists, detail));
    }
    json(status, &json!({ "name": name.as_str(), "id": view.database.to_string(), "holders": view.holders }))
}

/// `PATCH /v1/databases/{db}`
pub(super) async fn change(member: &Member, name: &DatabaseName, call: Call) -> Result<Response, Problem> {
    let SettingsDocument { holders: Some(wanted), durability: None } = settings(call).await? else {
        return Err(Problem::new(Code::BadRequest, "the body must be {\"holders\": n}"));
    };
    let members = member.fleet().look(|fleet, _| fleet.membership().known()).await?;
    if usize::from(wanted) > members {
        let detail = format!("{wanted} holders are more than the fleet has members, {members}");
        return Err(Problem::new(Code::BadRequest, detail).with_limit(members));
    }
    member.fleet().set_holders(name, wanted).await?;
    json(StatusCode::OK, &json!({ "name": name.as_str(), "holders": wanted }))
}

/// `DELETE /v1/databases/{db}`: dropped in the whole fleet.
pub(super) async fn drop(member: &Member, name: &DatabaseName, call: Call) -> Result<Response, Problem> {
    call.query.finish()?;
    member.fleet().drop_database(name).await?;
    json(StatusCode::OK, &json!({ "name": name.as_str(), "dropped": true }))
}

/// Which member is to hold nothing, or may hold again.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainDocument {
    peer_id: Option<String>,
    draining: Option<bool>,
}

/// `POST /v1/fleet/drain`: this node, or the one that is named.
pub(super) async fn drain(member: &Member, call: Call, asker: Asker) -> Result<Response, Problem> {
    let bad = |what: String| {
        Problem::new(Code::BadRequest, format!("the body must be {{\"peer_id\": …, \"draining\": …}}, or empty: {what}"))
    };
    let body = body::read(call.body.clone(), &call.headers, MAX_JSON_BODY_BYTES, Code::BodyTooLong).await?;
    let document = if body.is_empty() {
        DrainDocument { peer_id: None, draining: None }
    } else {
        serde_json::from_slice(&body).map_err(|error| bad(error.to_string()))?
    };
    let parse = |text: String| text.parse::<PeerId>().map_err(|error| bad(format!("{text:?}: {error}")));
    let peer = document.peer_id.map(parse).transpose()?.unwrap_or(member.0.me);
    let draining = document.draining.unwrap_or(true);
    if peer == member.0.me {
        call.query.finish()?;
        member.fleet().drain(draining).await?;
        return json(StatusCode::OK, &json!({ "peer_id": peer.to_string(), "draining": draining }));
    }
    if asker == Asker::Member {
        return Err(Problem::new(Code::BadRequest, "a drain is not passed on twice"));
    }
    if !member.fleet().look(move |fleet, _| fleet.membership().is_member(&peer)).await? {
        return Err(Problem::new(Code::NoMember, format!("{peer} is no member of this fleet")));
    }
    match member.0.forwarder.send(peer, &call, Body::from(body), member.counters()).await {
        Passed::Answer(response) => Ok(response),
        _ => Err(Problem::new(Code::NotReady, format!("{peer} is not reached"))),
    }
}

/// Makes what is configured and not there, once the fleet is complete enough for it. Only the first of the live members does, so that
/// two do not make the same.
pub(in super::super) async fn create_configured(member: Member, databases: Vec<DatabaseName>) {
    for name in databases {
        loop {
            let wanted = name.clone();
            let me = member.0.me;
            let looked = member.fleet().look(move |fleet, _| {
                let first = fleet.membership().live().first() == Some(&me);
                (fleet.database_view(&wanted).is_some(), first)
            });
            match looked.await {
                Ok((true, _)) => break,
                Ok((false, true)) => {
                    match member.fleet().create(&name, DatabaseSettings { holders: member.0.holders, durability: None }).await {
                        Ok(_) => break,
                        Err(FleetError::Closed) => return,
                        Err(error) => tracing::debug!(%name, %error, "a database that is configured is not made yet"),
                    }
                }
                Ok((false, false)) => {}
                Err(_) => return,
            }
            tokio::time::sleep(CREATE_AGAIN).await;
        }
    }
}

impl Member {
    /// A database of the fleet.
    ///
    /// # Errors
    /// When there is none of this name, or this node does not know yet.
    pub(super) async fn view(&self, name: DatabaseName) -> Result<DatabaseView, Problem> {
        let shown = name.clone();
        let (view, checked) =
            self.fleet().look(move |fleet, now| (fleet.database_view(&name), fleet.figures(now).checked)).await?;
        match view {
            Some(view) => Ok(view),
            None if checked => Err(no_database(&shown)),
            None => Err(Problem::new(Code::NotReady, "this node does not know the fleet's databases yet")),
        }
    }
}
