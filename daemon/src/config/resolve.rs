//! Configuration as run: checked, with its defaults; all faults are reported at once.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use kvdb::{
    DatabaseName, Durability, HistoryOptions, LossPolicy, Multiaddr, NetworkKey, NetworkOptions, NodeOptions, PeerId,
    StoreOptions,
};
use thiserror::Error;
use tracing_subscriber::EnvFilter;

use super::fleet::FleetConfig;
use super::raw::{Raw, RawHistory, RawHttp, RawP2p, RawStore, RawToken};
use crate::limits::{MAX_HISTORY_HOLDERS, MAX_HISTORY_SECONDS, MAX_SIZE_MIB, MIN_TOKEN_BYTES, REBROADCAST_SECONDS};
use kvdb::limits::MAX_SHARDS;

const DEFAULT_HTTP: &str = "127.0.0.1:7070";
const DEFAULT_TCP: &str = "/ip4/0.0.0.0/tcp/7071";
const DEFAULT_QUIC: &str = "/ip4/0.0.0.0/udp/7071/quic-v1";

/// What a node runs with.
#[derive(Debug, Clone)]
pub struct Config {
    /// The node.
    pub node: NodeOptions,
    /// Databases to open at the start.
    pub databases: Vec<DatabaseName>,
    /// The log filter.
    pub log: String,
    /// The HTTP interface.
    pub http: HttpConfig,
    /// The fleet that the node is a member of.
    pub fleet: Option<FleetConfig>,
}

/// The HTTP interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// Its address.
    pub listen: SocketAddr,
    /// Its tokens; without any, it is open, and on loopback.
    pub tokens: Vec<Token>,
}

/// A bearer token.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The secret.
    pub secret: String,
    /// What it allows.
    pub scopes: BTreeSet<Scope>,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(.., {:?})", self.scopes)
    }
}

/// What a token may allow; none includes another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Read keys, listings, figures.
    Read,
    /// Put, delete, batch.
    Write,
    /// Make databases, dial peers.
    Admin,
}

/// One thing wrong with the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{key} = {value}: {problem}")]
pub struct Fault {
    /// The key, as in the file.
    pub key: &'static str,
    /// The value, or what stands for a secret one.
    pub value: String,
    /// What is wrong, and what would be right.
    pub problem: String,
}

/// Everything that is wrong with the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub struct ConfigError(pub Vec<Fault>);

impl Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&faults.join("; "))
    }
}

#[derive(Default)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    pub(super) fn add(&mut self, key: &'static str, value: impl Display, problem: impl Display) {
        self.0.push(Fault { key, value: value.to_string(), problem: problem.to_string() });
    }

    fn parse<T: FromStr>(&mut self, key: &'static str, text: &str, wanted: &str) -> Option<T>
    where
        T::Err: Display,
    {
        text.parse().map_err(|error: T::Err| self.add(key, format!("{text:?}"), format!("{wanted} ({error})"))).ok()
    }

    pub(super) fn parse_all<T: FromStr>(&mut self, key: &'static str, texts: &[String], wanted: &str) -> Vec<T>
    where
        T::Err: Display,
    {
        texts.iter().filter_map(|text| self.parse(key, text, wanted)).collect()
    }

    pub(super) fn within(&mut self, key: &'static str, number: Option<u64>, default: u64, (low, high): (u64, u64)) -> u64 {
        let number = number.unwrap_or(default);
        if !(low..=high).contains(&number) {
            self.add(key, number, format!("must be from {low} to {high}"));
        }
        number
    }
}

impl Config {
    /// Checks the layers' sum.
    ///
    /// # Errors
    /// Every fault, each with its key, value and bounds.
    pub fn resolve(raw: Raw) -> Result<Self, ConfigError> {
        let mut faults = Faults::default();
        let data_dir = raw.data_dir.unwrap_or_default();
        if data_dir.as_os_str().is_empty() {
            faults.add("data_dir", "\"\"", "not set: give --data-dir, KVDB_DATA_DIR, or data_dir in the file");
        }
        let databases = raw.databases.unwrap_or_else(|| vec!["default".into()]);
        let databases: BTreeSet<DatabaseName> =
            faults.parse_all("databases", &databases, "not a database name").into_iter().collect();
        let durability = match raw.durability.as_deref() {
            None | Some("sync") => Durability::Sync,
            Some("buffered") => Durability::Buffered,
            Some(other) => {
                faults.add("durability", format!("{other:?}"), "must be \"sync\" or \"buffered\"");
                Durability::Sync
            }
        };
        let log = raw.log.unwrap_or_else(|| "info".into());
        if let Err(error) = EnvFilter::try_new(&log) {
            faults.add("log", format!("{log:?}"), format!("not a log filter ({error})"));
        }
        let http = http(raw.http, &mut faults);
        let fleet = FleetConfig::resolve(&raw.fleet, &mut faults);
        let mut network = network(raw.p2p, &mut faults);
        if let Some(fleet) = &fleet {
            admit_members(fleet, network.as_mut(), &mut faults);
        }
        let store = store(&raw.store, &mut faults);
        let directories = raw.store.directories.unwrap_or_default();
        if directories.len() >= MAX_SHARDS {
            faults.add("store.directories", directories.len(), format!("at most {} besides data_dir", MAX_SHARDS - 1));
        }
        for (at, directory) in directories.iter().enumerate() {
            if directory.as_os_str().is_empty()
                || *directory == data_dir
                || directories.iter().take(at).any(|other| other == directory)
            {
                faults.add(
                    "store.directories",
                    directory.display(),
                    "empty, or given twice; data_dir is one of the directories anyway",
                );
            }
        }
        let history = history(&raw.history, &mut faults);
        let expiry_grace = expiry_grace(raw.expiry_grace_seconds, &mut faults);
        if !faults.0.is_empty() {
            return Err(ConfigError(faults.0));
        }
        let node = NodeOptions { directories, store, network, durability, history, expiry_grace, ..NodeOptions::new(data_dir) };
        Ok(Self { node, databases: databases.into_iter().collect(), log, http, fleet })
    }
}

fn http(raw: RawHttp, faults: &mut Faults) -> HttpConfig {
    let text = raw.listen.unwrap_or_else(|| DEFAULT_HTTP.into());
    let listen = faults.parse("http.listen", &text, "must be an IP address and a port, such as 127.0.0.1:7070");
    let listen = listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
    let mut tokens: Vec<Token> = Vec::new();
    for RawToken { token: secret, scopes: words } in raw.tokens.unwrap_or_default() {
        let visible = secret.bytes().all(|byte| byte.is_ascii_graphic());
        if secret.len() < MIN_TOKEN_BYTES || !visible {
            let wanted =
                format!("a token has at least {MIN_TOKEN_BYTES} bytes, all visible ASCII; this one has {}", secret.len());
            faults.add("http.tokens", "(hidden)", wanted);
        }
        if tokens.iter().any(|other| other.secret == secret) {
            faults.add("http.tokens", "(hidden)", "the same token is given twice");
        }
        let mut scopes = BTreeSet::new();
        for word in &words {
            match word.as_str() {
                "read" => _ = scopes.insert(Scope::Read),
                "write" => _ = scopes.insert(Scope::Write),
                "admin" => _ = scopes.insert(Scope::Admin),
                other => faults.add("http.tokens", format!("{other:?}"), "a scope is read, write or admin"),
            }
        }
        if words.is_empty() {
            faults.add("http.tokens", "[]", "a token needs at least one scope out of read, write, admin");
        }
        tokens.push(Token { secret, scopes });
    }
    if tokens.is_empty() && !listen.ip().is_loopback() {
        faults.add("http.listen", listen, "an address other than loopback needs http.tokens");
    }
    HttpConfig { listen, tokens }
}

fn network(raw: RawP2p, faults: &mut Faults) -> Option<NetworkOptions> {
    let network_key = network_key(raw.network_key, raw.network_key_file.as_deref(), faults);
    let default = || vec![DEFAULT_TCP.to_owned(), DEFAULT_QUIC.to_owned()];
    let listen: Vec<Multiaddr> =
        faults.parse_all("p2p.listen", &raw.listen.unwrap_or_else(default), "must be a multiaddr such as /ip4/0.0.0.0/tcp/7071");
    let bootstrap = faults.parse_all(
        "p2p.bootstrap",
        &raw.bootstrap.unwrap_or_default(),
        "must be a multiaddr such as /ip4/10.0.0.2/tcp/7071",
    );
    let allow = raw.allow.map(|peers| faults.parse_all::<PeerId>("p2p.allow", &peers, "must be a peer id").into_iter().collect());
    let seconds = faults.within("p2p.rebroadcast_seconds", raw.rebroadcast_seconds, 10, REBROADCAST_SECONDS);
    let rebroadcast_interval = Duration::from_secs(seconds);
    let enabled = raw.enabled.unwrap_or(true);
    let mdns = raw.mdns.unwrap_or(false);
    enabled.then(|| NetworkOptions { listen, bootstrap, network_key, allow, mdns, rebroadcast_interval })
}

/// Whoever is let in can write the fleet's own records: unless the operator says otherwise these are its members only.
fn admit_members(fleet: &FleetConfig, network: Option<&mut NetworkOptions>, faults: &mut Faults) {
    let members = &fleet.options.members;
    match network {
        None => faults.add("p2p.enabled", false, "a fleet needs the network"),
        Some(NetworkOptions { allow: Some(allow), .. }) => {
            for peer in members.iter().filter(|peer| !allow.contains(*peer)) {
                faults.add("p2p.allow", peer, "is among fleet.members and is missing here");
            }
        }
        // A fleet of one lets nobody in; its own id is not known yet, and is not needed.
        Some(network) => network.allow = Some(members.iter().copied().collect()),
    }
}

fn network_key(key: Option<String>, file: Option<&Path>, faults: &mut Faults) -> Option<NetworkKey> {
    let text = match (key, file) {
        (None, None) => return None,
        (Some(_), Some(file)) => {
            faults.add("p2p.network_key_file", file.display(), "p2p.network_key is set too; one of them is enough");
            return None;
        }
        (Some(key), None) => key,
        (None, Some(file)) => match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) => {
                faults.add("p2p.network_key_file", file.display(), format!("cannot be read ({error})"));
                return None;
            }
        },
    };
    let name = if file.is_some() { "p2p.network_key_file" } else { "p2p.network_key" };
    NetworkKey::from_hex(text.trim()).map_err(|error| faults.add(name, "(hidden)", error)).ok()
}

fn store(raw: &RawStore, faults: &mut Faults) -> StoreOptions {
    let mut bytes = |key, mib: Option<u64>, default| faults.within(key, mib, default, (1, MAX_SIZE_MIB)).saturating_mul(1 << 20);
    let block_cache = bytes("store.block_cache_mib", raw.block_cache_mib, 64);
    let write_buffer = bytes("store.write_buffer_mib", raw.write_buffer_mib, 128);
    let max_wal_bytes = bytes("store.max_wal_mib", raw.max_wal_mib, 64);
    StoreOptions {
        block_cache_bytes: usize::try_from(block_cache).unwrap_or(usize::MAX),
        write_buffer_bytes: usize::try_from(write_buffer).unwrap_or(usize::MAX),
        max_wal_bytes,
        loss: if raw.accept_loss == Some(true) { LossPolicy::Accept } else { LossPolicy::Refuse },
    }
}

fn expiry_grace(seconds: Option<u64>, faults: &mut Faults) -> Duration {
    let usual = kvdb::limits::EXPIRY_GRACE.as_secs();
    Duration::from_secs(faults.within("expiry_grace_seconds", seconds, usual, (0, MAX_HISTORY_SECONDS)))
}

fn history(raw: &RawHistory, faults: &mut Faults) -> HistoryOptions {
    let usual = HistoryOptions::default();
    let holders = faults.within("history.holders", raw.holders, usual.holders as u64, (0, MAX_HISTORY_HOLDERS));
    let min_age =
        faults.within("history.min_age_seconds", raw.min_age_seconds, usual.min_age.as_secs(), (0, MAX_HISTORY_SECONDS));
    let seconds = usual.interval.map_or(0, |interval| interval.as_secs());
    let interval = faults.within("history.interval_seconds", raw.interval_seconds, seconds, (0, MAX_HISTORY_SECONDS));
    let hard = faults.within("history.hard_mib", raw.hard_mib, usual.hard_bytes >> 20, (1, MAX_SIZE_MIB));
    let max = raw.max_mib.map(|mib| faults.within("history.max_mib", Some(mib), 0, (0, hard)));
    HistoryOptions {
        holders: usize::try_from(holders).unwrap_or(usize::MAX),
        min_age: Duration::from_secs(min_age),
        max_bytes: max.map(|mib| mib.saturating_mul(1 << 20)),
        hard_bytes: hard.saturating_mul(1 << 20),
        interval: (interval > 0).then(|| Duration::from_secs(interval)),
    }
}

/// The data directory of a configuration file that `kvdb init` would write there.
pub(crate) fn default_file(data_dir: &Path) -> PathBuf {
    data_dir.join("kvdb.toml")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<Fault> {
        Config::resolve(toml::from_str(text).unwrap()).err().map(|error| error.0).unwrap_or_default()
    }

    #[test]
    fn r08_all_faults_come_at_once_each_with_key_value_and_bounds() {
        let found = faults(
            r#"
            databases = ["ok", ".bad"]
            durability = "maybe"
            [http]
            listen = "localhost:7070"
            [p2p]
            listen = ["127.0.0.1:7071"]
            allow = ["nobody"]
            rebroadcast_seconds = 0
            network_key = "12"
            [store]
            block_cache_mib = 0
            max_wal_mib = 99999999999
            [history]
            holders = 1000
            max_mib = 20000
            [fleet]
            members = ["nobody"]
            holders = 6
            suspect_ms = 900
            quiet_ms = 86400001
            "#,
        );
        let keys: Vec<&str> = found.iter().map(|fault| fault.key).collect();
        let expected = [
            "data_dir",
            "databases",
            "durability",
            "http.listen",
            "fleet.members",
            "fleet.holders",
            "fleet.suspect_ms",
            "fleet.quiet_ms",
            "p2p.network_key",
            "p2p.listen",
            "p2p.allow",
            "p2p.rebroadcast_seconds",
            "store.block_cache_mib",
            "store.max_wal_mib",
            "history.holders",
            "history.max_mib",
        ];
        assert_eq!(keys, expected);
        let text = ConfigError(found).to_string();
        assert!(text.contains("p2p.rebroadcast_seconds = 0: must be from 1 to 3600"), "{text}");
        assert!(text.contains("store.block_cache_mib = 0: must be from 1 to 1048576"), "{text}");
        assert!(!text.contains("\"12\""), "a network key is never shown");
    }

    #[test]
    fn x10_only_loopback_is_open_without_tokens_and_bad_tokens_stop_the_start() {
        let open = "data_dir = \"d\"\n[http]\nlisten = \"0.0.0.0:7070\"\n";
        assert!(faults(open)[0].problem.contains("http.tokens"));
        let with = |token: &str, scopes: &str| faults(&format!("{open}[[http.tokens]]\ntoken = {token:?}\nscopes = {scopes}\n"));
        assert!(with("sixteen-bytes-at-least", "[\"read\"]").is_empty());
        for (token, scopes) in [
            ("", "[\"read\"]"),
            ("short", "[\"read\"]"),
            ("sixteen-bytes-at-least", "[]"),
            ("sixteen-bytes-at-least", "[\"all\"]"),
        ] {
            let found = with(token, scopes);
            assert!(!found.is_empty(), "{token} {scopes}");
            assert!(found.iter().all(|fault| fault.key == "http.tokens" && !fault.to_string().contains("short")));
        }
    }

    const MEMBERS: [&str; 2] =
        ["12D3KooWGzBAoAtC4QRaWwqWnLkBqhEmjrmMbPpKUHDVSGgVFLjR", "12D3KooWPjceQrSwdWXPyLLeABRXmuqt69Rg3sBYbU1Nft9HyQ6X"];

    #[test]
    fn only_members_are_let_in_unless_more_are_named_and_half_a_fleet_is_refused() {
        let fleet = |p2p: &str, fleet: &str| {
            let text = format!("data_dir = \"d\"\n[p2p]\n{p2p}\n[fleet]\n{fleet}\n");
            Config::resolve(toml::from_str(&text).unwrap())
        };
        let members = format!("members = {MEMBERS:?}");
        let config = fleet("", &members).unwrap();
        let allow = config.node.network.unwrap().allow.unwrap();
        assert_eq!(allow.len(), 2);
        assert_eq!(config.fleet.map(|fleet| (fleet.holders, fleet.options.members.len())), Some((2, 2)));
        let single = fleet("", "single = true").unwrap();
        assert_eq!(single.fleet.map(|fleet| fleet.holders), Some(1));
        assert_eq!(single.node.network.unwrap().allow.map(|allow| allow.len()), Some(0));
        assert_eq!(fleet("", "members = []").unwrap().fleet, None);
        for (p2p, text, key) in [
            ("enabled = false", members.clone(), "p2p.enabled"),
            (&format!("allow = [{:?}]", MEMBERS[0]), members.clone(), "p2p.allow"),
            ("", "holders = 2".to_owned(), "fleet.members"),
            ("", "single = true\nholders = 2".to_owned(), "fleet.holders"),
            ("", format!("{members}\nsingle = true"), "fleet.single"),
            ("", format!("{members}\nholders = 3"), "fleet.holders"),
            ("", format!("{members}\ndead_ms = 3000"), "fleet.dead_ms"),
        ] {
            let faults = fleet(p2p, &text).unwrap_err().0;
            assert!(faults.iter().any(|fault| fault.key == key), "{p2p} {text}: {faults:?}");
        }
    }

    #[test]
    fn replication_can_be_turned_off() {
        let config = Config::resolve(toml::from_str("data_dir = \"d\"\n[p2p]\nenabled = false\n").unwrap()).unwrap();
        assert!(config.node.network.is_none());
    }
}
