//! Regular expressions for listings: matched in linear time, bounded in number, length and memory.

use crdt::Key;
use regex::{RegexSet, RegexSetBuilder};
use thiserror::Error;

use crate::limits::{MAX_PATTERN_BYTES, MAX_PATTERN_MEMORY, MAX_PATTERNS};

/// Regular expressions, of which any may match anywhere in a key; anchor them with `^` and `$`. The syntax is that of
/// the `regex` crate: no look-around, no back references, so that no pattern can take long.
///
/// ```
/// let patterns = kvdb::Patterns::new(["^/rack/[0-9]+$", "host"])?;
/// assert!(patterns.match_key(&kvdb::Key::parse("/rack/7").unwrap()));
/// # Ok::<(), kvdb::PatternError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Patterns(RegexSet);

/// Why regular expressions were refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PatternError {
    /// None was given.
    #[error("no regular expression was given")]
    None,
    /// Too many were given.
    #[error("{count} regular expressions were given, the limit is {limit}")]
    TooMany {
        /// How many.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// One is too long.
    #[error("a regular expression has {bytes} bytes, the limit is {limit}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Compiled, they take too much memory.
    #[error("the regular expressions would take more than {limit} bytes of memory, which is the limit")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
    /// One is no regular expression.
    #[error("not a regular expression: {cause}")]
    Invalid {
        /// What is wrong, and where.
        cause: String,
    },
}

impl Patterns {
    /// Compiles 1 to [`MAX_PATTERNS`] expressions of up to [`MAX_PATTERN_BYTES`] each.
    ///
    /// # Errors
    /// See [`PatternError`].
    pub fn new<T: AsRef<str>>(patterns: impl IntoIterator<Item = T>) -> Result<Self, PatternError> {
        let patterns: Vec<T> = patterns.into_iter().take(MAX_PATTERNS + 1).collect();
        if patterns.is_empty() {
            return Err(PatternError::None);
        }
        if patterns.len() > MAX_PATTERNS {
            return Err(PatternError::TooMany { count: patterns.len(), limit: MAX_PATTERNS });
        }
        if let Some(bytes) = patterns.iter().map(|pattern| pattern.as_ref().len()).find(|bytes| *bytes > MAX_PATTERN_BYTES) {
            return Err(PatternError::TooLong { bytes, limit: MAX_PATTERN_BYTES });
        }
        let mut builder = RegexSetBuilder::new(&patterns);
        builder.size_limit(MAX_PATTERN_MEMORY).dfa_size_limit(MAX_PATTERN_MEMORY);
        builder.build().map(Self).map_err(|error| match error {
            regex::Error::CompiledTooBig(limit) => PatternError::TooLarge { limit },
            // Its message points at the place on lines of its own.
            error => {
                let cause: Vec<String> = error.to_string().lines().map(|line| line.trim().to_owned()).collect();
                PatternError::Invalid { cause: cause.join(" ") }
            }
        })
    }

    /// Whether any of them matches the key.
    pub fn match_key(&self, key: &Key) -> bool {
        self.0.is_match(key.as_str())
    }
}

impl PartialEq for Patterns {
    fn eq(&self, other: &Self) -> bool {
        self.0.patterns() == other.0.patterns()
    }
}

impl Eq for Patterns {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_length_and_memory_are_bounded() {
        let of = |count: usize| Patterns::new(vec!["a"; count]);
        assert_eq!(of(0).unwrap_err(), PatternError::None);
        assert!(of(MAX_PATTERNS).is_ok());
        assert_eq!(of(MAX_PATTERNS + 1).unwrap_err(), PatternError::TooMany { count: 17, limit: 16 });
        let long = "a".repeat(MAX_PATTERN_BYTES);
        assert!(Patterns::new([&long]).is_ok());
        assert_eq!(Patterns::new([long + "a"]).unwrap_err(), PatternError::TooLong { bytes: 1_025, limit: 1_024 });
        let large = Patterns::new(["(\\p{L}{100}){100}"]).unwrap_err();
        assert_eq!(large, PatternError::TooLarge { limit: MAX_PATTERN_MEMORY });
        for bad in ["(", "[z-a]", "(?=a)", "\\1", "*"] {
            let error = Patterns::new([bad]).unwrap_err();
            assert!(matches!(error, PatternError::Invalid { .. }) && !error.to_string().contains('\n'), "{bad}: {error}");
        }
    }

    #[test]
    fn a_pattern_that_is_hard_for_others_takes_linear_time() {
        let patterns = Patterns::new(["^(/a*)*$", "(a+)+b$"]).unwrap();
        let key = Key::parse(&"a".repeat(1_000)).unwrap();
        assert!(patterns.match_key(&key));
        assert!(!patterns.match_key(&Key::parse(&format!("{}c", "a".repeat(1_000))).unwrap()));
    }
}
