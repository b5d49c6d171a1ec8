//! What a snapshot is received for: kept with what is staged of it, so that a restart goes on as it was meant.

use bytes::Bytes;

use super::SnapshotError;
use crate::codec::cbor::{Reader, Writer};

/// Room for a head within its wrapping.
const MAX_HEAD_BYTES: usize = 128;

/// What is to become of the replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Purpose {
    /// The union of both merged sets.
    #[default]
    Join,
    /// The snapshot alone, if it covers all that is merged here.
    Replace,
    /// The snapshot alone, and what only this replica has merged is lost.
    ReplaceAndLose,
}

impl Purpose {
    /// Whether rows and blocks here do not count.
    #[must_use]
    pub fn replaces(self) -> bool {
        self != Self::Join
    }

    /// A snapshot's head as it is staged: as it came for a join, else `[1 or 2, head]`.
    #[must_use]
    pub fn wrap(self, head: Bytes) -> Bytes {
        let number = match self {
            Self::Join => return head,
            Self::Replace => 1,
            Self::ReplaceAndLose => 2,
        };
        let mut out = Writer::with_capacity(head.len() + 8);
        out.array(2).uint(number).bytes(&head);
        out.into_bytes()
    }

    /// What a staged head says.
    ///
    /// # Errors
    /// When it is none.
    pub fn unwrap(staged: Bytes) -> Result<(Self, Bytes), SnapshotError> {
        // An array of two; a head has seven items.
        if staged.first() != Some(&0x82) {
            return Ok((Self::Join, staged));
        }
        let mut input = Reader::new(staged);
        input.array_of("a staged head", 2)?;
        let purpose = match input.uint("a purpose")? {
            1 => Self::Replace,
            2 => Self::ReplaceAndLose,
            _ => return Err(SnapshotError::Value { what: "a purpose" }),
        };
        let head = input.bytes("a head", MAX_HEAD_BYTES)?;
        input.finish()?;
        Ok((purpose, head))
    }
}
