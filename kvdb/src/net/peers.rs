//! Who is connected, whom to dial and when, and who is refused for a while.

use std::collections::BTreeMap;
use std::time::Duration;

use libp2p::multiaddr::Protocol;
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId};

use super::Moment;
use super::limits::{
    MAX_CONFIGURED_ADDRESSES, MAX_FOUND_ADDRESSES, MAX_PEER_ADDRESSES, MAX_PENALTY, MAX_REDIAL, MAX_REMEMBERED_PEERS,
    MIN_PENALTY, MIN_REDIAL, STABLE_CONNECTION,
};
use super::machine::Ticket;

/// A peer that is dialled for ever.
#[derive(Debug)]
struct Target {
    address: Multiaddr,
    /// The peer that answers there, if it is known.
    peer: Option<PeerId>,
    dialing: Option<ConnectionId>,
    next: Moment,
    wait: Duration,
    connected_at: Option<Moment>,
    /// The address is this node's own.
    ourself: bool,
    /// A caller waits for the outcome; the target is kept only if it succeeds.
    waiting: Option<Ticket>,
    /// Configured, and not only asked for once.
    configured: bool,
    /// Found in the local network: dialled as long as it is told of there.
    found: bool,
    last_cause: Option<String>,
}

/// What is known of a peer.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) connections: u32,
    pub(super) since: Moment,
    pub(super) outgoing: bool,
    pub(super) addresses: Vec<Multiaddr>,
    pub(super) agent: String,
    pub(super) protocol: String,
    pub(super) round_trip: Option<Duration>,
    pub(super) misbehaviour: u64,
    cut_off: u32,
    refused_until: Moment,
    /// When it may connect again after it broke the protocol.
    banned_until: Moment,
    /// When a stream is to be opened.
    pub(super) open_at: Option<Moment>,
    pub(super) opening: bool,
    open_wait: Duration,
}

/// The peer book.
#[derive(Debug, Default)]
pub(super) struct Book {
    targets: Vec<Target>,
    known: BTreeMap<PeerId, Known>,
    /// Outcomes for callers that wait.
    answers: Vec<(Ticket, Result<(), String>)>,
}

/// The peer id at the end of an address.
pub(super) fn peer_in(address: &Multiaddr) -> Option<PeerId> {
    address.iter().find_map(|part| if let Protocol::P2p(peer) = part { Some(peer) } else { None })
}

impl Book {
    /// Adds an address to dial; `false` when there are too many.
    pub(super) fn add(&mut self, address: Multiaddr, now: Moment, waiting: Option<Ticket>) -> bool {
        if self.targets.len() >= MAX_CONFIGURED_ADDRESSES {
            return false;
        }
        if let Some(target) = self.targets.iter_mut().find(|target| target.address == address && target.waiting.is_none()) {
            target.waiting = waiting;
            target.next = now;
            // Asked for anew: whoever asks must hear that it is this node.
            target.ourself = false;
            return true;
        }
        self.targets.push(Target {
            configured: waiting.is_none(),
            peer: peer_in(&address),
            address,
            dialing: None,
            next: now,
            wait: MIN_REDIAL,
            connected_at: None,
            ourself: false,
            waiting,
            found: false,
            last_cause: None,
        });
        true
    }

    /// Adds an address that was found in the local network; `false` when there are too many.
    pub(super) fn found(&mut self, peer: PeerId, address: Multiaddr, now: Moment) -> bool {
        let Ok(address) = address.with_p2p(peer) else { return false };
        if self.targets.iter().any(|target| target.address == address) {
            return true;
        }
        let room = self.targets.iter().filter(|target| target.found).count() < MAX_FOUND_ADDRESSES;
        let added = room && self.add(address, now, None);
        if let Some(target) = self.targets.last_mut().filter(|_| added) {
            (target.found, target.configured) = (true, false);
        }
        added
    }

    /// Forgets addresses that are not told of in the local network any more. A connection with the peer stays.
    pub(super) fn lost(&mut self, lost: &[(PeerId, Multiaddr)]) {
        for (peer, address) in lost {
            let Ok(address) = address.clone().with_p2p(*peer) else { continue };
            // Whoever waits for the outcome of a dial still hears of it.
            self.targets.retain(|target| !target.found || target.waiting.is_some() || target.address != address);
        }
    }

    /// What to dial now: index, peer if it must be that one, address.
    pub(super) fn due(&mut self, now: Moment) -> Vec<(usize, Option<PeerId>, Multiaddr)> {
        let mut due = Vec::new();
        for (index, target) in self.targets.iter_mut().enumerate() {
            let connected = target.peer.is_some_and(|peer| self.known.get(&peer).is_some_and(|peer| peer.connections > 0));
            if connected {
                self.answers.extend(target.waiting.take().map(|waiting| (waiting, Ok(()))));
            } else if target.dialing.is_none() && !target.ourself && target.next <= now {
                due.push((index, peer_in(&target.address), target.address.clone()));
            }
        }
        due
    }

    /// The dial that `due` asked for has begun, or was refused at once.
    pub(super) fn dialled(&mut self, index: usize, outcome: Result<ConnectionId, String>, now: Moment, jitter: u64) {
        let Some(target) = self.targets.get_mut(index) else { return };
        match outcome {
            Ok(connection) => target.dialing = Some(connection),
            // Dialled already for another reason: look again soon.
            Err(_) if target.waiting.is_none() => target.next = now + MIN_REDIAL,
            Err(cause) => self.failed(index, cause, now, jitter),
        }
    }

    pub(super) fn dial_failed(&mut self, connection: ConnectionId, ourself: bool, cause: String, now: Moment, jitter: u64) {
        let Some(index) = self.targets.iter().position(|target| target.dialing == Some(connection)) else { return };
        if let Some(target) = self.targets.get_mut(index) {
            target.dialing = None;
            target.ourself = ourself;
        }
        self.failed(index, cause, now, jitter);
    }

    fn failed(&mut self, index: usize, cause: String, now: Moment, jitter: u64) {
        let Some(target) = self.targets.get_mut(index) else { return };
        if let Some(waiting) = target.waiting.take() {
            self.answers.push((waiting, Err(cause)));
            // Never reached: what a caller tried once is not dialled for ever.
            if target.connected_at.is_none() {
                self.targets.remove(index);
            }
            return;
        }
        if target.ourself {
            tracing::info!(address = %target.address, "this address is this node's own; not dialled again");
        } else if target.last_cause.as_ref() == Some(&cause) {
            tracing::debug!(address = %target.address, cause, "still cannot connect");
        } else {
            tracing::warn!(address = %target.address, cause, "cannot connect; dialling again for ever");
        }
        target.last_cause = Some(cause);
        target.next = now + jittered(target.wait, jitter);
        target.wait = (target.wait * 2).min(MAX_REDIAL);
    }

    pub(super) fn connected(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        address: Multiaddr,
        outgoing: bool,
        count: u32,
        now: Moment,
    ) -> &mut Known {
        for target in &mut self.targets {
            if target.dialing == Some(connection) {
                target.dialing = None;
                target.peer = Some(peer);
            }
            if target.peer == Some(peer) && count == 1 {
                target.connected_at = Some(now);
                target.last_cause = None;
            }
        }
        let known = self.known.entry(peer).or_default();
        known.connections = count;
        if count == 1 {
            known.since = now;
            known.outgoing = outgoing;
        }
        if outgoing {
            known.learn(address);
        }
        known
    }

    pub(super) fn disconnected(&mut self, peer: PeerId, left: u32, now: Moment, jitter: u64) {
        if let Some(known) = self.known.get_mut(&peer) {
            known.connections = left;
            if left == 0 {
                known.open_at = None;
                known.opening = false;
            }
        }
        if left > 0 {
            return;
        }
        for target in self.targets.iter_mut().filter(|target| target.peer == Some(peer)) {
            let stable = target.connected_at.is_some_and(|at| at + STABLE_CONNECTION <= now);
            if stable {
                target.wait = MIN_REDIAL;
            }
            target.next = now + jittered(target.wait, jitter);
            target.wait = (target.wait * 2).min(MAX_REDIAL);
        }
        self.forget();
    }

    /// Only those who are connected or misbehaved are remembered, and not too many of the latter.
    fn forget(&mut self) {
        self.known.retain(|_, known| known.connections > 0 || known.cut_off > 0);
        while self.known.values().filter(|known| known.connections == 0).count() > MAX_REMEMBERED_PEERS {
            let gone = self.known.iter().filter(|(_, known)| known.connections == 0);
            let Some(first) = gone.min_by_key(|(_, known)| known.refused_until).map(|(peer, _)| *peer) else { return };
            self.known.remove(&first);
        }
    }

    /// A peer was cut off: no stream with it for a while, longer each time.
    pub(super) fn punish(&mut self, peer: PeerId, misbehaved: bool, now: Moment) {
        let Some(known) = self.known.get_mut(&peer) else { return };
        known.misbehaviour += u64::from(misbehaved);
        known.refused_until = now + (MIN_PENALTY * (1 << known.cut_off.min(10))).min(MAX_PENALTY);
        known.cut_off = known.cut_off.saturating_add(1);
        if misbehaved {
            known.banned_until = known.refused_until;
        }
    }

    /// Whether the peer broke the protocol and may not connect yet.
    pub(super) fn is_banned(&self, peer: &PeerId, now: Moment) -> bool {
        self.known.get(peer).is_some_and(|known| known.banned_until > now)
    }

    pub(super) fn is_refused(&self, peer: &PeerId, now: Moment) -> bool {
        self.known.get(peer).is_some_and(|known| known.refused_until > now)
    }

    /// A stream is to be opened to a connected peer: at once the first time, else after a wait that doubles.
    pub(super) fn open_stream(&mut self, peer: PeerId, lasted: Option<Duration>, now: Moment) {
        let Some(known) = self.known.get_mut(&peer).filter(|known| known.connections > 0) else { return };
        if known.opening {
            return;
        }
        if lasted.is_some_and(|lasted| lasted >= STABLE_CONNECTION) {
            known.open_wait = Duration::ZERO;
        }
        known.open_at = Some(known.refused_until.max(now + known.open_wait));
        known.open_wait = (known.open_wait * 2).clamp(Duration::from_millis(100), MAX_REDIAL);
    }

    /// Peers to open a stream to now.
    pub(super) fn due_streams(&mut self, now: Moment) -> Vec<PeerId> {
        let mut due = Vec::new();
        for (peer, known) in &mut self.known {
            if known.open_at.is_some_and(|at| at <= now) {
                known.open_at = None;
                known.opening = true;
                due.push(*peer);
            }
        }
        due
    }

    pub(super) fn wake(&self) -> Option<Moment> {
        let connected =
            |target: &Target| target.peer.is_some_and(|peer| self.known.get(&peer).is_some_and(|peer| peer.connections > 0));
        let idle = self.targets.iter().filter(|target| target.dialing.is_none() && !target.ourself && !connected(target));
        idle.map(|target| target.next).chain(self.known.values().filter_map(|known| known.open_at)).min()
    }

    /// Whether this node was configured to connect to the peer.
    pub(super) fn is_configured(&self, peer: &PeerId) -> bool {
        self.targets.iter().any(|target| target.configured && target.peer == Some(*peer))
    }

    pub(super) fn get_mut(&mut self, peer: &PeerId) -> Option<&mut Known> {
        self.known.get_mut(peer)
    }

    pub(super) fn is_connected(&self, peer: &PeerId) -> bool {
        self.known.get(peer).is_some_and(|known| known.connections > 0)
    }

    /// What a peer says of itself.
    pub(super) fn identified(&mut self, peer: &PeerId, agent: String, protocol: String, addresses: Vec<Multiaddr>) {
        if let Some(known) = self.known.get_mut(peer) {
            (known.agent, known.protocol) = (agent, protocol);
            for address in addresses {
                known.learn(address);
            }
        }
    }

    pub(super) fn ping(&mut self, peer: &PeerId, time: Duration) {
        if let Some(known) = self.known.get_mut(peer) {
            known.round_trip = Some(time);
        }
    }

    /// Outcomes for callers that wait, once.
    pub(super) fn take_answers(&mut self) -> Vec<(Ticket, Result<(), String>)> {
        std::mem::take(&mut self.answers)
    }

    pub(super) fn connected_peers(&self) -> impl Iterator<Item = (&PeerId, &Known)> {
        self.known.iter().filter(|(_, known)| known.connections > 0)
    }
}

impl Known {
    pub(super) fn learn(&mut self, address: Multiaddr) {
        if self.addresses.len() < MAX_PEER_ADDRESSES && !self.addresses.contains(&address) {
            self.addresses.push(address);
        }
    }
}

/// Up to a quarter more, so that nodes that lost each other do not dial in step.
fn jittered(wait: Duration, jitter: u64) -> Duration {
    wait + wait * u32::try_from(jitter % 256).unwrap_or(0) / 1_024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u16) -> Multiaddr {
        format!("/ip4/127.0.0.1/tcp/{n}").parse().unwrap()
    }

    fn id(n: usize) -> ConnectionId {
        ConnectionId::new_unchecked(n)
    }

    #[test]
    fn g07_a_lost_bootstrap_peer_is_dialled_for_ever_with_a_bounded_wait() {
        let mut book = Book::default();
        assert!(book.add(address(1), Moment::ZERO, None));
        let mut now = Moment::ZERO;
        let mut waits = Vec::new();
        for n in 0..20 {
            let due = book.due(now);
            assert_eq!(due.len(), 1, "{n}");
            book.dialled(0, Ok(id(n)), now, 0);
            assert_eq!(book.wake(), None);
            book.dial_failed(id(n), false, "refused".into(), now, 255);
            let next = book.wake().unwrap();
            waits.push(next.saturating_sub(now));
            assert!(book.due(now).is_empty());
            now = next;
        }
        assert!(waits.iter().all(|wait| *wait <= MAX_REDIAL * 5 / 4));
        assert!(waits[19] >= MAX_REDIAL);
        // Connected, then lost after a while: the first wait again.
        let peer = PeerId::random();
        book.due(now);
        book.dialled(0, Ok(id(99)), now, 0);
        book.connected(peer, id(99), address(1), true, 1, now);
        assert_eq!((book.due(now).len(), book.wake()), (0, None));
        now += STABLE_CONNECTION;
        book.disconnected(peer, 0, now, 0);
        assert_eq!(book.wake(), Some(now + MIN_REDIAL));
    }

    #[test]
    fn the_own_address_is_dialled_once() {
        let mut book = Book::default();
        book.add(address(1), Moment::ZERO, None);
        book.due(Moment::ZERO);
        book.dialled(0, Ok(id(1)), Moment::ZERO, 0);
        book.dial_failed(id(1), true, "it is me".into(), Moment::ZERO, 0);
        assert_eq!(book.wake(), None);
        assert!(book.due(Duration::from_secs(3_600)).is_empty());
    }

    #[test]
    fn what_is_found_is_dialled_while_it_is_told_of_and_within_a_limit() {
        let mut book = Book::default();
        assert!(book.add(address(1), Moment::ZERO, None));
        let peers: Vec<PeerId> = (0..MAX_FOUND_ADDRESSES).map(|_| PeerId::random()).collect();
        assert!(peers.iter().all(|peer| book.found(*peer, address(2), Moment::ZERO)));
        assert!(book.found(peers[0], address(2), Moment::ZERO), "known already");
        assert!(!book.found(PeerId::random(), address(2), Moment::ZERO));
        assert_eq!(book.due(Moment::ZERO).len(), 1 + MAX_FOUND_ADDRESSES);
        let all: Vec<(PeerId, Multiaddr)> = peers.iter().map(|peer| (*peer, address(2))).collect();
        book.lost(&all);
        assert_eq!(book.due(Moment::ZERO).len(), 1, "the configured one stays");
        assert!(book.found(PeerId::random(), address(2), Moment::ZERO), "there is room again");
    }

    #[test]
    fn who_breaks_the_protocol_is_refused_longer_each_time_and_remembered_within_limits() {
        let mut book = Book::default();
        let peer = PeerId::random();
        book.connected(peer, id(1), address(1), false, 1, Moment::ZERO);
        book.punish(peer, true, Moment::ZERO);
        assert!(
            book.is_refused(&peer, MIN_PENALTY.saturating_sub(Duration::from_millis(1))) && !book.is_refused(&peer, MIN_PENALTY)
        );
        book.disconnected(peer, 0, Moment::ZERO, 0);
        book.connected(peer, id(2), address(1), false, 1, Moment::ZERO);
        book.punish(peer, true, Moment::ZERO);
        assert!(book.is_refused(&peer, MIN_PENALTY) && !book.is_refused(&peer, MIN_PENALTY * 2));
        for n in 0..MAX_REMEMBERED_PEERS + 10 {
            let peer = PeerId::random();
            book.connected(peer, id(n), address(1), false, 1, Moment::ZERO);
            book.punish(peer, true, Moment::ZERO);
            book.disconnected(peer, 0, Moment::ZERO, 0);
        }
        assert_eq!(book.known.values().filter(|known| known.connections == 0).count(), MAX_REMEMBERED_PEERS);
    }
}
