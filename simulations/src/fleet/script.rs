//! What a script may say of a fleet.
//!
//! ```text
//! 40  write h0            # a put with the database's own durability, asked at that member
//! 40  write h0 3          # `require(3)`
//! 40  writes o0 100       # so many, one each 100 ms
//! 41  read o0             # of what the script has put
//! 50  drain h0
//! 60  undrain h0
//! 50  farewell 1 3        # says good-bye, ends, and is back so many seconds later
//! 50  holders 0 3         # the first database is to have three holders, asked at node 0
//! 50  drop 0              # the first database is dropped
//! 55  create 0            # and made again
//! 50  forge 2             # beats in its name
//! 50  twin 2 20           # a second process under its identity for so many seconds
//! 50  powerless           # of all machines the power fails
//! 99  again               # `h0` and the like mean others from now on
//! ```

use bytes::Bytes;
use crdt::{Change, Key, LocalOp};
use hoarder::Durability;
use hoarder::claims::Readiness;

use super::clients::SCRIPTED;
use super::{Asked, FleetEvent, request};
use crate::observe::NodeId;
use crate::script::Act;
use crate::time::Time;
use crate::world::{Event, World};

/// The first number that means a holder, and another member, by place.
const HOLDERS: NodeId = 1 << 20;
const OTHERS: NodeId = 1 << 21;

/// A line about a fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "said in the module")]
pub enum FleetAct {
    Write(NodeId, Option<u8>, u64),
    Read(NodeId),
    Drain(NodeId, bool),
    Farewell(NodeId, u64),
    Holders(NodeId, u8),
    Drop(NodeId),
    Create(NodeId),
    Forge(NodeId),
    Twin(NodeId, u64),
    Powerless,
    Again,
}

/// A node by its number, or as a holder or another member.
#[must_use]
pub fn who(text: &str) -> Option<NodeId> {
    let place = |text: &str| text.parse::<NodeId>().ok().filter(|place| *place < HOLDERS);
    match (text.strip_prefix('h'), text.strip_prefix('o')) {
        (Some(holder), _) => place(holder).map(|place| HOLDERS + place),
        (_, Some(other)) => place(other).map(|place| OTHERS + place),
        _ => place(text),
    }
}

impl FleetAct {
    /// Reads the words after the time; `None` if they are about something else.
    #[must_use]
    pub fn parse(words: &[&str]) -> Option<Self> {
        Some(match words {
            ["write", at] => Self::Write(who(at)?, None, 1),
            ["write", at, k] => Self::Write(who(at)?, Some(k.parse().ok()?), 1),
            ["writes", at, count] => Self::Write(who(at)?, None, count.parse().ok()?),
            ["read", at] => Self::Read(who(at)?),
            ["drain", at] => Self::Drain(who(at)?, true),
            ["undrain", at] => Self::Drain(who(at)?, false),
            ["farewell", at, seconds] => Self::Farewell(who(at)?, seconds.parse().ok()?),
            ["holders", at, k] => Self::Holders(who(at)?, k.parse().ok()?),
            ["drop", at] => Self::Drop(who(at)?),
            ["create", at] => Self::Create(who(at)?),
            ["forge", at] => Self::Forge(who(at)?),
            ["twin", at, seconds] => Self::Twin(who(at)?, seconds.parse().ok()?),
            ["powerless"] => Self::Powerless,
            ["again"] => Self::Again,
            _ => return None,
        })
    }
}

impl World {
    /// The act with the nodes that are meant.
    pub(crate) fn resolved(&mut self, act: Act) -> Act {
        let mut node = |node| self.meant(node);
        match act {
            Act::Cut(one, other) => Act::Cut(node(one), node(other)),
            Act::Join(one, other) => Act::Join(node(one), node(other)),
            Act::Only(one, other) => Act::Only(node(one), node(other)),
            Act::Silent(one, other) => Act::Silent(node(one), node(other)),
            Act::Down(at) => Act::Down(node(at)),
            Act::Up(at) => Act::Up(node(at)),
            Act::Crash(at, how) => Act::Crash(node(at), how),
            Act::Freeze(at, seconds) => Act::Freeze(node(at), seconds),
            Act::Clock(at, seconds) => Act::Clock(node(at), seconds),
            Act::Bandwidth(at, bytes) => Act::Bandwidth(node(at), bytes),
            Act::Compact(at) => Act::Compact(node(at)),
            other => other,
        }
    }

    /// Who a name stands for: decided when it is first used.
    fn meant(&mut self, name: NodeId) -> NodeId {
        if name < HOLDERS {
            return name;
        }
        if self.fleet.meant.is_empty() {
            let text = self.fleet.names.first().cloned();
            let found = self.fleet.members.iter().find_map(|id| {
                let controller = self.controller(*id)?;
                let (database, _) = controller.registry().current(text.as_ref()?)?;
                (controller.serving(&database).len() >= usize::from(controller.holders_of(&database))).then_some(database)
            });
            let order = |id: &NodeId| {
                let database = found?;
                let controller = self.controller(*id)?;
                let peer = self.peer_of(*id)?;
                let ready = controller.readiness(&database) == Readiness::Ready;
                ready.then(|| controller.serving(&database).iter().position(|other| *other == peer))?
            };
            let mut holders: Vec<(usize, NodeId)> = self.fleet.members.iter().filter_map(|id| Some((order(id)?, *id))).collect();
            holders.sort_unstable();
            let holders: Vec<NodeId> = holders.into_iter().map(|(_, id)| id).collect();
            let others = self.fleet.members.iter().copied().filter(|id| !holders.contains(id)).collect::<Vec<_>>();
            let meant = holders.iter().enumerate().map(|(at, id)| (HOLDERS + at, *id));
            let meant: Vec<_> = meant.chain(others.iter().enumerate().map(|(at, id)| (OTHERS + at, *id))).collect();
            self.fleet.meant.extend(meant);
        }
        // Nobody: an act at a node that there is not does nothing.
        self.fleet.meant.get(&name).copied().unwrap_or(name)
    }

    pub(crate) fn fleet_act(&mut self, act: &FleetAct) {
        let now = self.now;
        match *act {
            FleetAct::Write(node, k, count) => {
                let node = self.meant(node);
                for number in 0..count {
                    self.at(now + Time::ms(number * 100), Event::Fleet(FleetEvent::Write(node, k)));
                }
            }
            FleetAct::Read(node) => {
                let node = self.meant(node);
                self.scripted(node, None, true);
            }
            FleetAct::Drain(node, on) => {
                let node = self.meant(node);
                self.count("drains");
                self.drain(node, on);
            }
            FleetAct::Farewell(node, seconds) => {
                let node = self.meant(node);
                self.count("farewells");
                self.farewell(node, Time::secs(seconds));
            }
            FleetAct::Holders(node, holders) => {
                let node = self.meant(node);
                self.set_holders(node, 0, holders);
            }
            FleetAct::Drop(node) => {
                let node = self.meant(node);
                self.drop_fleet(node, 0);
            }
            FleetAct::Create(node) => {
                let (node, holders) = (self.meant(node), self.scenario.fleet.holders);
                self.create_fleet(node, 0, holders);
            }
            FleetAct::Forge(node) => {
                let (node, boot) = (self.meant(node), self.random.next());
                self.forge_beats(node, boot);
            }
            FleetAct::Twin(node, seconds) => {
                let (node, boot) = (self.meant(node), self.random.next());
                self.twin(node, boot, Time::secs(seconds));
            }
            FleetAct::Powerless => {
                self.count("whole_power_losses");
                self.all_power();
            }
            FleetAct::Again => self.fleet.meant.clear(),
        }
    }

    /// One call of the script, asked once.
    pub(crate) fn scripted(&mut self, node: NodeId, k: Option<u8>, read: bool) {
        let (number, token) = (self.fleet.number(), self.fleet.number());
        let Ok(key) = Key::parse("/kept/script") else { return };
        let value = Bytes::from(format!("script/{number}"));
        let ops = if read { Vec::new() } else { vec![LocalOp::new(key.clone(), Change::Put { value, expiry: None })] };
        let asked = Asked {
            number,
            client: SCRIPTED,
            request: request(number),
            name: 0,
            ops,
            durability: k.map(Durability::Require),
            conditional: false,
            read: read.then_some(key),
            stale: false,
        };
        self.fleet.asked.insert(number, asked);
        self.fleet.tokens.insert(token, (SCRIPTED, number));
        if !self.call_fleet(node, token, number) {
            self.count("script_unheard");
        }
    }
}
