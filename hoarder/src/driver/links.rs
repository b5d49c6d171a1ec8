//! Streams between members: each side opens one for what it has to say.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use futures::io::{AsyncReadExt as _, AsyncWriteExt as _};
use futures::stream::StreamExt as _;
use kvdb::PeerId;
use kvdb::net::{Stream, Streams};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::Event;
use crate::controller::Input;
use crate::wire::{Frame, frame_len, header};

/// The protocol between members.
const FLEET: &str = "/kvdb/fleet/1";
/// Frames that wait for one member; what does not fit is lost, which does no harm.
const QUEUE: usize = 1_024;
/// A member that takes no frame for this long is connected to anew.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a stream could not be opened.
const REOPEN: Duration = Duration::from_millis(250);

/// The sending ends.
#[derive(Debug)]
pub(super) struct Links {
    queues: BTreeMap<PeerId, mpsc::Sender<Bytes>>,
}

impl Links {
    /// Accepts streams from members, and opens one to each when there is something to say.
    pub(super) fn start(mut streams: Streams, members: BTreeSet<PeerId>, events: mpsc::Sender<Event>) -> Option<Self> {
        let mut incoming = streams.accept(FLEET)?;
        let allowed = members.clone();
        tokio::spawn(async move {
            let mut readers: BTreeMap<PeerId, tokio::task::AbortHandle> = BTreeMap::new();
            while let Some((peer, stream)) = incoming.next().await {
                if !allowed.contains(&peer) {
                    tracing::warn!(%peer, "a stream of somebody who is not in the fleet");
                    continue;
                }
                // One stream per member: the newest.
                let reader = tokio::spawn(read(peer, stream, events.clone())).abort_handle();
                if let Some(before) = readers.insert(peer, reader) {
                    before.abort();
                }
                if events.is_closed() {
                    return;
                }
            }
        });
        let queues = members.into_iter().map(|peer| {
            let (queue, frames) = mpsc::channel(QUEUE);
            tokio::spawn(write(peer, streams.clone(), frames));
            (peer, queue)
        });
        Some(Self { queues: queues.collect() })
    }

    pub(super) fn send(&self, peer: PeerId, frame: &Frame) {
        if let Some(queue) = self.queues.get(&peer) {
            // Full: the member does not read. Whoever needs an answer asks again.
            let _ = queue.try_send(frame.encode());
        }
    }

    pub(super) fn all(&self, frame: &Frame) {
        let bytes = frame.encode();
        for queue in self.queues.values() {
            let _ = queue.try_send(bytes.clone());
        }
    }
}

async fn read(peer: PeerId, mut stream: Stream, events: mpsc::Sender<Event>) {
    loop {
        let mut head = [0; 4];
        if stream.read_exact(&mut head).await.is_err() {
            break;
        }
        let Ok(len) = frame_len(head) else { break };
        let mut body = Vec::new();
        // Grows as bytes come, so that a length alone costs nothing.
        let read = (&mut stream).take(len as u64).read_to_end(&mut body).await;
        if read.ok() != Some(len) {
            break;
        }
        match Frame::decode(body.into()) {
            Ok(frame) => {
                if events.send(Event::Input(Box::new(Input::Frame(peer, frame)))).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(%peer, %error, "a member does not speak the fleet's protocol");
                break;
            }
        }
    }
    let _ = events.send(Event::Input(Box::new(Input::Down(peer)))).await;
}

async fn write(peer: PeerId, mut streams: Streams, mut frames: mpsc::Receiver<Bytes>) {
    let mut stream: Option<Stream> = None;
    while let Some(frame) = frames.recv().await {
        if stream.is_none() {
            match timeout(WRITE_TIMEOUT, streams.open(peer, FLEET)).await {
                Ok(Ok(opened)) => stream = Some(opened),
                _ => {
                    tokio::time::sleep(REOPEN).await;
                    continue;
                }
            }
        }
        let (Some(open), Ok(head)) = (stream.as_mut(), header(&frame)) else { continue };
        let send = async {
            open.write_all(&head).await?;
            open.write_all(&frame).await?;
            open.flush().await
        };
        if !matches!(timeout(WRITE_TIMEOUT, send).await, Ok(Ok(()))) {
            stream = None;
        }
    }
}
