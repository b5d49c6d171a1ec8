//! Who may ask: tokens with scopes, and on an open loopback address no web page.

use std::net::{IpAddr, SocketAddr};

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, header};

use crate::config::{HttpConfig, Scope, Token};
use crate::problem::{Code, Problem};

/// The rules of one HTTP interface.
pub(super) struct Guard {
    tokens: Vec<Token>,
    listen: SocketAddr,
}

impl Guard {
    pub(super) fn new(http: &HttpConfig) -> Self {
        Self { tokens: http.tokens.clone(), listen: http.listen }
    }

    /// Without tokens, refuses what a browser sends for a foreign page: a name that was rebound to this address, or a
    /// request across origins. With tokens a page cannot send the header.
    ///
    /// # Errors
    /// For a foreign `Host` or `Origin`.
    pub(super) fn check_source(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), Problem> {
        if !self.tokens.is_empty() {
            return Ok(());
        }
        let hosts = headers.get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or("?"));
        for host in hosts.chain(uri.authority().map(Authority::as_str)) {
            if !self.is_ours(host) {
                let detail = "without tokens only the hosts localhost, 127.0.0.1 and [::1] are answered";
                return Err(Problem::new(Code::HostRefused, detail));
            }
        }
        for origin in headers.get_all(header::ORIGIN) {
            let host = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map_or("?", |(_, host)| host);
            if !self.is_ours(host) {
                return Err(Problem::new(Code::OriginRefused, "without tokens only pages of this machine are answered"));
            }
        }
        Ok(())
    }

    fn is_ours(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        let name = authority.host();
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|ip| ip.is_loopback() || ip == self.listen.ip())
    }

    /// Checks the bearer token against the scope.
    ///
    /// # Errors
    /// When there are tokens and none that is known, or with the scope, was sent.
    pub(super) fn check_token(&self, headers: &HeaderMap, scope: Option<Scope>) -> Result<(), Problem> {
        let Some(scope) = scope else { return Ok(()) };
        if self.tokens.is_empty() {
            return Ok(());
        }
        let sent = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let sent = sent.and_then(|value| value.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let Some((_, secret)) = sent else {
            return Err(Problem::new(Code::Unauthorized, "an Authorization: Bearer header is needed"));
        };
        // Every token is compared, and in full, so that the time tells nothing.
        let mut known = None;
        for token in &self.tokens {
            if same(token.secret.as_bytes(), secret.trim().as_bytes()) {
                known = Some(token);
            }
        }
        match known {
            None => Err(Problem::new(Code::Unauthorized, "the token is not known")),
            Some(token) if !token.scopes.contains(&scope) => {
                Err(Problem::new(Code::Forbidden, format!("the token lacks the scope {scope:?}").to_lowercase()))
            }
            Some(_) => Ok(()),
        }
    }
}

fn same(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && left.iter().zip(right).fold(0, |difference, (l, r)| difference | (l ^ r)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn open() -> Guard {
        Guard::new(&HttpConfig { listen: "127.0.0.1:7070".parse().unwrap(), tokens: Vec::new() })
    }

    #[test]
    fn x10_without_tokens_a_rebound_name_or_a_foreign_page_is_refused() {
        let code = |pairs: &[(&str, &str)]| {
            open().check_source(&headers(pairs), &"/v1/status".parse().unwrap()).err().map(|problem| problem.code)
        };
        for good in ["localhost", "localhost:7070", "LOCALHOST", "127.0.0.1:1", "[::1]:7070"] {
            assert_eq!(code(&[("host", good)]), None, "{good}");
        }
        for bad in ["evil.example", "127.0.0.1.evil.example", "10.0.0.1", "localhost@evil.example:80", ""] {
            assert_eq!(code(&[("host", bad)]), Some(Code::HostRefused), "{bad}");
        }
        for (origin, refused) in [("http://localhost:3000", false), ("http://evil.example", true), ("null", true)] {
            let found = code(&[("host", "localhost"), ("origin", origin)]);
            assert_eq!(found, refused.then_some(Code::OriginRefused), "{origin}");
        }
        let absolute = "http://evil.example/v1/status".parse().unwrap();
        assert!(open().check_source(&HeaderMap::new(), &absolute).is_err());
    }

    #[test]
    fn x10_a_token_allows_its_scopes_only() {
        let token = Token { secret: "sixteen-bytes-at-least".into(), scopes: [Scope::Read].into() };
        let guard = Guard::new(&HttpConfig { listen: "0.0.0.0:1".parse().unwrap(), tokens: vec![token] });
        let code = |value: &str, scope| {
            guard.check_token(&headers(&[("authorization", value)]), Some(scope)).err().map(|problem| problem.code)
        };
        assert_eq!(code("Bearer sixteen-bytes-at-least", Scope::Read), None);
        assert_eq!(code("bearer sixteen-bytes-at-least", Scope::Write), Some(Code::Forbidden));
        assert_eq!(code("Bearer sixteen-bytes-at-leasT", Scope::Read), Some(Code::Unauthorized));
        assert_eq!(code("Basic sixteen-bytes-at-least", Scope::Read), Some(Code::Unauthorized));
        assert!(guard.check_token(&HeaderMap::new(), None).is_ok());
        assert!(guard.check_source(&headers(&[("host", "any.example")]), &"/".parse().unwrap()).is_ok());
    }
}
