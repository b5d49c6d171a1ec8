//! No dot ever names two blocks of honest writers, whatever was lost, copied or restored.

use std::collections::BTreeMap;

use crdt::{BlockHash, DatabaseId, Dot};

use super::{Check, Merging, Truth, Verdict};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Names {
    made: BTreeMap<(DatabaseId, Dot), BlockHash>,
}

impl Check for Names {
    fn name(&self) -> &'static str {
        "one block per name"
    }

    fn merging(&mut self, merging: &Merging<'_>, _: &Truth) -> Verdict {
        let (dot, hash) = (merging.block.dot(), merging.block.hash());
        let known = *self.made.entry((merging.block.database(), dot)).or_insert(hash);
        if known == hash { Ok(()) } else { Err(format!("n{} merges another block named {dot} than was known", merging.node)) }
    }
}
