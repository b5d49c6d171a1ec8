//! Doing what the state machines want.

use super::*;
use crate::net::gossip::Verdict;
use crate::net::handle::{DatabaseStatus, PeerStatus};
use crate::net::limits::LAST_WORDS;

impl<B: Backend> Driver<B> {
    /// Hands an input to the sync machine and does what comes out.
    pub(super) fn sync(&mut self, input: sync::Input) {
        let outputs = self.sync.handle(input, self.started.elapsed());
        for output in outputs {
            self.sync_output(output);
        }
    }

    fn sync_output(&mut self, output: sync::Output) {
        match output {
            sync::Output::Send(peer, frame) => {
                let full = self.links.get(&peer).and_then(|(link, _)| link.send(frame).err());
                if let Some(error) = full {
                    tracing::warn!(%peer, %error, "disconnecting");
                    self.count("sync_queue_full");
                    self.network.disconnect(peer);
                    self.end_link(peer);
                }
            }
            sync::Output::ReadLog { session, database, from, max_bytes, skip } => {
                let (backend, done) = (self.backend.clone(), self.done.clone());
                tokio::task::spawn_blocking(move || {
                    let chunk = read(&backend, &database, &from, max_bytes, &skip);
                    if let Err(error) = &chunk {
                        tracing::warn!(%database, %error, "cannot read the log for a peer");
                    }
                    let _ = done.blocking_send(Done::LogRead(session, chunk.ok()));
                });
            }
            sync::Output::Deliver { session, database, peer, blocks, bytes } => {
                let room = self.permit.take();
                let to = (database, source(&peer));
                self.lanes.push(session, to, blocks, bytes, room, (&self.backend, &self.done));
            }
            sync::Output::Disconnect(peer, reason) => self.cut_off(peer, &reason),
            sync::Output::Report(report) => self.report(report),
        }
    }

    fn cut_off(&mut self, peer: PeerId, reason: &DisconnectReason) {
        let misbehaved = matches!(reason, DisconnectReason::Misbehaved(_));
        let what = match reason {
            DisconnectReason::Misbehaved(_) => "sync_misbehaviour",
            DisconnectReason::Remote { .. } => "sync_remote_errors",
            DisconnectReason::Refused => "sync_refused",
            _ => "sync_incompatible",
        };
        tracing::warn!(%peer, %reason, "sync with this peer ends for a while");
        self.count(what);
        let now = self.now();
        self.book.punish(peer, misbehaved, now);
        // What was sent before, the reason among it, is still written.
        self.end_link(peer);
        if misbehaved {
            let done = self.done.clone();
            tokio::spawn(async move {
                tokio::time::sleep(LAST_WORDS).await;
                let _ = done.send(Done::CutOff(peer)).await;
            });
        }
    }

    fn report(&mut self, report: Report) {
        self.touch_status();
        match report {
            Report::Synced(peer, database) => {
                self.count("sync_synced");
                tracing::debug!(%peer, %database, "both are equal");
            }
            Report::Disagreement(peer, database) => self.disagreement(peer, database, &[]),
            Report::TwoBlocks(peer, database, dots) => self.disagreement(peer, database, &dots),
            Report::Dropped(peer, database) => {
                self.count("sync_dropped");
                tracing::warn!(%peer, %database, "the peer says that this database was dropped");
            }
        }
    }

    fn disagreement(&mut self, peer: PeerId, database: DatabaseId, dots: &[crdt::Dot]) {
        self.count("disagreements");
        // Each pair once is enough: the status shows it from then on.
        if self.disagreements.len() < crate::net::limits::MAX_REMEMBERED_PEERS && self.disagreements.insert((peer, database)) {
            tracing::error!(%peer, %database, ?dots, "the same blocks, but other heads, another digest or two blocks of one name");
        }
    }

    /// Hands an input to the gossip machine and does what comes out.
    pub(super) fn gossip(&mut self, input: gossip::Input<'_>, message: Option<(&MessageId, PeerId)>) {
        let outputs = self.gossip.handle(input, self.sync.locals(), self.started.elapsed());
        self.gossip_outputs(outputs, message);
    }

    pub(super) fn gossip_outputs(&mut self, outputs: Vec<gossip::Output>, message: Option<(&MessageId, PeerId)>) {
        for output in outputs {
            self.gossip_output(output, message);
        }
    }

    fn gossip_output(&mut self, output: gossip::Output, message: Option<(&MessageId, PeerId)>) {
        match output {
            gossip::Output::Subscribe(database) => {
                if let Err(error) = self.network.subscribe(&gossip::topic(&database)) {
                    self.count("gossip_subscribe_failed");
                    tracing::warn!(%database, error, "no gossip for this database");
                }
            }
            gossip::Output::Unsubscribe(database) => self.network.unsubscribe(&gossip::topic(&database)),
            gossip::Output::Publish(database, data) => {
                let outcome = self.network.publish(&gossip::topic(&database), data);
                self.count(outcome.err().unwrap_or("gossip_published"));
            }
            gossip::Output::Verdict(verdict) => {
                let Some((id, from)) = message else { return };
                self.count(match verdict {
                    Verdict::Accept => "gossip_accepted",
                    Verdict::Ignore => "gossip_ignored",
                    Verdict::Reject => "gossip_rejected",
                });
                self.network.verdict(id, &from, verdict);
                if verdict == Verdict::Reject {
                    // Whoever passes a message on has looked at it first: what is wrong with it is the sender's own fault.
                    tracing::warn!(peer = %from, "gossip that is malformed or forged: this peer is cut off for a while");
                    let now = self.now();
                    self.book.punish(from, true, now);
                    self.network.disconnect(from);
                }
            }
            gossip::Output::Deliver { database, from, author, block } => self.deliver_gossip(database, from, author, block),
            gossip::Output::StartSync(database, peer, announced) => {
                self.sync(sync::Input::StartSync(database, peer, announced));
            }
            gossip::Output::Reconnect(peer) => {
                self.count("gossip_reconnects");
                tracing::info!(%peer, "a subscriber is silent: connecting anew");
                let addresses = self.book.get_mut(&peer).map(|known| known.addresses.clone()).unwrap_or_default();
                self.network.disconnect(peer);
                self.redial.insert(peer, addresses);
            }
            gossip::Output::Disagreement(database, peer) => self.disagreement(peer, database, &[]),
        }
    }

    fn deliver_gossip(&mut self, database: DatabaseId, from: PeerId, author: PeerId, block: Block) {
        if self.gossip_deliveries >= MAX_GOSSIP_DELIVERIES {
            self.count("gossip_delivery_full");
            self.sync(sync::Input::StartSync(database, from, None));
            return;
        }
        self.gossip_deliveries += 1;
        let (backend, done) = (self.backend.clone(), self.done.clone());
        tokio::spawn(async move {
            let delivery = backend.deliver(database, vec![block], source(&from)).await.ok();
            let _ = done.send(Done::GossipDelivered { database, from, author, delivery }).await;
        });
    }

    pub(super) fn publish_status(&mut self) {
        let now = self.now();
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
                    disagrees: self.disagreements.contains(&(*peer, database)),
                })
                .collect(),
            round_trip: known.round_trip,
            misbehaviour: known.misbehaviour,
        });
        let peers = peers.collect();
        let mut shared = lock(&self.shared);
        shared.peers = peers;
        shared.peers_at = Some(self.started + now);
    }
}
