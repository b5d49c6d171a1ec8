//! What the disk itself takes: a raw `fdatasync`, between the runs of every durable figure.

use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use crate::report::quantile;

/// The median time of writing 300 bytes and `fdatasync`, in milliseconds.
pub(crate) fn fdatasync_ms(dir: &Path, rounds: usize) -> f64 {
    let mut file = std::fs::File::create(dir.join("probe")).expect("a probe file");
    let mut times: Vec<f64> = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            file.write_all(&[7; 300]).expect("written");
            file.sync_data().expect("synced");
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    quantile(&mut times, 0.5)
}
