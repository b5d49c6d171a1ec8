//! The two tasks of a sync stream: one reads, decodes and verifies, one writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use crdt::snapshot::Chunk;
use crdt::{Block, Zip215};
use futures::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use libp2p::PeerId;
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::limits::{FAREWELL, FRAME_TIMEOUT, HELLO_TIMEOUT, PEER_UNMERGED_BYTES, WRITE_QUEUE_BYTES, WRITE_TIMEOUT};
use super::wire::{Frame, SnapshotFrame, WireError, frame_len, header};

/// Up to this many signatures are checked without leaving the task: less than a switch of threads is worth.
const VERIFY_INLINE: usize = 4;
/// The same for bytes.
const VERIFY_INLINE_BYTES: usize = 64 << 10;

/// Who may verify: one thread less than the machine runs at a time, so that a flood of blocks leaves one to everything else.
pub(super) fn verifiers() -> Arc<Semaphore> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Arc::new(Semaphore::new(threads.saturating_sub(1).max(1)))
}

/// What a stream has to say; blocks hold room of their peer's until they are merged.
pub(super) type StreamEvent = super::machine::StreamEvent<OwnedSemaphorePermit>;

/// Why reading ended.
#[derive(Debug, Error)]
enum ReadError {
    #[error("closed by the peer")]
    Closed,
    #[error("closed by the peer within a frame")]
    Cut,
    #[error("the peer was silent for {0:?} within a frame or before its Hello")]
    Slow(Duration),
    #[error("{0}")]
    Io(std::io::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// The sending end of a stream, by which the driver holds it. Dropped, it writes what is queued and closes.
#[derive(Debug)]
pub(super) struct Link {
    frames: mpsc::UnboundedSender<Frame>,
    queued: Arc<AtomicUsize>,
    reader: AbortHandle,
    /// Dropped with the link: the writer then has a little time for what is queued.
    _alive: oneshot::Sender<()>,
}

/// The peer reads so little that its queue has grown to the limit.
#[derive(Debug, Error)]
#[error("{queued} bytes wait for a peer that does not read, the limit is {WRITE_QUEUE_BYTES}")]
pub(super) struct QueueFull {
    queued: usize,
}

/// Where the streams report to: peer, epoch of its stream, event.
pub(super) type Reports = mpsc::Sender<(PeerId, u64, StreamEvent)>;

impl Link {
    pub(super) fn start<S>(stream: S, peer: PeerId, epoch: u64, reports: Reports, verifiers: Arc<Semaphore>) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (reading, writing) = stream.split();
        let (frames, queue) = mpsc::unbounded_channel();
        let queued = Arc::new(AtomicUsize::new(0));
        let writer = Writer { reports: reports.clone(), peer, epoch, queued: Arc::clone(&queued) };
        let (alive, gone) = oneshot::channel();
        tokio::spawn(writer.run(writing, queue, gone));
        let reader = tokio::spawn(async move {
            let end = read(BufReader::with_capacity(64 << 10, reading), peer, epoch, &reports, &verifiers).await;
            if let Err(error) = end {
                let event = match error {
                    ReadError::Wire(error) => StreamEvent::Garbage(error.to_string()),
                    error => StreamEvent::Ended(error.to_string()),
                };
                // The driver being gone is the end of everything.
                let _ = reports.send((peer, epoch, event)).await;
            }
        });
        Self { frames, queued, reader: reader.abort_handle(), _alive: alive }
    }

    /// Queues a frame; never waits.
    ///
    /// # Errors
    /// When the peer does not read.
    pub(super) fn send(&self, frame: Frame) -> Result<(), QueueFull> {
        let queued = self.queued.fetch_add(frame.size_hint(), Ordering::Relaxed);
        if queued > WRITE_QUEUE_BYTES {
            return Err(QueueFull { queued });
        }
        // A writer that has ended has reported it.
        let _ = self.frames.send(frame);
        Ok(())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

struct Writer {
    reports: Reports,
    peer: PeerId,
    epoch: u64,
    queued: Arc<AtomicUsize>,
}

impl Writer {
    async fn run<W: AsyncWrite + Unpin>(
        self,
        mut stream: W,
        mut frames: mpsc::UnboundedReceiver<Frame>,
        gone: oneshot::Receiver<()>,
    ) {
        let late = async {
            // The sender never sends; an error says that the link was dropped.
            let _ = gone.await;
            tokio::time::sleep(FAREWELL).await;
        };
        let end = tokio::select! {
            end = self.write(&mut stream, &mut frames) => end,
            () = late => return,
        };
        if let Err(error) = end {
            let _ = self.reports.send((self.peer, self.epoch, StreamEvent::Ended(error.to_string()))).await;
        }
    }

    async fn write<W: AsyncWrite + Unpin>(
        &self,
        stream: &mut W,
        frames: &mut mpsc::UnboundedReceiver<Frame>,
    ) -> std::io::Result<()> {
        while let Some(frame) = frames.recv().await {
            let size = frame.size_hint();
            let body = frame.encode();
            let mut bytes = Vec::with_capacity(body.len() + 4);
            bytes.extend_from_slice(&header(&body).map_err(std::io::Error::other)?);
            bytes.extend_from_slice(&body);
            let mut left = bytes.as_slice();
            while !left.is_empty() {
                let written = patiently(stream.write(left)).await?;
                if written == 0 {
                    return Err(std::io::ErrorKind::WriteZero.into());
                }
                left = left.get(written..).unwrap_or_default();
            }
            self.queued.fetch_sub(size, Ordering::Relaxed);
            if frames.is_empty() {
                patiently(stream.flush()).await?;
            }
            if matches!(frame, Frame::Blocks { .. }) {
                let _ = self.reports.send((self.peer, self.epoch, StreamEvent::Written(size))).await;
            }
        }
        patiently(stream.close()).await
    }
}

async fn patiently<T>(io: impl Future<Output = std::io::Result<T>>) -> std::io::Result<T> {
    let late = || std::io::Error::new(std::io::ErrorKind::TimedOut, format!("the peer took nothing for {WRITE_TIMEOUT:?}"));
    timeout(WRITE_TIMEOUT, io).await.unwrap_or_else(|_| Err(late()))
}

async fn read<R: AsyncRead + Unpin>(
    mut stream: R,
    peer: PeerId,
    epoch: u64,
    reports: &Reports,
    verifiers: &Arc<Semaphore>,
) -> Result<(), ReadError> {
    let room = Arc::new(Semaphore::new(PEER_UNMERGED_BYTES));
    let mut wait = Some(HELLO_TIMEOUT);
    loop {
        let body = read_body(&mut stream, wait.take()).await?;
        let event = match Frame::decode(body)? {
            Frame::Snapshot(database, SnapshotFrame::Chunk { name, hash, bytes }) => {
                let permits = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                let Ok(permit) = Arc::clone(&room).acquire_many_owned(permits).await else { return Ok(()) };
                let verdict = tokio::task::spawn_blocking(move || Chunk::verify(&database, hash, bytes)).await;
                match verdict {
                    Ok(Ok(chunk)) => StreamEvent::Chunk(database, name, chunk, permit),
                    Ok(Err(error)) => StreamEvent::Garbage(format!("a bad snapshot: {error}")),
                    Err(error) => StreamEvent::Garbage(error.to_string()),
                }
            }
            Frame::Blocks { database, blocks } => {
                let bytes: usize = blocks.iter().map(Bytes::len).sum();
                let permits = u32::try_from(bytes.min(PEER_UNMERGED_BYTES)).unwrap_or(u32::MAX);
                // While the engine is behind nothing more is read, and the peer's window closes.
                let Ok(permit) = Arc::clone(&room).acquire_many_owned(permits).await else { return Ok(()) };
                match verify(blocks, verifiers).await {
                    Ok(blocks) => StreamEvent::Blocks(database, blocks, permit),
                    Err(error) => StreamEvent::Garbage(error),
                }
            }
            frame => StreamEvent::Frame(frame),
        };
        if reports.send((peer, epoch, event)).await.is_err() {
            return Ok(());
        }
    }
}

async fn verify(blocks: Vec<Bytes>, verifiers: &Arc<Semaphore>) -> Result<Vec<Block>, String> {
    let small = blocks.len() <= VERIFY_INLINE && blocks.iter().map(Bytes::len).sum::<usize>() <= VERIFY_INLINE_BYTES;
    let turn = Arc::clone(verifiers).acquire_owned().await.map_err(|error| error.to_string())?;
    let check = move || -> Result<Vec<Block>, String> {
        // Kept to the end, even when nobody waits any more.
        let _turn = turn;
        let verdicts = Block::verify_all(blocks, &mut Zip215(rand::rng()));
        verdicts.into_iter().map(|verdict| verdict.map_err(|error| error.to_string())).collect()
    };
    if small {
        return check();
    }
    tokio::task::spawn_blocking(check).await.unwrap_or_else(|error| Err(error.to_string()))
}

/// Reads one frame. Between frames a peer may be silent as long as it likes, within one it may not.
async fn read_body<R: AsyncRead + Unpin>(stream: &mut R, first_byte: Option<Duration>) -> Result<Bytes, ReadError> {
    let (mut first, mut others) = ([0; 1], [0; 3]);
    let read = stream.read(&mut first);
    let read = match first_byte {
        Some(limit) => timeout(limit, read).await.map_err(|_| ReadError::Slow(limit))?,
        None => read.await,
    };
    if read.map_err(ReadError::Io)? == 0 {
        return Err(ReadError::Closed);
    }
    let rest = async {
        stream.read_exact(&mut others).await.map_err(|_| ReadError::Cut)?;
        let ([a], [b, c, d]) = (first, others);
        let len = frame_len([a, b, c, d])?;
        // Grows with what comes, not with what was promised.
        let mut body = Vec::with_capacity(len.min(64 << 10));
        stream.take(len as u64).read_to_end(&mut body).await.map_err(ReadError::Io)?;
        if body.len() < len { Err(ReadError::Cut) } else { Ok(body.into()) }
    };
    timeout(FRAME_TIMEOUT, rest).await.unwrap_or(Err(ReadError::Slow(FRAME_TIMEOUT)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::wire::Hello;

    async fn from(bytes: &[u8]) -> Result<Bytes, ReadError> {
        read_body(&mut futures::io::Cursor::new(bytes.to_vec()), Some(HELLO_TIMEOUT)).await
    }

    #[tokio::test]
    async fn r29_bad_lengths_and_cut_frames_end_the_stream() {
        let frame = Frame::Hello(Hello { version: 1, features: 0, max_frame_bytes: 1, credit_bytes: 1 }).encode();
        let framed = [&header(&frame).unwrap(), frame.as_ref()].concat();
        assert_eq!(from(&framed).await.unwrap(), frame);
        assert!(matches!(from(&[]).await, Err(ReadError::Closed)));
        assert!(matches!(from(&framed[..3]).await, Err(ReadError::Cut)));
        assert!(matches!(from(&framed[..framed.len() - 1]).await, Err(ReadError::Cut)));
        assert!(matches!(from(&(-1_i32).to_be_bytes()).await, Err(ReadError::Wire(_))));
        assert!(matches!(from(&[0, 0, 0, 0]).await, Err(ReadError::Wire(_))));
        assert!(matches!(from(&[0x7f, 0, 0, 0]).await, Err(ReadError::Wire(_))));
    }

    #[tokio::test]
    async fn forged_blocks_are_garbage() {
        let verifiers = verifiers();
        assert!(verify(vec![Bytes::from_static(b"no block")], &verifiers).await.is_err());
        let mut engine = crate::net::testing::ToyEngine::new(1);
        let db = crate::net::testing::database("d");
        engine.open(db);
        let good: Vec<Bytes> = (0..10).map(|i| engine.put(db, &format!("/k{i}"), b"v").0.bytes().clone()).collect();
        assert_eq!(verify(good.clone(), &verifiers).await.unwrap().len(), 10);
        let mut bad = good;
        let mut last = bad[9].to_vec();
        *last.last_mut().unwrap() ^= 1;
        bad[9] = last.into();
        assert!(verify(bad, &verifiers).await.is_err());
    }
}
