//! The write-ahead log's condition, judged before RocksDB opens it.
//!
//! RocksDB's recovery modes do not draw the line where a database must: the tolerant one takes a damaged length within
//! the last 32 KiB for the end of the log, drops whole records after it without a word, and reads on in the next log; and
//! it refuses a last record whose bytes a power failure left wrong, which nobody was told was safe. The line here: what
//! is damaged and followed by nothing whole is a write that never ended. Whole data after damage were committed.
//!
//! A log is made of blocks of 32 KiB, a block of records: masked CRC-32C (u32 le) of the rest, length (u16 le), kind,
//! data. Long data are spread over records of several blocks.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

const BLOCK_BYTES: usize = 32 << 10;
const HEADER_BYTES: usize = 7;
const FULL: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;
/// Kinds that say how the log is written and hold no data.
const META_KINDS: [u8; 3] = [9, 10, 130];
/// A batch without any write; RocksDB begins a log with one.
const EMPTY_BATCH_BYTES: usize = 12;

/// The condition of all logs together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LogCondition {
    /// Every record is whole.
    Whole,
    /// The last write is there in part only.
    Torn,
    /// There are whole writes after damaged ones.
    Damaged(String),
}

/// Reads the logs of a store that nobody has open.
pub(super) fn condition(directory: &Path) -> io::Result<LogCondition> {
    let mut check = Check::default();
    for log in logs(directory)? {
        if let Some(damage) = check.log(&log)? {
            return Ok(LogCondition::Damaged(damage));
        }
    }
    Ok(if check.damage.is_some() { LogCondition::Torn } else { LogCondition::Whole })
}

/// The logs, oldest first.
fn logs(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut logs = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let number = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse::<u64>().ok());
        if let (Some(number), Some("log")) = (number, path.extension().and_then(|ending| ending.to_str())) {
            logs.push((number, path));
        }
    }
    logs.sort_unstable();
    Ok(logs.into_iter().map(|(_, path)| path).collect())
}

/// Where the first damage was found; kept from log to log.
#[derive(Debug, Default)]
struct Check {
    damage: Option<String>,
}

impl Check {
    /// Reads one log; tells of the damage once something whole comes after it.
    fn log(&mut self, path: &Path) -> io::Result<Option<String>> {
        let mut file = File::open(path)?;
        let mut block = Vec::with_capacity(BLOCK_BYTES);
        let mut read = 0;
        // Whether a long write has begun and not ended.
        let mut open = false;
        loop {
            block.clear();
            file.by_ref().take(BLOCK_BYTES as u64).read_to_end(&mut block)?;
            let mut rest = block.as_slice();
            while rest.len() >= HEADER_BYTES {
                let at = read + block.len() - rest.len();
                if let Some((kind, len)) = record(rest) {
                    if open != matches!(kind, MIDDLE | LAST) && !META_KINDS.contains(&kind) {
                        self.found(path, at);
                    }
                    let data = (FULL..=LAST).contains(&kind) && len > EMPTY_BATCH_BYTES;
                    if let Some(damage) = self.damage.take_if(|_| data) {
                        return Ok(Some(damage));
                    }
                    open = matches!(kind, FIRST | MIDDLE);
                    rest = rest.get(HEADER_BYTES + len..).unwrap_or_default();
                } else {
                    self.found(path, at);
                    open = false;
                    // A damaged length leads nowhere: look for the next record at every byte.
                    rest = rest.get(1..).unwrap_or_default();
                }
            }
            read += block.len();
            if block.len() < BLOCK_BYTES {
                // What is left of a full block is padding; here it is the beginning of a header.
                if open || !rest.is_empty() {
                    self.found(path, read);
                }
                return Ok(None);
            }
        }
    }

    fn found(&mut self, path: &Path, at: usize) {
        self.damage.get_or_insert_with(|| {
            let name = path.file_name().unwrap_or_default();
            format!("in {} at byte {at} a damaged record stands before whole ones", name.display())
        });
    }
}

/// The kind and length of the whole record at the front of the bytes.
fn record(bytes: &[u8]) -> Option<(u8, usize)> {
    let (crc, rest) = bytes.split_first_chunk::<4>()?;
    let (&[low, high], [kind, ..]) = rest.split_first_chunk::<2>()? else { return None };
    let len = usize::from(u16::from_le_bytes([low, high]));
    if !(FULL..=LAST).contains(kind) && !META_KINDS.contains(kind) {
        return None;
    }
    let summed = bytes.get(6..HEADER_BYTES + len)?;
    (unmask(u32::from_le_bytes(*crc)) == crc32c::crc32c(summed)).then_some((*kind, len))
}

/// Stored sums are rotated and shifted, so that a sum over data with sums in them stays good.
fn unmask(masked: u32) -> u32 {
    masked.wrapping_sub(0xa282_ead8).rotate_left(15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(crc: u32) -> u32 {
        crc.rotate_right(15).wrapping_add(0xa282_ead8)
    }

    fn write(kind: u8, data: &[u8]) -> Vec<u8> {
        let summed = [&[kind], data].concat();
        let len = u16::try_from(data.len()).unwrap().to_le_bytes();
        [&mask(crc32c::crc32c(&summed)).to_le_bytes()[..], &len, &summed].concat()
    }

    fn judge(logs: &[Vec<u8>]) -> LogCondition {
        let directory = tempfile::TempDir::new().unwrap();
        for (number, log) in logs.iter().enumerate() {
            // Ordered by number, not by name.
            fs::write(directory.path().join(format!("{}.log", number + 8)), log).unwrap();
        }
        condition(directory.path()).unwrap()
    }

    fn damaged(condition: &LogCondition) -> bool {
        matches!(condition, LogCondition::Damaged(_))
    }

    #[test]
    fn whole_logs_are_whole() {
        let full = write(FULL, &[1; 100]);
        assert_eq!(judge(&[]), LogCondition::Whole);
        assert_eq!(judge(&[vec![], full.repeat(3), write(9, &[0; 4])]), LogCondition::Whole);
        let rest = BLOCK_BYTES - HEADER_BYTES - 3;
        let long = [write(FIRST, &vec![2; rest]), vec![0; 3], write(LAST, &[2; 50]), full].concat();
        assert_eq!(judge(&[long]), LogCondition::Whole);
    }

    #[test]
    fn a_write_that_never_ended_is_torn() {
        let full = write(FULL, &[1; 100]);
        let two = full.repeat(2);
        for len in full.len() + 1..two.len() {
            assert_eq!(judge(&[two[..len].to_vec()]), LogCondition::Torn, "{len}");
        }
        for at in full.len()..two.len() {
            let mut wrong = two.clone();
            wrong[at] ^= 0x11;
            assert_eq!(judge(&[wrong]), LogCondition::Torn, "{at}");
        }
        assert_eq!(judge(&[[full.clone(), vec![0; 70_000]].concat()]), LogCondition::Torn);
        assert_eq!(judge(&[[full.clone(), write(FIRST, &[1; 100])].concat()]), LogCondition::Torn);
        // What RocksDB writes into a new log before anybody else does.
        let fresh = write(FULL, &[0; EMPTY_BATCH_BYTES]);
        assert_eq!(judge(&[two[..two.len() - 1].to_vec(), fresh]), LogCondition::Torn);
    }

    #[test]
    fn whole_data_after_damage_were_committed() {
        let full = write(FULL, &[1; 100]);
        let two = full.repeat(2);
        for at in 0..full.len() {
            for bit in 0..8 {
                let mut wrong = two.clone();
                wrong[at] ^= 1 << bit;
                let condition = judge(&[wrong]);
                assert!(damaged(&condition), "{at} {condition:?}");
            }
        }
        assert!(damaged(&judge(&[full[..50].to_vec(), full.clone()])));
        assert!(damaged(&judge(&[write(FIRST, &[1; 100]), full.clone()])));
        assert!(damaged(&judge(&[[write(FIRST, &[1; 100]), full.clone()].concat()])));
        let far = [full.clone(), vec![0xff; 2 * BLOCK_BYTES - full.len()], full.clone()].concat();
        assert_eq!(
            judge(&[far]),
            LogCondition::Damaged("in 8.log at byte 107 a damaged record stands before whole ones".to_owned())
        );
    }
}
