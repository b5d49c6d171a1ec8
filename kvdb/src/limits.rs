//! Local limits: they bind this node's own callers and memory, and never make two nodes judge one block differently.

use std::time::Duration;

/// Bytes of this node's own work that may wait for the engine.
pub const MAX_INBOX_BYTES: usize = 64 << 20;
/// Bytes of what peers sent that may wait for the engine: room of its own, so that it takes none from local writers.
pub const MAX_RECEIVED_INBOX_BYTES: usize = 32 << 20;
/// What a waiting piece of work counts beyond its bytes.
pub const WORK_OVERHEAD_BYTES: usize = 256;
/// How long a caller waits for room in the inbox.
pub const INBOX_WAIT: Duration = Duration::from_secs(10);
/// Most pieces of work in one turn of the engine.
pub const MAX_TURN_WORKS: usize = 1_024;
/// A turn takes no further work of this node's own once it has this many bytes.
pub const MAX_TURN_BYTES: usize = 4 << 20;
/// A turn takes nothing more of what peers sent once it has this many bytes of it: a local write waits for one turn.
pub const MAX_TURN_RECEIVED_BYTES: usize = 64 << 10;
/// Received blocks are on disk, and acknowledged, this long after they were merged at the latest.
pub const SYNC_DELAY: Duration = Duration::from_millis(100);
/// Bytes of own blocks kept for gossip until the network looks; beyond it only an announcement goes out.
pub const MAX_SEALED_NEWS_BYTES: usize = 1 << 20;
/// Most listing streams open at a time in one node; each holds a thread and a snapshot.
pub const MAX_LIST_STREAMS: usize = 64;
/// Items that a listing stream reads ahead of its reader, at most.
pub const LIST_CHUNK_ITEMS: usize = 1_024;
/// Bytes that a listing stream reads ahead of its reader, about.
pub const LIST_CHUNK_BYTES: usize = 256 << 10;
/// A page of a listing ends after this many bytes of keys and values.
pub const MAX_PAGE_BYTES: usize = 16 << 20;
/// Most items in one page of a listing, and the default.
pub const MAX_PAGE_ITEMS: usize = 10_000;
/// Most regular expressions of one listing.
pub const MAX_PATTERNS: usize = 16;
/// Longest regular expression, in bytes.
pub const MAX_PATTERN_BYTES: usize = 1_024;
/// Most memory that the regular expressions of one listing take once compiled, in bytes, and their cache again.
pub const MAX_PATTERN_MEMORY: usize = 1 << 20;
/// A walk looks this often, in rows, whether anybody still waits for what it searches.
pub const LIST_LOOK_ROWS: usize = 1_024;
/// Most peers of earlier runs that are remembered, and dialled at the start.
pub const MAX_REMEMBERED_DIALS: usize = 16;
/// Most addresses remembered of one peer.
pub const MAX_REMEMBERED_ADDRESSES: usize = 4;
/// No more than this is read of the file with them, in bytes.
pub const MAX_REMEMBERED_BYTES: u64 = 64 << 10;
/// The first pause between dials of peers of earlier runs; it doubles up to [`REMEMBER_INTERVAL`].
pub const REMEMBERED_REDIAL: Duration = Duration::from_secs(1);
/// How often the connected peers are written down, and those of earlier runs dialled, once a node has been up for a while.
pub const REMEMBER_INTERVAL: Duration = Duration::from_secs(60);
/// Most watchers open at a time in one node.
pub const MAX_WATCHERS: usize = 1_024;
/// Bytes of changed keys that the engine remembers per watched database; a watcher further behind reads the log.
pub const MAX_RECENT_BYTES: usize = 256 << 10;
/// What a remembered turn counts beyond its keys.
pub const RECENT_TURN_BYTES: usize = 96;
/// A watcher that reads the log gathers about this many keys before it tells of them.
pub const MAX_WATCH_KEYS: usize = 1_024;
/// A watcher reads about this many bytes of blocks before it tells what it found.
pub const MAX_WATCH_LOG_BYTES: usize = 4 << 20;
/// Events that a watcher makes ready for its reader, at most.
pub const MAX_WATCH_BATCH_EVENTS: usize = 256;
/// Bytes of values that a watcher makes ready for its reader, about.
pub const MAX_WATCH_BATCH_BYTES: usize = 64 << 10;
/// Values of more bytes are left out of events, so that a thousand idle watchers stay small.
pub const MAX_WATCH_VALUE_BYTES: usize = 64 << 10;
/// Most databases open at a time in one node.
pub const MAX_OPEN_DATABASES: usize = 1_024;

/// How long after its expiry a value is deleted, at the earliest: so long another node's clock may be behind.
pub const EXPIRY_GRACE: Duration = Duration::from_secs(60);
/// So many times the grace the other nodes wait for the one whose turn it is to delete.
pub const EXPIRY_PATIENCE: u32 = 10;
/// How long the outcome of a request is kept, by the stamp of its block: the hour within which a retry may come, and an
/// hour for clocks that differ.
pub const REQUEST_RETENTION: Duration = Duration::from_secs(2 * 3_600);
/// Most outcomes of requests that are kept in one database; beyond it the oldest go.
pub const MAX_REQUESTS: u64 = 1 << 20;
/// How often what goes with time is looked for.
pub const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);
/// Most keys that one write of the upkeep deletes, and the dots that it names, about.
pub const UPKEEP_KEYS: usize = 512;
/// See [`UPKEEP_KEYS`].
pub const UPKEEP_DOTS: usize = 16_384;
/// Most outcomes of requests forgotten in one turn.
pub const UPKEEP_REQUESTS: usize = 4_096;
/// The pause between two pieces of upkeep when there is much of it, so that writes come first.
pub const UPKEEP_PAUSE: Duration = Duration::from_millis(50);

/// Values up to this many bytes stand in their row's record; larger ones have a record of their own, which listing keys
/// never reads.
pub const MAX_INLINE_VALUE_BYTES: usize = 512;
/// Most files that RocksDB keeps open in one store, well below the usual limit of 1,024 per process.
pub const MAX_STORE_OPEN_FILES: i32 = 512;

/// Blocks of history dropped in one turn of the engine: a writer beside it waits for one such turn.
pub const COMPACT_PIECE_BLOCKS: usize = 64;
/// How long history is kept at least, by default, unless there is too much of it.
pub const HISTORY_MIN_AGE: Duration = Duration::from_secs(3_600);
/// Bytes of history that may be kept, by default, when the rows are not larger.
pub const HISTORY_MAX_BYTES: u64 = 256 << 20;
/// Bytes of history that no other node has at which writes are refused, by default.
pub const HISTORY_HARD_BYTES: u64 = 16 << 30;
/// How often each database's history is looked at, by default.
pub const COMPACT_INTERVAL: Duration = Duration::from_secs(60);
/// Bytes dropped after which a compaction on schedule also has the files rewritten.
pub const RECLAIM_BYTES: u64 = 64 << 20;
/// Rows that must be gone, beyond as many as are left, before their files are rewritten on schedule.
pub const SHRUNK_ROWS: u64 = 10_000;
/// Notes of when which revision was reached, for the age of history.
pub const MAX_AGE_MARKS: usize = 64;

/// Records of a dropped database that are removed one by one; more are removed by their range.
pub const DROP_PIECE_RECORDS: usize = 1_024;
/// Generations of a dropped name that peers are told of; of older ones nobody speaks any more.
pub const MAX_DROPPED_GENERATIONS: u64 = 16;

/// Bytes of a backup that are copied in one piece.
pub const BACKUP_PIECE_BYTES: usize = 1 << 20;
/// Bytes at the end of a file by which a backup knows it again.
pub const BACKUP_TAIL_BYTES: u64 = 64 << 10;
/// Backups that are kept in a directory, by default.
pub const BACKUPS_KEPT: usize = 7;
/// Most data directories of one node.
pub const MAX_SHARDS: usize = 16;
/// Bytes of live data and history that count as one step when the least loaded data directory is looked for.
pub const SHARD_LOAD_BYTES: u64 = 64 << 20;
/// Lines added to the notes of the data directories after which they are written anew, if they are no longer than that.
pub const MAX_SHARD_NOTES: usize = 65_536;

/// A node whose bootstrap peers do not answer counts as caught up after this time.
pub const CAUGHT_UP_GRACE: Duration = Duration::from_secs(10);

/// Damages that a verification names one by one.
pub const MAX_DAMAGES: usize = 1_000;
/// Blocks whose signatures are verified together.
pub const VERIFY_BATCH_BLOCKS: usize = 512;
/// Bytes of blocks that are verified together, about.
pub const VERIFY_BATCH_BYTES: usize = 8 << 20;
/// A file of rows that are built from a snapshot is closed, and taken in by RocksDB, at about this many bytes.
pub const BUILD_FILE_BYTES: u64 = 64 << 20;
/// Values that are built from a snapshot are written in batches of about this many bytes.
pub const BUILD_BATCH_BYTES: usize = 4 << 20;

/// How soon a store that refuses writes is looked at.
pub const HEAL_INTERVAL: Duration = Duration::from_millis(500);
/// How often at least it is looked at.
pub const MAX_HEAL_INTERVAL: Duration = Duration::from_secs(10);
/// Bytes that must fit on a disk, besides what the logs hold, before a store that it has failed is opened again.
pub const HEAL_PROBE_BYTES: usize = 4 << 20;
/// How often opening such a store is tried.
pub const REOPEN_TRIES: u32 = 20;
/// The pause between these.
pub const REOPEN_PAUSE: Duration = Duration::from_millis(250);
/// How long a repair waits until the peer has on disk what is merged here.
pub const REPAIR_COVER_WAIT: Duration = Duration::from_secs(30);
