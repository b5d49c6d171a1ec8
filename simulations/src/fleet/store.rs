//! What a member asks of its engine and of its disk.

use std::collections::BTreeMap;

use bytes::Bytes;
use crdt::{Change, DatabaseId, Durability, Key, KeyRange, LocalOp, Order, Prefix, Projection, RequestId, Store as _, View as _};
use hoarder::Input;
use hoarder::registry::registry_id;
use hoarder::wire::Code;
use kvdb::engine::machine::{Reply, Work};
use kvdb::engine::port::WriteError;

use super::{FleetEvent, FleetSeen};
use crate::node::Sender;
use crate::observe::{NodeId, Observation};
use crate::time::Time;
use crate::world::{Event, World};

/// Clients of members' engines have numbers from here on, one for each write.
const CALLERS: usize = 1_000_000;

/// Who of a member waits for its engine's answer.
#[derive(Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub enum FleetWork {
    Commit {
        call: u64,
        number: u64,
        question: Question,
    },
    Registry {
        token: u64,
        question: Question,
    },
    Opened(DatabaseId),
    Synced(DatabaseId),
    /// Closed, to be let go of or to be deleted.
    Closed(DatabaseId, bool),
}

/// A write as the checkers see it.
#[derive(Debug)]
pub struct Question {
    client: usize,
    database: DatabaseId,
    request: RequestId,
    ops: Vec<LocalOp>,
}

impl World {
    /// A synced write in the name of a member.
    fn member_write(&mut self, id: NodeId, question: &Question) -> Work {
        let Question { client, database, request, ops } = question;
        let (client, database, request, durability) = (*client, *database, *request, Durability::Sync);
        self.observe(&Observation::Asked { client, node: id, database, request, ops, durability });
        Work::Write { database, ops: ops.clone(), request: Some(request), durability }
    }

    fn question(&mut self, database: DatabaseId, request: RequestId, ops: Vec<LocalOp>) -> Question {
        self.fleet.callers += 1;
        Question { client: CALLERS + self.fleet.callers, database, request, ops }
    }

    pub(crate) fn write_registry(&mut self, id: NodeId, token: u64, changes: Vec<(Key, Option<Bytes>)>) {
        let ops = changes.into_iter().map(|(key, value)| {
            let change = value.map_or(Change::Tombstone, |value| Change::Put { value, expiry: None });
            LocalOp::new(key, change)
        });
        let ops = ops.collect();
        let request = RequestId(self.random.id());
        let question = self.question(registry_id(), request, ops);
        let work = self.member_write(id, &question);
        self.submit(id, work, Sender::Fleet(FleetWork::Registry { token, question }));
    }

    pub(crate) fn member_commit(&mut self, id: NodeId, call: u64, database: DatabaseId, request: RequestId, payload: &Bytes) {
        let number = payload.as_ref().try_into().map_or(0, u64::from_be_bytes);
        let asked = self.fleet.asked.get(&number).map(|asked| asked.ops.clone());
        let open = self.nodes.get(id).and_then(|node| node.process()?.engine.replica(&database)).is_some();
        let frozen = self.member(id).is_some_and(|member| member.frozen.contains(&database));
        let Some(ops) = asked.filter(|_| open && !frozen) else {
            let incarnation = self.incarnation(id);
            let input = Input::Answered(call, Code::NotReady, Bytes::new());
            return self.after(Time(10), Event::Fleet(FleetEvent::Input(id, incarnation, Box::new(input))));
        };
        let question = self.question(database, request, ops);
        let work = self.member_write(id, &question);
        self.submit(id, work, Sender::Fleet(FleetWork::Commit { call, number, question }));
    }

    /// Reads a key for a call.
    pub(crate) fn member_read(&mut self, id: NodeId, call: u64, database: DatabaseId, payload: &Bytes) {
        let said = |code, payload| Input::Answered(call, code, payload);
        let open = self.nodes.get(id).and_then(|node| node.process()?.engine.replica(&database)).is_some();
        let key = std::str::from_utf8(payload).ok().and_then(|text| Key::parse(text).ok());
        let Some(key) = key.filter(|_| open) else { return self.fleet_input(id, said(Code::NotReady, Bytes::new())) };
        let wall = self.nodes.get(id).map(|node| node.clock.read(self.now));
        let found = self.nodes.get(id).and_then(|node| {
            let view = node.disk().contents().view(&database).ok()?;
            let row = view.row(&key).ok()?;
            let seen = row.siblings().iter().find(|put| put.expiry.is_none_or(|at| wall.is_some_and(|now| at.unix_ms() > now.0)));
            seen.and_then(|put| put.value.clone())
        });
        let since = self.caught_up(id, &database);
        self.observe_fleet(&FleetSeen::Read { node: id, database, key: &key, value: found.as_ref(), since });
        let input = found.map_or_else(|| said(Code::Absent, Bytes::new()), |value| said(Code::Done, value));
        self.fleet_input(id, input);
    }

    /// The engine has answered.
    pub(crate) fn member_replied(&mut self, id: NodeId, work: FleetWork, reply: Reply) {
        match (work, reply) {
            (FleetWork::Commit { call, number, question }, Reply::Written(answer)) => {
                self.said(id, &question, &answer);
                let input = match answer {
                    Ok(written) => {
                        if let Some(dot) = written.dot {
                            let durability = self.waited_for(id, &question.database, number);
                            self.fleet.dots.insert((question.database, dot), (number, durability));
                        }
                        Input::Committed(call, written.dot, Bytes::new())
                    }
                    Err(WriteError::Refused(_)) => Input::Answered(call, Code::Refused, Bytes::new()),
                    Err(WriteError::Unknown { .. }) => Input::Answered(call, Code::Broken, Bytes::new()),
                    Err(_) => Input::Answered(call, Code::NotReady, Bytes::new()),
                };
                self.fleet_event_input(id, input);
            }
            (FleetWork::Registry { token, question }, Reply::Written(answer)) => {
                self.said(id, &question, &answer);
                let dot = answer.ok().and_then(|written| written.dot);
                self.fleet_event_input(id, Input::RegistryWritten(token, dot));
            }
            (FleetWork::Opened(database), Reply::Done(Ok(()))) => {
                if let Some(member) = self.member_mut(id) {
                    member.frozen.remove(&database);
                }
                self.soil(id, database);
            }
            (FleetWork::Synced(database), Reply::Done(Ok(()))) => {
                // What is on disk is told before nothing more is said of it.
                let view = self.nodes.get(id).and_then(|node| node.disk().contents().view(&database).ok());
                let vv =
                    view.and_then(|view| view.state().ok()).map(|state| state.vv.iter().map(|it| (*it.0, it.1.seq)).collect());
                let own = self.peer_of(id).zip(vv);
                if let Some((own, vv)) = own {
                    self.fleet_input(id, Input::Durable(database, own, vv));
                    self.fleet_input(id, Input::Frozen(database));
                }
            }
            (FleetWork::Closed(database, destroy), Reply::Done(_)) => {
                if let Some(node) = self.nodes.get_mut(id) {
                    node.databases.retain(|open| *open != database);
                }
                if destroy {
                    self.delete_database(id, database);
                } else {
                    self.submit(id, Work::Sync, Sender::Fleet(FleetWork::Synced(database)));
                }
            }
            _ => {}
        }
    }

    fn said(&mut self, id: NodeId, question: &Question, answer: &Result<kvdb::engine::port::Written, WriteError>) {
        let Question { client, database, request, ops } = question;
        let (client, database, request, durability) = (*client, *database, *request, Durability::Sync);
        self.observe(&Observation::Answered { client, node: id, database, request, ops, durability, answer });
    }

    pub(crate) fn open_database(&mut self, id: NodeId, database: DatabaseId) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        if !node.databases.contains(&database) {
            node.databases.push(database);
        }
        node.disk_mut().create(database);
        self.submit(id, Work::Open(database), Sender::Fleet(FleetWork::Opened(database)));
    }

    /// Nothing more is merged or accepted: the database is closed, what there is is synced, and told.
    pub(crate) fn freeze_database(&mut self, id: NodeId, database: DatabaseId) {
        if let Some(member) = self.member_mut(id) {
            member.frozen.insert(database);
        }
        self.submit(id, Work::Close(database), Sender::Fleet(FleetWork::Closed(database, false)));
    }

    pub(crate) fn destroy_database(&mut self, id: NodeId, database: DatabaseId) {
        if let Some(member) = self.member_mut(id) {
            member.durable.retain(|(of, _), _| *of != database);
            member.frozen.insert(database);
        }
        self.submit(id, Work::Close(database), Sender::Fleet(FleetWork::Closed(database, true)));
    }

    /// The bytes go, for good from this moment on.
    fn delete_database(&mut self, id: NodeId, database: DatabaseId) {
        if let Some(node) = self.nodes.get_mut(id) {
            node.disk_mut().drop_database(database);
        }
        if let Some(member) = self.member_mut(id) {
            member.frozen.remove(&database);
        }
        self.count("databases_deleted");
        self.observe_fleet(&FleetSeen::Released { node: id, database });
        self.fleet_input(id, Input::Destroyed(database));
    }
}

/// The registry's entries on a node's disk, and the revision that they are of.
pub(super) fn entries(world: &World, id: NodeId) -> Option<(u64, BTreeMap<Key, Bytes>)> {
    let view = world.nodes.get(id)?.disk().contents().view(&registry_id()).ok()?;
    let revision = view.state().ok()?.meta.revision;
    let rows = view.scan(KeyRange::of(&Prefix::root()), Order::Ascending, Projection::Rows);
    let entry = |(key, row): (Key, crdt::Row)| Some((key, row.siblings().first()?.value.clone()?));
    Some((revision, rows.filter_map(|row| entry(row.ok()?)).collect()))
}
