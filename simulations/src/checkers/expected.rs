//! What a scenario's script says must be there in the end is there, on every node.

use crdt::Key;

use super::{Check, Truth, Verdict, stored_rows};
use crate::observe::WorldView;

/// Keys and what must be at them; nothing for `None`.
#[derive(Debug)]
pub(super) struct Expected(pub(super) Vec<(Key, Option<String>)>);

impl Check for Expected {
    fn name(&self) -> &'static str {
        "expected by the script"
    }

    fn finish(&mut self, world: &WorldView<'_>, _: &Truth) -> Verdict {
        let Some(database) = world.databases().first() else { return Ok(()) };
        for node in (0..world.nodes()).filter(|node| world.is_up(*node)) {
            let rows = stored_rows(node, database, world)?;
            for (key, must) in &self.0 {
                let row = rows.iter().find(|(at, _)| at == key).map(|(_, row)| row.siblings());
                let value = row.and_then(<[_]>::first).and_then(|winner| winner.value.as_deref());
                if value != must.as_deref().map(str::as_bytes) {
                    let found = value.map(String::from_utf8_lossy);
                    return Err(format!("n{node} has {found:?} at {key}, the script says {must:?}"));
                }
            }
        }
        Ok(())
    }
}
