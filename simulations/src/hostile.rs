//! Peers that misbehave: an honest node whose words are changed on their way out, as a program that was tampered with
//! would change them. Its store stays honest, so that whatever it harms is harmed by words alone.

use std::collections::BTreeSet;

use bytes::Bytes;
use crdt::DatabaseId;
use kvdb::net::wire::{Frame, HaveKind};

use crate::observe::NodeId;
use crate::random::Random;
use crate::world::World;

/// What a misbehaving node does with its words.
#[derive(Debug, Clone)]
pub(crate) struct Hostility {
    random: Random,
    /// Frames changed, in a thousand.
    permille: u64,
    /// Frames sent before, to be sent again.
    replays: Vec<Bytes>,
    /// Databases that it has spoken of.
    others: BTreeSet<DatabaseId>,
}

/// So many frames are kept for replays.
const KEPT: usize = 32;

impl Hostility {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let permille = random.between(20, 500);
        Self { random, permille, replays: Vec::new(), others: BTreeSet::new() }
    }

    /// What goes out instead of a frame.
    pub(crate) fn frames(&mut self, frame: Frame) -> Vec<Bytes> {
        let honest = frame.encode();
        if self.replays.len() < KEPT {
            self.replays.push(honest.clone());
        }
        if self.random.below(1_000) >= self.permille {
            return vec![honest];
        }
        match self.random.below(8) {
            0 => vec![self.garbage()],
            1 => {
                let again = self.random.pick(&self.replays).cloned();
                [Some(honest), again].into_iter().flatten().collect()
            }
            // Withheld.
            2 if matches!(frame, Frame::Blocks { .. }) => Vec::new(),
            3 => vec![honest; 64],
            4 => vec![flipped(&honest, &mut self.random)],
            _ => vec![self.lie(frame).encode()],
        }
    }

    /// What goes out instead of a gossip message.
    pub(crate) fn message(&mut self, data: &Bytes) -> Bytes {
        if self.random.below(1_000) >= self.permille {
            return data.clone();
        }
        if self.random.below(2) == 0 { self.garbage() } else { flipped(data, &mut self.random) }
    }

    fn garbage(&mut self) -> Bytes {
        let bytes = 1 + self.random.index(200);
        (0..bytes).map(|_| self.random.next().to_be_bytes()[0]).collect()
    }

    /// A frame of the right form that is not true.
    fn lie(&mut self, frame: Frame) -> Frame {
        let random = &mut self.random;
        match frame {
            Frame::Have { database, mut summary, .. } => {
                let kind = if random.below(2) == 0 { HaveKind::Question } else { HaveKind::Answer };
                summary.vv_hash = [random.next().to_be_bytes()[0]; 32];
                Frame::Have { database, kind, summary }
            }
            Frame::HaveList { database, mut entries, last } => {
                for entry in &mut entries {
                    entry.seq = 1 + random.below(entry.seq * 2);
                }
                Frame::HaveList { database, entries, last }
            }
            Frame::Ack { database, consumed, mut durable } => {
                for (_, seq) in &mut durable {
                    *seq = 1 + random.below(*seq * 2);
                }
                Frame::Ack { database, consumed: consumed + random.below(2), durable }
            }
            // Of another database, by the name of this one.
            Frame::Blocks { database, blocks } if random.below(2) == 0 && !self.others.is_empty() => {
                self.others.insert(database);
                let others: Vec<DatabaseId> = self.others.iter().copied().filter(|other| *other != database).collect();
                Frame::Blocks { database: random.pick(&others).copied().unwrap_or(database), blocks }
            }
            Frame::Blocks { database, blocks } => {
                self.others.insert(database);
                let forged = blocks.into_iter().map(|block| flipped(&block, random)).collect();
                Frame::Blocks { database, blocks: forged }
            }
            frame => frame,
        }
    }
}

fn flipped(bytes: &Bytes, random: &mut Random) -> Bytes {
    let mut bytes = bytes.to_vec();
    let at = random.index(bytes.len());
    let bit = random.below(8);
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << bit;
    }
    bytes.into()
}

impl World {
    /// A node begins to misbehave, or is replaced by one that does not.
    pub(crate) fn set_hostile(&mut self, id: NodeId, seed: Option<u64>) -> bool {
        let incarnation = self.incarnation(id);
        let Some(node) = self.nodes.get_mut(id) else { return false };
        let was = node.hostile.is_some();
        node.hostile = seed.map(Hostility::new);
        if was && seed.is_none() {
            self.at(self.now, crate::world::Event::Restart(id, incarnation));
        }
        !was
    }
}
