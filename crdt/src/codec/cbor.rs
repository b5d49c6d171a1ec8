//! Deterministic CBOR (RFC 8949, core requirements) by headers: each header is re-encoded and compared, each count is
//! checked against the limit and against the bytes left before anything is reserved.

use bytes::Bytes;
use ciborium_ll::{Decoder, Encoder, Header, simple};
use thiserror::Error;

use crate::limits::MAX_UINT;

/// Why bytes are not the CBOR that was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CborError {
    /// The input ends inside an item, or an item claims more bytes or items than are left.
    #[error("the input ends inside an item at byte {at}")]
    Truncated {
        /// Offset of the item.
        at: usize,
    },
    /// The item has another type, or none that is allowed.
    #[error("expected {wanted} at byte {at}")]
    Unexpected {
        /// Offset of the item.
        at: usize,
        /// What should stand there.
        wanted: &'static str,
    },
    /// The item is not written in its shortest form, or has no definite length.
    #[error("the item at byte {at} is not in its shortest definite form")]
    NotCanonical {
        /// Offset of the item.
        at: usize,
    },
    /// An integer is 2^63 or more.
    #[error("the integer at byte {at} is 2^63 or more")]
    IntegerTooLarge {
        /// Offset of the item.
        at: usize,
    },
    /// A list or string is longer than its limit.
    #[error("{what} at byte {at} has {len}, the limit is {limit}")]
    TooMany {
        /// Offset of the item.
        at: usize,
        /// What is too long.
        what: &'static str,
        /// Its length.
        len: usize,
        /// The most that is allowed.
        limit: usize,
    },
    /// Bytes follow the last item.
    #[error("bytes follow the last item at byte {at}")]
    Trailing {
        /// Offset of the first of them.
        at: usize,
    },
}

/// Reads items one by one; strings are slices of the input, nothing is copied.
#[derive(Debug)]
pub struct Reader {
    input: Bytes,
    at: usize,
}

impl Reader {
    /// Starts at the first byte.
    #[must_use]
    pub fn new(input: Bytes) -> Self {
        Self { input, at: 0 }
    }

    /// Offset of the next item.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.at
    }

    /// A list's length, checked against `limit` and, at one byte an item, against what is left.
    ///
    /// # Errors
    /// When no such list comes next.
    pub fn array(&mut self, what: &'static str, limit: usize) -> Result<usize, CborError> {
        let at = self.at;
        let Header::Array(len) = self.header()? else { return Err(CborError::Unexpected { at, wanted: what }) };
        let len = len.ok_or(CborError::NotCanonical { at })?;
        if len > limit {
            return Err(CborError::TooMany { at, what, len, limit });
        }
        if len > self.left() {
            return Err(CborError::Truncated { at });
        }
        Ok(len)
    }

    /// A list of exactly `len` items.
    ///
    /// # Errors
    /// When no such list comes next.
    pub fn array_of(&mut self, what: &'static str, len: usize) -> Result<(), CborError> {
        let at = self.at;
        if self.array(what, len)? == len { Ok(()) } else { Err(CborError::Unexpected { at, wanted: what }) }
    }

    /// An integer from 0 to 2^63 − 1.
    ///
    /// # Errors
    /// When no such integer comes next.
    pub fn uint(&mut self, what: &'static str) -> Result<u64, CborError> {
        let at = self.at;
        match self.header()? {
            Header::Positive(value) if value <= MAX_UINT => Ok(value),
            Header::Positive(_) => Err(CborError::IntegerTooLarge { at }),
            _ => Err(CborError::Unexpected { at, wanted: what }),
        }
    }

    /// A byte string of at most `limit` bytes.
    ///
    /// # Errors
    /// When no such string comes next.
    pub fn bytes(&mut self, what: &'static str, limit: usize) -> Result<Bytes, CborError> {
        let at = self.at;
        match self.header()? {
            Header::Bytes(len) => self.body(at, what, len, limit),
            _ => Err(CborError::Unexpected { at, wanted: what }),
        }
    }

    /// A byte string of at most `limit` bytes, or null.
    ///
    /// # Errors
    /// When neither comes next.
    pub fn bytes_or_null(&mut self, what: &'static str, limit: usize) -> Result<Option<Bytes>, CborError> {
        let at = self.at;
        match self.header()? {
            Header::Bytes(len) => self.body(at, what, len, limit).map(Some),
            Header::Simple(simple::NULL) => Ok(None),
            _ => Err(CborError::Unexpected { at, wanted: what }),
        }
    }

    /// A byte string of exactly `N` bytes.
    ///
    /// # Errors
    /// When no such string comes next.
    pub fn bytes_of<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], CborError> {
        let at = self.at;
        let bytes = self.bytes(what, N)?;
        bytes.as_ref().try_into().map_err(|_| CborError::Unexpected { at, wanted: what })
    }

    /// A text string of at most `limit` bytes; whether it is UTF-8 is for the caller to check.
    ///
    /// # Errors
    /// When no such string comes next.
    pub fn text(&mut self, what: &'static str, limit: usize) -> Result<Bytes, CborError> {
        let at = self.at;
        match self.header()? {
            Header::Text(len) => self.body(at, what, len, limit),
            _ => Err(CborError::Unexpected { at, wanted: what }),
        }
    }

    /// Exactly these bytes.
    ///
    /// # Errors
    /// When others come next.
    pub fn literal(&mut self, what: &'static str, expected: &[u8]) -> Result<(), CborError> {
        let at = self.at;
        if self.take(at, expected.len())? == expected { Ok(()) } else { Err(CborError::Unexpected { at, wanted: what }) }
    }

    /// The next `N` bytes, whatever they are.
    ///
    /// # Errors
    /// When fewer are left.
    pub fn raw<const N: usize>(&mut self) -> Result<[u8; N], CborError> {
        let at = self.at;
        self.take(at, N)?.as_ref().try_into().map_err(|_| CborError::Truncated { at })
    }

    /// Nothing may be left.
    ///
    /// # Errors
    /// When bytes are left.
    pub fn finish(self) -> Result<(), CborError> {
        if self.left() == 0 { Ok(()) } else { Err(CborError::Trailing { at: self.at }) }
    }

    /// Bytes not yet read.
    #[must_use]
    pub fn left(&self) -> usize {
        self.input.len() - self.at
    }

    fn header(&mut self) -> Result<Header, CborError> {
        let at = self.at;
        let rest = self.input.get(at..).unwrap_or_default();
        let mut decoder = Decoder::from(rest);
        let header = decoder.pull().map_err(|error| match error {
            ciborium_ll::Error::Io(_) => CborError::Truncated { at },
            ciborium_ll::Error::Syntax(_) => CborError::NotCanonical { at },
        })?;
        let used = decoder.offset();
        // Nine bytes are the longest header.
        let mut shortest = [0u8; 9];
        let mut free = shortest.as_mut_slice();
        let encoded = Encoder::from(&mut free).push(header);
        let len = 9 - free.len();
        if encoded.is_err() || rest.get(..used) != shortest.get(..len) {
            return Err(CborError::NotCanonical { at });
        }
        self.at += used;
        Ok(header)
    }

    fn body(&mut self, at: usize, what: &'static str, len: Option<usize>, limit: usize) -> Result<Bytes, CborError> {
        let len = len.ok_or(CborError::NotCanonical { at })?;
        if len > limit {
            return Err(CborError::TooMany { at, what, len, limit });
        }
        self.take(at, len)
    }

    fn take(&mut self, at: usize, len: usize) -> Result<Bytes, CborError> {
        if len > self.left() {
            return Err(CborError::Truncated { at });
        }
        let bytes = self.input.slice(self.at..self.at + len);
        self.at += len;
        Ok(bytes)
    }
}

/// Writes items in deterministic form.
#[derive(Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// An empty writer that has room for `bytes`.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    /// The header of a list of `len` items.
    pub fn array(&mut self, len: usize) -> &mut Self {
        self.header(Header::Array(Some(len)))
    }

    /// An integer.
    pub fn uint(&mut self, value: u64) -> &mut Self {
        self.header(Header::Positive(value))
    }

    /// A byte string.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.header(Header::Bytes(Some(bytes.len()))).raw(bytes)
    }

    /// A text string.
    pub fn text(&mut self, text: &str) -> &mut Self {
        self.header(Header::Text(Some(text.len()))).raw(text.as_bytes())
    }

    /// Null.
    pub fn null(&mut self) -> &mut Self {
        self.header(Header::Simple(simple::NULL))
    }

    /// Bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// The bytes written so far.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// The bytes written.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.0.into()
    }

    fn header(&mut self, header: Header) -> &mut Self {
        // Writing to a vector cannot fail: its error type has no value.
        let _: Result<(), std::convert::Infallible> = Encoder::from(&mut self.0).push(header).map_err(|never| match never {});
        self
    }
}
