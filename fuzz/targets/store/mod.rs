//! The bytes on disk of kvdb, without the rest of it.
#[path = "../../../kvdb/src/store/error.rs"]
pub mod error;
#[path = "../../../kvdb/src/store/layout.rs"]
pub mod layout;

use crdt::Projection;

/// Reads the data as a record of each kind, its first bytes as the key where one is needed.
pub fn read_all(data: &[u8]) {
    let (len, rest) = data.split_first().map_or((0, data), |(len, rest)| (usize::from(*len), rest));
    let (key, record) = rest.split_at(len.min(rest.len()));
    let _ = layout::read_row_key(data);
    if let Ok(row) = layout::read_row(data, Projection::Rows) {
        assert!(!row.is_empty(), "a record of nothing");
        assert!(layout::read_row(data, Projection::Keys).is_ok());
    }
    let _ = layout::read_value(data);
    let _ = layout::read_block(data).map(|block| block.to_stored());
    let _ = layout::read_log(key, record);
    let _ = layout::read_state(key, record);
    let _ = layout::read_request(data);
}
