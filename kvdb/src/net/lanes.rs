//! Deliveries to the engine: one at a time per session, so that blocks arrive in the order in which they were sent, and
//! whatever has come meanwhile goes as one.

use std::collections::BTreeMap;

use crdt::{Block, DatabaseId, Source};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::driver::Done;
use super::port::Backend;
use super::sync::SessionId;
use crate::engine::port::{Delivery, WriteError};

/// The sessions that deliver.
#[derive(Debug, Default)]
pub(super) struct Lanes(BTreeMap<SessionId, Load>);

/// What waits for the delivery under way.
#[derive(Debug)]
struct Load {
    database: DatabaseId,
    source: Source,
    blocks: Vec<Block>,
    bytes: u64,
    room: Vec<OwnedSemaphorePermit>,
}

impl Lanes {
    /// Delivers at once, or after the delivery under way.
    pub(super) fn push<B: Backend>(
        &mut self,
        session: SessionId,
        (database, source): (DatabaseId, Source),
        blocks: Vec<Block>,
        bytes: u64,
        room: Option<OwnedSemaphorePermit>,
        (backend, done): (&B, &mpsc::Sender<Done>),
    ) {
        let empty = || Load { database, source, blocks: Vec::new(), bytes: 0, room: Vec::new() };
        if let Some(waiting) = self.0.get_mut(&session) {
            waiting.blocks.extend(blocks);
            waiting.bytes += bytes;
            waiting.room.extend(room);
        } else {
            self.0.insert(session, empty());
            let load = Load { blocks, bytes, room: room.into_iter().collect(), ..empty() };
            deliver(session, load, backend, done);
        }
    }

    /// A delivery has ended: the next one, if blocks have come meanwhile.
    pub(super) fn done<B: Backend>(&mut self, session: SessionId, backend: &B, done: &mpsc::Sender<Done>) {
        let Some(mut load) = self.0.remove(&session) else { return };
        if !load.blocks.is_empty() {
            let (database, source) = (load.database, load.source);
            let blocks = std::mem::take(&mut load.blocks);
            let empty = Load { database, source, blocks: Vec::new(), bytes: 0, room: Vec::new() };
            self.0.insert(session, empty);
            deliver(session, Load { blocks, ..load }, backend, done);
        }
    }
}

fn deliver<B: Backend>(session: SessionId, load: Load, backend: &B, done: &mpsc::Sender<Done>) {
    let (backend, done) = (backend.clone(), done.clone());
    tokio::spawn(async move {
        let Load { database, source, blocks, bytes, room } = load;
        let count = blocks.len();
        let delivery = match backend.deliver(database, blocks, source).await {
            Ok(delivery) => Some(delivery),
            Err(error) => {
                tracing::warn!(%database, %error, "received blocks were not merged");
                match error {
                    // Closed meanwhile, which ends the session by itself.
                    WriteError::Closed => Some(Delivery::default()),
                    // Too much at once: as if the pending pool were full, sync brings them again.
                    WriteError::QueueFull { .. } => Some(Delivery { dropped: count, ..Delivery::default() }),
                    _ => None,
                }
            }
        };
        drop(room);
        // The driver being gone is the end of everything.
        let _ = done.send(Done::Delivered(session, bytes, delivery)).await;
    });
}
