//! The routes: one table, matched on the path as it was sent. Nothing is cleaned, collapsed or redirected, so that every
//! key can be named byte by byte.

use axum::http::Method;
use kvdb::{DatabaseName, PeerId};
use percent_encoding::percent_decode_str;

use crate::config::Scope;
use crate::limits::MAX_QUERY_BYTES;
use crate::problem::{Code, Problem};

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    /// `GET /healthz`
    Health,
    /// `GET /readyz`
    Ready,
    /// `GET /metrics`
    Metrics,
    /// `GET /v1/status`
    Status,
    /// `GET /v1/peers`
    Peers,
    /// `POST /v1/peers`
    Dial,
    /// `GET /v1/fleet/members`
    Members,
    /// `POST /v1/fleet/members/{peer}/forget`
    Forget(PeerId),
    /// `GET /v1/fleet/placement`
    Placements,
    /// `GET /v1/fleet/placement/{db}`
    Placement(DatabaseName),
    /// `GET /v1/fleet/claims`
    Claims,
    /// `POST /v1/fleet/drain`
    Drain,
    /// `POST /v1/backup`
    Backup,
    /// `GET /v1/databases`
    Databases,
    /// `GET /v1/databases/{db}`
    Database(DatabaseName),
    /// `DELETE /v1/databases/{db}`
    DropDatabase(DatabaseName),
    /// `PUT /v1/databases/{db}`
    CreateDatabase(DatabaseName),
    /// `PATCH /v1/databases/{db}`
    ChangeDatabase(DatabaseName),
    /// `GET`, `HEAD`, `PUT`, `DELETE` `/v1/databases/{db}/keys/{key…}`, or `…/keys?key=`, where the text is `None`
    Key(DatabaseName, KeyMethod, Option<String>),
    /// `GET /v1/databases/{db}/list`
    List(DatabaseName),
    /// `GET /v1/databases/{db}/conflicts`
    Conflicts(DatabaseName),
    /// `POST /v1/databases/{db}/compact`
    Compact(DatabaseName),
    /// `GET /v1/databases/{db}/verify`
    Verify(DatabaseName),
    /// `GET /v1/databases/{db}/disagreements`
    Disagreements(DatabaseName),
    /// `POST /v1/databases/{db}/repair`
    Repair(DatabaseName),
    /// `POST /v1/databases/{db}/batch`
    Batch(DatabaseName),
    /// `GET /v1/databases/{db}/siblings?key=`
    Siblings(DatabaseName),
    /// `GET /v1/databases/{db}/wait?dot=`
    Wait(DatabaseName),
    /// `GET /v1/databases/{db}/watch`
    Watch(DatabaseName),
}

/// What to do with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyMethod {
    /// Read the value.
    Get,
    /// Read what `Get` answers, without the value.
    Head,
    /// Write the body.
    Put,
    /// Delete.
    Delete,
}

impl Route {
    /// Finds the route of a request.
    ///
    /// # Errors
    /// For a path or method that no route has, and for a database name or encoding that is none.
    pub(super) fn find(method: &Method, path: &str) -> Result<Self, Problem> {
        let get = |route| if method == Method::GET { Ok(route) } else { Err(not_allowed(method, "GET")) };
        match path {
            "/healthz" => return get(Self::Health),
            "/readyz" => return get(Self::Ready),
            "/metrics" => return get(Self::Metrics),
            "/v1/status" => return get(Self::Status),
            "/v1/peers" if method == Method::POST => return Ok(Self::Dial),
            "/v1/peers" if method != Method::GET => return Err(not_allowed(method, "GET, POST")),
            "/v1/peers" => return Ok(Self::Peers),
            "/v1/backup" if method == Method::POST => return Ok(Self::Backup),
            "/v1/backup" => return Err(not_allowed(method, "POST")),
            "/v1/databases" => return get(Self::Databases),
            _ => {}
        }
        if let Some(below) = path.strip_prefix("/v1/fleet/") {
            return Self::of_fleet(method, path, below);
        }
        let rest = path.strip_prefix("/v1/databases/").ok_or_else(|| no_route(path))?;
        let (name, below) = rest.split_once('/').map_or((rest, None), |(name, below)| (name, Some(below)));
        let name = DatabaseName::parse(&decode(name)?)?;
        match below {
            None if method == Method::PUT => Ok(Self::CreateDatabase(name)),
            None if method == Method::PATCH => Ok(Self::ChangeDatabase(name)),
            None if method == Method::DELETE => Ok(Self::DropDatabase(name)),
            None if method != Method::GET => Err(not_allowed(method, "GET, PUT, PATCH, DELETE")),
            None => Ok(Self::Database(name)),
            Some("list") => get(Self::List(name)),
            Some("conflicts") => get(Self::Conflicts(name)),
            Some("siblings") => get(Self::Siblings(name)),
            Some("wait") => get(Self::Wait(name)),
            Some("watch") => get(Self::Watch(name)),
            Some("verify") => get(Self::Verify(name)),
            Some("disagreements") => get(Self::Disagreements(name)),
            Some("repair") if method == Method::POST => Ok(Self::Repair(name)),
            Some("compact") if method == Method::POST => Ok(Self::Compact(name)),
            Some("batch") if method == Method::POST => Ok(Self::Batch(name)),
            Some("batch" | "compact" | "repair") => Err(not_allowed(method, "POST")),
            Some("keys") => Ok(Self::Key(name, KeyMethod::of(method)?, None)),
            Some(below) => {
                let key = below.strip_prefix("keys/").ok_or_else(|| no_route(path))?;
                let action = KeyMethod::of(method)?;
                Ok(Self::Key(name, action, Some(decode(key)?)))
            }
        }
    }

    fn of_fleet(method: &Method, path: &str, below: &str) -> Result<Self, Problem> {
        let only =
            |allowed: &Method, route| if method == allowed { Ok(route) } else { Err(not_allowed(method, allowed.as_str())) };
        match below.split_once('/') {
            None if below == "members" => only(&Method::GET, Self::Members),
            None if below == "placement" => only(&Method::GET, Self::Placements),
            None if below == "claims" => only(&Method::GET, Self::Claims),
            None if below == "drain" => only(&Method::POST, Self::Drain),
            Some(("placement", name)) => only(&Method::GET, Self::Placement(DatabaseName::parse(&decode(name)?)?)),
            Some(("members", rest)) => {
                let peer = rest.strip_suffix("/forget").ok_or_else(|| no_route(path))?;
                let bad = |error| Problem::new(Code::BadRequest, format!("{peer:?} is no peer id: {error}"));
                only(&Method::POST, Self::Forget(peer.parse().map_err(bad)?))
            }
            _ => Err(no_route(path)),
        }
    }

    /// Whether only a member of a fleet has it.
    pub(super) fn is_of_fleet(&self) -> bool {
        matches!(
            self,
            Self::Members
                | Self::Forget(_)
                | Self::Placements
                | Self::Placement(_)
                | Self::Claims
                | Self::Drain
                | Self::ChangeDatabase(_)
        )
    }

    /// The database that the route works on while it is open.
    pub(super) fn database(&self) -> Option<&DatabaseName> {
        match self {
            Self::Key(name, ..)
            | Self::Database(name)
            | Self::List(name)
            | Self::Conflicts(name)
            | Self::Compact(name)
            | Self::Verify(name)
            | Self::Disagreements(name)
            | Self::Repair(name)
            | Self::Batch(name)
            | Self::Siblings(name)
            | Self::Wait(name)
            | Self::Watch(name) => Some(name),
            _ => None,
        }
    }

    /// The route's name in metrics.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Health => "healthz",
            Self::Ready => "readyz",
            Self::Metrics => "metrics",
            Self::Status => "status",
            Self::Peers => "peers",
            Self::Dial => "dial",
            Self::Members => "members",
            Self::Forget(_) => "forget",
            Self::Placements | Self::Placement(_) => "placement",
            Self::Claims => "claims",
            Self::Drain => "drain",
            Self::Backup => "backup",
            Self::Databases => "databases",
            Self::Database(_) => "database",
            Self::CreateDatabase(_) => "create_database",
            Self::ChangeDatabase(_) => "change_database",
            Self::DropDatabase(_) => "drop_database",
            Self::Key(_, KeyMethod::Get | KeyMethod::Head, _) => "get",
            Self::Key(_, KeyMethod::Put, _) => "put",
            Self::Key(_, KeyMethod::Delete, _) => "delete",
            Self::List(_) => "list",
            Self::Conflicts(_) => "conflicts",
            Self::Compact(_) => "compact",
            Self::Verify(_) => "verify",
            Self::Disagreements(_) => "disagreements",
            Self::Repair(_) => "repair",
            Self::Batch(_) => "batch",
            Self::Siblings(_) => "siblings",
            Self::Wait(_) => "wait",
            Self::Watch(_) => "watch",
        }
    }

    /// The scope that a token needs for it; `None` is open to all.
    pub(super) fn scope(&self) -> Option<Scope> {
        match self {
            Self::Health | Self::Ready => None,
            Self::CreateDatabase(_)
            | Self::ChangeDatabase(_)
            | Self::DropDatabase(_)
            | Self::Compact(_)
            | Self::Verify(_)
            | Self::Repair(_)
            | Self::Dial
            | Self::Backup
            | Self::Forget(_)
            | Self::Drain => Some(Scope::Admin),
            Self::Key(_, KeyMethod::Put | KeyMethod::Delete, _) | Self::Batch(_) => Some(Scope::Write),
            _ => Some(Scope::Read),
        }
    }
}

impl KeyMethod {
    fn of(method: &Method) -> Result<Self, Problem> {
        match *method {
            Method::GET => Ok(Self::Get),
            Method::HEAD => Ok(Self::Head),
            Method::PUT => Ok(Self::Put),
            Method::DELETE => Ok(Self::Delete),
            _ => Err(not_allowed(method, "GET, HEAD, PUT, DELETE")),
        }
    }
}

fn not_allowed(method: &Method, allowed: &str) -> Problem {
    Problem::new(Code::MethodNotAllowed, format!("{method} is not allowed here; allowed: {allowed}"))
}

fn no_route(path: &str) -> Problem {
    let shown: String = path.chars().take(100).collect();
    Problem::new(Code::RouteNotFound, format!("there is no route {shown:?}"))
}

/// Decodes percent-encoding once.
///
/// # Errors
/// When a percent sign is not followed by two hex digits, or the bytes are not UTF-8.
pub(super) fn decode(text: &str) -> Result<String, Problem> {
    let bytes = text.as_bytes();
    let hex = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_hexdigit);
    if let Some(at) = (0..bytes.len()).find(|&at| bytes.get(at) == Some(&b'%') && !(hex(at + 1) && hex(at + 2))) {
        let detail = format!("the percent sign at byte {at} is not followed by two hex digits; a percent sign itself is %25");
        return Err(Problem::new(Code::BadEncoding, detail));
    }
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| Problem::new(Code::BadEncoding, "the decoded text is not UTF-8"))
}

/// Parameters that may be given several times.
const REPEATED: &[&str] = &["regex"];

/// The parameters of a query string; each may be taken once, and what is left over is refused.
#[derive(Debug, Clone)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes the query string: percent-encoding, and `+` as a space.
    ///
    /// # Errors
    /// When it is too long, badly encoded, or names a parameter twice.
    pub(super) fn parse(query: Option<&str>) -> Result<Self, Problem> {
        let query = query.unwrap_or_default();
        if query.len() > MAX_QUERY_BYTES {
            let detail = format!("the query has {} bytes, the limit is {MAX_QUERY_BYTES}", query.len());
            return Err(Problem::new(Code::QueryTooLong, detail));
        }
        let mut pairs: Vec<(String, String)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(&name.replace('+', " "))?;
            if !REPEATED.contains(&name.as_str()) && pairs.iter().any(|(other, _)| *other == name) {
                return Err(Problem::new(Code::BadRequest, format!("the parameter {name:?} is given twice")));
            }
            pairs.push((name, decode(&value.replace('+', " "))?));
        }
        Ok(Self(pairs))
    }

    /// A parameter, left where it is.
    pub(super) fn peek(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// Takes a parameter out.
    pub(super) fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(other, _)| other == name)?;
        Some(self.0.swap_remove(at).1)
    }

    /// Takes all values of a parameter that may be repeated, in their order.
    pub(super) fn take_all(&mut self, name: &str) -> Vec<String> {
        let (taken, left) = std::mem::take(&mut self.0).into_iter().partition(|(other, _)| other == name);
        self.0 = left;
        let taken: Vec<(String, String)> = taken;
        taken.into_iter().map(|(_, value)| value).collect()
    }

    /// Takes a parameter that must be there.
    ///
    /// # Errors
    /// When it is not.
    pub(super) fn need(&mut self, name: &str) -> Result<String, Problem> {
        self.take(name).ok_or_else(|| Problem::new(Code::BadRequest, format!("the parameter {name:?} is missing")))
    }

    /// Takes a whole number within bounds.
    ///
    /// # Errors
    /// When it is none, or out of bounds.
    pub(super) fn take_number(&mut self, name: &str, bounds: std::ops::RangeInclusive<u64>) -> Result<Option<u64>, Problem> {
        let Some(text) = self.take(name) else { return Ok(None) };
        match text.parse() {
            Ok(number) if bounds.contains(&number) => Ok(Some(number)),
            _ => {
                let detail = format!("{name}={text:?}: a whole number from {} to {} is needed", bounds.start(), bounds.end());
                Err(Problem::new(Code::BadRequest, detail))
            }
        }
    }

    /// Takes one of the words that the parameter may be.
    ///
    /// # Errors
    /// When it is another.
    pub(super) fn take_word<T: Copy>(&mut self, name: &str, words: &[(&str, T)]) -> Result<Option<T>, Problem> {
        let Some(text) = self.take(name) else { return Ok(None) };
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Ok(Some(*value));
        }
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        Err(Problem::new(Code::BadRequest, format!("{name}={text:?}: one of {} is needed", known.join(", "))))
    }

    /// Takes `true` or `false`; absent is `false`.
    ///
    /// # Errors
    /// When it is another word.
    pub(super) fn take_flag(&mut self, name: &str) -> Result<bool, Problem> {
        Ok(self.take_word(name, &[("true", true), ("false", false), ("1", true), ("0", false)])?.unwrap_or(false))
    }

    /// Makes sure that nothing is left over.
    ///
    /// # Errors
    /// Names a parameter that the route does not know.
    pub(super) fn finish(self) -> Result<(), Problem> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => Err(Problem::new(Code::BadRequest, format!("unknown parameter {name:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_of(path: &str) -> Result<String, Code> {
        match Route::find(&Method::GET, &format!("/v1/databases/d/keys/{path}")).map_err(|problem| problem.code)? {
            Route::Key(_, KeyMethod::Get, Some(text)) => Ok(text),
            other => panic!("{other:?}"),
        }
    }

    quickcheck::quickcheck! {
        fn no_path_and_no_query_makes_it_panic(path: String, query: String) -> bool {
            for path in [path.clone(), format!("/v1/databases/{path}"), format!("/v1/databases/d/keys/{path}")] {
                for method in [Method::GET, Method::PUT, Method::POST, Method::OPTIONS] {
                    let _ = Route::find(&method, &path);
                }
            }
            let _ = Query::parse(Some(&query));
            true
        }

        fn whatever_is_encoded_is_decoded_to_the_same(key: String) -> bool {
            let sent: Vec<String> = key.bytes().map(|byte| format!("%{byte:02X}")).collect();
            decode(&sent.concat()).is_ok_and(|decoded| decoded == key)
        }
    }

    #[test]
    fn k07_the_path_is_decoded_once_and_never_cleaned() {
        for (sent, key) in [
            ("a%2Fb", "a/b"),
            ("a//b", "a//b"),
            ("/a", "/a"),
            ("a/", "a/"),
            ("a%23b", "a#b"),
            ("a%3Fb", "a?b"),
            ("a%25b", "a%b"),
            ("a%252Fb", "a%2Fb"),
            ("a+b", "a+b"),
            ("a%20b", "a b"),
            ("a;b", "a;b"),
            ("a..b", "a..b"),
            ("..", ".."),
            ("%C3%A9", "é"),
            ("", ""),
        ] {
            assert_eq!(key_of(sent), Ok(key.to_owned()), "{sent}");
        }
        for bad in ["a%b", "a%", "%zz", "%FF"] {
            assert_eq!(key_of(bad), Err(Code::BadEncoding), "{bad}");
        }
    }

    #[test]
    fn unknown_paths_and_methods_are_told_apart() {
        let code = |method: Method, path| Route::find(&method, path).unwrap_err().code;
        for path in ["/", "/v1", "/v1/", "//v1/status", "/v1/databases/", "/v1/databases/d/", "/v1/databases/d/nope"] {
            let code = code(Method::GET, path);
            assert!(matches!(code, Code::RouteNotFound | Code::BadDatabaseName), "{path} {code:?}");
        }
        assert_eq!(code(Method::POST, "/v1/status"), Code::MethodNotAllowed);
        assert_eq!(code(Method::GET, "/v1/databases/d/batch"), Code::MethodNotAllowed);
        assert_eq!(code(Method::POST, "/v1/databases/d/keys/a"), Code::MethodNotAllowed);
        assert_eq!(code(Method::GET, "/v1/databases/a%2Fb"), Code::BadDatabaseName);
    }

    #[test]
    fn queries_are_decoded_and_taken_whole() {
        let mut query = Query::parse(Some("key=a%2Bb+c%26&limit=5&x")).unwrap();
        assert_eq!(query.take("key").as_deref(), Some("a+b c&"));
        assert_eq!(query.take_number("limit", 1..=5).unwrap(), Some(5));
        assert!(query.finish().unwrap_err().detail.contains("\"x\""));
        let twice = Query::parse(Some("a=1&a=2")).unwrap_err();
        assert_eq!(twice.code, Code::BadRequest);
        let long = Query::parse(Some(&"a".repeat(MAX_QUERY_BYTES + 1))).unwrap_err();
        assert_eq!((long.status, long.limit), (414, Some(MAX_QUERY_BYTES)));
        let mut query = Query::parse(Some("limit=-1")).unwrap();
        assert!(query.take_number("limit", 1..=5).unwrap_err().detail.contains("from 1 to 5"));
    }
}
