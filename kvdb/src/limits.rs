//! Local limits: this node's own, none of them part of a format.

/// Values up to this many bytes stand in their row's record; larger ones have a record of their own, which listing keys
/// never reads.
pub const MAX_INLINE_VALUE_BYTES: usize = 512;
/// Most files that RocksDB keeps open in one store, well below the usual limit of 1,024 per process.
pub const MAX_STORE_OPEN_FILES: i32 = 512;
