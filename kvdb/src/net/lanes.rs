//! Deliveries to the engine: one at a time per session, so that blocks arrive in the order in which they were sent, and
//! what has come meanwhile goes together, in pieces that a local write can wait for.

use std::collections::{BTreeMap, VecDeque};

use crdt::{Block, DatabaseId, Source};

use super::limits::DELIVERY_BYTES;
use super::sync::SessionId;
use crate::engine::port::{Delivery, WriteError};

/// Blocks of one session for the engine. `R` is the room that they take until they are merged.
#[derive(Debug)]
pub struct Load<R> {
    /// For the answer.
    pub session: SessionId,
    /// The database.
    pub database: DatabaseId,
    /// The sender's number.
    pub source: Source,
    /// The blocks, in the order in which they came.
    pub blocks: Vec<Block>,
    /// Their bytes.
    pub bytes: u64,
    /// Given back after the delivery.
    pub room: Vec<R>,
}

/// The sessions that deliver, each with what waits for the delivery under way.
#[derive(Debug)]
pub(super) struct Lanes<R>(BTreeMap<SessionId, VecDeque<Load<R>>>);

impl<R> Default for Lanes<R> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<R> Lanes<R> {
    /// The load again if it is to be delivered now; else it waits for the delivery under way, together with others up to a
    /// size that does not hold up the engine.
    pub(super) fn push(&mut self, load: Load<R>) -> Option<Load<R>> {
        let Some(lane) = self.0.get_mut(&load.session) else {
            self.0.insert(load.session, VecDeque::new());
            return Some(load);
        };
        match lane.back_mut().filter(|waiting| waiting.bytes + load.bytes <= DELIVERY_BYTES) {
            Some(waiting) => {
                waiting.blocks.extend(load.blocks);
                waiting.bytes += load.bytes;
                waiting.room.extend(load.room);
            }
            None => lane.push_back(load),
        }
        None
    }

    /// A delivery has ended: the next one, if blocks have come meanwhile.
    pub(super) fn done(&mut self, session: SessionId) -> Option<Load<R>> {
        let lane = self.0.get_mut(&session)?;
        let next = lane.pop_front();
        if next.is_none() {
            self.0.remove(&session);
        }
        next
    }
}

/// What the engine's answer to a delivery of so many blocks means for its session; `None` ends it.
#[must_use]
pub fn outcome(answer: Result<Delivery, WriteError>, blocks: usize) -> Option<Delivery> {
    match answer {
        Ok(delivery) => Some(delivery),
        // Closed meanwhile, which ends the session by itself.
        Err(WriteError::Closed) => Some(Delivery::default()),
        // Too much at once: as if the pending pool were full, sync brings them again.
        Err(WriteError::QueueFull { .. }) => Some(Delivery { dropped: blocks, ..Delivery::default() }),
        Err(_) => None,
    }
}
