//! Writes: how one is to be done, through the fleet or here, and what it came to.

use std::time::{Duration, Instant};

use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use hoarder::{FleetError, PeerId, WriteDone, WriteOptions};
use kvdb::{Batch, Database, DatabaseName, RequestId, Written};
use serde_json::{Map, Value, json};

use super::super::app::{Call, json};
use super::super::route::{KeyMethod, Query, Route};
use super::super::terms::request_id;
use super::super::{batch, keys};
use super::figures::Counted;
use super::read::no_database;
use super::{Member, SERVED_BY};
use crate::limits::DEADLINE_MS;
use crate::problem::{Code, Problem};

/// When a write is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Asked {
    /// By the disk of one node.
    Store(kvdb::Durability),
    /// By the holders of a fleet.
    Fleet(hoarder::Durability),
}

/// How a write is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Way {
    pub(in super::super) asked: Option<Asked>,
    request: Option<RequestId>,
    deadline: Option<Duration>,
    /// Written even if too few holders are ready to confirm it.
    attempt: bool,
}

/// Where writes go.
#[derive(Clone)]
pub(in super::super) enum Target {
    /// Into this replica.
    Here(Database),
    /// To the holders of a database of the fleet.
    Fleet(Member, DatabaseName),
}

/// What a write came to.
#[derive(Debug)]
pub(in super::super) struct Done {
    pub(in super::super) written: Written,
    fleet: Option<InFleet>,
}

#[derive(Debug)]
struct InFleet {
    holders: Vec<PeerId>,
    served_by: PeerId,
    confirmed: bool,
    /// Who took it was not ready just then.
    stale: bool,
    request: RequestId,
    took: Duration,
}

/// `PUT`, `DELETE` and batches of a fleet.
pub(super) async fn write(member: &Member, route: Route, call: Call) -> Result<Response, Problem> {
    match route {
        Route::Key(name, KeyMethod::Put, text) => keys::put(&Target::Fleet(member.clone(), name), text, call).await,
        Route::Key(name, _, text) => keys::delete(&Target::Fleet(member.clone(), name), text, call).await,
        Route::Batch(name) => batch::batch(&Target::Fleet(member.clone(), name), call).await,
        _ => Err(Problem::new(Code::Internal, "this is no write")),
    }
}

impl Way {
    /// Takes what headers and query say; the query may not contradict the headers.
    ///
    /// # Errors
    /// For what is malformed, or said twice.
    pub(in super::super) fn take(headers: &HeaderMap, query: &mut Query) -> Result<Self, Problem> {
        let asked = either(headers, query, "kvdb-durability", "durability")?.map(|text| durability(&text)).transpose()?;
        let request = either(headers, query, "kvdb-request", "request")?.map(|text| request_id(&text)).transpose()?;
        let deadline = either(headers, query, "kvdb-deadline-ms", "deadline_ms")?;
        let (low, high) = DEADLINE_MS;
        let deadline = deadline.map(|text| match text.parse() {
            Ok(ms) if (low..=high).contains(&ms) => Ok(Duration::from_millis(ms)),
            _ => {
                let detail = format!("deadline_ms={text:?}: a whole number from {low} to {high} is needed");
                Err(Problem::new(Code::BadRequest, detail))
            }
        });
        let attempt = query.take_flag("attempt")?;
        Ok(Self { asked, request, deadline: deadline.transpose()?, attempt })
    }
}

/// A value from a header or from a parameter.
fn either(headers: &HeaderMap, query: &mut Query, header: &str, name: &str) -> Result<Option<String>, Problem> {
    match (headers.get(header), query.take(name)) {
        (None, said) => Ok(said),
        (Some(_), Some(_)) => {
            Err(Problem::new(Code::BadRequest, format!("the header {header} and the parameter {name} are given; one is enough")))
        }
        (Some(value), None) => match value.to_str() {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(_) => Err(Problem::new(Code::BadRequest, format!("the header {header} is not ASCII"))),
        },
    }
}

/// A durability by its word.
pub(in super::super) fn durability(text: &str) -> Result<Asked, Problem> {
    let holders = |text: &str| {
        let text = text.strip_prefix('(')?.strip_suffix(')')?;
        text.parse().ok().filter(|k| (1..=hoarder::limits::MAX_HOLDERS).contains(k))
    };
    let asked = match text {
        "sync" => Some(Asked::Store(kvdb::Durability::Sync)),
        "buffered" => Some(Asked::Store(kvdb::Durability::Buffered)),
        "local" => Some(Asked::Fleet(hoarder::Durability::Local)),
        _ => None,
    };
    let require = || Some(Asked::Fleet(hoarder::Durability::Require(holders(text.strip_prefix("require")?)?)));
    let prefer = || Some(Asked::Fleet(hoarder::Durability::Prefer(holders(text.strip_prefix("prefer")?)?)));
    asked.or_else(require).or_else(prefer).ok_or_else(|| {
        let most = hoarder::limits::MAX_HOLDERS;
        let words = "one of sync, buffered; in a fleet require(k), prefer(k), local";
        Problem::new(Code::BadRequest, format!("durability={text:?}: {words} is needed, with k from 1 to {most}"))
    })
}

/// The word of a durability.
pub(super) fn durability_word(durability: hoarder::Durability) -> String {
    match durability {
        hoarder::Durability::Require(k) => format!("require({k})"),
        hoarder::Durability::Prefer(k) => format!("prefer({k})"),
        hoarder::Durability::Local => "local".to_owned(),
    }
}

impl Target {
    /// Writes a batch.
    ///
    /// # Errors
    /// Each says what became of the write.
    pub(in super::super) async fn write(&self, batch: Batch, way: Way) -> Result<Done, Problem> {
        match self {
            Self::Here(database) => {
                let batch = match way {
                    Way { asked: Some(Asked::Fleet(_)), .. } | Way { deadline: Some(_), .. } | Way { attempt: true, .. } => {
                        let detail = "this node is in no fleet: a write takes durability sync or buffered, and no deadline";
                        return Err(Problem::new(Code::NoFleet, detail));
                    }
                    Way { asked: Some(Asked::Store(durability)), .. } => batch.durability(durability),
                    Way { asked: None, .. } => batch,
                };
                let batch = if let Some(request) = way.request { batch.request(request) } else { batch };
                Ok(Done { written: database.batch(batch).await?, fleet: None })
            }
            Self::Fleet(member, name) => member.write(name, batch, way).await,
        }
    }
}

impl Member {
    async fn write(&self, name: &DatabaseName, batch: Batch, way: Way) -> Result<Done, Problem> {
        let began = Instant::now();
        // Named even if nobody asked for it: an answer that says "unconfirmed" also says by which name it can be asked for again.
        let request = way.request.unwrap_or_else(|| RequestId(rand::random()));
        let durability = way.asked.map(|asked| match asked {
            Asked::Fleet(durability) => durability,
            // Nothing in a fleet is answered before it is on a disk.
            Asked::Store(_) => hoarder::Durability::Local,
        });
        let deadline = way.deadline.unwrap_or(self.0.deadline);
        let options = WriteOptions { durability, attempt: way.attempt, deadline, ..WriteOptions::default() };
        let outcome = self.fleet().batch(name, batch.request(request), options).await;
        let took = began.elapsed();
        self.counters().took(took);
        self.counters().count(match &outcome {
            Ok(_) => Counted::Confirmed,
            Err(FleetError::Unconfirmed(_)) => Counted::Unconfirmed,
            Err(FleetError::NotEnoughHolders { .. }) => Counted::TooFewHolders,
            Err(FleetError::NotReady) => Counted::NotReady,
            Err(FleetError::Unknown { .. }) => Counted::Unknown,
            Err(_) => Counted::Refused,
        });
        match outcome {
            Ok(WriteDone { dot, ops, holders, served_by, stale, .. }) => {
                let needed = durability.map_or(1, |durability| usize::from(durability.needed()));
                let confirmed = dot.is_none() || holders.len() >= needed;
                let fleet = Some(InFleet { holders, served_by, confirmed, stale, request, took });
                Ok(Done { written: Written { dot, ops }, fleet })
            }
            Err(FleetError::NoDatabase) => Err(no_database(name)),
            Err(error) => Err(Problem::from(error).with_request(hex(request))),
        }
    }
}

fn hex(request: RequestId) -> String {
    format!("{:032x}", u128::from_be_bytes(request.0))
}

impl Done {
    /// The answer, with what the fleet says added to its fields.
    pub(in super::super) fn answer(&self, fields: &mut Map<String, Value>) -> Result<Response, Problem> {
        let Some(InFleet { holders, served_by, confirmed, stale, request, took }) = &self.fleet else {
            return json(StatusCode::OK, fields);
        };
        let holders: Vec<String> = holders.iter().map(ToString::to_string).collect();
        fields.insert("holders".into(), json!(holders));
        fields.insert("confirmed".into(), json!(confirmed));
        if *stale {
            fields.insert("stale".into(), json!(true));
        }
        fields.insert("served_by".into(), json!(served_by.to_string()));
        fields.insert("request".into(), json!(hex(*request)));
        fields.insert("took_ms".into(), json!((took.as_secs_f64() * 1e6).round() / 1e3));
        let mut response = json(StatusCode::OK, fields)?;
        response.headers_mut().insert(SERVED_BY, keys::text_header(&served_by.to_string()));
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use hoarder::Durability;

    use super::*;

    #[test]
    fn a_durability_is_one_of_its_words_and_never_guessed() {
        for (text, asked) in [
            ("require(2)", Asked::Fleet(Durability::Require(2))),
            ("prefer(5)", Asked::Fleet(Durability::Prefer(5))),
            ("local", Asked::Fleet(Durability::Local)),
            ("sync", Asked::Store(kvdb::Durability::Sync)),
        ] {
            assert_eq!(durability(text).unwrap(), asked);
            if let Asked::Fleet(durability) = asked {
                assert_eq!(durability_word(durability), text);
            }
        }
        for text in [
            "",
            "require",
            "require()",
            "require(0)",
            "require(6)",
            "require(2",
            "require 2",
            "REQUIRE(2)",
            "prefer(-1)",
            "local(1)",
        ] {
            assert_eq!(durability(text).unwrap_err().code, Code::BadRequest, "{text:?}");
        }
    }

    #[test]
    fn headers_and_parameters_say_the_same_and_not_both() {
        let take = |headers: &[(&'static str, &str)], query: &str| {
            let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
            Way::take(&headers, &mut Query::parse(Some(query)).unwrap())
        };
        let id = "0123456789abcdef0123456789abcdef";
        let by_query = take(&[], &format!("durability=require(2)&deadline_ms=500&request={id}")).unwrap();
        let by_header =
            take(&[("kvdb-durability", "require(2)"), ("kvdb-deadline-ms", "500"), ("kvdb-request", id)], "").unwrap();
        assert_eq!(by_query, by_header);
        assert_eq!(by_query.deadline, Some(Duration::from_millis(500)));
        for (headers, query) in [
            (&[("kvdb-durability", "local")][..], "durability=local"),
            (&[], "deadline_ms=99"),
            (&[], "deadline_ms=60001"),
            (&[("kvdb-deadline-ms", "x")], ""),
            (&[("kvdb-request", "12")], ""),
        ] {
            assert_eq!(take(headers, query).unwrap_err().code, Code::BadRequest, "{headers:?} {query}");
        }
    }
}
