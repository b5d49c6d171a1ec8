//! What a write asks for beyond its change: conditions, dots seen, an expiry, a request id; and reads that wait for a dot.

use std::time::Duration;

use axum::http::header;
use axum::http::header::{HeaderMap, HeaderName};
use kvdb::{Database, Dot, Op, RequestId};

use super::fleet::Way;
use super::route::Query;
use crate::limits::{DEFAULT_WAIT_MS, MAX_TTL_MS, MAX_WAIT_MS};
use crate::problem::{Code, Problem};

/// What must hold, by the headers of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    IfAbsent,
    IfMatch(Dot),
}

/// What a write of one key asks for.
#[derive(Debug)]
pub(super) struct Terms {
    condition: Option<Condition>,
    seen: Option<Vec<Dot>>,
    pub(super) way: Way,
}

impl Terms {
    /// Reads headers and query.
    ///
    /// # Errors
    /// For what is malformed, and for a condition that this server does not have: one that was silently ignored would be
    /// a lost update.
    pub(super) fn take(headers: &HeaderMap, query: &mut Query) -> Result<Self, Problem> {
        let seen = query.take("seen").map(|text| dots(&text)).transpose()?;
        Ok(Self { condition: condition(headers)?, seen, way: Way::take(headers, query)? })
    }

    /// The write as asked.
    pub(super) fn apply(self, op: Op) -> Op {
        let op = match self.condition {
            None => op,
            Some(Condition::IfAbsent) => op.if_absent(),
            Some(Condition::IfMatch(dot)) => op.if_match(dot),
        };
        if let Some(seen) = self.seen { op.seen(seen) } else { op }
    }
}

/// Takes `ttl_ms=`.
pub(super) fn ttl(query: &mut Query) -> Result<Option<Duration>, Problem> {
    Ok(query.take_number("ttl_ms", 1..=MAX_TTL_MS)?.map(Duration::from_millis))
}

/// A request id from its text.
pub(super) fn request_id(text: &str) -> Result<RequestId, Problem> {
    let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    let id = if digits { u128::from_str_radix(text, 16).ok() } else { None };
    let bad = || Problem::new(Code::BadRequest, format!("request={text:?}: 32 lower-case hex digits are needed"));
    id.map(|id| RequestId(id.to_be_bytes())).ok_or_else(bad)
}

/// Takes `at=` and `wait=`, and waits until this node has merged that dot.
///
/// # Errors
/// When it has not come in time.
pub(super) async fn cover(database: &Database, query: &mut Query) -> Result<(), Problem> {
    match at(query)? {
        None => Ok(()),
        Some((dot, wait)) => Ok(database.wait_for(dot, wait).await?),
    }
}

/// Takes `at=` and `wait=`: a dot, and how long to wait for it.
pub(super) fn at(query: &mut Query) -> Result<Option<(Dot, Duration)>, Problem> {
    let at = query.take("at").map(|text| dot(&text)).transpose()?;
    let wait = query.take_number("wait", 0..=MAX_WAIT_MS)?;
    match (at, wait) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Problem::new(Code::BadRequest, "wait= is how long to wait for at=, which is missing")),
        (Some(dot), wait) => Ok(Some((dot, Duration::from_millis(wait.unwrap_or(DEFAULT_WAIT_MS))))),
    }
}

/// A dot in its one form.
pub(super) fn dot(text: &str) -> Result<Dot, Problem> {
    text.parse().map_err(|error| Problem::new(Code::BadRequest, format!("{text:?}: {error}")))
}

fn dots(text: &str) -> Result<Vec<Dot>, Problem> {
    text.split(',').filter(|part| !part.is_empty()).map(dot).collect()
}

fn condition(headers: &HeaderMap) -> Result<Option<Condition>, Problem> {
    for name in [header::IF_UNMODIFIED_SINCE, header::IF_MODIFIED_SINCE, header::IF_RANGE] {
        if headers.contains_key(&name) {
            return Err(unsupported(&name, "is not supported"));
        }
    }
    match (only(headers, &header::IF_MATCH)?, only(headers, &header::IF_NONE_MATCH)?) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(Problem::new(Code::BadRequest, "if-match and if-none-match cannot both hold")),
        (None, Some("*")) => Ok(Some(Condition::IfAbsent)),
        (None, Some(_)) => Err(unsupported(&header::IF_NONE_MATCH, "of a write can be * only")),
        (Some(tag), None) => match tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')) {
            Some(tag) if !tag.contains('"') => Ok(Some(Condition::IfMatch(dot(tag)?))),
            _ => Err(unsupported(&header::IF_MATCH, "can be one ETag only, with its quotes")),
        },
    }
}

/// The one value of a header.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Problem> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    match value.to_str() {
        Ok(text) if values.next().is_none() => Ok(Some(text.trim())),
        _ => Err(unsupported(name, "can be given once, in ASCII")),
    }
}

fn unsupported(name: &HeaderName, what: &str) -> Problem {
    Problem::new(Code::ConditionUnsupported, format!("{name} {what}; nothing was written"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_understood_or_refused_and_never_ignored() {
        let dot = format!("{}-7", "ab".repeat(16));
        let read = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap()));
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(name, value);
            }
            condition(&headers).map_err(|problem| problem.code)
        };
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[("if-none-match", "*")]), Ok(Some(Condition::IfAbsent)));
        assert_eq!(read(&[("if-match", &format!("\"{dot}\""))]), Ok(Some(Condition::IfMatch(dot.parse().unwrap()))));
        for (pairs, code) in [
            (&[("if-none-match", "\"x\"")][..], Code::ConditionUnsupported),
            (&[("if-match", "*")], Code::ConditionUnsupported),
            (&[("if-match", &dot)], Code::ConditionUnsupported),
            (&[("if-match", &format!("W/\"{dot}\""))], Code::ConditionUnsupported),
            (&[("if-match", &format!("\"{dot}\", \"{dot}\""))], Code::ConditionUnsupported),
            (&[("if-match", "\"a\""), ("if-match", "\"b\"")], Code::ConditionUnsupported),
            (&[("if-modified-since", "Mon, 30 Nov 2026 21:00:00 GMT")], Code::ConditionUnsupported),
            (&[("if-match", "\"7\"")], Code::BadRequest),
            (&[("if-match", &format!("\"{dot}\"")), ("if-none-match", "*")], Code::BadRequest),
        ] {
            assert_eq!(read(pairs), Err(code), "{pairs:?}");
        }
    }
}
