//! Names and ids of databases.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::limits::MAX_DATABASE_NAME_BYTES;

/// The identity of a database on every node: a hash of its name and generation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DatabaseId(pub [u8; 32]);

impl DatabaseId {
    /// The id of the database with this name in this generation (0 if it was never dropped).
    #[must_use]
    pub fn of(name: &DatabaseName, generation: u64) -> Self {
        let length = u32::try_from(name.as_str().len()).unwrap_or(u32::MAX);
        let hash = Sha256::new()
            .chain_update(b"kvdb/database/1")
            .chain_update(length.to_be_bytes())
            .chain_update(name.as_str())
            .chain_update(generation.to_be_bytes())
            .finalize();
        Self(hash.into())
    }
}

impl fmt::Display for DatabaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for DatabaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The name of a database: 1 to [`MAX_DATABASE_NAME_BYTES`] characters of `A-Z a-z 0-9 . _ -`, no leading dot.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DatabaseName(String);

/// Why a text is no database name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "a database name has 1 to {MAX_DATABASE_NAME_BYTES} characters of A-Z a-z 0-9 . _ - and does not start with a dot; \
     this one has {bytes} bytes"
)]
pub struct DatabaseNameError {
    /// Length of the refused text.
    pub bytes: usize,
}

impl DatabaseName {
    /// Checks a name.
    ///
    /// # Errors
    /// When the text breaks the rule above.
    pub fn parse(text: &str) -> Result<Self, DatabaseNameError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let good = (1..=MAX_DATABASE_NAME_BYTES).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(allowed);
        if good { Ok(Self(text.to_owned())) } else { Err(DatabaseNameError { bytes: text.len() }) }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for DatabaseName {
    type Err = DatabaseNameError;
    fn from_str(text: &str) -> Result<Self, DatabaseNameError> {
        Self::parse(text)
    }
}

impl fmt::Display for DatabaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for DatabaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_their_rule() {
        let longest = "n".repeat(MAX_DATABASE_NAME_BYTES);
        for good in ["a", "A.b_c-9", &longest] {
            assert_eq!(DatabaseName::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", ".a", "a/b", "a b", "é", &format!("{longest}n")] {
            assert_eq!(DatabaseName::parse(bad), Err(DatabaseNameError { bytes: bad.len() }), "{bad:?}");
        }
    }

    #[test]
    fn a_name_and_a_generation_give_one_id() {
        let name = DatabaseName::parse("demo").unwrap();
        assert_eq!(DatabaseId::of(&name, 0), DatabaseId::of(&name, 0));
        assert_ne!(DatabaseId::of(&name, 0), DatabaseId::of(&name, 1));
    }
}
