//! A peer without manners: libp2p's encryption and streams, and nothing of ours above them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crdt::{Author, Block, Change, Draft, Ed25519Signer, Op, Parent, Signer as _, Stamp};
use futures::{AsyncReadExt as _, AsyncWriteExt as _, StreamExt as _};
use kvdb::net::wire::{ErrorCode, Frame, Hello, frame_len, header};
use kvdb::{DatabaseId, Dot, Key, Keypair, Multiaddr, PeerId};
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{Stream, StreamProtocol, SwarmBuilder, noise, ping, tcp, yamux};
use tokio::sync::watch;

/// How long anything may take on a slow machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
pub(super) const SYNC: StreamProtocol = StreamProtocol::new("/kvdb/sync/1");
pub(super) const GOSSIP: StreamProtocol = StreamProtocol::new("/meshsub/1.1.0");

/// Answers pings, since whoever does not is taken for gone.
#[derive(NetworkBehaviour)]
struct Behaviour {
    ping: ping::Behaviour,
    stream: libp2p_stream::Behaviour,
}

/// A connection with the victim.
pub(super) struct Adversary {
    pub(super) seed: [u8; 32],
    victim: PeerId,
    control: libp2p_stream::Control,
    connected: watch::Receiver<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Adversary {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(super) fn keypair(mut seed: [u8; 32]) -> Keypair {
    Keypair::ed25519_from_bytes(&mut seed).unwrap()
}

/// A new identity with a smaller id than the victim's: the smaller opens the sync stream.
pub(super) fn smaller_than(victim: &PeerId) -> [u8; 32] {
    loop {
        let seed: [u8; 32] = rand::random();
        if keypair(seed).public().to_peer_id() < *victim {
            return seed;
        }
    }
}

impl Adversary {
    /// Connects with an identity; `None` when the victim wants no connection with it.
    pub(super) async fn connect(address: &Multiaddr, victim: PeerId, seed: [u8; 32]) -> Option<Self> {
        let mut swarm = SwarmBuilder::with_existing_identity(keypair(seed))
            .with_tokio()
            .with_tcp(tcp::Config::default().nodelay(true), noise::Config::new, yamux::Config::default)
            .unwrap()
            .with_behaviour(|_| Behaviour { ping: ping::Behaviour::default(), stream: libp2p_stream::Behaviour::new() })
            .unwrap()
            .with_swarm_config(|config| config.with_idle_connection_timeout(Duration::from_secs(3_600)))
            .build();
        let mut control = swarm.behaviour().stream.new_control();
        // Who speaks no gossip at all is not listened to either.
        let mut gossip = control.accept(GOSSIP).unwrap();
        tokio::spawn(async move {
            while let Some((_, mut stream)) = gossip.next().await {
                tokio::spawn(async move { futures::io::copy(&mut stream, &mut futures::io::sink()).await });
            }
        });
        swarm.dial(address.clone()).unwrap();
        let (say, connected) = watch::channel(false);
        let (first, begun) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(async move {
            let mut first = Some(first);
            loop {
                let up = match swarm.select_next_some().await {
                    SwarmEvent::ConnectionEstablished { .. } => true,
                    SwarmEvent::ConnectionClosed { .. } | SwarmEvent::OutgoingConnectionError { .. } => false,
                    _ => continue,
                };
                say.send_replace(up);
                if let Some(first) = first.take() {
                    let _ = first.send(up);
                }
            }
        });
        let this = Self { seed, victim, control, connected, task };
        let up = tokio::time::timeout(PATIENCE, begun).await.ok()?.ok()?;
        up.then_some(this)
    }

    /// Connects under a new identity.
    pub(super) async fn new(address: &Multiaddr, victim: PeerId) -> Self {
        Self::connect(address, victim, smaller_than(&victim)).await.expect("a new identity is let in")
    }

    pub(super) async fn open(&self, protocol: StreamProtocol) -> Option<Stream> {
        let mut control = self.control.clone();
        tokio::time::timeout(PATIENCE, control.open_stream(self.victim, protocol)).await.ok()?.ok()
    }

    /// Waits until the victim has closed the connection.
    pub(super) async fn is_cut_off(&self) {
        let mut connected = self.connected.clone();
        tokio::time::timeout(PATIENCE, connected.wait_for(|up| !up)).await.expect("the victim keeps the connection").unwrap();
    }
}

/// What came over a sync stream.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Bytes of blocks that the victim has taken.
    pub(super) consumed: u64,
    pub(super) opened: bool,
    pub(super) blocks: u64,
    greeted: bool,
    pub(super) error: Option<(ErrorCode, String)>,
    pub(super) ended: bool,
}

/// A sync stream.
pub(super) struct SyncPeer {
    pub(super) adversary: Adversary,
    writing: futures::io::WriteHalf<Stream>,
    heard: Arc<Mutex<Heard>>,
    sent: u64,
}

pub(super) fn hello() -> Frame {
    Frame::Hello(Hello { version: 1, features: 0, max_frame_bytes: 4_259_840, credit_bytes: 262_144 })
}

impl SyncPeer {
    /// Opens the stream and says nothing yet. One that comes together with another peer's may be dropped before the victim
    /// sees it, by libp2p: then it is opened again, as an honest peer would.
    pub(super) async fn silent(address: &Multiaddr, victim: PeerId) -> Self {
        let adversary = Adversary::new(address, victim).await;
        let end = tokio::time::Instant::now() + PATIENCE;
        loop {
            let stream = adversary.open(SYNC).await.expect("a sync stream");
            let (reading, writing) = stream.split();
            let heard: Arc<Mutex<Heard>> = Arc::default();
            tokio::spawn(listen(reading, Arc::clone(&heard)));
            let state = || {
                let heard = heard.lock().unwrap();
                (heard.greeted, heard.ended)
            };
            while state() == (false, false) {
                assert!(tokio::time::Instant::now() < end, "no hello");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            if state().0 {
                return Self { adversary, writing, heard, sent: 0 };
            }
            assert!(tokio::time::Instant::now() < end, "every stream ends without a hello");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Opens the stream and the database, as an honest peer would.
    pub(super) async fn polite(address: &Multiaddr, victim: PeerId, database: DatabaseId) -> Self {
        let mut peer = Self::silent(address, victim).await;
        peer.say(&hello()).await;
        peer.say(&Frame::Open(database)).await;
        peer.hears(|heard| heard.opened).await;
        peer
    }

    /// Writes bytes as they are; whether the stream took them.
    pub(super) async fn raw(&mut self, bytes: &[u8]) -> bool {
        let write = async { self.writing.write_all(bytes).await.is_ok() && self.writing.flush().await.is_ok() };
        // Whoever was cut off may find that nobody reads any more.
        tokio::time::timeout(Duration::from_secs(10), write).await.unwrap_or(false)
    }

    pub(super) async fn say(&mut self, frame: &Frame) -> bool {
        let body = frame.encode();
        let bytes = [&header(&body).unwrap()[..], &body].concat();
        self.raw(&bytes).await
    }

    /// Waits until something was heard.
    pub(super) async fn hears(&self, what: impl Fn(&Heard) -> bool) {
        let end = tokio::time::Instant::now() + PATIENCE;
        while !what(&self.heard.lock().unwrap()) {
            assert!(tokio::time::Instant::now() < end, "{:?}", self.heard.lock().unwrap());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(super) fn heard<T>(&self, read: impl FnOnce(&Heard) -> T) -> T {
        read(&self.heard.lock().unwrap())
    }

    /// Sends blocks within the credit; whether the victim took them all.
    pub(super) async fn blocks(&mut self, database: DatabaseId, blocks: &[Block]) -> bool {
        let mut left = blocks;
        while !left.is_empty() {
            let mut bytes = 0;
            let fits = |block: &&Block| {
                bytes += block.bytes().len();
                bytes <= 128 << 10
            };
            let count = left.iter().take(1_024).take_while(fits).count().max(1);
            let (part, rest) = left.split_at(count);
            left = rest;
            let bytes: u64 = part.iter().map(|block| block.bytes().len() as u64).sum();
            let end = tokio::time::Instant::now() + PATIENCE;
            while self.sent > 0 && self.sent + bytes > self.heard(|heard| heard.consumed) + 262_144 {
                if self.heard(|heard| heard.ended || heard.error.is_some()) || tokio::time::Instant::now() > end {
                    return false;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            self.sent += bytes;
            let blocks = part.iter().map(|block| block.bytes().clone()).collect();
            if !self.say(&Frame::Blocks { database, blocks }).await {
                return false;
            }
        }
        // Whoever goes at once takes along what was not read yet.
        let end = tokio::time::Instant::now() + PATIENCE;
        while self.heard(|heard| heard.consumed < self.sent && !heard.ended) && tokio::time::Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        self.heard(|heard| heard.consumed >= self.sent)
    }

    /// Sends what is claimed to be blocks.
    pub(super) async fn claimed(&mut self, database: DatabaseId, blocks: Vec<Vec<u8>>) -> bool {
        self.say(&Frame::Blocks { database, blocks: blocks.into_iter().map(Into::into).collect() }).await
    }

    /// Waits until the victim has said why and cut the connection.
    pub(super) async fn is_told_and_cut_off(&self, words: &str) {
        self.is_told(words).await;
        self.adversary.is_cut_off().await;
    }

    /// Waits until the victim has ended the stream and said why.
    pub(super) async fn is_told(&self, words: &str) {
        let end = tokio::time::Instant::now() + PATIENCE;
        while self.heard(|heard| heard.error.is_none() && !heard.ended) {
            assert!(tokio::time::Instant::now() < end, "neither told nor ended, {words:?} was expected");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let error = self.heard(|heard| heard.error.clone());
        let (_, text) = error.unwrap_or_else(|| panic!("ended without a word, {words:?} was expected"));
        assert!(text.contains(words), "{text:?} does not say {words:?}");
    }
}

async fn listen(mut reading: futures::io::ReadHalf<Stream>, ear: Arc<Mutex<Heard>>) {
    while let Some(frame) = read(&mut reading).await {
        let mut heard = ear.lock().unwrap();
        match frame {
            Frame::Hello(_) => heard.greeted = true,
            Frame::Ack { consumed, .. } => heard.consumed = heard.consumed.max(consumed),
            Frame::Open(_) => heard.opened = true,
            Frame::Blocks { blocks, .. } => heard.blocks += blocks.len() as u64,
            Frame::Error { code, text } => heard.error = Some((code, text)),
            _ => {}
        }
    }
    ear.lock().unwrap().ended = true;
}

async fn read(stream: &mut (impl futures::AsyncRead + Unpin)) -> Option<Frame> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).await.ok()?;
    let mut body = vec![0; frame_len(head).ok()?];
    stream.read_exact(&mut body).await.ok()?;
    Some(Frame::decode(body.into()).expect("the victim sends frames"))
}

/// Makes valid blocks, of whatever shape.
pub(super) struct Pen {
    signer: Ed25519Signer,
    pub(super) author: Author,
    database: DatabaseId,
    pub(super) seq: u64,
    pub(super) last: Option<Parent>,
}

impl Pen {
    pub(super) fn new(seed: [u8; 32], database: DatabaseId) -> Self {
        let signer = Ed25519Signer::from_seed(seed);
        let author = Author { public_key: signer.public_key(), nonce: rand::random::<u64>() >> 1 };
        Self { signer, author, database, seq: 0, last: None }
    }

    /// The next block of a chain, with a stamp of now.
    pub(super) fn next(&mut self, key: &str, value: &[u8]) -> Block {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
        let (seq, parents) = (self.seq + 1, self.last.into_iter().collect());
        self.make(seq, u64::try_from(now).unwrap() << 16, parents, key, value, Vec::new())
    }

    pub(super) fn make(
        &mut self,
        seq: u64,
        stamp: u64,
        parents: Vec<Parent>,
        key: &str,
        value: &[u8],
        superseded: Vec<Dot>,
    ) -> Block {
        let change = Change::Put { value: value.to_vec().into(), expiry: None };
        let op = Op { key: Key::parse(key).unwrap(), change, superseded };
        let (database, author) = (self.database, self.author);
        let draft = Draft { database, author, seq, stamp: Stamp(stamp), parents, ops: vec![op], answers: Vec::new() };
        let block = Block::seal(draft, &self.signer).unwrap();
        self.seq = seq;
        self.last = Some(Parent { dot: block.dot(), hash: block.hash() });
        block
    }
}
