//! What a node's network is told.

use std::collections::BTreeSet;
use std::fmt;
use std::io::ErrorKind;
use std::net::{IpAddr, TcpListener};
use std::time::Duration;

use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use thiserror::Error;

use super::limits::{MAX_CONFIGURED_ADDRESSES, REBROADCAST_INTERVAL};

/// A pre-shared key that only the nodes of one network have. Covers TCP; with a key QUIC is off.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NetworkKey([u8; 32]);

impl NetworkKey {
    /// A key of these bytes; they should be random.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Reads 64 hex digits.
    ///
    /// # Errors
    /// When the text is anything else.
    pub fn from_hex(text: &str) -> Result<Self, NetworkError> {
        let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
        let digits = digits.filter(|digits| digits.len() == 64).ok_or(NetworkError::NetworkKey)?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = pair.iter().fold(0, |byte, digit| byte << 4 | digit);
        }
        Ok(Self(bytes))
    }

    pub(super) fn bytes(&self) -> [u8; 32] {
        self.0
    }
}

impl fmt::Debug for NetworkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NetworkKey(..)")
    }
}

/// How a node takes part in the network.
#[derive(Debug, Clone)]
pub struct NetworkOptions {
    /// Addresses to listen on; none: this node only dials. Default: TCP and QUIC on every interface, free ports.
    pub listen: Vec<Multiaddr>,
    /// Peers that are dialled at the start and again for ever whenever they are lost. `/p2p/…` at the end may be absent.
    pub bootstrap: Vec<Multiaddr>,
    /// The pre-shared key; all nodes of a network have the same. Default: none, everybody may connect.
    pub network_key: Option<NetworkKey>,
    /// The only peers that may connect. Default: none given, all may.
    pub allow: Option<BTreeSet<PeerId>>,
    /// Whether nodes of the local network are found, and this one is found, by mDNS. Whoever is in that network can then
    /// make this node dial; who may connect is another matter. Default: no.
    pub mdns: bool,
    /// Time between announcements of one database, ± 30 %: 100 ms to 1 h, default 10 s. Shorter finds lost messages
    /// sooner and costs one small message per database each time.
    pub rebroadcast_interval: Duration,
}

impl Default for NetworkOptions {
    fn default() -> Self {
        let any = |address: &str| address.parse::<Multiaddr>();
        Self {
            listen: [any("/ip4/0.0.0.0/tcp/0"), any("/ip4/0.0.0.0/udp/0/quic-v1")].into_iter().flatten().collect(),
            bootstrap: Vec::new(),
            network_key: None,
            allow: None,
            mdns: false,
            rebroadcast_interval: Duration::from_secs(10),
        }
    }
}

/// Why the network did not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// Not a network key.
    #[error("a network key is written as 64 hex digits")]
    NetworkKey,
    /// An interval out of bounds.
    #[error("rebroadcast_interval is {given:?}, allowed are {:?} to {:?}", REBROADCAST_INTERVAL.0, REBROADCAST_INTERVAL.1)]
    RebroadcastInterval {
        /// The interval given.
        given: Duration,
    },
    /// A list that is too long.
    #[error("{what} has {len} entries, the limit is {MAX_CONFIGURED_ADDRESSES}")]
    TooMany {
        /// The option.
        what: &'static str,
        /// Its length.
        len: usize,
    },
    /// The identity cannot be used: blocks and announcements are signed with ed25519.
    #[error("the node's identity is no ed25519 key")]
    Identity,
    /// The transports or protocols could not be set up.
    #[error("the network cannot be set up: {cause}")]
    Setup {
        /// The failure.
        cause: String,
    },
    /// Another program listens on a TCP port.
    #[error("cannot listen on {address}: another program has the port, it is in use")]
    PortTaken {
        /// The address.
        address: Multiaddr,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {cause}")]
    Listen {
        /// The address.
        address: Multiaddr,
        /// The failure.
        cause: String,
    },
}

impl NetworkOptions {
    /// The addresses that are listened on: a network key protects TCP only, so that with one QUIC is off.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = &Multiaddr> {
        self.listen.iter().filter(|address| self.network_key.is_none() || !is_quic(address))
    }

    /// # Errors
    /// When a value is out of its bounds, or another program has a TCP port.
    pub(crate) fn check(&self) -> Result<(), NetworkError> {
        let given = self.rebroadcast_interval;
        if !(REBROADCAST_INTERVAL.0..=REBROADCAST_INTERVAL.1).contains(&given) {
            return Err(NetworkError::RebroadcastInterval { given });
        }
        let allowed = self.allow.as_ref().map_or(0, BTreeSet::len);
        for (what, len) in [("listen", self.listen.len()), ("bootstrap", self.bootstrap.len()), ("allow", allowed)] {
            if len > MAX_CONFIGURED_ADDRESSES {
                return Err(NetworkError::TooMany { what, len });
            }
        }
        self.listen.iter().try_for_each(check_port)
    }
}

pub(super) fn is_quic(address: &Multiaddr) -> bool {
    address.iter().any(|part| matches!(part, Protocol::Quic | Protocol::QuicV1))
}

/// libp2p listens with `SO_REUSEPORT`, so that two programs would share a TCP port without noticing, each getting some of
/// the connections. A plain listener does not get a port that is taken.
fn check_port(address: &Multiaddr) -> Result<(), NetworkError> {
    let mut parts = address.iter();
    let ip: IpAddr = match parts.next() {
        Some(Protocol::Ip4(ip)) => ip.into(),
        Some(Protocol::Ip6(ip)) => ip.into(),
        _ => return Ok(()),
    };
    let Some(Protocol::Tcp(port)) = parts.next() else { return Ok(()) };
    match TcpListener::bind((ip, port)) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => Err(NetworkError::PortTaken { address: address.clone() }),
        // Whatever else is wrong with the address, listening on it tells.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r08_absurd_intervals_are_refused_with_the_limits() {
        for (millis, good) in [(0, false), (99, false), (100, true), (3_600_000, true), (3_600_001, false)] {
            let options = NetworkOptions { rebroadcast_interval: Duration::from_millis(millis), ..NetworkOptions::default() };
            assert_eq!(options.check().is_ok(), good, "{millis}");
        }
        let options = NetworkOptions { rebroadcast_interval: Duration::ZERO, ..NetworkOptions::default() };
        let message = options.check().unwrap_err().to_string();
        assert!(message.contains("100ms") && message.contains("3600s"), "{message}");
    }

    #[test]
    fn a_network_key_is_64_hex_digits_and_never_shown() {
        let key = NetworkKey::from_hex(&"0f".repeat(32)).unwrap();
        assert_eq!(key.bytes(), [0x0f; 32]);
        assert_eq!(format!("{key:?}"), "NetworkKey(..)");
        for bad in ["", "0f", &"0g".repeat(32), &"0f".repeat(33)] {
            assert!(NetworkKey::from_hex(bad).is_err(), "{bad}");
        }
    }
}
