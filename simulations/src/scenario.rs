//! Scenarios: what a run is made of, in one file that a person can write.

use serde::{Deserialize, Serialize};

use crate::net::Path;
use crate::node::Node;
use crate::random::Random;

/// A run, but for its seed. Everything has a default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// Its name in reports.
    pub name: String,
    /// What it is about.
    pub about: String,
    /// Nodes.
    pub nodes: usize,
    /// Databases, each kept by all nodes.
    pub databases: usize,
    /// Who dials whom.
    pub topology: Topology,
    /// Between two announcements of a database, in milliseconds.
    pub rebroadcast_ms: u64,
    /// One-way time of a packet at least, in microseconds.
    pub latency_min_us: u64,
    /// On average beyond that, exponentially distributed, in microseconds.
    pub latency_mean_us: u64,
    /// Bytes a second on each path.
    pub bandwidth: u64,
    /// Clocks are wrong by up to so many milliseconds from the start.
    pub clock_skew_ms: u64,
    /// What the clients do.
    pub workload: Workload,
    /// How history is kept, and how snapshots are cut.
    pub history: History,
    /// What goes with time.
    pub upkeep: Upkeep,
    /// Who watches.
    pub watch: Watch,
    /// So many nodes are started later, at any moment while things go wrong.
    pub late_nodes: usize,
    /// After all are equal the run goes on for so many seconds, and they must be so at its end too.
    pub rest_s: u64,
    /// What goes wrong.
    pub faults: Faults,
    /// The fleet, if there is one.
    pub fleet: FleetSpec,
    /// After the last fault everything must be equal within so many seconds of virtual time.
    pub equal_within_s: u64,
    /// Every block must be on every node within so many milliseconds, faults or not; 0 for whenever.
    pub visible_within_ms: u64,
    /// What happens at given moments, and what must be there in the end; see [`crate::script`].
    pub script: String,
    /// Each seed draws its own nodes, topology, workload and faults; see [`crate::scenarios::drawn`].
    pub swarm: bool,
    /// Marks, by name, that each run must reach: counters, faults and what checkers report.
    pub reached: Vec<String>,
}

/// Who dials whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    /// Everybody everybody with a greater number.
    Mesh,
    /// Everybody the next.
    Line,
    /// Everybody the next, the last the first.
    Ring,
    /// Everybody the first.
    Star,
    /// Everybody one that came before, at random, and a second one.
    Random,
}

/// What the clients do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Workload {
    /// Clients; each asks one node and waits for the answer before it goes on.
    pub clients: usize,
    /// Writes in all.
    pub operations: u64,
    /// Different keys of each database.
    pub keys: u64,
    /// Writes in a hundred that go to the first tenth of the keys.
    pub hot_percent: u32,
    /// Ops in a hundred that are deletes.
    pub delete_percent: u32,
    /// Puts in a hundred that expire, within ten seconds.
    pub expiring_percent: u32,
    /// Writes in a hundred that are batches.
    pub batch_percent: u32,
    /// Most ops of a batch.
    pub batch_max: u64,
    /// Most bytes of an ordinary value.
    pub value_bytes: u64,
    /// Values in a thousand that are large, up to [`Workload::large_bytes`].
    pub large_permille: u32,
    /// Most bytes of a large value.
    pub large_bytes: u64,
    /// Writes in a hundred that must be on disk before the answer.
    pub sync_percent: u32,
    /// Between an answer and the next write of a client, on average, in milliseconds.
    pub think_ms: u64,
    /// Waits of clients in a hundred that are none: bursts.
    pub burst_percent: u32,
    /// How long a client waits for an answer before it tries again, in milliseconds.
    pub timeout_ms: u64,
    /// Retries in a hundred that go to another node.
    pub move_percent: u32,
    /// Answers in a hundred that are lost on their way, so that the client asks again.
    pub lost_answers_percent: u32,
    /// Single writes in a hundred that have a condition or name what they have seen.
    pub conditional_percent: u32,
}

/// How history is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct History {
    /// How often each node looks at its history, in milliseconds, with a jitter of a quarter; 0 for only when a fault says so.
    pub interval_ms: u64,
    /// How many other nodes must have a block on disk before it is dropped.
    pub holders: usize,
    /// Blocks younger than this are kept, unless there are too many bytes of them.
    pub min_age_ms: u64,
    /// Bytes of blocks that may be kept.
    pub max_bytes: u64,
    /// Bytes of a chunk of a snapshot, about.
    pub chunk_bytes: usize,
    /// Rows of a snapshot that are joined in one turn.
    pub join_rows: usize,
}

/// What goes with time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Upkeep {
    /// How often each node looks, in milliseconds; 0 for never.
    pub interval_ms: u64,
    /// How long after its expiry a value is deleted, in milliseconds.
    pub grace_ms: u64,
    /// How long the outcome of a request is kept, in milliseconds.
    pub retention_ms: u64,
    /// How many outcomes are kept.
    pub keep_requests: u64,
}

/// Who watches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Watch {
    /// Watchers, spread over nodes and databases.
    pub watchers: usize,
    /// Between two looks of a watcher, on average, in milliseconds; each has its own pace, up to twenty times slower.
    pub pace_ms: u64,
    /// Looks in a thousand at which a watcher goes away, and comes back later with its last token.
    pub leave_permille: u32,
}

/// A fleet: members with databases that they place among themselves, and clients who ask any of them. What
/// [`Workload`] says is not done where there is one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FleetSpec {
    /// The first so many nodes are members; 0 for no fleet. The others are strangers.
    pub members: usize,
    /// Databases.
    pub databases: usize,
    /// Holders of each.
    pub holders: u8,
    /// Clients.
    pub clients: usize,
    /// Calls in all.
    pub operations: u64,
    /// Different keys of each kind.
    pub keys: u64,
    /// When clients begin, in milliseconds.
    pub start_ms: u64,
    /// Between an answer and the next call of a client, on average, in milliseconds.
    pub think_ms: u64,
    /// How long a client waits for an answer before it asks another member, in milliseconds.
    pub timeout_ms: u64,
    /// Calls in a hundred that read.
    pub read_percent: u32,
    /// Ops in a hundred that are deletes.
    pub delete_percent: u32,
    /// Writes in a hundred that have a condition.
    pub conditional_percent: u32,
    /// Writes in a hundred that are batches.
    pub batch_percent: u32,
    /// Writes in a hundred that are content with one disk.
    pub local_percent: u32,
    /// Writes in a hundred that prefer all holders.
    pub prefer_percent: u32,
    /// Confirmed writes in a hundred that are asked for once more, elsewhere.
    pub repeat_percent: u32,
    /// Answers in a hundred that are lost.
    pub lost_percent: u32,
    /// Time after which an undesired holder lets go, in milliseconds.
    pub quiet_ms: u64,
    /// Time after which the claim of a dead member is removed, in milliseconds.
    pub grace_ms: u64,
}

impl Default for FleetSpec {
    fn default() -> Self {
        Self {
            members: 0,
            databases: 2,
            holders: 2,
            clients: 6,
            operations: 300,
            keys: 20,
            start_ms: 25_000,
            think_ms: 500,
            timeout_ms: 10_000,
            read_percent: 30,
            delete_percent: 20,
            conditional_percent: 20,
            batch_percent: 15,
            local_percent: 5,
            prefer_percent: 10,
            repeat_percent: 10,
            lost_percent: 3,
            quiet_ms: 5_000,
            grace_ms: 40_000,
        }
    }
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// How long things go wrong, in seconds of virtual time.
    pub seconds: u64,
    /// Between two faults, on average, in milliseconds; 0 for none.
    pub gap_ms: u64,
    /// How long a fault lasts, on average, in milliseconds.
    pub lasts_ms: u64,
    /// The kinds by name, see `faults::FAULTS`; all if empty.
    pub kinds: Vec<String>,
    /// Kinds that are left out.
    pub without: Vec<String>,
    /// Each seed draws its own few kinds of those, and its own gaps.
    pub swarm: bool,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            name: "chaos".to_owned(),
            about: String::new(),
            nodes: 5,
            databases: 1,
            topology: Topology::Mesh,
            rebroadcast_ms: 10_000,
            latency_min_us: 200,
            latency_mean_us: 500,
            bandwidth: 100_000_000,
            clock_skew_ms: 0,
            workload: Workload::default(),
            history: History::default(),
            upkeep: Upkeep::default(),
            watch: Watch::default(),
            late_nodes: 0,
            rest_s: 0,
            faults: Faults::default(),
            fleet: FleetSpec::default(),
            equal_within_s: 2_400,
            visible_within_ms: 0,
            script: String::new(),
            swarm: false,
            reached: Vec::new(),
        }
    }
}

impl Default for History {
    fn default() -> Self {
        // Small enough that small stores have many chunks and pieces.
        Self { interval_ms: 0, holders: 1, min_age_ms: 0, max_bytes: u64::MAX, chunk_bytes: 2_048, join_rows: 8 }
    }
}

impl Default for Upkeep {
    fn default() -> Self {
        Self { interval_ms: 0, grace_ms: 2_000, retention_ms: 3_600_000, keep_requests: 1 << 20 }
    }
}

impl Default for Watch {
    fn default() -> Self {
        Self { watchers: 0, pace_ms: 50, leave_permille: 20 }
    }
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            clients: 8,
            operations: 2_000,
            keys: 100,
            hot_percent: 30,
            delete_percent: 25,
            expiring_percent: 0,
            batch_percent: 10,
            batch_max: 8,
            value_bytes: 64,
            large_permille: 0,
            large_bytes: 100_000,
            sync_percent: 30,
            think_ms: 200,
            burst_percent: 20,
            timeout_ms: 3_000,
            move_percent: 30,
            lost_answers_percent: 0,
            conditional_percent: 0,
        }
    }
}

impl Default for Faults {
    fn default() -> Self {
        Self { seconds: 60, gap_ms: 2_000, lasts_ms: 3_000, kinds: Vec::new(), without: Vec::new(), swarm: false }
    }
}

impl Scenario {
    /// A path without faults.
    #[must_use]
    pub fn path(&self) -> Path {
        Path::new((self.latency_min_us, self.latency_mean_us), self.bandwidth)
    }
}

impl Topology {
    /// Tells each node whom to dial.
    pub(crate) fn connect(self, nodes: &mut [Node], random: &mut Random) {
        let count = nodes.len();
        let addresses: Vec<_> = nodes.iter().map(|node| node.address.clone()).collect();
        for (at, node) in nodes.iter_mut().enumerate() {
            let mut to: Vec<usize> = match self {
                Self::Mesh => (at + 1..count).collect(),
                Self::Line => vec![at + 1],
                Self::Ring => vec![(at + 1) % count.max(1)],
                Self::Star if at > 0 => vec![0],
                Self::Random if at > 0 => vec![random.index(at), random.index(at)],
                Self::Star | Self::Random => Vec::new(),
            };
            to.dedup();
            node.bootstrap = to.into_iter().filter(|to| *to != at).filter_map(|to| addresses.get(to).cloned()).collect();
        }
    }
}
