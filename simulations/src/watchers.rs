//! Watchers: each follows the keys below a prefix at one node, at its own pace, goes away and comes back with its last
//! token. What it has been told it keeps as a map, which checkers compare.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crdt::{DatabaseId, Dot, Key, KeyRange, Order, Prefix, Projection, Store as _, View as _};
use kvdb::engine::machine::{Advance, TurnOutcome};
use kvdb::watch::{Position, Recent, WatchChange, WatchEvent, WatchToken, Watcher};

use crate::node::Process;
use crate::observe::{NodeId, Observation, Watched};
use crate::random::Random;
use crate::time::Time;
use crate::world::{Event, World};

/// One watcher's user.
#[derive(Debug)]
pub(crate) struct Follower {
    node: NodeId,
    database: DatabaseId,
    prefix: Prefix,
    random: Random,
    pace: u64,
    slow_until: Time,
    /// What it has been told: the winner of each key.
    map: BTreeMap<Key, Dot>,
    token: Option<WatchToken>,
    watch: Option<Watch>,
}

/// A watch that is open.
#[derive(Debug)]
struct Watch {
    incarnation: u64,
    watcher: Watcher,
    /// Events that are made ready and not taken.
    ready: VecDeque<WatchEvent>,
}

impl Process {
    /// Tells those who watch what a turn has changed.
    pub(crate) fn tell_watchers(&mut self, outcome: &TurnOutcome) {
        for Advance { database, meta, changes, switched, .. } in &outcome.advanced {
            let Some(recent) = self.recent.get_mut(database) else { continue };
            if *switched {
                recent.reset(meta.revision);
            } else {
                recent.advance(meta.revision, changes.clone());
            }
        }
    }

    /// The memory for watchers of an open database.
    fn recent_of(&mut self, database: DatabaseId) -> Option<&Recent> {
        let revision = self.engine.replica(&database)?.meta().revision;
        self.recent.entry(database).or_insert_with(|| Recent::new(revision));
        let watched: BTreeSet<DatabaseId> = self.recent.keys().copied().collect();
        self.engine.set_watched(watched);
        self.recent.get(&database)
    }
}

impl World {
    pub(crate) fn add_watchers(&mut self, random: &mut Random) {
        let options = self.scenario.watch.clone();
        for id in 0..options.watchers {
            let mut random = random.split();
            let node = random.index(self.nodes.len());
            let Some(database) = random.pick(&self.databases).copied() else { return };
            // Every other one sees a part.
            let prefix = if id % 2 == 0 { Ok(Prefix::root()) } else { Prefix::parse("/keys") };
            let pace = options.pace_ms.max(1) * if random.below(3) == 0 { 20 } else { 1 };
            let at = Time::ms(random.below(2_000));
            self.watchers.push(Some(Follower {
                node,
                database,
                prefix: prefix.unwrap_or_else(|_| Prefix::root()),
                random,
                pace,
                slow_until: Time::ZERO,
                map: BTreeMap::new(),
                token: None,
                watch: None,
            }));
            self.at(at, Event::Watch(id));
        }
    }

    /// The disk of a node has lost something that its watchers may have been told of, or that came before their tokens. The
    /// log may later have the same block at the same place after other ones, so they list again, as the manual says.
    pub(crate) fn watchers_list_again(&mut self, node: NodeId) {
        for follower in self.watchers.iter_mut().flatten().filter(|follower| follower.node == node) {
            (follower.token, follower.watch) = (None, None);
        }
    }

    /// A watcher reads nothing for a while.
    pub(crate) fn slow_watcher(&mut self, size: u64, lasts: Time) -> bool {
        let until = self.now + lasts;
        let count = self.watchers.len().max(1);
        let at = usize::try_from(size % count as u64).unwrap_or(0);
        let Some(follower) = self.watchers.get_mut(at).and_then(Option::as_mut) else { return false };
        follower.slow_until = until;
        true
    }

    /// A watcher looks, and later again.
    pub(crate) fn watch(&mut self, id: usize) {
        let Some(mut follower) = self.watchers.get_mut(id).and_then(Option::take) else { return };
        let wait = Time(follower.random.exponential(follower.pace * 1_000));
        let leaves = follower.random.millionths(self.scenario.watch.leave_permille * 1_000);
        if follower.slow_until <= self.now {
            let most = follower.random.between(1, 40);
            _ = self.follow(id, &mut follower, most);
            if leaves {
                self.count("watchers_left");
                follower.leave();
            }
        }
        let next = (self.now + wait).max(follower.slow_until);
        if let Some(place) = self.watchers.get_mut(id) {
            *place = Some(follower);
        }
        self.at(next, Event::Watch(id));
    }

    /// Every watcher reads all that there is for it.
    pub(crate) fn watchers_read_all(&mut self) {
        for id in 0..self.watchers.len() {
            let Some(mut follower) = self.watchers.get_mut(id).and_then(Option::take) else { continue };
            // Bounded: nothing is written meanwhile.
            let rested = (0..100_000).any(|_| self.follow(id, &mut follower, u64::MAX) != Some(false));
            if rested {
                self.count("watchers_at_rest");
            }
            if let Some(place) = self.watchers.get_mut(id) {
                *place = Some(follower);
            }
        }
    }

    /// Takes up to so many events. `true` when there are no more, `None` when the node cannot be watched.
    fn follow(&mut self, id: usize, follower: &mut Follower, most: u64) -> Option<bool> {
        let node = self.nodes.get_mut(follower.node).filter(|node| node.frozen.is_none());
        let (incarnation, wall) = node.as_ref().map(|node| (node.incarnation, node.clock.read(self.now)))?;
        let process = node.and_then(|node| node.process_mut()).filter(|process| process.engine.poison().is_none());
        if follower.watch.as_ref().is_some_and(|watch| watch.incarnation != incarnation) {
            // The connection is gone with the process; what was made ready was not taken.
            follower.leave();
        }
        let process = process?;
        if follower.watch.is_none() {
            return self.begin_watch(id, follower, incarnation).map(|()| false);
        }
        let watch = follower.watch.as_mut()?;
        if watch.ready.is_empty() {
            let recent = process.recent.get(&follower.database)?;
            if !watch.watcher.look(recent) {
                let caught_up = Watched::CaughtUp { map: &follower.map };
                self.seen(id, follower, caught_up);
                return Some(true);
            }
            let view = process.engine.store().view(&follower.database).ok();
            match view.and_then(|view| watch.watcher.read(&view, wall).ok()) {
                Some(events) => {
                    watch.ready = events.clone().into();
                    for event in &events {
                        self.seen(id, follower, Watched::Ready(event, wall));
                    }
                }
                // An error is the last item.
                None => follower.leave(),
            }
        }
        for _ in 0..most {
            let Some(event) = follower.watch.as_mut().and_then(|watch| watch.ready.pop_front()) else { break };
            follower.take(&event);
            self.seen(id, follower, Watched::Event(&event));
        }
        Some(false)
    }

    /// From the token if there is one and it is good, else from a listing.
    fn begin_watch(&mut self, id: usize, follower: &mut Follower, incarnation: u64) -> Option<()> {
        let node = self.nodes.get_mut(follower.node)?;
        let wall = node.clock.read(self.now);
        let process = node.process_mut()?;
        let latest = process.recent_of(follower.database)?.latest();
        let view = process.engine.store().view(&follower.database).ok()?;
        let recent = process.recent.get(&follower.database)?;
        let (watcher, rows) = if let Some(token) = follower.token {
            if !Watcher::can_resume(&token, latest, &view).ok()? {
                follower.token = None;
                self.count("watch_too_old");
                self.seen(id, follower, Watched::TooOld(token));
                return Some(());
            }
            (Watcher::resume(follower.prefix.clone(), false, token, recent), None)
        } else {
            let revision = view.state().ok()?.meta.revision;
            let entry = view.log(revision).next().transpose().ok()?.filter(|entry| entry.revision == revision);
            let at = Position { revision, dot: entry.map(|entry| entry.dot) };
            let range = KeyRange::of(&follower.prefix);
            let mut rows = BTreeMap::new();
            for row in view.scan(range, Order::Ascending, Projection::Keys) {
                let (key, row) = row.ok()?;
                rows.extend(row.winner(wall).map(|winner| (key, winner.dot)));
            }
            (Watcher::new(follower.prefix.clone(), false, at, recent), Some(rows))
        };
        let position = watcher.position();
        follower.watch = Some(Watch { incarnation, watcher, ready: VecDeque::new() });
        if let Some(rows) = rows {
            follower.map = rows;
            follower.token = position.token();
            let listed = Watched::Listed { map: &follower.map, at: position.revision, wall };
            self.seen(id, follower, listed);
        } else if let Some(token) = follower.token {
            self.count("watch_resumed");
            self.seen(id, follower, Watched::Resumed(token));
        }
        Some(())
    }

    fn seen(&mut self, watcher: usize, follower: &Follower, what: Watched<'_>) {
        let (node, database, prefix) = (follower.node, follower.database, &follower.prefix);
        if let Watched::Event(event) = &what {
            self.count(if event.change == WatchChange::Reset { "watch_reset" } else { "watch_events" });
        }
        self.observe(&Observation::Watch { watcher, node, database, prefix, what });
    }
}

impl Follower {
    fn take(&mut self, event: &WatchEvent) {
        self.token = event.token.or(self.token);
        match &event.change {
            WatchChange::Put(put) => _ = self.map.insert(put.key.clone(), put.dot),
            WatchChange::Deleted(key) => _ = self.map.remove(key),
            WatchChange::Listed => {}
            WatchChange::Reset => {
                // Lists again, as it is told to.
                (self.token, self.watch) = (None, None);
            }
        }
    }

    /// Goes away; comes back with the token of the last event, or a later one if nothing else was ready.
    fn leave(&mut self) {
        let Some(watch) = self.watch.take() else { return };
        if watch.ready.is_empty() {
            self.token = watch.watcher.position().token().or(self.token);
        }
    }
}
