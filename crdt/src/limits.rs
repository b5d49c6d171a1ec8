//! Format limits: constants of format version 1, the same on every node, and part of block validity.

/// Longest key in normal form, in bytes.
pub const MAX_KEY_BYTES: usize = 1024;
/// Longest value, in bytes.
pub const MAX_VALUE_BYTES: usize = 1 << 20;
/// Longest encoded block, in bytes.
pub const MAX_BLOCK_BYTES: usize = 4 << 20;
/// Most ops in one block.
pub const MAX_BLOCK_OPS: usize = 16_384;
/// Most parents that one block names.
pub const MAX_BLOCK_PARENTS: usize = 64;
/// Most dots that one op supersedes.
pub const MAX_OP_SUPERSEDED: usize = 4_096;
/// Most request ids that one block answers.
pub const MAX_BLOCK_REQUESTS: usize = 4_096;
/// Largest integer that a block may hold; larger ones are malformed.
pub const MAX_UINT: u64 = i64::MAX as u64;
/// Longest database name, in bytes.
pub const MAX_DATABASE_NAME_BYTES: usize = 128;

/// How far a stamp may run ahead of this node's clock because of what others wrote, in milliseconds.
pub const MAX_CLOCK_DRIFT_MS: u64 = 60_000;

/// Shortest time between two new nonces that blocks of others cause by naming this writer, in milliseconds.
pub const MIN_NAMED_NONCE_GAP_MS: u64 = 60_000;

/// Most blocks that wait for their dependencies, per replica.
pub const MAX_PENDING_BLOCKS: usize = 4_096;
/// Most bytes of blocks that wait for their dependencies, per replica.
pub const MAX_PENDING_BYTES: usize = 16 << 20;
/// The part of the pending pool, in percent, that one sender may fill.
pub const MAX_PENDING_SHARE_PERCENT: usize = 50;
/// Up to this many heads are kept in one record; above it each has its own.
pub const MAX_PACKED_HEADS: usize = 64;

/// A chunk of a snapshot has about this many bytes, more only when it holds a single item that is larger.
pub const CHUNK_BYTES: usize = 256 << 10;
/// Longest chunk of a snapshot, in bytes: the longest value with its key and wrapping.
pub const MAX_CHUNK_BYTES: usize = MAX_VALUE_BYTES + (4 << 10);
/// Most items in one chunk of a snapshot.
pub const MAX_CHUNK_ITEMS: usize = 16_384;
/// Rows that one piece of a join walks over, at most.
pub const MAX_JOIN_ROWS: usize = 2_048;
/// Bytes of values that one piece of a join moves, about.
pub const MAX_JOIN_BYTES: usize = 1 << 20;
/// Bytes of blocks that one piece of a join catches up with, about: more than a turn of the engine merges.
pub const MAX_CATCH_UP_BYTES: usize = 16 << 20;
/// Longer values are handed to the store apart from their rows while a snapshot is joined, so that a row of many siblings
/// takes bounded memory. No store may keep longer ones in its rows.
pub const MAX_ROW_VALUE_BYTES: usize = 512;
