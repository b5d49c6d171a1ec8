//! Who belongs to the fleet and who of them is there, as this node sees it.
//!
//! Known members are those of the allow-list that nobody has declared gone; death does not shrink them. Whether one is live is
//! judged by this node's own monotonic clock: from its last beat, or its last answer to a probe. A beat counts only if the
//! member signed it, if it is newer than what was heard of that start, and if the member itself has named the start in answer
//! to a probe: so a replay of old beats, also to a node that has never heard them, brings nobody back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use crdt::Verifier;
use kvdb::PeerId;
use sha2::{Digest as _, Sha256};

use crate::limits::{DEAD_AFTER, INDIRECT_AFTER, MAX_BOOTS_PER_MEMBER, PROBE_INTERVAL, SETTLE_WINDOW, SUSPECT_AFTER};
use crate::wire::Beat;
use crate::{Epoch, Moment};

/// Times of the failure detector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MembershipOptions {
    /// Silence after which a member is probed.
    pub suspect_after: Duration,
    /// Silence after which it is probed through others.
    pub indirect_after: Duration,
    /// Silence after which it is dead.
    pub dead_after: Duration,
    /// Time after the start in which placement waits.
    pub settle_window: Duration,
}

impl Default for MembershipOptions {
    fn default() -> Self {
        Self {
            suspect_after: SUSPECT_AFTER,
            indirect_after: INDIRECT_AFTER,
            dead_after: DEAD_AFTER,
            settle_window: SETTLE_WINDOW,
        }
    }
}

/// What a beat was worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Heard {
    /// It counts.
    Counted,
    /// Of a start that the member has not confirmed yet.
    Unconfirmed,
    /// Known already, or older than what is known.
    Old,
    /// Of nobody in the fleet.
    Stranger,
    /// Not signed by the member that it names.
    Forged,
    /// No beat of this version.
    Malformed,
}

/// What the failure detector wants done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Ask the member whether it is there.
    Probe(PeerId),
    /// Ask it through another one.
    ProbeFor {
        /// Whom to ask.
        via: PeerId,
        /// Who is to be probed.
        target: PeerId,
    },
}

/// How a member stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It is there.
    Live,
    /// It is there and has been silent for a while.
    Suspect,
    /// It is gone, or has said that it goes.
    Dead,
    /// Two starts of it are there at once: neither counts.
    Twice,
}

#[derive(Debug, Clone)]
struct Boot {
    id: u64,
    counter: u64,
    heard: Moment,
    confirmed: bool,
    beat: Option<Beat>,
}

#[derive(Debug, Default)]
struct Member {
    /// In the order in which they were first heard of.
    boots: Vec<Boot>,
    probed: Option<Moment>,
    /// Turns between direct and indirect probes.
    probes: u32,
}

/// The failure detector of one node.
#[derive(Debug)]
pub struct Membership {
    me: PeerId,
    boot: u64,
    options: MembershipOptions,
    started: Moment,
    known: BTreeMap<[u8; 32], PeerId>,
    members: BTreeMap<PeerId, Member>,
    live: BTreeSet<PeerId>,
    /// This node says that it goes.
    leaving: bool,
    /// When another start of this node's own identity was last heard.
    twin: Option<Moment>,
    /// When any other member was last heard.
    heard_any: Moment,
    counts: BTreeMap<Heard, u64>,
}

/// The ed25519 public key within a peer id, if it is of that kind.
#[must_use]
pub fn public_key(peer: &PeerId) -> Option<[u8; 32]> {
    // Multihash "identity" of 36 bytes, protobuf: type ed25519, 32 bytes of key.
    let bytes = peer.to_bytes();
    let (head, key) = bytes.split_at_checked(6)?;
    if head == [0x00, 0x24, 0x08, 0x01, 0x12, 0x20] { key.try_into().ok() } else { None }
}

/// The digest of a set of members.
#[must_use]
pub fn epoch_of(live: &BTreeSet<PeerId>) -> Epoch {
    let mut hash = Sha256::new().chain_update(b"kvdb/epoch/1");
    for peer in live {
        let bytes = peer.to_bytes();
        hash.update([u8::try_from(bytes.len()).unwrap_or(u8::MAX)]);
        hash.update(bytes);
    }
    let digest: [u8; 32] = hash.finalize().into();
    let mut epoch = [0; 16];
    epoch.copy_from_slice(digest.split_at(16).0);
    Epoch(epoch)
}

impl Membership {
    /// A node that starts now and knows these members, itself among them or not.
    #[must_use]
    pub fn new(me: PeerId, boot: u64, members: &BTreeSet<PeerId>, options: MembershipOptions, now: Moment) -> Self {
        let all: BTreeSet<PeerId> = members.iter().copied().chain([me]).collect();
        let known = all.iter().filter_map(|peer| Some((public_key(peer)?, *peer))).collect();
        let members = all.iter().filter(|peer| **peer != me).map(|peer| (*peer, Member::default())).collect();
        Self {
            me,
            boot,
            options,
            started: now,
            known,
            members,
            live: BTreeSet::from([me]),
            leaving: false,
            twin: None,
            heard_any: now,
            counts: BTreeMap::new(),
        }
    }

    /// An operator has declared this member gone for good.
    pub fn forget(&mut self, peer: &PeerId, now: Moment) {
        if *peer != self.me {
            self.known.retain(|_, known| known != peer);
            self.members.remove(peer);
            self.refresh(now);
        }
    }

    /// This node says good-bye.
    pub fn leave(&mut self) {
        self.leaving = true;
    }

    /// A message of the fleet's topic.
    pub fn beat(&mut self, data: Bytes, verifier: &mut dyn Verifier, now: Moment) -> Heard {
        let heard = match Beat::decode(data) {
            Ok(beat) => self.judge(beat, verifier, now),
            Err(_) => Heard::Malformed,
        };
        *self.counts.entry(heard).or_insert(0) += 1;
        self.refresh(now);
        heard
    }

    fn judge(&mut self, beat: Beat, verifier: &mut dyn Verifier, now: Moment) -> Heard {
        let Some(peer) = self.known.get(&beat.member).copied() else { return Heard::Stranger };
        if peer == self.me {
            if beat.boot == self.boot {
                return Heard::Old;
            }
            if !beat.verify(verifier) {
                return Heard::Forged;
            }
            self.twin = Some(now);
            return Heard::Counted;
        }
        let Some(member) = self.members.get_mut(&peer) else { return Heard::Stranger };
        if member.boots.iter().any(|boot| boot.id == beat.boot && boot.counter >= beat.counter) {
            return Heard::Old;
        }
        // After the look at the counter: a replay costs no signature.
        if !beat.verify(verifier) {
            return Heard::Forged;
        }
        let boot = member.boot(beat.boot);
        boot.counter = beat.counter;
        boot.beat = Some(beat);
        if !boot.confirmed {
            return Heard::Unconfirmed;
        }
        boot.heard = now;
        self.heard_any = now;
        Heard::Counted
    }

    /// A member has answered a probe, itself or through another: it is there in this start. Whether that is news.
    pub fn alive(&mut self, peer: &PeerId, boot: u64, now: Moment) -> bool {
        let Some(member) = self.members.get_mut(peer) else { return false };
        let boot = member.boot(boot);
        let news = !std::mem::replace(&mut boot.confirmed, true);
        boot.heard = now;
        self.heard_any = now;
        self.refresh(now);
        news
    }

    /// Judges everybody anew and says whom to probe. `random` picks through whom.
    pub fn tick(&mut self, random: u64, now: Moment) -> Vec<Action> {
        self.refresh(now);
        let helpers: Vec<PeerId> = self.live.iter().copied().filter(|peer| *peer != self.me).collect();
        let mut actions = Vec::new();
        for (peer, member) in &mut self.members {
            let silence = member.silence(now);
            let unconfirmed = member.boots.last().is_some_and(|boot| !boot.confirmed);
            let quiet = silence.is_none_or(|silence| silence >= self.options.suspect_after);
            let due = member.probed.is_none_or(|at| now >= at + PROBE_INTERVAL);
            if !(quiet || unconfirmed) || !due {
                continue;
            }
            member.probed = Some(now);
            member.probes = member.probes.wrapping_add(1);
            actions.push(Action::Probe(*peer));
            let others: Vec<&PeerId> = helpers.iter().filter(|helper| *helper != peer).collect();
            let late = silence.is_none_or(|silence| silence >= self.options.indirect_after);
            if late && !others.is_empty() {
                let at = usize::try_from(random % others.len() as u64).unwrap_or(0);
                if let Some(via) = others.get(at) {
                    actions.push(Action::ProbeFor { via: **via, target: *peer });
                }
            }
        }
        actions
    }

    fn refresh(&mut self, now: Moment) {
        let dead_after = self.options.dead_after;
        let live = self.members.iter().filter(|(_, member)| member.current(dead_after, now).is_some());
        self.live = live.map(|(peer, _)| *peer).chain((!self.leaving).then_some(self.me)).collect();
    }

    /// Somebody else sees these as live: whom this node does not see is probed at the next tick.
    pub fn hint(&mut self, live: &[PeerId]) {
        for peer in live.iter().filter(|peer| !self.live.contains(peer)) {
            if let Some(member) = self.members.get_mut(peer) {
                member.probed = None;
            }
        }
    }

    /// How a member stands; `None` for a stranger.
    #[must_use]
    pub fn standing(&self, peer: &PeerId, now: Moment) -> Option<Standing> {
        if *peer == self.me {
            return Some(if self.is_twice(now) { Standing::Twice } else { Standing::Live });
        }
        let member = self.members.get(peer)?;
        Some(match member.current(self.options.dead_after, now) {
            Some(boot) if now.saturating_sub(boot.heard) >= self.options.suspect_after => Standing::Suspect,
            Some(_) => Standing::Live,
            None if member.present(self.options.dead_after, now).count() > 1 => Standing::Twice,
            None => Standing::Dead,
        })
    }

    /// Another start of this node's own identity has been heard lately.
    #[must_use]
    pub fn is_twice(&self, now: Moment) -> bool {
        self.twin.is_some_and(|at| now < at + self.options.dead_after)
    }

    /// The live members, this node among them, as of the last call.
    #[must_use]
    pub fn live(&self) -> &BTreeSet<PeerId> {
        &self.live
    }

    /// The live members that may be given databases, with their weights.
    #[must_use]
    pub fn candidates(&self, my_capacity: u64, draining: bool, now: Moment) -> BTreeMap<PeerId, u64> {
        let own = (!draining && !self.leaving).then_some((self.me, my_capacity));
        let of_others = self.members.iter().filter_map(|(peer, member)| {
            let beat = member.current(self.options.dead_after, now)?.beat.as_ref()?;
            (!beat.draining).then_some((*peer, beat.capacity))
        });
        of_others.chain(own).collect()
    }

    /// The last beat of a member that is there.
    #[must_use]
    pub fn last_beat(&self, peer: &PeerId, now: Moment) -> Option<&Beat> {
        self.members.get(peer)?.current(self.options.dead_after, now)?.beat.as_ref()
    }

    /// The digest of the live members.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        epoch_of(&self.live)
    }

    /// How many members the fleet has, dead ones included.
    #[must_use]
    pub fn known(&self) -> usize {
        self.members.len() + 1
    }

    /// Whether the peer belongs to the fleet.
    #[must_use]
    pub fn is_member(&self, peer: &PeerId) -> bool {
        *peer == self.me || self.members.contains_key(peer)
    }

    /// All other members.
    pub fn others(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.members.keys().copied()
    }

    /// Whether enough time has passed since the start to take the view for complete.
    #[must_use]
    pub fn is_settled(&self, now: Moment) -> bool {
        now >= self.started + self.options.settle_window
    }

    /// Whether fewer than half of the known members are live: then nothing is moved.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.live.len() * 2 < self.known()
    }

    /// Whether no other member has been heard for as long as it takes to call one dead. A fleet of one is never cut off.
    #[must_use]
    pub fn is_cut_off(&self, now: Moment) -> bool {
        !self.members.is_empty() && now >= self.heard_any + self.options.dead_after
    }

    /// How many beats were worth what.
    #[must_use]
    pub fn counts(&self) -> &BTreeMap<Heard, u64> {
        &self.counts
    }
}

impl Member {
    fn boot(&mut self, id: u64) -> &mut Boot {
        let at = self.boots.iter().position(|boot| boot.id == id).unwrap_or_else(|| {
            if self.boots.len() >= MAX_BOOTS_PER_MEMBER {
                self.boots.remove(0);
            }
            self.boots.push(Boot { id, counter: 0, heard: Duration::ZERO, confirmed: false, beat: None });
            self.boots.len() - 1
        });
        // Found or made just now.
        #[expect(clippy::indexing_slicing, reason = "the position was found above")]
        &mut self.boots[at]
    }

    fn present(&self, dead_after: Duration, now: Moment) -> impl Iterator<Item = &Boot> {
        let left = |boot: &Boot| boot.beat.as_ref().is_some_and(|beat| beat.leaving);
        self.boots.iter().filter(move |boot| boot.confirmed && !left(boot) && now < boot.heard + dead_after)
    }

    /// The one start that is there; `None` when there is none, or more than one.
    fn current(&self, dead_after: Duration, now: Moment) -> Option<&Boot> {
        let mut present = self.present(dead_after, now);
        present.next().filter(|_| present.next().is_none())
    }

    fn silence(&self, now: Moment) -> Option<Duration> {
        let heard = self.boots.iter().filter(|boot| boot.confirmed).map(|boot| boot.heard).max()?;
        Some(now.saturating_sub(heard))
    }
}

#[cfg(test)]
mod tests {
    use crdt::testing::{FakeSigner, FakeVerifier};

    use super::*;
    use crate::testing::{key, member};

    fn at(seconds: u64) -> Moment {
        Duration::from_secs(seconds)
    }

    fn beat(of: u8, boot: u64, counter: u64) -> Beat {
        let beat = Beat {
            member: [0; 32],
            boot,
            counter,
            capacity: 1,
            draining: false,
            leaving: false,
            view: Epoch([0; 16]),
            clock_ms: 0,
            signature: [0; 64],
        };
        beat.signed(&FakeSigner(key(of)))
    }

    fn fleet(of: u8) -> Membership {
        let members = (1..=of).map(member).collect();
        Membership::new(member(1), 100, &members, MembershipOptions::default(), at(0))
    }

    fn hear(membership: &mut Membership, beat: &Beat, now: Moment) -> Heard {
        membership.beat(beat.encode(), &mut FakeVerifier, now)
    }

    /// Brings a member up: a beat, and its answer to the probe that follows.
    fn up(membership: &mut Membership, of: u8, boot: u64, now: Moment) {
        assert_eq!(hear(membership, &beat(of, boot, 1), now), Heard::Unconfirmed);
        membership.tick(0, now);
        membership.alive(&member(of), boot, now);
    }

    #[test]
    fn a_member_is_suspect_then_probed_then_dead_by_the_receivers_clock() {
        let mut fleet = fleet(3);
        assert_eq!(hear(&mut fleet, &beat(2, 7, 1), at(10)), Heard::Unconfirmed);
        assert!(fleet.tick(0, at(10)).contains(&Action::Probe(member(2))));
        fleet.alive(&member(2), 7, at(10));
        up(&mut fleet, 3, 8, at(10));
        assert_eq!(fleet.standing(&member(2), at(12)), Some(Standing::Live));
        assert_eq!(hear(&mut fleet, &beat(3, 8, 2), at(13)), Heard::Counted);
        assert_eq!(fleet.standing(&member(2), at(13)), Some(Standing::Suspect));
        assert_eq!(fleet.tick(0, at(13)), [Action::Probe(member(2))]);
        let via = Action::ProbeFor { via: member(3), target: member(2) };
        assert_eq!(fleet.tick(0, at(15)), [Action::Probe(member(2)), via]);
        assert!(fleet.live().contains(&member(2)));
        fleet.tick(0, at(16));
        assert_eq!(fleet.standing(&member(2), at(16)), Some(Standing::Dead));
        assert_eq!(fleet.live(), &BTreeSet::from([member(1), member(3)]));
        // Death does not shrink the known.
        assert_eq!(fleet.known(), 3);
        // An answer to a probe, also through another member, is as good as a beat.
        fleet.alive(&member(2), 7, at(17));
        assert_eq!(fleet.standing(&member(2), at(17)), Some(Standing::Live));
    }

    #[test]
    fn c10_steady_beats_keep_a_member_for_any_time() {
        let mut fleet = fleet(2);
        up(&mut fleet, 2, 7, at(0));
        for second in 1..10_000 {
            assert_eq!(hear(&mut fleet, &beat(2, 7, 1 + second), at(second)), Heard::Counted);
            assert!(fleet.tick(0, at(second)).is_empty());
        }
        assert!(fleet.live().contains(&member(2)));
    }

    #[test]
    fn situation_11_g05_replayed_forged_and_foreign_beats_have_no_effect_and_are_counted() {
        let mut fleet = fleet(3);
        up(&mut fleet, 2, 7, at(0));
        let first = beat(2, 7, 2);
        assert_eq!(hear(&mut fleet, &first, at(1)), Heard::Counted);
        for second in 2..20 {
            assert_eq!(hear(&mut fleet, &first, at(second)), Heard::Old);
        }
        fleet.tick(0, at(20));
        assert_eq!(fleet.standing(&member(2), at(20)), Some(Standing::Dead));
        let mut forged = beat(2, 7, 9);
        forged.counter = 10;
        assert_eq!(hear(&mut fleet, &forged, at(20)), Heard::Forged);
        assert_eq!(hear(&mut fleet, &beat(9, 1, 1), at(20)), Heard::Stranger);
        assert_eq!(fleet.beat(Bytes::from_static(b"x"), &mut FakeVerifier, at(20)), Heard::Malformed);
        // Beats of an earlier start, which this node has never heard: believed only if the member itself names that start.
        for counter in 1..5 {
            assert_eq!(hear(&mut fleet, &beat(3, 1, counter), at(20 + counter)), Heard::Unconfirmed);
        }
        assert_eq!(fleet.live(), &BTreeSet::from([member(1)]));
        assert_eq!(fleet.counts()[&Heard::Old], 18);
        assert_eq!(fleet.counts()[&Heard::Forged], 1);
        assert_eq!(fleet.counts()[&Heard::Stranger], 1);
        assert_eq!(fleet.counts()[&Heard::Malformed], 1);
    }

    #[test]
    fn situation_15_of_two_starts_of_one_identity_neither_counts_until_one_is_gone() {
        let mut fleet = fleet(2);
        up(&mut fleet, 2, 7, at(0));
        up(&mut fleet, 2, 8, at(1));
        assert_eq!(fleet.standing(&member(2), at(1)), Some(Standing::Twice));
        assert!(!fleet.live().contains(&member(2)));
        for second in 2..8 {
            hear(&mut fleet, &beat(2, 8, second), at(second));
        }
        assert_eq!(fleet.standing(&member(2), at(7)), Some(Standing::Live));
        // Its own identity heard in another start: this node does not count itself.
        assert_eq!(hear(&mut fleet, &beat(1, 100, 5), at(8)), Heard::Old);
        assert!(!fleet.is_twice(at(8)));
        hear(&mut fleet, &beat(1, 101, 1), at(8));
        assert!(fleet.is_twice(at(13)));
        assert!(!fleet.is_twice(at(14)));
    }

    #[test]
    fn who_says_that_it_leaves_is_gone_at_once() {
        let mut fleet = fleet(2);
        up(&mut fleet, 2, 7, at(0));
        let bye = Beat { leaving: true, ..beat(2, 7, 2) }.signed(&FakeSigner(key(2)));
        assert_eq!(hear(&mut fleet, &bye, at(1)), Heard::Counted);
        assert_eq!(fleet.standing(&member(2), at(1)), Some(Standing::Dead));
        up(&mut fleet, 2, 8, at(1));
        assert_eq!(fleet.standing(&member(2), at(1)), Some(Standing::Live));
    }

    #[test]
    fn fewer_than_half_freeze_and_silence_cuts_off() {
        let mut fleet = fleet(5);
        assert!(fleet.is_frozen());
        up(&mut fleet, 2, 7, at(9));
        assert!(fleet.is_frozen());
        up(&mut fleet, 3, 7, at(9));
        assert!(!fleet.is_frozen());
        assert!(!fleet.is_settled(at(7)));
        assert!(fleet.is_settled(at(8)));
        assert!(!fleet.is_cut_off(at(14)));
        assert!(fleet.is_cut_off(at(15)));
        fleet.tick(0, at(16));
        fleet.forget(&member(4), at(16));
        fleet.forget(&member(5), at(16));
        fleet.forget(&member(3), at(16));
        assert_eq!(fleet.known(), 2);
        assert!(!fleet.is_frozen());
        assert!(!super::Membership::new(member(1), 1, &BTreeSet::new(), MembershipOptions::default(), at(0)).is_cut_off(at(99)));
    }

    #[test]
    fn equal_views_have_equal_epochs_and_drained_members_get_nothing() {
        let mut fleet = fleet(3);
        let alone = fleet.epoch();
        up(&mut fleet, 2, 7, at(0));
        assert_ne!(fleet.epoch(), alone);
        assert_eq!(fleet.epoch(), epoch_of(&BTreeSet::from([member(2), member(1)])));
        let drain = Beat { draining: true, ..beat(2, 7, 2) }.signed(&FakeSigner(key(2)));
        hear(&mut fleet, &drain, at(1));
        assert_eq!(fleet.candidates(5, false, at(1)), BTreeMap::from([(member(1), 5)]));
        assert!(fleet.candidates(5, true, at(1)).is_empty());
    }
}
