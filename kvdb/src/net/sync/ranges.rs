//! Which keys differ, when two replicas of the same blocks are not equal.
//!
//! The node that wants to know asks for a range and is told its parts, some keys in number and a digest each. It looks at
//! its own rows, and asks again about the parts that differ, until they are keys. One question at a time, so memory and
//! traffic are bounded; both sides read of one moment each, and an answer counts only if both moments had the same version
//! vector. What was found stays when the stream is cut, and the rest is asked for when it stands again.

use crdt::Digest;

use super::*;
use crate::net::limits::{
    MAX_COMPARISONS, MAX_DIFFERING_KEYS, MAX_RANGE_READS, MAX_RANGE_STILL, MAX_RANGE_TRIES, MAX_RANGES_LEFT, MAX_TWO_BLOCKS,
    RANGE_GAP, RANGE_PATIENCE, RANGE_RETRY,
};
use crate::net::ranges::{Differing, RangeFound, RangeRead, RangeTask};
use crate::net::wire::{RangeFrame, RangeRefusal, Span};

/// For whom a range is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RangeReader {
    /// For the peer of a session that asked this question.
    Peer(SessionId, u64),
    /// For this node's own comparison with a peer, after the answer to this question.
    Own(PeerId, u64),
}

/// At which side something is at a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Here only.
    Here,
    /// At the peer only.
    There,
    /// At both, but not the same.
    Both,
}

/// How far a comparison has come.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CompareState {
    /// Not at its end; goes on while the peer is connected.
    #[error("it goes on")]
    Running,
    /// All keys were compared.
    #[error("it is done")]
    Done,
    /// Both replicas changed all the time, or they have not merged the same blocks.
    #[error("the replicas never had the same blocks: too much is written, or one lacks something")]
    Moving,
    /// The peer cannot read.
    #[error("the peer cannot read its rows")]
    PeerUnable,
    /// This node cannot read.
    #[error("this node cannot read its rows; verify names what is damaged")]
    Unable,
}

/// Where a replica differs from a peer's replica with the same blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    /// The peer.
    pub peer: PeerId,
    /// How far it has come.
    pub state: CompareState,
    /// Keys that differ, ascending, the first 1,000 that were found.
    pub keys: BTreeMap<crdt::Key, Side>,
    /// Keys that differ besides, as far as they were counted.
    pub more: u64,
    /// Names that two different blocks bear, one here and one there.
    pub two_blocks: BTreeSet<Dot>,
}

impl Comparison {
    /// Whether everything was compared and is the same.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.state == CompareState::Done && self.keys.is_empty() && self.more == 0 && self.two_blocks.is_empty()
    }
}

#[derive(Debug, Default)]
pub(super) struct Comparisons {
    own: BTreeMap<(DatabaseId, PeerId), Own>,
    /// What is being read for peers; a read goes on when its session ends.
    reads: BTreeMap<SessionId, u64>,
    numbers: u64,
}

/// One comparison of this node.
#[derive(Debug)]
struct Own {
    so_far: Comparison,
    /// Somebody wants to know, equal or not.
    asked_for: bool,
    /// The digests, here and there, at which it was begun.
    digests: Option<(Digest, Digest)>,
    /// What is left, the first one last.
    left: Vec<Span>,
    step: Step,
    tries: u32,
    /// The version vectors' hashes, here and there, that did not fit last, and how often in a row.
    last: Option<([u8; 32], [u8; 32])>,
    still: u32,
    /// When it was begun, in the order of all.
    age: u64,
}

#[derive(Debug)]
enum Step {
    /// Asks at this time, if the peer is there.
    Due(Moment),
    /// Asked, and waits for the answer to this question until then.
    Asked(u64, Moment),
    /// Looks at its own rows; the peer's version vector had this hash, and the answer reached so far.
    Reading(u64, [u8; 32], Option<crdt::Key>),
}

impl Own {
    fn new(peer: PeerId, age: u64, now: Moment) -> Self {
        let so_far =
            Comparison { peer, state: CompareState::Running, keys: BTreeMap::new(), more: 0, two_blocks: BTreeSet::new() };
        let left = vec![Span::default()];
        Self { so_far, asked_for: false, digests: None, left, step: Step::Due(now), tries: 0, last: None, still: 0, age }
    }

    /// From the first key on. Names that two blocks bear are not found by comparing rows, and stay.
    fn begin(&mut self, now: Moment) {
        (self.so_far.keys, self.so_far.more, self.so_far.state) = (BTreeMap::new(), 0, CompareState::Running);
        (self.left, self.step, self.tries, self.still) = (vec![Span::default()], Step::Due(now), 0, 0);
    }

    fn runs(&self) -> bool {
        self.so_far.state == CompareState::Running
    }

    fn differs(&mut self, key: crdt::Key, side: Side) {
        if self.so_far.keys.len() < MAX_DIFFERING_KEYS {
            self.so_far.keys.insert(key, side);
        } else {
            self.so_far.more += 1;
        }
    }

    /// A part that is not the same: its keys, or to be asked about once more.
    fn narrow(&mut self, part: Differing) {
        let Differing { span, theirs, mine, keys, last, digest } = part;
        if theirs > 1 {
            // Beyond the list it is only told that there are more, as far as that is known.
            let full = self.so_far.keys.len() >= MAX_DIFFERING_KEYS;
            if full {
                self.so_far.more += theirs.max(mine);
            } else {
                self.left.push(span);
            }
            return;
        }
        // The peer's one key is the part's last.
        let there = span.through.filter(|_| theirs == 1);
        let here = mine - u64::from(last.is_some() && there.is_some());
        let mut listed = 0;
        for key in keys.into_iter().filter(|key| there.as_ref() != Some(key)) {
            self.differs(key, Side::Here);
            listed += 1;
        }
        self.so_far.more += here - listed;
        if let Some(key) = there.filter(|_| last != Some(digest)) {
            self.differs(key, if last.is_some() { Side::Both } else { Side::There });
        }
    }
}

impl Comparisons {
    pub(super) fn wake(&self, sessions: &BTreeMap<PeerId, Peer>) -> Option<Moment> {
        let running = self.own.iter().filter(|(_, own)| own.runs());
        let due = running.filter_map(|((database, peer), own)| match own.step {
            Step::Due(at) => sessions.get(peer)?.sessions.contains_key(database).then_some(at),
            Step::Asked(_, until) => Some(until),
            Step::Reading(..) => None,
        });
        due.min()
    }
}

impl SyncMachine {
    /// Finds the keys at which this replica and a connected peer's differ, from the start; `false` when the peer does not have
    /// the database open. What is found comes with [`SyncMachine::comparisons`].
    pub fn compare(&mut self, database: DatabaseId, peer: PeerId) -> (bool, Vec<Output>) {
        let known = self.session_of(&peer, &database).is_some();
        if known {
            let now = self.now;
            self.comparison((database, peer), |own| {
                own.asked_for = true;
                own.begin(now);
            });
            self.compare_tick();
        }
        (known, std::mem::take(&mut self.out))
    }

    /// The comparisons of a database with its peers, in the order of these: where replicas with the same blocks were found to
    /// differ, and what somebody asked for.
    pub fn comparisons(&self, database: &DatabaseId) -> impl Iterator<Item = &Comparison> + '_ {
        let database = *database;
        self.comparisons.own.iter().filter(move |((of, _), _)| *of == database).map(|(_, own)| &own.so_far)
    }

    /// The peer has the same blocks, and is not equal: here and there these were the digests.
    pub(super) fn disagrees(&mut self, database: DatabaseId, peer: PeerId, digests: (Digest, Digest)) {
        let (now, name) = (self.now, (database, peer));
        self.comparison(name, |own| {
            let old = own.digests.replace(digests) != Some(digests) || own.so_far.state != CompareState::Done;
            if old && !own.runs() {
                own.begin(now);
            }
        });
        self.compare_tick();
    }

    /// These names are borne by one block here and by another one at the peer.
    pub(super) fn two_blocks(&mut self, database: DatabaseId, peer: PeerId, dots: &[Dot]) {
        self.comparison((database, peer), |own| {
            let room = MAX_TWO_BLOCKS.saturating_sub(own.so_far.two_blocks.len());
            own.so_far.two_blocks.extend(dots.iter().take(room));
        });
        self.compare_tick();
    }

    /// The peer is equal: what was found before is mended.
    pub(super) fn agrees(&mut self, database: DatabaseId, peer: PeerId) {
        let own = self.comparisons.own.get(&(database, peer));
        if own.is_some_and(|own| !own.asked_for && own.so_far.two_blocks.is_empty()) {
            self.comparisons.own.remove(&(database, peer));
        }
    }

    /// The comparison of a database with a peer, begun if there is none.
    fn comparison(&mut self, name: (DatabaseId, PeerId), change: impl FnOnce(&mut Own)) {
        let (of, now) = (&mut self.comparisons, self.now);
        if !of.own.contains_key(&name) && of.own.len() >= MAX_COMPARISONS {
            let oldest = of.own.iter().min_by_key(|(_, own)| (own.runs(), own.age)).map(|(name, _)| *name);
            oldest.map(|name| of.own.remove(&name));
        }
        of.numbers += 1;
        let age = of.numbers;
        change(of.own.entry(name).or_insert_with(|| Own::new(name.1, age, now)));
    }

    pub(super) fn comparisons_closed(&mut self, database: &DatabaseId) {
        self.comparisons.own.retain(|(of, _), _| of != database);
    }

    /// A session ends: its comparison goes on with the next one.
    pub(super) fn comparison_cut(&mut self, database: DatabaseId, peer: PeerId) {
        if let Some(own) = self.comparisons.own.get_mut(&(database, peer)) {
            own.step = Step::Due(self.now);
        }
    }

    /// Asks whatever is due.
    pub(super) fn compare_tick(&mut self) {
        let now = self.now;
        let mut asks = Vec::new();
        for ((database, peer), own) in self.comparisons.own.iter_mut().filter(|(_, own)| own.runs()) {
            let due = match own.step {
                Step::Due(at) | Step::Asked(_, at) => at <= now,
                Step::Reading(..) => false,
            };
            let connected = self.peers.get(peer).is_some_and(|peer| peer.sessions.contains_key(database));
            if !due || !connected {
                continue;
            }
            let Some(span) = own.left.last().cloned() else {
                own.so_far.state = CompareState::Done;
                continue;
            };
            self.comparisons.numbers += 1;
            let number = self.comparisons.numbers;
            own.step = Step::Asked(number, now + RANGE_PATIENCE);
            asks.push((*peer, Frame::Ranges(*database, RangeFrame::Ask { number, span })));
        }
        for (peer, frame) in asks {
            self.send(peer, frame);
        }
    }

    pub(super) fn range_frame(&mut self, from: PeerId, database: DatabaseId, frame: RangeFrame) {
        let Some(session) = self.target(from, database) else { return };
        match frame {
            RangeFrame::Ask { number, span } => self.range_asked(session, from, database, number, span),
            RangeFrame::Parts { number, vv_hash, parts, through } => {
                // Of a question that was given up, perhaps.
                let Some(own) = self.asked(database, from, number) else { return };
                let mut span = own.left.last().cloned().unwrap_or_default();
                let outside = |part: &crate::net::wire::Part| {
                    Some(&part.through) <= span.after.as_ref()
                        || span.through.as_ref().is_some_and(|through| part.through > *through)
                };
                let stuck = through.is_some() && (through <= span.after || parts.is_empty());
                if stuck || parts.iter().any(outside) {
                    self.misbehaved(from, Misbehaviour::Range);
                    return;
                }
                own.step = Step::Reading(number, vv_hash, through.clone());
                if through.is_some() {
                    span.through = through;
                }
                let reader = RangeReader::Own(from, number);
                self.out.push(Output::ReadRange { reader, database, task: RangeTask::Check(span, parts) });
            }
            RangeFrame::Refused { number, reason } => {
                let now = self.now;
                let Some(own) = self.asked(database, from, number) else { return };
                match reason {
                    RangeRefusal::Busy => own.step = Step::Due(now + Moment::from_secs(1)),
                    RangeRefusal::Unable => own.so_far.state = CompareState::PeerUnable,
                }
            }
        }
    }

    fn asked(&mut self, database: DatabaseId, peer: PeerId, number: u64) -> Option<&mut Own> {
        let own = self.comparisons.own.get_mut(&(database, peer))?;
        matches!(own.step, Step::Asked(asked, _) if asked == number && own.runs()).then_some(own)
    }

    fn range_asked(&mut self, session: SessionId, from: PeerId, database: DatabaseId, number: u64, span: Span) {
        if !self.count_question(session) {
            return;
        }
        let reads = &mut self.comparisons.reads;
        if reads.contains_key(&session) || reads.len() >= MAX_RANGE_READS {
            let reason = RangeRefusal::Busy;
            self.send(from, Frame::Ranges(database, RangeFrame::Refused { number, reason }));
            return;
        }
        reads.insert(session, number);
        let reader = RangeReader::Peer(session, number);
        self.out.push(Output::ReadRange { reader, database, task: RangeTask::Divide(span) });
    }

    /// A range was read, or could not be.
    pub(super) fn range_read(&mut self, reader: RangeReader, database: DatabaseId, read: Option<RangeRead>) {
        match reader {
            RangeReader::Peer(session, number) => {
                self.comparisons.reads.remove(&session);
                let Some(peer) = self.sessions.get(&session).map(|session| session.peer) else { return };
                let frame = match read {
                    Some(RangeRead { vv_hash, found: RangeFound::Parts(parts, through) }) => {
                        RangeFrame::Parts { number, vv_hash, parts, through }
                    }
                    _ => RangeFrame::Refused { number, reason: RangeRefusal::Unable },
                };
                self.send(peer, Frame::Ranges(database, frame));
            }
            RangeReader::Own(peer, number) => self.range_checked(database, peer, number, read),
        }
    }

    fn range_checked(&mut self, database: DatabaseId, peer: PeerId, number: u64, read: Option<RangeRead>) {
        let now = self.now;
        let Some(own) = self.comparisons.own.get_mut(&(database, peer)).filter(|own| own.runs()) else { return };
        let Step::Reading(asked, theirs, through) = &own.step else { return };
        if *asked != number {
            return;
        }
        let (theirs, through) = (*theirs, through.clone());
        let Some(RangeRead { vv_hash, found: RangeFound::Differing(parts) }) = read else {
            own.so_far.state = CompareState::Unable;
            return;
        };
        if vv_hash != theirs {
            let wait = RANGE_RETRY * (1 << own.tries.min(3));
            own.tries += 1;
            own.still = if own.last == Some((vv_hash, theirs)) { own.still + 1 } else { 0 };
            own.last = Some((vv_hash, theirs));
            own.step = Step::Due(now + wait.max(RANGE_GAP));
            if own.tries >= MAX_RANGE_TRIES || own.still >= MAX_RANGE_STILL {
                own.so_far.state = CompareState::Moving;
            }
            return;
        }
        (own.tries, own.still) = (0, 0);
        if let (Some(span), Some(through)) = (own.left.pop(), through) {
            own.left.push(Span { after: Some(through), through: span.through });
        }
        // The first part is to be asked about first.
        for part in parts.into_iter().rev() {
            own.narrow(part);
        }
        own.step = Step::Due(now + RANGE_GAP);
        if own.left.is_empty() {
            own.so_far.state = CompareState::Done;
        }
        // A peer that halves its keys is through much sooner.
        if own.left.len() > MAX_RANGES_LEFT {
            self.misbehaved(peer, Misbehaviour::Range);
        }
    }
}
