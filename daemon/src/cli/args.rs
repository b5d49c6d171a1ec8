//! What the command line takes.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use kvdb::{DatabaseName, Dot};

use crate::config::RunFlags;

/// kvdb: a replicated key-value store for path-shaped keys
#[derive(Parser)]
#[command(
    name = "kvdb",
    version,
    after_help = "Exit codes: 0 done; 1 absent, or a condition does not hold; 2 bad input; 3 not reached, retry; 4 outcome unknown."
)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Subcommand)]
pub(super) enum Command {
    /// Make a node: data directory, identity, commented configuration
    Init(InitArgs),
    /// Run a node; flags win over KVDB_ variables, these over the file
    Run(Box<RunArgs>),
    /// Put a value: from the argument, a file, or standard input
    Put(PutArgs),
    /// Write a key's value to standard output, byte by byte
    Get(GetArgs),
    /// Delete a key
    Rm(RmArgs),
    /// List keys below a prefix
    #[command(after_help = LS_HELP)]
    Ls(LsArgs),
    /// Show changes as they come, one a line, until stopped
    #[command(after_help = WATCH_HELP)]
    Watch(WatchArgs),
    /// Write several ops, visible together: one JSON op a line
    #[command(after_help = BATCH_HELP)]
    Batch(BatchArgs),
    /// Show all values alive at a key, the winner first
    Siblings(SiblingsArgs),
    /// List keys with more than one value alive: concurrent writes that nobody has resolved yet
    Conflicts(ConflictsArgs),
    /// Show the node: addresses, databases, peers
    Status(ShowArgs),
    /// Show the peers, or connect to one
    Peers(PeersArgs),
    /// Drop history that no node needs any more, and give its space back
    Compact(CompactArgs),
    /// Back a running node up into a directory of its machine, or check the backups there
    #[command(after_help = BACKUP_HELP)]
    Backup(BackupArgs),
    /// Make data directories from a backup
    #[command(after_help = BACKUP_HELP)]
    Restore(RestoreArgs),
    /// Look at everything that is stored, and name what is damaged; exit code 1 if anything is
    Verify(VerifyArgs),
    /// Drop a database with all its data: on this node, or in its fleet
    Drop(DropArgs),
    /// Make, list, change, drop or move databases
    #[command(visible_alias = "database")]
    Db(DbArgs),
    /// Show all databases of the node, or of its fleet: open or closed, keys, digest, id
    Databases(ShowArgs),
    /// Show the members of the fleet, or declare one gone for good
    Members(MembersArgs),
    /// Show who should hold a database of the fleet, and who does
    Placement(PlacementArgs),
    /// Show which member claims which database
    Claims(ClaimsArgs),
    /// Let a member hold nothing any more: its databases move to others
    Drain(DrainArgs),
    /// Wait until the node has a write, or until several nodes have it on disk, and name these
    #[command(after_help = WAIT_HELP)]
    Wait(WaitArgs),
    /// Put what a file holds, one JSON record a line, as `kvdb export` writes it
    #[command(after_help = TRANSFER_HELP)]
    Import(ImportArgs),
    /// Write all keys and values below a prefix, one JSON record a line
    #[command(after_help = TRANSFER_HELP)]
    Export(ExportArgs),
}

const LS_HELP: &str = "\
A prefix is made of whole segments. With the keys /foo, /foo/1, /foobar, /foo-1:
  kvdb ls /foo     lists /foo/1        (not /foo itself, not /foobar, not /foo-1)
  kvdb ls /foo/    lists /foo/1
  kvdb ls /fo      lists nothing
  kvdb ls          lists all four, in byte order: /foo /foo-1 /foo/1 /foobar
  kvdb ls --delimiter   lists /foo /foo-1 /foo/ /foobar: what lies below /foo is folded into /foo/
The same rule holds for export.";

const WATCH_HELP: &str = "\
A line is `put KEY DOT` or `delete KEY`; after the listing of --list comes `listed`. The prefix is as for ls.
Several changes of one key may become one line. When the connection breaks off the watch goes on from where it was; if the
node no longer knows what happened since, it prints `reset` and lists again: forget what was shown before.
What has expired is shown as deleted only once something else changes the key.";

const BACKUP_HELP: &str = "\
A backup copies only files that the last one in the directory has not. It holds the node's identity, a secret. Restored data
directories are another copy: the node joins like one that was away, under an identity of its own unless --keep-identity.
  kvdb backup /backups && kvdb backup verify /backups
  kvdb restore /backups /var/lib/restored && kvdb run --data-dir /var/lib/restored --p2p-bootstrap ...";

const WAIT_HELP: &str = "\
Nodes are counted that are connected to this one, have the database open and say that they have the write on disk; this
one counts too. It is no promise about who keeps it, and no barrier of a fleet.";

const TRANSFER_HELP: &str = "\
A record is {\"key\": \"/a\", \"encoding\": \"utf8\" or \"base64\", \"value\": \"...\"}; an export ends with {\"end\": {\"count\": n}}.
A value that expires has \"expires_ms\", and is not imported once it has. An import writes: what it puts replaces what is there.
It may be repeated: it puts the same values again.";

const BATCH_HELP: &str = "\
An op is {\"put\": key, \"value\": text} or {\"delete\": key}. A put may have \"encoding\": \"base64\" and \"ttl_ms\": n; both may
have \"if_absent\": true, \"if_match\": dot, \"seen\": [dot, ...]. A condition that does not hold refuses all ops (exit code 1).";

#[derive(Args)]
pub(super) struct InitArgs {
    /// Where the data and the node's identity will be
    #[arg(long, env = "KVDB_DATA_DIR")]
    pub(super) data_dir: PathBuf,
    /// The configuration file to write [default: kvdb.toml in the data directory]
    #[arg(long, env = "KVDB_CONFIG")]
    pub(super) config: Option<PathBuf>,
}

#[derive(Args, Clone)]
pub(super) struct RunArgs {
    /// The configuration file [default: kvdb.toml in the data directory, if it is there]
    #[arg(long, env = "KVDB_CONFIG")]
    pub(super) config: Option<PathBuf>,
    #[command(flatten)]
    pub(super) flags: RunFlags,
}

/// Where the node is.
#[derive(Args)]
pub(super) struct ServerArgs {
    /// The node's HTTP address
    #[arg(long, env = "KVDB_SERVER", default_value = "http://127.0.0.1:7070", value_name = "URL")]
    pub(super) server: String,
    /// A token of the node; other users of the machine see flags, so prefer the variable
    #[arg(long, env = "KVDB_TOKEN", hide_env_values = true)]
    pub(super) token: Option<String>,
}

/// Where the database is.
#[derive(Args)]
pub(super) struct ClientArgs {
    #[command(flatten)]
    pub(super) server: ServerArgs,
    /// The database
    #[arg(long, env = "KVDB_DB", default_value = "default", value_name = "NAME")]
    pub(super) db: DatabaseName,
}

/// How to write.
#[derive(Args)]
pub(super) struct WriteArgs {
    /// When the write is answered: on disk, or before that [default: as the node is configured]
    #[arg(long, value_parser = ["sync", "buffered"])]
    pub(super) durability: Option<String>,
    #[command(flatten)]
    pub(super) fleet: FleetWriteArgs,
}

/// How to write in a fleet.
#[derive(Args)]
pub(super) struct FleetWriteArgs {
    /// In a fleet: once K holders have it on disk, else exit code 4 [default: as many as the database has]
    #[arg(long, value_name = "K", conflicts_with_all = ["prefer", "local", "durability"], value_parser = clap::value_parser!(u8).range(1..))]
    pub(super) require: Option<u8>,
    /// In a fleet: once K holders have it on disk, or at the deadline
    #[arg(long, value_name = "K", conflicts_with_all = ["local", "durability"], value_parser = clap::value_parser!(u8).range(1..))]
    pub(super) prefer: Option<u8>,
    /// In a fleet: once one holder has it on disk
    #[arg(long, conflicts_with = "durability")]
    pub(super) local: bool,
    /// In a fleet: write even if too few holders are ready to confirm it
    #[arg(long)]
    pub(super) attempt: bool,
    /// In a fleet: how long to wait for the holders, at most 1m [default: as the node is configured]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) deadline: Option<Duration>,
}

/// What must hold for a write, and what it replaces.
#[derive(Args)]
pub(super) struct TermsArgs {
    /// Only if nothing is at the key
    #[arg(long, conflicts_with = "if_match")]
    pub(super) if_absent: bool,
    /// Only if this is the dot of what is at the key
    #[arg(long, value_name = "DOT")]
    pub(super) if_match: Option<Dot>,
    /// Replace only these of the values at the key; what else is there stays as a sibling
    #[arg(long, value_name = "DOT,...", value_delimiter = ',')]
    pub(super) seen: Vec<Dot>,
    #[command(flatten)]
    pub(super) request: RequestArgs,
}

/// Which write this is.
#[derive(Args)]
pub(super) struct RequestArgs {
    /// The id of this write, 32 hex digits: a retry with the same id returns the first outcome
    #[arg(long, value_name = "ID", value_parser = request_id)]
    pub(super) request: Option<String>,
}

fn request_id(text: &str) -> Result<String, String> {
    let is_id = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| text.to_ascii_lowercase()).ok_or_else(|| "32 hex digits are needed".to_owned())
}

/// A whole number with a unit.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err("a whole number with a unit is needed: ms, s, m, h or d".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "a whole number is needed before the unit".to_owned())?;
    number.checked_mul(unit).map(Duration::from_millis).ok_or_else(|| "it is too long".to_owned())
}

#[derive(Args)]
pub(super) struct PutArgs {
    pub(super) key: String,
    /// The value; `-` is standard input, as is no value at all
    pub(super) value: Option<OsString>,
    /// A file with the value; `-` is standard input
    #[arg(long, conflicts_with = "value")]
    pub(super) file: Option<PathBuf>,
    /// How long the value is to live, as 90s, 15m, 12h, 7d or 250ms
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) ttl: Option<Duration>,
    /// The node's answer as JSON, with the dot
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) terms: TermsArgs,
    #[command(flatten)]
    pub(super) write: WriteArgs,
    #[command(flatten)]
    pub(super) client: ClientArgs,
}

#[derive(Args)]
pub(super) struct GetArgs {
    pub(super) key: String,
    /// A JSON record with key, dot, stamp, encoding and value, instead of the bytes
    #[arg(long)]
    pub(super) json: bool,
    /// In a fleet: only after the holder has compared with so many others that nothing confirmed before is missed
    #[arg(long, conflicts_with = "stale")]
    pub(super) confirmed: bool,
    /// In a fleet: also from a holder that is not ready just now, which may lack something confirmed
    #[arg(long)]
    pub(super) stale: bool,
    #[command(flatten)]
    pub(super) at: AtArgs,
    #[command(flatten)]
    pub(super) client: ClientArgs,
}

/// Which writes a read must see.
#[derive(Args)]
pub(super) struct AtArgs {
    /// Only once the node has the write of this dot, wherever it was made
    #[arg(long, value_name = "DOT")]
    pub(super) at: Option<Dot>,
    /// How long to wait for it [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "at")]
    pub(super) wait: Option<Duration>,
}

#[derive(Args)]
pub(super) struct SiblingsArgs {
    pub(super) key: String,
    /// A JSON document with values, instead of one line for each
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) at: AtArgs,
    #[command(flatten)]
    pub(super) client: ClientArgs,
}

#[derive(Args)]
pub(super) struct ConflictsArgs {
    /// Only keys below this prefix
    #[arg(default_value = "/")]
    pub(super) prefix: String,
    /// At most this many lines
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) limit: Option<u32>,
    /// Only what comes after this line of an earlier listing
    #[arg(long, value_name = "LINE")]
    pub(super) after: Option<String>,
    /// JSON records with dots and the winners' values, one a line, instead of keys
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) client: ClientArgs,
}

#[derive(Args)]
pub(super) struct BatchArgs {
    /// The file with the ops; `-` is standard input
    #[arg(default_value = "-")]
    pub(super) file: PathBuf,
    #[command(flatten)]
    pub(super) request: RequestArgs,
    #[command(flatten)]
    pub(super) write: WriteArgs,
    #[command(flatten)]
    pub(super) client: ClientArgs,
}

#[derive(Args)]
pub(super) struct RmArgs {
    pub(super) key: String,
    /// The node's answer as JSON, with the dot
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) terms: TermsArgs,
    #[command(flatten)]
    pub(super) write: WriteArgs,
    #[command(flatten)]
    pub(super) client: ClientArgs,
}

#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(super) struct LsArgs {
    /// Only keys below this prefix
    #[arg(default_value = "/")]
    pub(super) prefix: String,
    /// Only keys that this regular expression matches anywhere; may be repeated, any match counts
    #[arg(long, value_name = "PATTERN")]
    pub(super) regex: Vec<String>,
    /// Fold everything below the next segment into one line that ends with a slash
    #[arg(long)]
    pub(super) delimiter: bool,
    /// At most this many lines
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) limit: Option<u32>,
    /// Only what comes after this line of an earlier listing
    #[arg(long, value_name = "LINE")]
    pub(super) after: Option<String>,
    /// In descending order
    #[arg(long)]
    pub(super) reverse: bool,
    /// JSON records with dots and values, one a line, instead of keys
    #[arg(long)]
    pub(super) json: bool,
    /// With --json: without values
    #[arg(long)]
    pub(super) keys_only: bool,
    /// End each key with a NUL byte instead of a new line
    #[arg(short = '0', long, conflicts_with = "json")]
    pub(super) null: bool,
    #[command(flatten)]
    pub(super) client: ClientArgs,
}

#[derive(Args)]
pub(super) struct WatchArgs {
    /// Only keys below this prefix
    #[arg(default_value = "/")]
    pub(super) prefix: String,
    /// Begin behind this token of an earlier watch of the same node, instead of now
    #[arg(long, value_name = "TOKEN", conflicts_with = "list")]
    pub(super) from: Option<String>,
    /// Begin with everything that is there
    #[arg(long)]
    pub(super) list: bool,
    /// End after this many lines
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) limit: Option<u64>,
    /// JSON records with tokens, dots and values up to 64 KiB
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) client: ClientArgs,
}

#[derive(Args)]
pub(super) struct ShowArgs {
    /// The answer as JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

#[derive(Args)]
pub(super) struct WaitArgs {
    /// The write, as put with --json or get with --json names it
    pub(super) dot: Dot,
    /// How many nodes must have it on disk
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) holders: Option<u32>,
    /// How long to wait, at most 1m
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5s")]
    pub(super) wait: Duration,
    #[command(flatten)]
    pub(super) client: ClientArgs,
}

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct MembersArgs {
    #[command(subcommand)]
    pub(super) command: Option<MembersCommand>,
    #[command(flatten)]
    pub(super) show: ShowArgs,
}

#[derive(Subcommand)]
pub(super) enum MembersCommand {
    /// Declare a member gone for good: it counts no more, and its claims are removed
    Forget {
        /// Its peer id
        peer: String,
        /// Yes, it never comes back
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Args)]
pub(super) struct PlacementArgs {
    /// Only this database [default: all]
    pub(super) database: Option<DatabaseName>,
    #[command(flatten)]
    pub(super) show: ShowArgs,
}

#[derive(Args)]
pub(super) struct ClaimsArgs {
    #[command(flatten)]
    pub(super) show: ShowArgs,
}

#[derive(Args)]
pub(super) struct DrainArgs {
    /// The member's peer id [default: the node that is asked]
    #[arg(value_name = "PEER_ID")]
    pub(super) node: Option<String>,
    /// It may hold databases again
    #[arg(long)]
    pub(super) undo: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

#[derive(Args)]
pub(super) struct PeersArgs {
    /// Connect to this peer first
    #[arg(long, value_name = "MULTIADDR")]
    pub(super) dial: Option<String>,
    #[command(flatten)]
    pub(super) show: ShowArgs,
}

#[derive(Args)]
pub(super) struct VerifyArgs {
    /// A data directory that no node has open, instead of a running node
    #[arg(long, value_name = "DIR")]
    pub(super) data_dir: Option<PathBuf>,
    /// Only this database [default: all]
    #[arg(long, value_name = "NAME")]
    pub(super) db: Option<DatabaseName>,
    /// Compare with this connected peer, and tell the keys at which both differ
    #[arg(long, value_name = "PEER", conflicts_with = "data_dir")]
    pub(super) from: Option<String>,
    /// Replace this node's copy by that peer's; values that go are saved to a file first
    #[arg(long, requires = "from", requires = "db")]
    pub(super) repair: bool,
    /// Even if this loses what the peer does not have
    #[arg(long, requires = "repair")]
    pub(super) lose: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

#[derive(Args)]
pub(super) struct CompactArgs {
    /// Keep history of at least this age [default: as the node is configured]
    #[arg(long, value_name = "SECONDS")]
    pub(super) min_age_seconds: Option<u32>,
    /// Keep at most so much history [default: as the node is configured]
    #[arg(long, value_name = "BYTES")]
    pub(super) max_bytes: Option<u64>,
    /// Drop also what no other node has: whoever joins later needs a snapshot
    #[arg(long)]
    pub(super) alone: bool,
    #[command(flatten)]
    pub(super) client: ClientArgs,
}

#[derive(Args)]
pub(super) struct DropArgs {
    /// The database
    pub(super) name: DatabaseName,
    /// Yes, drop it: there is no way back
    #[arg(long)]
    pub(super) yes: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

#[derive(Args)]
pub(super) struct DbArgs {
    #[command(subcommand)]
    pub(super) command: DbCommand,
}

#[derive(Subcommand)]
pub(super) enum DbCommand {
    /// Make a database, unless it is there
    Create {
        name: DatabaseName,
        /// In a fleet: how many members hold it, 1 to 5 [default: as the node is configured]
        #[arg(long, value_name = "K", value_parser = clap::value_parser!(u8).range(1..))]
        holders: Option<u8>,
        /// In a fleet: when writes that do not say it are answered: require(k), prefer(k) or local [default: require of all holders]
        #[arg(long)]
        durability: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Give a database of a fleet another number of holders, while it is in use
    Holders {
        name: DatabaseName,
        #[arg(value_name = "K", value_parser = clap::value_parser!(u8).range(1..))]
        holders: u8,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Drop a database with all its data
    Drop(DropArgs),
    /// List the databases
    List(ShowArgs),
    /// Move a database to another data directory of a node that does not run
    Move(Box<MoveArgs>),
}

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct BackupArgs {
    #[command(subcommand)]
    pub(super) command: Option<BackupCommand>,
    /// The directory of backups, on the machine of the node; made if it is empty or not there
    #[arg(required = true)]
    pub(super) dir: Option<PathBuf>,
    /// Backups that are kept in it, this one included [default: 7]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) keep: Option<u32>,
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

#[derive(Subcommand)]
pub(super) enum BackupCommand {
    /// Check every file of every backup by its hash; exit code 1 if any is damaged
    Verify {
        /// The directory of backups
        dir: PathBuf,
    },
}

#[derive(Args)]
pub(super) struct RestoreArgs {
    /// The directory of backups
    pub(super) backup: PathBuf,
    /// Empty directories, one for each data directory of the node that was backed up, its first one first
    #[arg(required = true, value_name = "DIR")]
    pub(super) directories: Vec<PathBuf>,
    /// Which backup [default: the last one]
    #[arg(long, value_name = "N")]
    pub(super) number: Option<u64>,
    /// Restore the node's identity as well: only if that node is gone for good
    #[arg(long)]
    pub(super) keep_identity: bool,
}

#[derive(Args)]
pub(super) struct MoveArgs {
    /// The database
    pub(super) name: DatabaseName,
    /// One of the node's data directories
    #[arg(long, value_name = "DIR")]
    pub(super) to: PathBuf,
    #[command(flatten)]
    pub(super) run: RunArgs,
}

#[derive(Args)]
pub(super) struct ImportArgs {
    /// The file; `-` is standard input
    #[arg(default_value = "-")]
    pub(super) file: PathBuf,
    /// Show progress even when standard error is no terminal
    #[arg(long)]
    pub(super) progress: bool,
    #[command(flatten)]
    pub(super) write: WriteArgs,
    #[command(flatten)]
    pub(super) client: ClientArgs,
}

#[derive(Args)]
pub(super) struct ExportArgs {
    /// Only keys below this prefix
    #[arg(default_value = "/")]
    pub(super) prefix: String,
    /// All values alive at a key with their dots, stamps and expiry, to be looked at; such an export is not imported
    #[arg(long)]
    pub(super) siblings: bool,
    #[command(flatten)]
    pub(super) client: ClientArgs,
}
