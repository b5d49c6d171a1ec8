//! Both protocols: what the news mean to each, and what their outputs mean to the node.

use super::*;
use crate::net::limits::{LAST_WORDS, MAX_GOSSIP_DELIVERIES, MAX_REMEMBERED_PEERS};
use crate::net::sync::{DisconnectReason, Report};

impl<R> NetMachine<R> {
    pub(super) fn news(&mut self, news: News) {
        let (database, input) = match &news {
            News::Snapshot(..) => return self.sync(sync::Input::News(news)),
            News::Opened(database, _) => {
                self.topics.insert(gossip::topic(database), *database);
                (*database, gossip::Input::Opened(*database))
            }
            News::Closed(database) => {
                self.topics.remove(&gossip::topic(database));
                (*database, gossip::Input::Closed(*database))
            }
            News::Advanced(database, progress) => {
                // Whoever is fed gets the block with less delay and without the cost of a second signature.
                let fed = self.gossip.subscribers(database).all(|peer| self.sync.feeds(&peer, database));
                (*database, gossip::Input::Advanced { database: *database, progress, fed })
            }
        };
        let outputs = self.gossip.handle(input, self.sync.locals(), self.now);
        let opened = matches!(news, News::Opened(..));
        self.sync(sync::Input::News(news));
        self.gossip_outputs(outputs, None);
        if opened {
            let topic = gossip::topic(&database);
            let subscribed = self.subscriptions.iter().filter(|(_, topics)| topics.contains(&topic));
            let subscribed: Vec<PeerId> = subscribed.map(|(peer, _)| *peer).collect();
            for peer in subscribed {
                self.gossip(gossip::Input::Subscribed(peer, database), None);
            }
        }
    }

    /// Hands an input to the sync machine and does what comes out.
    pub(super) fn sync(&mut self, input: sync::Input) {
        for output in self.sync.handle(input, self.now) {
            self.sync_output(output);
        }
    }

    pub(super) fn sync_output(&mut self, output: sync::Output) {
        match output {
            sync::Output::Send(peer, frame) => self.out.push(Output::Send(peer, frame)),
            sync::Output::ReadLog { session, database, from, max_bytes, skip } => {
                self.out.push(Output::ReadLog { session, database, from, max_bytes, skip });
            }
            sync::Output::Deliver { session, database, peer, blocks, bytes } => {
                let room = self.room.take().into_iter().collect();
                let load = Load { session, database, source: source(&peer), blocks, bytes, room };
                self.out.extend(self.lanes.push(load).map(Output::Deliver));
            }
            sync::Output::OpenView { id, database } => self.out.push(Output::OpenView { id, database }),
            sync::Output::ReadView { id, at } => self.out.push(Output::ReadView { id, at }),
            sync::Output::CloseView(id) => self.out.push(Output::CloseView(id)),
            sync::Output::Stage { database, id, write } => self.out.push(Output::Stage { database, id, write }),
            sync::Output::ReadRange { reader, database, task } => self.out.push(Output::ReadRange { reader, database, task }),
            sync::Output::Repaired(database, outcome) => self.out.push(Output::Repaired(database, outcome)),
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
        self.book.punish(peer, misbehaved, self.now);
        // What was sent before, the reason among it, is still written.
        self.end_link(peer);
        if misbehaved {
            self.last_words.insert((self.now + LAST_WORDS, peer));
        }
    }

    fn report(&mut self, report: Report) {
        match report {
            Report::Synced(peer, database) => {
                self.count("sync_synced");
                // Mended, but for two blocks of one name.
                if self.disagreements.get(&(peer, database)) == Some(&false) {
                    self.disagreements.remove(&(peer, database));
                }
                tracing::debug!(%peer, %database, "both are equal");
            }
            Report::Disagreement(peer, database) => self.disagreement(peer, database, Vec::new()),
            Report::TwoBlocks(peer, database, dots) => self.disagreement(peer, database, dots),
            Report::NeedsSnapshot(peer, database) => {
                self.count("sync_peers_below_floor");
                tracing::warn!(%peer, %database, "the peer lacks history that is not kept here any more");
            }
            Report::BelowFloor(peer, database) => {
                self.count("sync_below_floor");
                tracing::warn!(%peer, %database, "blocks are lacking here that the peer does not keep any more");
            }
            Report::WritersPutOff(peer, database, blocks) => {
                self.count("writers_put_off");
                tracing::info!(%peer, %database, blocks, "the peer brings very many new writers: some wait for a while");
            }
            Report::SnapshotBegun(peer, database) => {
                self.count("sync_snapshots_asked_for");
                tracing::info!(%peer, %database, "asking for a snapshot");
            }
            Report::Dropped(peer, database) => {
                self.count("sync_dropped");
                tracing::warn!(%peer, %database, "the peer says that this database was dropped");
            }
        }
    }

    fn disagreement(&mut self, peer: PeerId, database: DatabaseId, dots: Vec<Dot>) {
        self.count("disagreements");
        // Each pair once is enough: the status shows it from then on.
        let known = self.disagreements.get(&(peer, database)).copied();
        let two_blocks = known == Some(true) || !dots.is_empty();
        if known.is_some() || self.disagreements.len() < MAX_REMEMBERED_PEERS {
            self.disagreements.insert((peer, database), two_blocks);
        }
        if known.is_none() {
            tracing::error!(%peer, %database, ?dots, "the same blocks, but other heads, another digest or two blocks of one name");
            self.out.push(Output::Disagreement(peer, database, dots));
        }
    }

    /// Hands an input to the gossip machine and does what comes out; for a message, who passed it on.
    pub(super) fn gossip(&mut self, input: gossip::Input<'_>, message: Option<PeerId>) {
        let outputs = self.gossip.handle(input, self.sync.locals(), self.now);
        self.gossip_outputs(outputs, message);
    }

    fn gossip_outputs(&mut self, outputs: Vec<gossip::Output>, message: Option<PeerId>) {
        for output in outputs {
            self.gossip_output(output, message);
        }
    }

    fn gossip_output(&mut self, output: gossip::Output, message: Option<PeerId>) {
        match output {
            gossip::Output::Subscribe(database) => self.out.push(Output::Subscribe(gossip::topic(&database))),
            gossip::Output::Unsubscribe(database) => self.out.push(Output::Unsubscribe(gossip::topic(&database))),
            gossip::Output::Publish(database, data) => self.out.push(Output::Publish(gossip::topic(&database), data)),
            gossip::Output::Verdict(verdict) => {
                let Some(from) = message else { return };
                self.count(match verdict {
                    Verdict::Accept => "gossip_accepted",
                    Verdict::Ignore => "gossip_ignored",
                    Verdict::Reject => "gossip_rejected",
                });
                self.out.push(Output::Verdict(verdict));
                if verdict == Verdict::Reject {
                    // Whoever passes a message on has looked at it first: what is wrong with it is the sender's own fault.
                    tracing::warn!(peer = %from, "gossip that is malformed or forged: this peer is cut off for a while");
                    self.book.punish(from, true, self.now);
                    self.out.push(Output::Disconnect(from));
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
                self.out.push(Output::Disconnect(peer));
                self.redial.insert(peer, addresses);
            }
            gossip::Output::Disagreement(database, peer) => {
                self.disagreement(peer, database, Vec::new());
                // Comparing says at which keys.
                self.sync(sync::Input::StartSync(database, peer, None));
            }
        }
    }

    fn deliver_gossip(&mut self, database: DatabaseId, from: PeerId, author: PeerId, block: Block) {
        let room = self.gossip_deliveries < MAX_GOSSIP_DELIVERIES;
        if !room || !self.sync.lets_in(from, database, &block.dot(), self.now) {
            self.count(if room { "writers_put_off" } else { "gossip_delivery_full" });
            self.sync(sync::Input::StartSync(database, from, None));
            return;
        }
        self.gossip_deliveries += 1;
        self.out.push(Output::DeliverGossip { database, from, author, source: source(&from), block });
    }
}
