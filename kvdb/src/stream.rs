//! A listing as a stream: a thread of the blocking pool walks one snapshot and stays a few chunks ahead of its reader.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crdt::{DatabaseId, View as _};
use futures::Stream;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::clock::wall_time;
use crate::engine::shared::Shared;
use crate::error::{ReadError, read_error};
use crate::limits::{LIST_CHUNK_BYTES, LIST_CHUNK_ITEMS};
use crate::list::{ListItem, ListOptions, walk};
use crate::store::{RocksStore, RocksView};
use crate::watch::Position;

/// The items of a listing, all from one snapshot.
///
/// Holds a few chunks in memory however long the listing is, and waits for its reader as long as it takes; the
/// snapshot is kept meanwhile. The stream ends with `None` only when the listing is complete: a failure is an item.
#[derive(Debug)]
pub struct ListStream {
    chunks: mpsc::Receiver<Chunk>,
    items: std::vec::IntoIter<ListItem>,
    ended: bool,
    _place: OwnedSemaphorePermit,
}

#[derive(Debug)]
enum Chunk {
    Items(Vec<ListItem>),
    End(Result<(), ReadError>),
}

impl ListStream {
    /// `opened` is told where in the log the listing's snapshot stands.
    pub(crate) fn start(
        store: RocksStore,
        (database, shared): (DatabaseId, Arc<Shared>),
        options: ListOptions,
        place: OwnedSemaphorePermit,
        opened: Option<oneshot::Sender<Position>>,
    ) -> Self {
        let (sender, chunks) = mpsc::channel(2);
        tokio::task::spawn_blocking(move || {
            let mut chunk = Vec::with_capacity(LIST_CHUNK_ITEMS);
            let mut bytes = 0;
            let mut read_on = true;
            let mut take = |item: ListItem| {
                bytes += item.bytes();
                chunk.push(item);
                if chunk.len() >= LIST_CHUNK_ITEMS || bytes >= LIST_CHUNK_BYTES {
                    bytes = 0;
                    // A reader that has gone ends the walk.
                    read_on = sender
                        .blocking_send(Chunk::Items(std::mem::replace(&mut chunk, Vec::with_capacity(LIST_CHUNK_ITEMS))))
                        .is_ok();
                }
                read_on &= !shared.is_dropped();
                read_on
            };
            let result = store.snapshot(&database).map_err(|error| read_error(&error)).and_then(|view| {
                if let Some(opened) = opened {
                    // Whoever waits for it may have gone.
                    let _ = opened.send(position(&view)?);
                }
                walk(&view, &options, wall_time(), &mut take, &|| !sender.is_closed())
            });
            if shared.is_dropped() {
                drop(sender.blocking_send(Chunk::End(Err(ReadError::Dropped))));
            } else if read_on && (chunk.is_empty() || sender.blocking_send(Chunk::Items(chunk)).is_ok()) {
                drop(sender.blocking_send(Chunk::End(result)));
            }
        });
        Self { chunks, items: Vec::new().into_iter(), ended: false, _place: place }
    }
}

/// Where the snapshot stands in the log.
fn position(view: &RocksView<'_>) -> Result<Position, ReadError> {
    let revision = view.state().map_err(|error| read_error(&error))?.meta.revision;
    let entry = view.log(revision).next().transpose().map_err(|error| read_error(&error))?;
    Ok(Position { revision, dot: entry.filter(|entry| entry.revision == revision).map(|entry| entry.dot) })
}

impl Stream for ListStream {
    type Item = Result<ListItem, ReadError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(item) = self.items.next() {
                return Poll::Ready(Some(Ok(item)));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            match std::task::ready!(self.chunks.poll_recv(context)) {
                Some(Chunk::Items(items)) => self.items = items.into_iter(),
                Some(Chunk::End(result)) => {
                    self.ended = true;
                    if let Err(error) = result {
                        return Poll::Ready(Some(Err(error)));
                    }
                }
                // The walk ended without saying so: it panicked, or its runtime was shut down.
                None => {
                    self.ended = true;
                    return Poll::Ready(Some(Err(ReadError::Store { cause: "the listing was cut short".to_owned() })));
                }
            }
        }
    }
}
