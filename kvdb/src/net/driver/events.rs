//! What the swarm reports.

use super::*;

/// A connection that ends sooner was not wanted.
const SHORT_CONNECTION: Moment = Moment::from_millis(500);

impl<B: Backend> Driver<B> {
    pub(super) fn network_event(&mut self, event: Event) {
        self.touch_status();
        let now = self.now();
        match event {
            Event::Connected { peer, connection, address, outgoing, count } => {
                if count > crate::net::limits::MAX_CONNECTIONS_PER_PEER || self.book.is_banned(&peer, now) {
                    // Bootstrap peers are exempt from the limits, but not from this one.
                    self.network.close_connection(connection);
                }
                self.book.connected(peer, connection, address, outgoing, count, now);
                if count == 1 {
                    self.count("connections");
                    self.gossip(gossip::Input::Connected(peer), None);
                    if self.me < peer {
                        self.book.open_stream(peer, Some(Moment::MAX), now);
                    }
                }
                // Answers a caller that waits for this peer.
                let due = self.book.due(now);
                self.dial_all(due);
            }
            Event::Disconnected { peer, left, cause } => self.disconnected(peer, left, cause.as_deref()),
            Event::DialFailed { connection, ourself, cause } => {
                self.count("dials_failed");
                self.book.dial_failed(connection, ourself, cause, now, rand::random());
            }
            Event::IncomingFailed { address, cause } => {
                self.count("incoming_failed");
                tracing::info!(%address, cause, "somebody could not connect");
            }
            Event::Listening(address) => {
                tracing::info!(%address, "listening");
                lock(&self.shared).listen.push(address);
            }
            Event::ListenEnded(address, cause) => {
                tracing::warn!(%address, cause, "no longer listening");
                lock(&self.shared).listen.retain(|listening| *listening != address);
            }
            Event::Gossip { from, id, topic, data } => match self.topics.get(&topic).copied() {
                Some(database) => self.gossip(gossip::Input::Message { database, from, data }, Some((&id, from))),
                None => self.network.verdict(&id, &from, gossip::Verdict::Ignore),
            },
            Event::Subscribed(peer, topic) => {
                if let Some(database) = self.topics.get(&topic).copied() {
                    self.gossip(gossip::Input::Subscribed(peer, database), None);
                }
                self.subscriptions.entry(peer).or_default().insert(topic);
            }
            Event::Unsubscribed(peer, topic) => {
                if let Some(database) = self.topics.get(&topic).copied() {
                    self.gossip(gossip::Input::Unsubscribed(peer, database), None);
                }
                if let Some(topics) = self.subscriptions.get_mut(&peer) {
                    topics.remove(&topic);
                }
            }
            Event::Identified { peer, agent, protocol, addresses } => {
                if let Some(known) = self.book.get_mut(&peer) {
                    (known.agent, known.protocol) = (agent, protocol);
                    for address in addresses {
                        known.learn(address);
                    }
                }
            }
            Event::Ping(peer, time) => {
                if let Some(known) = self.book.get_mut(&peer) {
                    known.round_trip = Some(time);
                }
            }
        }
    }

    fn disconnected(&mut self, peer: PeerId, left: u32, cause: Option<&str>) {
        let now = self.now();
        let known = self.book.get_mut(&peer).map(|known| (known.since, known.outgoing));
        self.book.disconnected(peer, left, now, rand::random());
        if left > 0 {
            // The stream may have been on the connection that is gone; its tasks say so themselves.
            return;
        }
        tracing::debug!(%peer, cause, "disconnected");
        if known.is_some_and(|(since, outgoing)| outgoing && now < since + SHORT_CONNECTION) {
            tracing::warn!(%peer, "the peer ended the connection at once: likely this node is not on its allow list (option `allow`)");
        }
        self.count("disconnections");
        self.subscriptions.remove(&peer);
        self.gossip(gossip::Input::Disconnected(peer), None);
        self.end_link(peer);
        if let Some(addresses) = self.redial.remove(&peer) {
            // Without an address the other side dials, or nobody.
            if self.network.dial(Some(peer), addresses).is_err() {
                self.count("dials_failed");
            }
        }
    }

    pub(super) fn dial_all(&mut self, due: Vec<(usize, Option<PeerId>, libp2p::Multiaddr)>) {
        // Backwards: a target that is given up leaves the list.
        for (index, peer, address) in due.into_iter().rev() {
            let outcome = self.network.dial(peer, vec![address]);
            let now = self.now();
            self.book.dialled(index, outcome, now, rand::random());
        }
    }
}
