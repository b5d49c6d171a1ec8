//! Bytes in JSON: text as it is when it is UTF-8, base64 otherwise, and always saying which.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// How a JSON string stands for bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// The bytes are the string's UTF-8.
    Utf8,
    /// The string is standard base64 with padding.
    Base64,
}

/// A string that is not what its encoding says.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the value is not base64 (standard alphabet, with padding)")]
pub struct EncodingError;

impl Encoding {
    /// Text when the bytes are UTF-8, base64 otherwise.
    pub fn encode(bytes: &[u8]) -> (Self, String) {
        match std::str::from_utf8(bytes) {
            Ok(text) => (Self::Utf8, text.to_owned()),
            Err(_) => (Self::Base64, Self::base64(bytes)),
        }
    }

    /// Base64 of the bytes.
    pub fn base64(bytes: &[u8]) -> String {
        STANDARD.encode(bytes)
    }

    /// The bytes that the string stands for.
    ///
    /// # Errors
    /// When it is not base64 but should be.
    pub fn decode(self, text: String) -> Result<Vec<u8>, EncodingError> {
        match self {
            Self::Utf8 => Ok(text.into_bytes()),
            Self::Base64 => STANDARD.decode(text).map_err(|_| EncodingError),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a04_bytes_round_trip_and_say_how_they_are_encoded() {
        for (bytes, encoding, text) in [
            (&b""[..], Encoding::Utf8, ""),
            (b"text \xc3\xa9\n\0", Encoding::Utf8, "text é\n\0"),
            (b"\x00\x01\xff\xfe", Encoding::Base64, "AAH//g=="),
        ] {
            assert_eq!(Encoding::encode(bytes), (encoding, text.to_owned()));
            assert_eq!(encoding.decode(text.to_owned()), Ok(bytes.to_vec()));
        }
        for bad in ["AAH//g", "AAH_/g==", "!", "AA=A"] {
            assert_eq!(Encoding::Base64.decode(bad.to_owned()), Err(EncodingError), "{bad:?}");
        }
    }
}
