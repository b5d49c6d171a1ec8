//! Limits of the daemon: what it takes from clients, and how long it waits for them.

use std::time::Duration;

pub use crdt::limits::{MAX_BLOCK_BYTES, MAX_BLOCK_OPS, MAX_KEY_BYTES, MAX_OP_SUPERSEDED, MAX_VALUE_BYTES};

/// Longest body of a batch, in bytes: a block of 4 MiB in base64, with room for its keys and JSON.
pub const MAX_BATCH_BODY_BYTES: usize = 8 << 20;
/// Longest body of any other request but a put, in bytes.
pub const MAX_JSON_BODY_BYTES: usize = 16 << 10;
/// Longest query string, in bytes: two keys and a few regular expressions, percent-encoded, and the rest.
pub const MAX_QUERY_BYTES: usize = 8 << 10;
/// Longest request head, in bytes.
pub const MAX_HEAD_BYTES: usize = 64 << 10;
/// Open connections; further ones wait in the listener's backlog.
pub const MAX_CONNECTIONS: usize = 1_024;
/// How long a client may take to send a request head, or stay silent between requests.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may take to send a body.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a body is read past after its request was refused.
pub const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may take nothing at all of a listing before it is given up, without an end record. Long, since a slow
/// reader with large buffers between takes something seldom only: at a hundred bytes a second once in hours.
pub const STREAM_STALL_TIMEOUT: Duration = Duration::from_secs(24 * 3_600);
/// How long a watch is silent before a comment shows that it lives.
pub const WATCH_KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Client side: a watch that is silent for this long is taken for dead, and begun again where it was.
pub const WATCH_SILENCE: Duration = Duration::from_secs(50);
/// Client side: the pause before a watch is begun again.
pub const WATCH_PAUSE: Duration = Duration::from_secs(1);
/// Bytes of a listing that are gathered before they are sent.
pub const STREAM_CHUNK_BYTES: usize = 32 << 10;
/// Chunks of a listing that wait for the client.
pub const STREAM_CHUNKS: usize = 2;
/// Longest that a request may ask to wait for a dot, in milliseconds.
pub const MAX_WAIT_MS: u64 = 60_000;
/// Wait for a dot when the request names no time, in milliseconds.
pub const DEFAULT_WAIT_MS: u64 = 5_000;
/// Longest time to live that a put may ask for, in milliseconds: a hundred years.
pub const MAX_TTL_MS: u64 = 100 * 365 * 24 * 3_600 * 1_000;
/// Most nodes that a request may wait for.
pub const MAX_HOLDERS: u64 = 512;
/// Most databases in one page of the catalogue, and the default.
pub const MAX_DATABASES_PAGE: u64 = 1_000;
/// How long a graceful stop waits for requests under way.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Shortest HTTP token, in bytes.
pub const MIN_TOKEN_BYTES: usize = 16;
/// Largest sizes that the configuration takes, in MiB.
pub const MAX_SIZE_MIB: u64 = 1 << 20;
/// Most other nodes that can be asked to have a block before it is dropped here.
pub const MAX_HISTORY_HOLDERS: u64 = 64;
/// Longest age of history, and longest time between two looks at it, in seconds: a year.
pub const MAX_HISTORY_SECONDS: u64 = 31_536_000;
/// Smallest and largest announcement interval, in seconds.
pub const REBROADCAST_SECONDS: (u64, u64) = (1, 3_600);

/// Client side: ops in one batch of an import.
pub const IMPORT_BATCH_OPS: usize = 500;
/// Client side: bytes of keys and values in one batch of an import.
pub const IMPORT_BATCH_BYTES: usize = 1 << 20;
/// Client side: how often an import sends a batch that finds the node's queue full.
pub const IMPORT_ATTEMPTS: u32 = 20;
/// Client side: the pause between.
pub const IMPORT_PAUSE: Duration = Duration::from_millis(500);
/// Longest line of an import, in bytes: a value in base64 or escaped (six bytes for one), its key, and the field names.
pub const MAX_IMPORT_LINE_BYTES: usize = 6 * (MAX_VALUE_BYTES + MAX_KEY_BYTES) + 4_096;
/// Client side: how long connecting may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Client side: how long an answer may take to begin.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(75);

/// Shortest and longest time that a call of a fleet may wait, in milliseconds.
pub const DEADLINE_MS: (u64, u64) = (100, 60_000);
/// Shortest and longest time between heartbeats of a fleet, in milliseconds.
pub const BEAT_MS: (u64, u64) = (50, 60_000);
/// Longest silence and longest settle window of a fleet, in milliseconds.
pub const MAX_FLEET_WAIT_MS: u64 = 600_000;
/// Longest quiet time of a holder that is no longer wanted, in milliseconds: a day.
pub const MAX_QUIET_MS: u64 = 86_400_000;
/// Longest time for which the claim of a member that is gone is kept, in seconds: a year.
pub const MAX_DEAD_CLAIM_SECONDS: u64 = 31_536_000;

/// Requests that are passed on to other members of a fleet at once.
pub const MAX_FORWARDED: usize = 512;
/// Requests of other members that are served at once.
pub const MAX_MEMBER_REQUESTS: usize = 512;
/// Members that a read is passed on to before this node looks again.
pub const MAX_FORWARDS: usize = 4;
/// Pause before it looks again.
pub const FORWARD_AGAIN: Duration = Duration::from_millis(100);
/// How long a member may take to begin its answer, beyond what the request itself lets it wait.
pub const FORWARD_HEAD_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the answer of a member may be silent: a listing that finds little is.
pub const FORWARD_SILENCE: Duration = Duration::from_secs(300);
/// Pause between two attempts to make the databases that are configured.
pub const CREATE_AGAIN: Duration = Duration::from_millis(500);
/// How long a stop waits for the good-bye to the fleet.
pub const FLEET_GOOD_BYE: Duration = Duration::from_secs(2);

/// Most backups that may be kept in one directory.
pub const MAX_BACKUPS_KEPT: u64 = 10_000;
