//! Keys and prefixes: UTF-8 paths with one normal form, in byte order.

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use thiserror::Error;

use crate::limits::MAX_KEY_BYTES;

/// A key in normal form: `/` before each segment, no empty segment, no `.` or `..`, no NUL, at most
/// [`MAX_KEY_BYTES`] bytes.
///
/// Keys are ordered by their bytes. Cloning is cheap.
///
/// ```
/// let key = crdt::Key::parse("a//b/").unwrap();
/// assert_eq!(key.as_str(), "/a/b");
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

/// Why a text is no key or prefix.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Nothing but slashes: the root is a prefix, not a key.
    #[error("the key is empty; the root / is a prefix, not a key")]
    Empty,
    /// A segment is `.` or `..`.
    #[error("the key has a segment {segment:?}; . and .. are not allowed")]
    DotSegment {
        /// The refused segment.
        segment: &'static str,
    },
    /// The text holds a NUL character.
    #[error("the key has a NUL character")]
    Nul,
    /// The bytes are not UTF-8.
    #[error("the key is not UTF-8")]
    NotUtf8,
    /// The normal form is too long.
    #[error("the key has {bytes} bytes, the limit is {MAX_KEY_BYTES}")]
    TooLong {
        /// Length of the normal form in bytes.
        bytes: usize,
    },
    /// The text is a key, but not written in normal form.
    #[error("the key is not in normal form")]
    NotNormal,
}

impl Key {
    /// Normalises and checks a key: `a//b/` becomes `/a/b`.
    ///
    /// # Errors
    /// See [`KeyError`]; never [`KeyError::NotNormal`].
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let normal = normalise(text)?;
        if normal.is_empty() {
            return Err(KeyError::Empty);
        }
        Ok(Self(normal.into()))
    }

    /// Takes bytes that must already be a key in normal form, as in a block.
    ///
    /// # Errors
    /// See [`KeyError`]; [`KeyError::NotNormal`] for what [`Key::parse`] would have changed.
    pub fn from_normal(bytes: &[u8]) -> Result<Self, KeyError> {
        let text = std::str::from_utf8(bytes).map_err(|_| KeyError::NotUtf8)?;
        check_normal(text)?;
        Ok(Self(text.into()))
    }

    /// The key as text, with its leading slash.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key's bytes, which give its order.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl std::str::FromStr for Key {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, KeyError> {
        Self::parse(text)
    }
}

/// A prefix of whole segments: `/a` covers `/a/b`, not `/ab`, not `/a` itself. The root covers every key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Prefix(String);

impl Prefix {
    /// The root, which covers every key.
    #[must_use]
    pub fn root() -> Self {
        Self::default()
    }

    /// Normalises and checks a prefix; the empty text and `/` are the root.
    ///
    /// # Errors
    /// As [`Key::parse`], but the root is allowed.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        normalise(text).map(Self)
    }

    /// The prefix in normal form; the root is `/`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        if self.0.is_empty() { "/" } else { &self.0 }
    }

    /// The bytes that every covered key starts with: the prefix and one slash.
    #[must_use]
    pub fn start(&self) -> Vec<u8> {
        let mut start = self.0.as_bytes().to_vec();
        start.push(b'/');
        start
    }

    /// The first bytes after all covered keys, excluded: the prefix and the byte after the slash.
    #[must_use]
    pub fn end(&self) -> Vec<u8> {
        let mut end = self.0.as_bytes().to_vec();
        end.push(b'/' + 1);
        end
    }

    /// Whether the key lies below this prefix.
    #[must_use]
    pub fn covers(&self, key: &Key) -> bool {
        key.as_str().strip_prefix(self.0.as_str()).is_some_and(|rest| rest.len() > 1 && rest.starts_with('/'))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// A range of keys by their bytes, both ends bounded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// First bytes in the range.
    pub start: Vec<u8>,
    /// First bytes after the range.
    pub end: Vec<u8>,
}

impl KeyRange {
    /// All keys below a prefix.
    #[must_use]
    pub fn of(prefix: &Prefix) -> Self {
        Self { start: prefix.start(), end: prefix.end() }
    }

    /// Narrows the range to what comes after the bound in ascending order.
    pub fn start_from(&mut self, bound: Bound<&[u8]>) {
        let start = match bound {
            Bound::Unbounded => return,
            Bound::Included(bytes) => bytes.to_vec(),
            Bound::Excluded(bytes) => successor(bytes),
        };
        if start > self.start {
            self.start = start;
        }
    }

    /// Narrows the range to what comes before the bytes, excluded.
    pub fn end_before(&mut self, bytes: &[u8]) {
        if bytes < self.end.as_slice() {
            self.end = bytes.to_vec();
        }
    }

    /// Whether nothing can lie in the range.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start >= self.end
    }
}

/// The smallest byte string greater than `bytes`.
fn successor(bytes: &[u8]) -> Vec<u8> {
    let mut next = bytes.to_vec();
    next.push(0);
    next
}

/// The normal form of a key or prefix; empty for the root.
fn normalise(text: &str) -> Result<String, KeyError> {
    let mut normal = String::with_capacity(text.len().min(MAX_KEY_BYTES) + 1);
    let mut bytes = 0;
    for segment in text.split('/').filter(|segment| !segment.is_empty()) {
        check_segment(segment)?;
        bytes += 1 + segment.len();
        if bytes <= MAX_KEY_BYTES {
            normal.push('/');
            normal.push_str(segment);
        }
    }
    if bytes > MAX_KEY_BYTES {
        return Err(KeyError::TooLong { bytes });
    }
    Ok(normal)
}

fn check_normal(text: &str) -> Result<(), KeyError> {
    if text.len() > MAX_KEY_BYTES {
        return Err(KeyError::TooLong { bytes: text.len() });
    }
    let Some(path) = text.strip_prefix('/') else {
        return Err(if text.is_empty() { KeyError::Empty } else { KeyError::NotNormal });
    };
    if path.is_empty() {
        return Err(KeyError::Empty);
    }
    // One pass over the bytes: every key of a listing comes through here.
    let mut segment = 0;
    let mut dots = 0;
    for byte in path.bytes() {
        match byte {
            b'/' => {
                check_shape(segment, dots)?;
                (segment, dots) = (0, 0);
                continue;
            }
            b'.' => dots += 1,
            0 => return Err(KeyError::Nul),
            _ => {}
        }
        segment += 1;
    }
    check_shape(segment, dots)
}

/// A segment by its length and the number of dots in it.
fn check_shape(segment: usize, dots: usize) -> Result<(), KeyError> {
    match (segment, dots) {
        (0, _) => Err(KeyError::NotNormal),
        (1, 1) => Err(KeyError::DotSegment { segment: "." }),
        (2, 2) => Err(KeyError::DotSegment { segment: ".." }),
        _ => Ok(()),
    }
}

fn check_segment(segment: &str) -> Result<(), KeyError> {
    match segment {
        "." => Err(KeyError::DotSegment { segment: "." }),
        ".." => Err(KeyError::DotSegment { segment: ".." }),
        _ if segment.as_bytes().contains(&0) => Err(KeyError::Nul),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_forms() {
        for (text, normal) in [
            ("a", "/a"),
            ("/a", "/a"),
            ("a//b/", "/a/b"),
            ("///a", "/a"),
            (" /a//b/ ", "/ /a/b/ "),
            ("a..b", "/a..b"),
            ("é%2F", "/é%2F"),
        ] {
            assert_eq!(Key::parse(text).unwrap().as_str(), normal, "{text:?}");
            assert_eq!(Key::from_normal(normal.as_bytes()).unwrap().as_str(), normal);
        }
    }

    #[test]
    fn refusals_name_their_reason() {
        assert_eq!(Key::parse(""), Err(KeyError::Empty));
        assert_eq!(Key::parse("//"), Err(KeyError::Empty));
        assert_eq!(Key::parse("/a/./b"), Err(KeyError::DotSegment { segment: "." }));
        assert_eq!(Key::parse("../h"), Err(KeyError::DotSegment { segment: ".." }));
        assert_eq!(Key::parse("a\0"), Err(KeyError::Nul));
        let longest = format!("/{}", "k".repeat(MAX_KEY_BYTES - 1));
        assert_eq!(Key::parse(&longest).unwrap().as_str(), longest);
        let over = format!("{longest}k");
        assert_eq!(Key::parse(&over), Err(KeyError::TooLong { bytes: MAX_KEY_BYTES + 1 }));
        assert!(Key::parse(&over).unwrap_err().to_string().contains("1024"));
        for bad in ["noslash", "/a//b", "/a/", "//"] {
            assert_eq!(Key::from_normal(bad.as_bytes()), Err(KeyError::NotNormal), "{bad:?}");
        }
        assert_eq!(Key::from_normal(b""), Err(KeyError::Empty));
        assert_eq!(Key::from_normal(b"/"), Err(KeyError::Empty));
        assert_eq!(Key::from_normal(b"/\xff"), Err(KeyError::NotUtf8));
        assert_eq!(Key::from_normal(over.as_bytes()), Err(KeyError::TooLong { bytes: MAX_KEY_BYTES + 1 }));
    }

    #[test]
    fn k02_a_prefix_is_made_of_whole_segments() {
        let keys = ["/foo", "/foo/1", "/foobar", "/foo-1"].map(|key| Key::parse(key).unwrap());
        let covered = |prefix: &str| -> Vec<&str> {
            let prefix = Prefix::parse(prefix).unwrap();
            let range = KeyRange::of(&prefix);
            keys.iter()
                .filter(|key| {
                    let inside = range.start.as_slice() <= key.as_bytes() && key.as_bytes() < range.end.as_slice();
                    assert_eq!(inside, prefix.covers(key), "{prefix} {key}");
                    inside
                })
                .map(Key::as_str)
                .collect()
        };
        assert_eq!(covered("/foo"), ["/foo/1"]);
        assert_eq!(covered("/foo/"), ["/foo/1"]);
        assert!(covered("/fo").is_empty());
        assert_eq!(covered("").len(), 4);
        assert_eq!(covered("/").len(), 4);
    }
}
