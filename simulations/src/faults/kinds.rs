//! Each kind of fault: its number, its name, and what it does.

use crdt::{Store as _, View as _};

use super::Strike;
use crate::observe::{End, NodeId};
use crate::random::Random;
use crate::time::Time;
use crate::world::{Event, World};

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "said in FAULTS")]
pub enum Kind {
    Drop,
    Duplicate,
    Reorder,
    DelaySpike,
    CorruptFrame,
    StreamCut,
    Partition,
    OneWay,
    NoDial,
    Bandwidth,
    HalfOpen,
    CrashAtCommit,
    PowerLoss,
    SyncFails,
    DiskFull,
    FlippedBit,
    LostDisk,
    OldImage,
    CopiedDisk,
    ClockJump,
    DriftAndFreeze,
    Pause,
    VersionSkew,
    Crash,
    SlowSync,
    LyingSync,
    ReadFails,
    SlowReader,
    SilentMesh,
    Flapping,
    MovingPartition,
    HostilePeer,
    Overload,
    Leave,
    LongAway,
    Compact,
    MembershipFlaps,
    PlacementChange,
    Holders,
    Farewell,
    ForgedBeats,
    WholePower,
    IdentityTwice,
    DropDatabase,
    CompactAll,
    AwayLonger,
    SlowWatcher,
}

/// A row of the list.
#[derive(Debug)]
pub struct Fault {
    /// Its name, in scenarios and reports.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// How; `None` as long as there is nothing yet that it could strike.
    pub kind: Option<Kind>,
    /// Drawn only if a scenario names it, since it does not go together with all others.
    pub only_named: bool,
    /// Drawn only where there is a fleet.
    pub of_fleet: bool,
}

const fn fault(name: &'static str, kind: Kind, about: &'static str) -> Fault {
    Fault { name, about, kind: Some(kind), only_named: false, of_fleet: false }
}

const fn of_fleet(name: &'static str, kind: Kind, about: &'static str) -> Fault {
    Fault { name, about, kind: Some(kind), only_named: false, of_fleet: true }
}

/// All kinds. Their places are their numbers, which plans keep: new ones come at the end.
pub const FAULTS: &[Fault] = &[
    fault("drop", Kind::Drop, "packets between two nodes are lost: streams wait for retransmissions, gossip is gone"),
    fault("duplicate", Kind::Duplicate, "gossip comes twice, the second time past gossipsub's memory"),
    fault("reorder", Kind::Reorder, "the times of packets between two nodes vary widely: gossip overtakes gossip and sync"),
    fault("delay-spike", Kind::DelaySpike, "everything from one node takes seconds"),
    fault("corrupt-frame", Kind::CorruptFrame, "bits flip in sync frames, as in the memory of a sender"),
    fault("stream-cut", Kind::StreamCut, "connections are reset in the middle of frames"),
    fault("partition", Kind::Partition, "two groups of nodes do not reach each other"),
    fault("one-way", Kind::OneWay, "nothing passes from one node to another, all the other way"),
    fault("no-dial", Kind::NoDial, "no new connection between two nodes comes about, those that stand go on"),
    fault("bandwidth", Kind::Bandwidth, "a node can send 4 to 64 KiB a second"),
    fault("half-open", Kind::HalfOpen, "one end of a connection is gone and the other does not hear of it"),
    fault(
        "crash-at-commit",
        Kind::CrashAtCommit,
        "the process ends within its next commit, or after it and before anybody hears",
    ),
    fault("power-loss", Kind::PowerLoss, "the machine loses its power: a part of what was not synced is gone"),
    fault("sync-fails", Kind::SyncFails, "the next sync of a disk fails"),
    fault("disk-full", Kind::DiskFull, "nothing can be written to a disk for a while"),
    fault("flipped-bit", Kind::FlippedBit, "a record on a disk is damaged, which reading it shows"),
    fault("lost-disk", Kind::LostDisk, "a data directory is lost; the node starts with an empty one"),
    fault("old-image", Kind::OldImage, "an older image of a data directory is put back"),
    fault("copied-disk", Kind::CopiedDisk, "a data directory is copied to another node, which writes with the same key"),
    fault("clock-jump", Kind::ClockJump, "a clock steps by up to three hours, forwards or backwards"),
    fault("drift-and-freeze", Kind::DriftAndFreeze, "a clock runs wrong by up to a tenth, and its process stops for a moment"),
    fault("pause", Kind::Pause, "a process is stopped for 30 s or longer and goes on as if nothing had been"),
    fault("away-longer-than-history", Kind::AwayLonger, "a node comes back when its peers have compacted what it lacks"),
    of_fleet("flapping-membership", Kind::MembershipFlaps, "a member's process ends and starts several times in a few seconds"),
    of_fleet("placement-change", Kind::PlacementChange, "a member is told to hold nothing for a while"),
    fault(
        "compactions-on-different-views",
        Kind::Compact,
        "a node is told to keep little history: it drops what enough others have on disk, as far as it has heard",
    ),
    fault("compaction-during-catch-up", Kind::CompactAll, "all nodes drop all history that they may, whoever is behind"),
    fault("version-skew", Kind::VersionSkew, "a node is rolled to another version of the wire format, and back"),
    fault(
        "hostile-peer",
        Kind::HostilePeer,
        "a node sends garbage, replays, forged blocks, lies about what it has, floods, and withholds blocks",
    ),
    fault("overload", Kind::Overload, "hundreds of writes at once at one node"),
    fault("slow-watcher", Kind::SlowWatcher, "a watcher does not read for a while"),
    fault("crash", Kind::Crash, "the process is killed and started again"),
    fault("slow-sync", Kind::SlowSync, "a disk syncs up to a thousand times slower"),
    fault("lying-sync", Kind::LyingSync, "a disk says that it has synced and has not"),
    fault("read-fails", Kind::ReadFails, "a few reads of a disk fail"),
    fault("slow-reader", Kind::SlowReader, "a node reads nothing from its streams for a while"),
    fault("silent-mesh", Kind::SilentMesh, "no gossip passes between two nodes, everything else does"),
    fault("flapping", Kind::Flapping, "a link goes up and down several times"),
    fault("moving-partition", Kind::MovingPartition, "a partition whose border moves"),
    fault("leave", Kind::Leave, "a node leaves for ever, and what only it had with it; at most a third do"),
    fault("long-away", Kind::LongAway, "a node is down for several minutes"),
    of_fleet("holders-change", Kind::Holders, "a database gets another number of holders, while it is in use"),
    of_fleet("farewell", Kind::Farewell, "a member says good-bye, ends, and comes back later"),
    of_fleet("forged-beats", Kind::ForgedBeats, "beats in a member's name: unsigned ones, and those of a start that is no more"),
    of_fleet("whole-power", Kind::WholePower, "the power of all machines fails at once"),
    of_fleet("identity-twice", Kind::IdentityTwice, "a second process runs under a member's identity"),
    Fault {
        name: "dropped",
        about: "a database is dropped, and made again a little later",
        kind: Some(Kind::DropDatabase),
        only_named: true,
        of_fleet: true,
    },
];

/// Where there is a fleet these do not strike: members trust what members say, and what their disks say; a loss that nobody
/// may be asked to survive is none to be shown.
const NOT_IN_FLEETS: &[&str] =
    &["corrupt-frame", "hostile-peer", "lying-sync", "flipped-bit", "leave", "overload", "copied-disk", "version-skew"];

impl Fault {
    /// Whether it is drawn in a world with or without a fleet that names no kinds.
    pub(super) fn is_drawn(&self, fleet: bool) -> bool {
        !self.only_named && if fleet { !NOT_IN_FLEETS.contains(&self.name) } else { !self.of_fleet }
    }
}

/// The number of a kind by its name.
#[must_use]
pub fn number_of(name: &str) -> Option<usize> {
    FAULTS.iter().position(|fault| fault.name == name)
}

/// Strikes; `false` when there is nothing to strike.
pub(super) fn strike(world: &mut World, kind: Kind, strike: &Strike) -> bool {
    let Strike { node, other, size, .. } = *strike;
    let fleet = world.fleet.is_there();
    match kind {
        Kind::LostDisk | Kind::OldImage if fleet && !world.may_lose(node) => false,
        Kind::MembershipFlaps
        | Kind::PlacementChange
        | Kind::Holders
        | Kind::Farewell
        | Kind::ForgedBeats
        | Kind::WholePower
        | Kind::IdentityTwice
        | Kind::DropDatabase => fleet && world.strike_fleet(kind, strike),
        Kind::Drop | Kind::Duplicate | Kind::Reorder | Kind::DelaySpike | Kind::CorruptFrame | Kind::StreamCut => {
            impair(world, kind, strike)
        }
        Kind::NoDial | Kind::Bandwidth | Kind::SilentMesh => impair(world, kind, strike),
        Kind::Partition => partition(world, size, true),
        Kind::OneWay => node != other && cut(world, &[(node, other)], true),
        Kind::Flapping => flap(world, strike),
        Kind::MovingPartition => move_partition(world, strike),
        Kind::HalfOpen => half_open(world, node, other),
        Kind::Crash => end(world, node, End::Process),
        Kind::PowerLoss => end(world, node, End::Power),
        Kind::LostDisk => end(world, node, End::Disk),
        Kind::OldImage => end(world, node, End::Restored),
        Kind::CopiedDisk => copy_disk(world, node, other),
        Kind::VersionSkew => roll(world, node, 2),
        Kind::Pause | Kind::DriftAndFreeze | Kind::ClockJump => time_goes_wrong(world, kind, strike),
        Kind::FlippedBit => damage(world, node, size),
        Kind::HostilePeer => world.set_hostile(node, Some(size)),
        Kind::Overload => world.crowd(node, size),
        Kind::Leave => {
            let gone = world.nodes.iter().filter(|node| node.gone).count();
            (gone + 1) * 3 <= world.nodes.len() && end(world, node, End::Gone)
        }
        Kind::LongAway => long_away(world, node, size),
        Kind::Compact => compact(world, node, size),
        Kind::CompactAll => compact_all(world),
        Kind::AwayLonger => away_longer(world, strike),
        Kind::SlowWatcher => world.slow_watcher(size, Time(strike.lasts_us * 4)),
        _ => break_disk(world, kind, strike),
    }
}

/// What lasts is over.
pub(super) fn mend(world: &mut World, kind: Kind, strike: &Strike) {
    let Strike { node, other, size, .. } = *strike;
    match kind {
        Kind::Partition => _ = partition(world, size, false),
        Kind::OneWay => _ = cut(world, &[(node, other)], false),
        Kind::Drop
        | Kind::Duplicate
        | Kind::Reorder
        | Kind::DelaySpike
        | Kind::CorruptFrame
        | Kind::StreamCut
        | Kind::NoDial
        | Kind::Bandwidth
        | Kind::SilentMesh => restore(world, kind, strike),
        Kind::PlacementChange => _ = world.drain(node, false),
        Kind::HostilePeer => _ = world.set_hostile(node, None),
        Kind::VersionSkew => _ = roll(world, node, kvdb::net::wire::PROTOCOL_VERSION),
        Kind::ClockJump | Kind::DriftAndFreeze => {
            let now = world.now;
            if let Some(node) = world.nodes.get_mut(node) {
                node.clock.drift(now, 0);
            }
        }
        Kind::DiskFull | Kind::LyingSync | Kind::SlowSync => {
            if let Some(node) = world.nodes.get_mut(node) {
                node.sync_factor = 1;
                let faults = &mut node.disk_mut().faults;
                (faults.full, faults.lying) = (false, false);
            }
        }
        _ => {}
    }
}

/// The paths that a fault of the network strikes.
fn paths_of(world: &World, kind: Kind, strike: &Strike) -> Vec<(NodeId, NodeId)> {
    match kind {
        Kind::DelaySpike | Kind::Bandwidth => {
            (0..world.nodes.len()).filter(|other| *other != strike.node).map(|other| (strike.node, other)).collect()
        }
        _ => vec![(strike.node, strike.other), (strike.other, strike.node)],
    }
}

fn impair(world: &mut World, kind: Kind, strike: &Strike) -> bool {
    let mut random = Random::new(strike.size);
    let millionths = u32::try_from(random.between(10_000, 300_000)).unwrap_or(0);
    let slow = random.between(500_000, 5_000_000);
    for (from, to) in paths_of(world, kind, strike) {
        let Some(path) = world.net.path(from, to) else { continue };
        match kind {
            Kind::Drop => path.loss = millionths,
            Kind::Duplicate => path.duplicate = millionths * 3,
            Kind::Reorder => path.latency.1 = slow / 5,
            Kind::DelaySpike => path.latency.0 = slow,
            Kind::CorruptFrame => path.corrupt = millionths / 5,
            Kind::StreamCut => path.reset = millionths / 2,
            Kind::NoDial => path.no_dial = true,
            Kind::Bandwidth => path.bandwidth = 4_096 << (strike.size % 5),
            _ => path.silent = true,
        }
    }
    strike.node != strike.other
}

fn restore(world: &mut World, kind: Kind, strike: &Strike) {
    let fresh = world.scenario.path();
    for (from, to) in paths_of(world, kind, strike) {
        let Some(path) = world.net.path(from, to) else { continue };
        match kind {
            Kind::Drop => path.loss = 0,
            Kind::Duplicate => path.duplicate = 0,
            Kind::Reorder | Kind::DelaySpike => path.latency = fresh.latency,
            Kind::CorruptFrame => path.corrupt = 0,
            Kind::StreamCut => path.reset = 0,
            Kind::NoDial => path.no_dial = false,
            Kind::Bandwidth => path.bandwidth = fresh.bandwidth,
            _ => path.silent = false,
        }
    }
}

fn cut(world: &mut World, paths: &[(NodeId, NodeId)], cut: bool) -> bool {
    for (from, to) in paths {
        world.cut_path(*from, *to, cut);
    }
    true
}

/// Which side each node is on: the bits of a number.
fn border(world: &World, sides: u64) -> Vec<(NodeId, NodeId)> {
    let nodes = world.nodes.len();
    let side = |node: NodeId| sides >> (node % 64) & 1;
    let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
    pairs.filter(|(from, to)| side(*from) != side(*to)).collect()
}

fn partition(world: &mut World, sides: u64, on: bool) -> bool {
    let paths = border(world, sides);
    cut(world, &paths, on) && !paths.is_empty()
}

/// One partition after another, as more faults of the plan.
fn move_partition(world: &mut World, strike: &Strike) -> bool {
    let mut random = Random::new(strike.size);
    let step = Time(strike.lasts_us / 4 + 1);
    for place in 0..4 {
        let part =
            Strike { number: number_of("partition").unwrap_or(0), size: random.next(), lasts_us: step.0, ..strike.clone() };
        later(world, Time(step.0 * place), part);
    }
    true
}

fn flap(world: &mut World, strike: &Strike) -> bool {
    let step = strike.lasts_us / 16 + 1;
    for place in 0..8 {
        for (node, other) in [(strike.node, strike.other), (strike.other, strike.node)] {
            let number = number_of("one-way").unwrap_or(0);
            later(world, Time(place * 2 * step), Strike { number, node, other, lasts_us: step, ..strike.clone() });
        }
    }
    strike.node != strike.other
}

fn later(world: &mut World, delay: Time, strike: Strike) {
    let index = world.faults.strikes.len();
    // A part of another fault: it follows from that one, and is not in the plan by itself.
    world.faults.parts.push(index);
    world.faults.strikes.push(strike);
    world.after(delay, Event::Fault(index));
}

fn half_open(world: &mut World, node: NodeId, other: NodeId) -> bool {
    let conns: Vec<_> = world.net.conns_of(node, other).collect();
    for (conn, side) in &conns {
        world.conn_down(*conn, *side);
    }
    !conns.is_empty()
}

fn end(world: &mut World, node: NodeId, how: End) -> bool {
    let up = world.nodes.get(node).is_some_and(|node| node.process().is_some());
    if up {
        world.crash(node, how);
    }
    up
}

/// A node is told to keep less history than it has.
fn compact(world: &mut World, id: NodeId, size: u64) -> bool {
    let databases = world.databases.len().max(1);
    let at = usize::try_from(size >> 32).unwrap_or(0) % databases;
    let Some(database) = world.databases.get(at).copied() else { return false };
    let process = world.nodes.get(id).and_then(|node| node.process());
    let Some(replica) = process.and_then(|process| process.engine.replica(&database)) else { return false };
    // Not always all of it, so that floors differ.
    let keep = replica.meta().history_bytes * (size % 4) / 4;
    world.compact(id, database, keep);
    true
}

fn compact_all(world: &mut World) -> bool {
    for id in 0..world.nodes.len() {
        for database in world.databases.clone() {
            world.compact(id, database, 0);
        }
    }
    true
}

/// A node is away, and before it comes back the others drop what it lacks.
fn away_longer(world: &mut World, strike: &Strike) -> bool {
    let up = world.nodes.get(strike.node).is_some_and(|node| node.process().is_some());
    if up {
        let away = Time::secs(5 + strike.size % 30);
        world.end_process(strike.node, End::Process);
        world.after(away, Event::Boot(strike.node));
        let number = number_of("compaction-during-catch-up").unwrap_or(0);
        later(world, away.since(Time::ms(500)), Strike { number, node: strike.other, ..strike.clone() });
    }
    up
}

fn long_away(world: &mut World, node: NodeId, size: u64) -> bool {
    let up = world.nodes.get(node).is_some_and(|node| node.process().is_some());
    if up {
        world.end_process(node, End::Process);
        world.after(Time::secs(60 + size % 240), Event::Boot(node));
    }
    up
}

/// The other node starts again on a copy of this one's disk, and writes in the name of the same author.
fn copy_disk(world: &mut World, node: NodeId, other: NodeId) -> bool {
    if node == other || world.nodes.get(other).is_none_or(|other| other.gone) {
        return false;
    }
    let Some(from) = world.nodes.get(node) else { return false };
    let (mut disk, signer) = (from.disk().clone(), from.author);
    disk.faults = crate::disk::DiskFaults::default();
    // A copy of files has what was written, synced or not.
    disk.settle();
    world.end_process(other, End::Restored);
    if let Some(other) = world.nodes.get_mut(other) {
        *other.disk_mut() = disk;
        other.author = signer;
    }
    world.after(Time::ms(100), Event::Boot(other));
    true
}

fn roll(world: &mut World, id: NodeId, version: u64) -> bool {
    let Some(node) = world.nodes.get_mut(id).filter(|node| node.wire_version != version) else { return false };
    node.wire_version = version;
    let incarnation = node.incarnation;
    world.after(Time::ZERO, Event::Restart(id, incarnation));
    true
}

fn time_goes_wrong(world: &mut World, kind: Kind, strike: &Strike) -> bool {
    let now = world.now;
    let mut random = Random::new(strike.size);
    let Some(node) = world.nodes.get_mut(strike.node) else { return false };
    let hours = 3 * 3_600_000;
    let step = i64::try_from(random.below(2 * hours)).unwrap_or(0) - i64::try_from(hours).unwrap_or(0);
    let freeze = match kind {
        Kind::ClockJump => {
            node.clock.step(now, step);
            return true;
        }
        Kind::Pause => Time::secs(random.between(30, 90)),
        _ => {
            node.clock.drift(now, i64::try_from(random.below(200_000)).unwrap_or(0) - 100_000);
            Time::ms(random.between(1, 5_000))
        }
    };
    if node.process().is_none() || node.frozen.is_some() {
        return false;
    }
    node.frozen = Some(now + freeze);
    world.at(now + freeze, Event::Thaw(strike.node));
    true
}

/// Damages the record of a block or of a row, if there is any.
fn damage(world: &mut World, id: NodeId, size: u64) -> bool {
    let Some(database) = world.databases.get(usize::try_from(size >> 32).unwrap_or(0) % world.databases.len().max(1)).copied()
    else {
        return false;
    };
    if !world.has(id, &database) {
        return false;
    }
    let Some(node) = world.nodes.get_mut(id) else { return false };
    let disk = node.disk_mut();
    let Ok(view) = disk.contents().view(&database) else { return false };
    let logged: Vec<_> = view.log(1).filter_map(Result::ok).collect();
    let place = usize::try_from(size % (logged.len().max(1) as u64)).unwrap_or(0);
    let Some(dot) = logged.get(place).map(|entry| entry.dot) else { return false };
    if size & 1 == 0 {
        disk.damage_block(database, dot);
    } else {
        let block = disk.contents().view(&database).ok().and_then(|view| view.block(&dot).ok().flatten());
        let block = block.and_then(|block| crdt::Block::from_store(block.bytes).ok());
        let Some(key) = block.as_ref().and_then(|block| block.ops().first()).map(|op| op.key.clone()) else { return false };
        disk.damage_row(database, key);
    }
    true
}

fn break_disk(world: &mut World, kind: Kind, strike: &Strike) -> bool {
    let Some(node) = world.nodes.get_mut(strike.node) else { return false };
    let how = if strike.size & 2 == 0 { End::Process } else { End::Power };
    match kind {
        Kind::CrashAtCommit if strike.size & 1 == 0 => node.end_in_commit = Some(how),
        Kind::CrashAtCommit => node.end_after_turn = Some(how),
        Kind::SlowSync => node.sync_factor = strike.size % 1_000,
        Kind::SyncFails => node.disk_mut().faults.failing_syncs = 1,
        Kind::DiskFull => node.disk_mut().faults.full = true,
        Kind::LyingSync => node.disk_mut().faults.lying = true,
        Kind::ReadFails => {
            let faults = &node.disk_mut().faults;
            // In the middle of a turn, too, when a part of it is done in memory.
            faults.good_reads.set(u32::try_from((strike.size >> 8) % 12).unwrap_or(0));
            faults.failing_reads.set(1 + u32::try_from(strike.size % 3).unwrap_or(0));
        }
        _ => node.deaf_until = world.now + Time(strike.lasts_us),
    }
    true
}
