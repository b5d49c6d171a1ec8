//! Connections, dials, subscriptions and streams.

use super::*;
use crate::net::handle::DatabaseStatus;
use crate::net::limits::MAX_CONNECTIONS_PER_PEER;

/// A connection that ends sooner was not wanted.
const SHORT_CONNECTION: Moment = Moment::from_millis(500);

impl<R> NetMachine<R> {
    pub(super) fn connected(&mut self, peer: PeerId, connection: ConnectionId, address: Multiaddr, outgoing: bool, count: u32) {
        let now = self.now;
        if count > MAX_CONNECTIONS_PER_PEER || self.book.is_banned(&peer, now) {
            // Bootstrap peers are exempt from the limits, but not from this one.
            self.out.push(Output::CloseConnection(connection));
        }
        self.book.connected(peer, connection, address, outgoing, count, now);
        if self.book.is_configured(&peer) {
            self.sync.trust(peer);
        }
        if count == 1 {
            self.count("connections");
            self.gossip(gossip::Input::Connected(peer), None);
            if self.me < peer {
                self.book.open_stream(peer, Some(Moment::MAX), now);
            }
        }
        // Answers a caller that waits for this peer.
        self.dial_due();
    }

    pub(super) fn disconnected(&mut self, peer: PeerId, left: u32) {
        let now = self.now;
        let known = self.book.get_mut(&peer).map(|known| (known.since, known.outgoing));
        let jitter = (self.random)();
        self.book.disconnected(peer, left, now, jitter);
        if left > 0 {
            // The stream may have been on the connection that is gone; its tasks say so themselves.
            return;
        }
        if known.is_some_and(|(since, outgoing)| outgoing && now < since + SHORT_CONNECTION) {
            tracing::warn!(%peer, "the peer ended the connection at once: likely this node is not on its allow list (option `allow`)");
        }
        self.count("disconnections");
        self.subscriptions.remove(&peer);
        self.gossip(gossip::Input::Disconnected(peer), None);
        self.end_link(peer);
        if let Some(addresses) = self.redial.remove(&peer) {
            // Without an address the other side dials, or nobody.
            self.out.push(Output::Redial(peer, addresses));
        }
    }

    pub(super) fn found(&mut self, found: Vec<(PeerId, Multiaddr)>) {
        let me = self.me;
        for (peer, address) in found.into_iter().filter(|(peer, _)| *peer != me) {
            let what = if self.book.found(peer, address, self.now) { "mdns_found" } else { "mdns_full" };
            self.count(what);
        }
        self.dial_due();
    }

    pub(super) fn dial_due(&mut self) {
        // Backwards: a target that is given up leaves the list.
        for (target, peer, address) in self.book.due(self.now).into_iter().rev() {
            self.out.push(Output::Dial { target, peer, address });
        }
    }

    pub(super) fn subscribed(&mut self, peer: PeerId, topic: String) {
        if let Some(database) = self.topics.get(&topic).copied() {
            self.gossip(gossip::Input::Subscribed(peer, database), None);
        }
        self.subscriptions.entry(peer).or_default().insert(topic);
    }

    pub(super) fn unsubscribed(&mut self, peer: PeerId, topic: &str) {
        if let Some(database) = self.topics.get(topic).copied() {
            self.gossip(gossip::Input::Unsubscribed(peer, database), None);
        }
        if let Some(topics) = self.subscriptions.get_mut(&peer) {
            topics.remove(topic);
        }
    }

    pub(super) fn stream_opened(&mut self, peer: PeerId, outcome: Result<(), String>) {
        if let Some(known) = self.book.get_mut(&peer) {
            known.opening = false;
        }
        match outcome {
            Ok(()) => self.start_link(peer),
            Err(cause) => {
                self.count("sync_open_failed");
                tracing::info!(%peer, cause, "no sync stream; trying again while connected");
            }
        }
        if !self.links.contains_key(&peer) {
            self.book.open_stream(peer, None, self.now);
        }
    }

    /// A stream stands: it replaces the one before, which may be dead without our knowing.
    pub(super) fn start_link(&mut self, peer: PeerId) {
        let now = self.now;
        if !self.book.is_connected(&peer) || self.book.is_refused(&peer, now) {
            return;
        }
        self.epoch += 1;
        self.links.insert(peer, Linked { epoch: self.epoch, since: now });
        self.out.push(Output::Link(peer, self.epoch));
        self.count("sync_streams");
        self.sync(sync::Input::PeerUp(peer));
    }

    pub(super) fn end_link(&mut self, peer: PeerId) {
        let Some(Linked { since, .. }) = self.links.remove(&peer) else { return };
        self.out.push(Output::Unlink(peer));
        self.sync(sync::Input::PeerDown(peer));
        let now = self.now;
        if self.me < peer {
            self.book.open_stream(peer, Some(now.saturating_sub(since)), now);
        }
    }

    pub(super) fn stream_event(&mut self, peer: PeerId, epoch: Epoch, event: StreamEvent<R>) {
        if self.links.get(&peer).is_none_or(|link| link.epoch != epoch) {
            return;
        }
        match event {
            StreamEvent::Frame(frame) => self.sync(sync::Input::Frame(peer, frame)),
            StreamEvent::Chunk(database, name, chunk, room) => {
                self.sync(sync::Input::Chunk(peer, database, name, chunk));
                drop(room);
            }
            StreamEvent::Blocks(database, blocks, room) => {
                self.room = Some(room);
                self.sync(sync::Input::Blocks(peer, database, blocks));
                self.room = None;
            }
            StreamEvent::Garbage(what) => self.sync(sync::Input::Garbage(peer, what)),
            StreamEvent::Written(bytes) => self.sync(sync::Input::Written(peer, bytes)),
            StreamEvent::Ended(cause) => {
                tracing::debug!(%peer, cause, "the sync stream has ended");
                self.end_link(peer);
            }
        }
    }

    /// Every connected peer and how the sync with it stands.
    #[must_use]
    pub fn peers(&self, now: Moment) -> Vec<PeerStatus> {
        let peers = self.book.connected_peers().map(|(peer, known)| PeerStatus {
            peer: *peer,
            addresses: known.addresses.clone(),
            connected_for: now.saturating_sub(known.since),
            outgoing: known.outgoing,
            agent: known.agent.clone(),
            protocol: known.protocol.clone(),
            syncing: self.links.contains_key(peer),
            databases: self
                .sync
                .sessions(peer)
                .map(|(database, status)| DatabaseStatus {
                    database,
                    synced: status.synced,
                    feeding: status.live,
                    in_flight: status.in_flight,
                    needs_snapshot: status.needs_snapshot,
                    below_floor: status.below_floor,
                    disagrees: self.disagreements.contains_key(&(*peer, database)),
                })
                .collect(),
            round_trip: known.round_trip,
            misbehaviour: known.misbehaviour,
        });
        peers.collect()
    }
}
