//! Configuration as written: every key optional, nothing checked but its type.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;

/// One layer of configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Raw {
    /// Where the data are.
    pub data_dir: Option<PathBuf>,
    /// Databases to open at the start.
    pub databases: Option<Vec<String>>,
    /// Default durability.
    pub durability: Option<String>,
    /// How long after its time an expired value is deleted.
    pub expiry_grace_seconds: Option<u64>,
    /// Log filter.
    pub log: Option<String>,
    /// HTTP.
    pub http: RawHttp,
    /// Replication.
    pub p2p: RawP2p,
    /// Storage.
    pub store: RawStore,
    /// History.
    pub history: RawHistory,
    /// The fleet.
    pub fleet: RawFleet,
}

/// The HTTP part.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawHttp {
    /// Address.
    pub listen: Option<String>,
    /// Tokens.
    pub tokens: Option<Vec<RawToken>>,
}

/// One token.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawToken {
    /// The secret.
    pub token: String,
    /// What it allows.
    pub scopes: Vec<String>,
}

impl std::fmt::Debug for RawToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RawToken(.., {:?})", self.scopes)
    }
}

/// The replication part.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawP2p {
    /// Whether to replicate at all.
    pub enabled: Option<bool>,
    /// Addresses to listen on.
    pub listen: Option<Vec<String>>,
    /// Addresses to dial.
    pub bootstrap: Option<Vec<String>>,
    /// The pre-shared key in hex.
    pub network_key: Option<String>,
    /// A file with the pre-shared key in hex.
    pub network_key_file: Option<PathBuf>,
    /// The allowed peers.
    pub allow: Option<Vec<String>>,
    /// Whether to find nodes of the local network.
    pub mdns: Option<bool>,
    /// Seconds between announcements.
    pub rebroadcast_seconds: Option<u64>,
}

impl std::fmt::Debug for RawP2p {
    // Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawP2p").field("listen", &self.listen).field("bootstrap", &self.bootstrap).finish_non_exhaustive()
    }
}

/// The storage part.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawStore {
    /// Further data directories.
    pub directories: Option<Vec<PathBuf>>,
    /// Block cache.
    pub block_cache_mib: Option<u64>,
    /// Write buffers.
    pub write_buffer_mib: Option<u64>,
    /// Write-ahead log.
    pub max_wal_mib: Option<u64>,
    /// Whether to open a damaged store.
    pub accept_loss: Option<bool>,
}

/// The part about history.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawHistory {
    /// Other nodes that must have a block.
    pub holders: Option<u64>,
    /// Age that is kept.
    pub min_age_seconds: Option<u64>,
    /// Size that is kept.
    pub max_mib: Option<u64>,
    /// Size at which writes are refused.
    pub hard_mib: Option<u64>,
    /// How often it is looked at; 0 for never.
    pub interval_seconds: Option<u64>,
}

/// The part about the fleet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawFleet {
    /// The peer ids of all members.
    pub members: Option<Vec<String>>,
    /// Whether this node is a fleet of its own.
    pub single: Option<bool>,
    /// Holders of a database that names no number.
    pub holders: Option<u64>,
    /// This node's weight in placement.
    pub capacity: Option<u64>,
    /// How long a call waits that names no time.
    pub deadline_ms: Option<u64>,
    /// Time between heartbeats.
    pub beat_ms: Option<u64>,
    /// Silence after which a member is probed.
    pub suspect_ms: Option<u64>,
    /// Silence after which a member is dead.
    pub dead_ms: Option<u64>,
    /// Time after the start in which nothing is moved.
    pub settle_ms: Option<u64>,
    /// Time for which a holder that is no longer wanted goes on, unused.
    pub quiet_ms: Option<u64>,
    /// Time after which the claim of a member that is gone may be removed.
    pub dead_claim_seconds: Option<u64>,
}

/// What `kvdb run` takes from flags and environment.
#[derive(Clone, Default, Args)]
#[command(next_help_heading = "Configuration (each also as a key of the file)")]
pub struct RunFlags {
    /// Where the data and the node's identity are
    #[arg(long, env = "KVDB_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Databases to open at the start, separated by commas
    #[arg(long, env = "KVDB_DATABASES", value_delimiter = ',')]
    databases: Option<Vec<String>>,
    /// When a write is answered: sync or buffered
    #[arg(long, env = "KVDB_DURABILITY")]
    durability: Option<String>,
    /// How long after its time an expired value, which nobody sees any more, is deleted
    #[arg(long, env = "KVDB_EXPIRY_GRACE_SECONDS")]
    expiry_grace_seconds: Option<u64>,
    /// Log filter
    #[arg(long, env = "KVDB_LOG")]
    log: Option<String>,
    /// Address of the HTTP interface
    #[arg(long, env = "KVDB_HTTP_LISTEN", value_name = "IP:PORT")]
    http_listen: Option<String>,
    /// HTTP tokens, separated by commas: `read+write=SECRET`; other users of the machine see flags, so prefer the variable
    #[arg(long, env = "KVDB_HTTP_TOKENS", value_delimiter = ',', hide_env_values = true, value_name = "SCOPES=SECRET")]
    http_tokens: Option<Vec<String>>,
    /// Whether to replicate at all
    #[arg(long, env = "KVDB_P2P_ENABLED", value_name = "true|false")]
    p2p_enabled: Option<bool>,
    /// Addresses to listen on for other nodes, separated by commas
    #[arg(long, env = "KVDB_P2P_LISTEN", value_delimiter = ',', value_name = "MULTIADDR")]
    p2p_listen: Option<Vec<String>>,
    /// Nodes to connect to, separated by commas
    #[arg(long, env = "KVDB_P2P_BOOTSTRAP", value_delimiter = ',', value_name = "MULTIADDR")]
    p2p_bootstrap: Option<Vec<String>>,
    /// The network key in hex; other users of the machine see flags, so prefer the file
    #[arg(long, env = "KVDB_P2P_NETWORK_KEY", hide_env_values = true, value_name = "HEX")]
    p2p_network_key: Option<String>,
    /// A file with the network key
    #[arg(long, env = "KVDB_P2P_NETWORK_KEY_FILE", value_name = "FILE")]
    p2p_network_key_file: Option<PathBuf>,
    /// Only these peers connect, separated by commas
    #[arg(long, env = "KVDB_P2P_ALLOW", value_delimiter = ',', value_name = "PEER_ID")]
    p2p_allow: Option<Vec<String>>,
    /// Whether to find nodes of the local network by mDNS, and to be found
    #[arg(long, env = "KVDB_P2P_MDNS", value_name = "true|false")]
    p2p_mdns: Option<bool>,
    /// Seconds between announcements
    #[arg(long, env = "KVDB_P2P_REBROADCAST_SECONDS", value_name = "SECONDS")]
    p2p_rebroadcast_seconds: Option<u64>,
    /// Further data directories on other disks, separated by commas
    #[arg(long, env = "KVDB_STORE_DIRECTORIES", value_delimiter = ',', value_name = "DIR")]
    store_directories: Option<Vec<PathBuf>>,
    /// Memory for recently read data
    #[arg(long, env = "KVDB_STORE_BLOCK_CACHE_MIB", value_name = "MIB")]
    store_block_cache_mib: Option<u64>,
    /// Memory for writes
    #[arg(long, env = "KVDB_STORE_WRITE_BUFFER_MIB", value_name = "MIB")]
    store_write_buffer_mib: Option<u64>,
    /// Write-ahead log before it is flushed
    #[arg(long, env = "KVDB_STORE_MAX_WAL_MIB", value_name = "MIB")]
    store_max_wal_mib: Option<u64>,
    /// Open a store whose log is damaged in the middle, losing what comes after
    #[arg(long, env = "KVDB_STORE_ACCEPT_LOSS", value_name = "true|false")]
    store_accept_loss: Option<bool>,
    /// Other nodes that must have a block before it is dropped here; 0 for a node that stays alone
    #[arg(long, env = "KVDB_HISTORY_HOLDERS", value_name = "NODES")]
    history_holders: Option<u64>,
    /// Age of history that is kept
    #[arg(long, env = "KVDB_HISTORY_MIN_AGE_SECONDS", value_name = "SECONDS")]
    history_min_age_seconds: Option<u64>,
    /// History that is kept at most, for each database
    #[arg(long, env = "KVDB_HISTORY_MAX_MIB", value_name = "MIB")]
    history_max_mib: Option<u64>,
    /// History that no other node has at which writes to the database are refused
    #[arg(long, env = "KVDB_HISTORY_HARD_MIB", value_name = "MIB")]
    history_hard_mib: Option<u64>,
    /// How often history is looked at; 0 for never
    #[arg(long, env = "KVDB_HISTORY_INTERVAL_SECONDS", value_name = "SECONDS")]
    history_interval_seconds: Option<u64>,
    #[command(flatten)]
    fleet: FleetFlags,
}

/// The part of [`RunFlags`] about the fleet.
#[derive(Clone, Default, Args)]
#[command(next_help_heading = "Fleet (each also as a key of the file)")]
struct FleetFlags {
    /// The peer ids of all members of the fleet, this node among them, separated by commas
    #[arg(
        long = "fleet-members",
        id = "fleet_members",
        env = "KVDB_FLEET_MEMBERS",
        value_delimiter = ',',
        value_name = "PEER_ID"
    )]
    members: Option<Vec<String>>,
    /// A fleet of this node alone: every database has one holder, and losing it loses them
    #[arg(long = "single", id = "fleet_single", env = "KVDB_FLEET_SINGLE", value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    single: Option<bool>,
    /// Holders of a database that names no number
    #[arg(long = "fleet-holders", id = "fleet_holders", env = "KVDB_FLEET_HOLDERS", value_name = "NODES")]
    holders: Option<u64>,
    /// This node's weight in placement
    #[arg(long = "fleet-capacity", id = "fleet_capacity", env = "KVDB_FLEET_CAPACITY", value_name = "WEIGHT")]
    capacity: Option<u64>,
    /// How long a call waits that names no time
    #[arg(long = "fleet-deadline-ms", id = "fleet_deadline_ms", env = "KVDB_FLEET_DEADLINE_MS", value_name = "MS")]
    deadline_ms: Option<u64>,
    /// Time between heartbeats
    #[arg(long = "fleet-beat-ms", id = "fleet_beat_ms", env = "KVDB_FLEET_BEAT_MS", value_name = "MS")]
    beat_ms: Option<u64>,
    /// Silence after which a member is probed
    #[arg(long = "fleet-suspect-ms", id = "fleet_suspect_ms", env = "KVDB_FLEET_SUSPECT_MS", value_name = "MS")]
    suspect_ms: Option<u64>,
    /// Silence after which a member is dead
    #[arg(long = "fleet-dead-ms", id = "fleet_dead_ms", env = "KVDB_FLEET_DEAD_MS", value_name = "MS")]
    dead_ms: Option<u64>,
    /// Time after the start in which no database moves
    #[arg(long = "fleet-settle-ms", id = "fleet_settle_ms", env = "KVDB_FLEET_SETTLE_MS", value_name = "MS")]
    settle_ms: Option<u64>,
    /// Time for which a holder that is no longer wanted goes on, unused
    #[arg(long = "fleet-quiet-ms", id = "fleet_quiet_ms", env = "KVDB_FLEET_QUIET_MS", value_name = "MS")]
    quiet_ms: Option<u64>,
    /// Time after which the claim of a member that is gone may be removed
    #[arg(
        long = "fleet-dead-claim-seconds",
        id = "fleet_dead_claim_seconds",
        env = "KVDB_FLEET_DEAD_CLAIM_SECONDS",
        value_name = "SECONDS"
    )]
    dead_claim_seconds: Option<u64>,
}

impl FleetFlags {
    fn into_raw(self) -> RawFleet {
        RawFleet {
            members: self.members.map(without_empty),
            single: self.single,
            holders: self.holders,
            capacity: self.capacity,
            deadline_ms: self.deadline_ms,
            beat_ms: self.beat_ms,
            suspect_ms: self.suspect_ms,
            dead_ms: self.dead_ms,
            settle_ms: self.settle_ms,
            quiet_ms: self.quiet_ms,
            dead_claim_seconds: self.dead_claim_seconds,
        }
    }
}

impl RawFleet {
    fn over(self, lower: Self) -> Self {
        Self {
            members: self.members.or(lower.members),
            single: self.single.or(lower.single),
            holders: self.holders.or(lower.holders),
            capacity: self.capacity.or(lower.capacity),
            deadline_ms: self.deadline_ms.or(lower.deadline_ms),
            beat_ms: self.beat_ms.or(lower.beat_ms),
            suspect_ms: self.suspect_ms.or(lower.suspect_ms),
            dead_ms: self.dead_ms.or(lower.dead_ms),
            settle_ms: self.settle_ms.or(lower.settle_ms),
            quiet_ms: self.quiet_ms.or(lower.quiet_ms),
            dead_claim_seconds: self.dead_claim_seconds.or(lower.dead_claim_seconds),
        }
    }
}

impl std::fmt::Debug for RunFlags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RunFlags(..)")
    }
}

impl RunFlags {
    /// The data directory, if given here.
    pub fn data_dir(&self) -> Option<&Path> {
        self.data_dir.as_deref()
    }

    /// These flags as a layer of configuration.
    pub fn into_raw(self) -> Raw {
        let token = |text: String| {
            let (scopes, token) = text.split_once('=').unwrap_or(("", &text));
            RawToken { token: token.to_owned(), scopes: scopes.split('+').map(str::to_owned).collect() }
        };
        Raw {
            data_dir: self.data_dir,
            databases: self.databases.map(without_empty),
            durability: self.durability,
            expiry_grace_seconds: self.expiry_grace_seconds,
            log: self.log,
            http: RawHttp {
                listen: self.http_listen,
                tokens: self.http_tokens.map(|tokens| without_empty(tokens).into_iter().map(token).collect()),
            },
            p2p: RawP2p {
                enabled: self.p2p_enabled,
                listen: self.p2p_listen.map(without_empty),
                bootstrap: self.p2p_bootstrap.map(without_empty),
                network_key: self.p2p_network_key,
                network_key_file: self.p2p_network_key_file,
                allow: self.p2p_allow.map(without_empty),
                mdns: self.p2p_mdns,
                rebroadcast_seconds: self.p2p_rebroadcast_seconds,
            },
            store: RawStore {
                directories: self
                    .store_directories
                    .map(|all| all.into_iter().filter(|dir| !dir.as_os_str().is_empty()).collect()),
                block_cache_mib: self.store_block_cache_mib,
                write_buffer_mib: self.store_write_buffer_mib,
                max_wal_mib: self.store_max_wal_mib,
                accept_loss: self.store_accept_loss,
            },
            history: RawHistory {
                holders: self.history_holders,
                min_age_seconds: self.history_min_age_seconds,
                max_mib: self.history_max_mib,
                hard_mib: self.history_hard_mib,
                interval_seconds: self.history_interval_seconds,
            },
            fleet: self.fleet.into_raw(),
        }
    }
}

/// An empty flag or variable is an empty list.
fn without_empty(list: Vec<String>) -> Vec<String> {
    list.into_iter().filter(|item| !item.is_empty()).collect()
}

impl Raw {
    /// Reads a file; relative paths in it count from its directory.
    ///
    /// # Errors
    /// One line: the file and what is wrong with it.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let base = path.parent().unwrap_or(Path::new(""));
        Self::parse(&text, base).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn parse(text: &str, base: &Path) -> Result<Self, String> {
        let mut raw: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| 1 + text.bytes().take(span.start).filter(|b| *b == b'\n').count());
            format!("line {line}: {}", error.message().replace('\n', " "))
        })?;
        let several = raw.store.directories.iter_mut().flatten();
        for path in [&mut raw.data_dir, &mut raw.p2p.network_key_file].into_iter().flatten().chain(several) {
            *path = base.join(&path);
        }
        Ok(raw)
    }

    /// This layer over a lower one: what is given here wins, lists as a whole.
    #[must_use]
    pub fn over(self, lower: Self) -> Self {
        // A key and a file with a key exclude each other, so the upper layer's choice replaces both.
        let keyed = self.p2p.network_key.is_some() || self.p2p.network_key_file.is_some();
        let (network_key, network_key_file) = if keyed {
            (self.p2p.network_key, self.p2p.network_key_file)
        } else {
            (lower.p2p.network_key, lower.p2p.network_key_file)
        };
        Self {
            data_dir: self.data_dir.or(lower.data_dir),
            databases: self.databases.or(lower.databases),
            durability: self.durability.or(lower.durability),
            expiry_grace_seconds: self.expiry_grace_seconds.or(lower.expiry_grace_seconds),
            log: self.log.or(lower.log),
            http: RawHttp { listen: self.http.listen.or(lower.http.listen), tokens: self.http.tokens.or(lower.http.tokens) },
            p2p: RawP2p {
                enabled: self.p2p.enabled.or(lower.p2p.enabled),
                listen: self.p2p.listen.or(lower.p2p.listen),
                bootstrap: self.p2p.bootstrap.or(lower.p2p.bootstrap),
                network_key,
                network_key_file,
                allow: self.p2p.allow.or(lower.p2p.allow),
                mdns: self.p2p.mdns.or(lower.p2p.mdns),
                rebroadcast_seconds: self.p2p.rebroadcast_seconds.or(lower.p2p.rebroadcast_seconds),
            },
            store: RawStore {
                directories: self.store.directories.or(lower.store.directories),
                block_cache_mib: self.store.block_cache_mib.or(lower.store.block_cache_mib),
                write_buffer_mib: self.store.write_buffer_mib.or(lower.store.write_buffer_mib),
                max_wal_mib: self.store.max_wal_mib.or(lower.store.max_wal_mib),
                accept_loss: self.store.accept_loss.or(lower.store.accept_loss),
            },
            history: RawHistory {
                holders: self.history.holders.or(lower.history.holders),
                min_age_seconds: self.history.min_age_seconds.or(lower.history.min_age_seconds),
                max_mib: self.history.max_mib.or(lower.history.max_mib),
                hard_mib: self.history.hard_mib.or(lower.history.hard_mib),
                interval_seconds: self.history.interval_seconds.or(lower.history.interval_seconds),
            },
            fleet: self.fleet.over(lower.fleet),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_its_faults_by_line_and_its_paths_count_from_it() {
        let error = Raw::parse("durability = \"sync\"\n[http]\nlissten = \"x\"\n", Path::new("/etc")).unwrap_err();
        assert!(error.starts_with("line 3: ") && error.contains("lissten"), "{error}");
        let error = Raw::parse("[store]\nblock_cache_mib = -1\n", Path::new("/etc")).unwrap_err();
        assert!(error.starts_with("line 2: "), "{error}");
        let raw = Raw::parse("data_dir = \"data\"\n", Path::new("/etc/kvdb")).unwrap();
        assert_eq!(raw.data_dir, Some(PathBuf::from("/etc/kvdb/data")));
    }

    quickcheck::quickcheck! {
        fn whatever_is_written_is_a_configuration_or_a_fault(at: usize, line: String, number: i64, cut: u16) -> bool {
            let template = super::super::template(Path::new("/var/lib/kvdb"));
            let mut lines: Vec<String> = template.lines().map(|line| line.trim_start_matches("# ").to_owned()).collect();
            let at = at % lines.len();
            let name = lines[at].split(" = ").next().unwrap_or_default().to_owned();
            lines[at] = if number % 3 == 0 { line.clone() } else { format!("{name} = {number}") };
            let mut text = lines.join("\n");
            let end = usize::from(cut) % (2 * text.len());
            text.truncate((0..=end.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0));
            for text in [text, line] {
                if let Ok(raw) = Raw::parse(&text, Path::new("/nowhere")) {
                    let _ = super::super::Config::resolve(raw);
                }
            }
            true
        }
    }

    #[test]
    fn the_upper_layer_wins_and_lists_are_replaced() {
        let lower = Raw::parse("log = \"warn\"\ndatabases = [\"a\"]\n[p2p]\nnetwork_key_file = \"k\"\n", Path::new("")).unwrap();
        let flags = RunFlags {
            databases: Some(vec!["b".into(), String::new()]),
            p2p_network_key: Some("00".into()),
            http_tokens: Some(vec!["read+write=secret=1".into()]),
            ..RunFlags::default()
        };
        let both = flags.into_raw().over(lower);
        assert_eq!((both.log.as_deref(), both.databases), (Some("warn"), Some(vec!["b".to_owned()])));
        assert_eq!((both.p2p.network_key.as_deref(), both.p2p.network_key_file), (Some("00"), None));
        let token = RawToken { token: "secret=1".into(), scopes: vec!["read".into(), "write".into()] };
        assert_eq!(both.http.tokens, Some(vec![token]));
    }

    #[test]
    fn the_template_says_the_defaults() {
        let template = super::super::template(Path::new("/var/lib/kv \"db\""));
        let raw = Raw::parse(&template, Path::new("/")).unwrap();
        assert_eq!(raw.data_dir, Some(PathBuf::from("/var/lib/kv \"db\"")));
        let written = super::super::Config::resolve(raw).unwrap();
        let bare = Raw { data_dir: Some(PathBuf::from("/var/lib/kv \"db\"")), ..Raw::default() };
        assert_eq!(format!("{written:?}"), format!("{:?}", super::super::Config::resolve(bare).unwrap()));
    }
}
