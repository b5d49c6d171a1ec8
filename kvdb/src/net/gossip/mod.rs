//! Gossip: what is published, what is believed, and when silence means that the other is deaf.
//!
//! A state machine: the driver hands in messages, news and the time, and does what comes out.

mod hearing;
mod rate;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use crdt::mutation::{Mutation, active};
use crdt::{Block, DatabaseId, Dot, Signer, Verifier};
use libp2p::PeerId;
use libp2p::identity::{PublicKey, ed25519};

use super::Moment;
use super::budget::{self, Budget};
use super::limits::{
    GOSSIP_BLOCK_COST, GOSSIP_COST, GOSSIP_COST_PER_PEER, GOSSIP_COST_PER_PEER_PER_SECOND, GOSSIP_COST_PER_SECOND,
    MAX_BOOTS_PER_PUBLISHER, MAX_GOSSIP_BLOCK_BYTES, MAX_PUBLISHERS_PER_DATABASE, MIN_ANNOUNCE_GAP, RELAY_ANNOUNCE_GAP,
};
use super::local::Locals;
use super::wire::{Announce, Message, WireError};
use crate::engine::port::Progress;
use hearing::Hearing;
use rate::Rate;

/// The topic of a database.
#[must_use]
pub fn topic(database: &DatabaseId) -> String {
    use std::fmt::Write as _;
    let mut topic = "kvdb/1/".to_owned();
    for byte in database.0.iter().take(16) {
        // Writing to a string cannot fail.
        let _ = write!(topic, "{byte:02x}");
    }
    topic
}

/// What comes to the machine.
#[derive(Debug)]
pub enum Input<'a> {
    /// A database was opened.
    Opened(DatabaseId),
    /// A database was closed.
    Closed(DatabaseId),
    /// A database has advanced.
    Advanced {
        /// The database.
        database: DatabaseId,
        /// How.
        progress: &'a Progress,
        /// Every peer that has it open gets its blocks by its feed, so that publishing them would only send them twice.
        fed: bool,
    },
    /// A message of this database's topic.
    Message {
        /// The database whose topic it is.
        database: DatabaseId,
        /// Who passed it on.
        from: PeerId,
        /// Its data.
        data: Bytes,
    },
    /// What became of a block that was delivered: whether it waits for others or was dropped.
    Delivered {
        /// The database.
        database: DatabaseId,
        /// Who passed it on.
        from: PeerId,
        /// The block's author, if it is a peer.
        author: PeerId,
        /// Whether it could be merged, or was before.
        merged: bool,
    },
    /// The connection with a peer stands.
    Connected(PeerId),
    /// The last connection with a peer is gone.
    Disconnected(PeerId),
    /// A connected peer subscribed to the topic of a database.
    Subscribed(PeerId, DatabaseId),
    /// It did so no more.
    Unsubscribed(PeerId, DatabaseId),
    /// A wake-up time has come.
    Tick,
}

/// What a message is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Pass it on.
    Accept,
    /// Known: not passed on, nobody's fault.
    Ignore,
    /// Malformed or forged.
    Reject,
}

/// What the machine wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Subscribe to the topic of a database.
    Subscribe(DatabaseId),
    /// Unsubscribe from it.
    Unsubscribe(DatabaseId),
    /// Publish on the topic of a database.
    Publish(DatabaseId, Bytes),
    /// The verdict on the message handed in.
    Verdict(Verdict),
    /// Give a block to the engine and answer with `Delivered`.
    Deliver {
        /// The database.
        database: DatabaseId,
        /// Who passed it on.
        from: PeerId,
        /// Its author, if it is a peer.
        author: PeerId,
        /// The block.
        block: Block,
    },
    /// Sync with a peer; the hash of the version vector that was announced, if one was.
    StartSync(DatabaseId, PeerId, Option<[u8; 32]>),
    /// Drop the connection with a peer and make a new one.
    Reconnect(PeerId),
    /// Same blocks, but other heads or another digest than the publisher.
    Disagreement(DatabaseId, PeerId),
}

/// What decides when announcements are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GossipOptions {
    /// This start of the node: drawn at random, below 2^63.
    pub boot: u64,
    /// Time between announcements of one database, on average.
    pub interval: Duration,
}

/// One open database.
#[derive(Debug)]
struct Topic {
    counter: u64,
    rate: Rate,
    announce_at: Moment,
    announced_at: Option<Moment>,
    /// For each publisher its boots and the last counter of each, newest boot last.
    publishers: BTreeMap<[u8; 32], Vec<(u64, u64)>>,
}

/// The gossip state machine of one node.
pub struct GossipMachine {
    me: PeerId,
    options: GossipOptions,
    topics: BTreeMap<DatabaseId, Topic>,
    /// When each database is announced.
    due: BTreeSet<(Moment, DatabaseId)>,
    hearing: Hearing,
    budget: Budget,
    random: Box<dyn FnMut() -> u64 + Send>,
    signer: Box<dyn Signer + Send>,
    verifier: Box<dyn Verifier + Send>,
    out: Vec<Output>,
}

impl std::fmt::Debug for GossipMachine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GossipMachine").field("topics", &self.topics).field("hearing", &self.hearing).finish_non_exhaustive()
    }
}

impl GossipMachine {
    /// A machine without databases and peers.
    #[must_use]
    pub fn new(
        me: PeerId,
        options: GossipOptions,
        signer: Box<dyn Signer + Send>,
        verifier: Box<dyn Verifier + Send>,
        random: Box<dyn FnMut() -> u64 + Send>,
    ) -> Self {
        let hearing = Hearing::new(options.interval);
        let budget = Budget::new(
            budget::Rate { burst: GOSSIP_COST_PER_PEER, per_second: GOSSIP_COST_PER_PEER_PER_SECOND },
            budget::Rate { burst: GOSSIP_COST, per_second: GOSSIP_COST_PER_SECOND },
        );
        let (topics, due, out) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        Self { me, options, topics, due, hearing, budget, random, signer, verifier, out }
    }

    /// The one door.
    pub fn handle(&mut self, input: Input<'_>, locals: &Locals, now: Moment) -> Vec<Output> {
        match input {
            Input::Opened(database) => self.opened(database, now),
            Input::Closed(database) => {
                if let Some(topic) = self.topics.remove(&database) {
                    self.due.remove(&(topic.announce_at, database));
                    self.out.push(Output::Unsubscribe(database));
                }
            }
            Input::Advanced { database, progress, fed } => self.advanced(database, progress, fed, now),
            Input::Message { database, from, data } => {
                self.hearing.heard(from, database, now);
                let verdict = self.judge(database, from, data, locals, now);
                self.out.insert(0, Output::Verdict(verdict));
            }
            Input::Delivered { database, from, author, merged } => {
                if !merged {
                    self.start_sync(database, from, author, None);
                }
            }
            Input::Connected(peer) => self.hearing.connected(peer),
            Input::Disconnected(peer) => self.hearing.disconnected(&peer),
            Input::Subscribed(peer, database) => self.hearing.subscribed(peer, database, now),
            Input::Unsubscribed(peer, database) => self.hearing.unsubscribed(&peer, &database),
            Input::Tick => self.tick(locals, now),
        }
        std::mem::take(&mut self.out)
    }

    /// When `Tick` is wanted.
    #[must_use]
    pub fn wake(&self) -> Option<Moment> {
        self.due.first().map(|(at, _)| *at).into_iter().chain(self.hearing.wake()).min()
    }

    /// Peers that are subscribed to the topic of a database.
    pub fn subscribers(&self, database: &DatabaseId) -> impl Iterator<Item = PeerId> + '_ {
        self.hearing.subscribers(*database)
    }

    fn opened(&mut self, database: DatabaseId, now: Moment) {
        let announce_at = now + self.jittered();
        let topic = Topic { counter: 0, rate: Rate::new(now), announce_at, announced_at: None, publishers: BTreeMap::new() };
        match self.topics.insert(database, topic) {
            None => self.out.push(Output::Subscribe(database)),
            Some(before) => {
                self.due.remove(&(before.announce_at, database));
            }
        }
        self.due.insert((announce_at, database));
    }

    fn announce_at(&mut self, database: DatabaseId, at: Moment) {
        if let Some(topic) = self.topics.get_mut(&database) {
            self.due.remove(&(topic.announce_at, database));
            topic.announce_at = at;
            self.due.insert((at, database));
        }
    }

    /// The interval, 30 % more or less, so that the nodes of a database do not speak at once.
    fn jittered(&mut self) -> Duration {
        let thousandth = u32::try_from((self.random)() % 601).unwrap_or(300);
        self.options.interval * (700 + thousandth) / 1_000
    }

    fn advanced(&mut self, database: DatabaseId, progress: &Progress, fed: bool, now: Moment) {
        let Some(topic) = self.topics.get_mut(&database) else { return };
        let mut unsent = progress.sealed_overflow;
        for block in progress.sealed.iter().filter(|_| !fed) {
            let bytes = block.bytes();
            if bytes.len() <= MAX_GOSSIP_BLOCK_BYTES && topic.rate.allows(bytes.len(), now) {
                self.out.push(Output::Publish(database, Message::Block(bytes.clone()).encode()));
            } else {
                unsent = true;
            }
        }
        // What came from others is not published again, but a peer beyond the feeds must hear of it from somebody: the
        // hub of a star has more peers than feeds, and its spokes publish to nobody else.
        let gap = if unsent { MIN_ANNOUNCE_GAP } else { RELAY_ANNOUNCE_GAP };
        if !fed && !progress.vv.is_empty() {
            let allowed = topic.announced_at.map_or(now, |at| now.max(at + gap));
            let at = topic.announce_at.min(allowed);
            self.announce_at(database, at);
        }
    }

    fn tick(&mut self, locals: &Locals, now: Moment) {
        while let Some((_, database)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.announce(database, locals, now);
        }
        for (peer, database) in self.hearing.deaf(now) {
            if self.topics.contains_key(&database) {
                self.out.push(Output::StartSync(database, peer, None));
                self.out.push(Output::Reconnect(peer));
            }
        }
    }

    fn announce(&mut self, database: DatabaseId, locals: &Locals, now: Moment) {
        let next = now + self.jittered();
        self.announce_at(database, next);
        let Some(topic) = self.topics.get_mut(&database) else { return };
        topic.announced_at = Some(now);
        let Some(local) = locals.get(&database) else { return };
        topic.counter += 1;
        let summary = local.summary();
        let announce = Announce {
            database,
            publisher: [0; 32],
            boot: self.options.boot,
            counter: topic.counter,
            heads_hash: summary.heads_hash,
            vv_hash: summary.vv_hash,
            digest: summary.digest,
            signature: [0; 64],
        };
        let message = Message::Announce(Box::new(announce.signed(self.signer.as_ref())));
        self.out.push(Output::Publish(database, message.encode()));
    }

    fn judge(&mut self, database: DatabaseId, from: PeerId, data: Bytes, locals: &Locals, now: Moment) -> Verdict {
        if !self.topics.contains_key(&database) {
            return Verdict::Ignore;
        }
        let message = Message::decode(data);
        let cost = if matches!(message, Ok(Message::Block(_))) { GOSSIP_BLOCK_COST } else { 1 };
        if !self.budget.allows(from, cost, now) {
            // Sync compares everything, however much was said.
            self.out.push(Output::StartSync(database, from, None));
            return Verdict::Ignore;
        }
        match message {
            Ok(Message::Block(bytes)) => self.judge_block(database, from, bytes, locals),
            Ok(Message::Announce(announce)) => self.judge_announce(database, from, &announce, locals, now),
            // A later release may say more; that is not this peer's fault.
            Err(WireError::UnknownKind { .. }) => Verdict::Ignore,
            Err(_) => Verdict::Reject,
        }
    }

    fn judge_block(&mut self, database: DatabaseId, from: PeerId, bytes: Bytes, locals: &Locals) -> Verdict {
        // What is merged already is known by its name, without the cost of a signature.
        let covered = |dot: &Dot| locals.get(&database).is_some_and(|local| local.covers(dot));
        match Block::from_store(bytes.clone()) {
            Ok(block) if block.database() == database && covered(&block.dot()) => return Verdict::Ignore,
            Ok(block) if block.database() == database => {}
            _ => return Verdict::Reject,
        }
        let Ok(block) = Block::verify(bytes, self.verifier.as_mut()) else { return Verdict::Reject };
        let author = peer_of(&block.author().public_key).unwrap_or(from);
        if !active(Mutation::GossipBlockLost) {
            self.out.push(Output::Deliver { database, from, author, block });
        }
        Verdict::Accept
    }

    fn judge_announce(
        &mut self,
        database: DatabaseId,
        from: PeerId,
        announce: &Announce,
        locals: &Locals,
        now: Moment,
    ) -> Verdict {
        let Some(topic) = self.topics.get(&database) else { return Verdict::Ignore };
        let Some(publisher) = peer_of(&announce.publisher) else { return Verdict::Reject };
        if announce.database != database {
            return Verdict::Reject;
        }
        if publisher == self.me || topic.is_stale(announce) {
            return Verdict::Ignore;
        }
        if !announce.verify(self.verifier.as_mut()) {
            return Verdict::Reject;
        }
        let Some(topic) = self.topics.get_mut(&database) else { return Verdict::Ignore };
        topic.remember(announce);
        self.hearing.heard(publisher, database, now);
        if let Some(local) = locals.get(&database) {
            let ours = local.summary();
            if ours.vv_hash != announce.vv_hash && !active(Mutation::AnnouncementIgnored) {
                self.start_sync(database, from, publisher, Some(announce.vv_hash));
            } else if (ours.heads_hash, ours.digest) != (announce.heads_hash, announce.digest) {
                self.out.push(Output::Disagreement(database, publisher));
            }
        }
        Verdict::Accept
    }

    /// With whom it is from, if connected; else with who passed it on.
    fn start_sync(&mut self, database: DatabaseId, from: PeerId, origin: PeerId, announced: Option<[u8; 32]>) {
        let with_origin = self.hearing.is_connected(&origin);
        // What one peer passes on of another need not be what it has itself.
        let announced = announced.filter(|_| with_origin);
        self.out.push(Output::StartSync(database, if with_origin { origin } else { from }, announced));
    }
}

impl Topic {
    fn is_stale(&self, announce: &Announce) -> bool {
        let mut boots = self.publishers.get(&announce.publisher).into_iter().flatten();
        boots.any(|(boot, counter)| *boot == announce.boot && *counter >= announce.counter)
    }

    /// Notes the counter. When there are too many publishers one is forgotten: a replay of its words costs one comparison.
    fn remember(&mut self, announce: &Announce) {
        if self.publishers.len() >= MAX_PUBLISHERS_PER_DATABASE && !self.publishers.contains_key(&announce.publisher) {
            self.publishers.pop_first();
        }
        let boots = self.publishers.entry(announce.publisher).or_default();
        match boots.iter_mut().find(|(boot, _)| *boot == announce.boot) {
            Some((_, counter)) => *counter = announce.counter,
            None => {
                if boots.len() >= MAX_BOOTS_PER_PUBLISHER {
                    boots.remove(0);
                }
                boots.push((announce.boot, announce.counter));
            }
        }
    }
}

/// The peer id of an ed25519 public key; `None` when the bytes are no key.
#[must_use]
pub fn peer_of(public_key: &[u8; 32]) -> Option<PeerId> {
    let key = ed25519::PublicKey::try_from_bytes(public_key).ok()?;
    Some(PublicKey::from(key).to_peer_id())
}
