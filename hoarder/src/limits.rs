//! Limits and times of a fleet. Those that an operator may change are also fields of [`crate::controller::Options`], with
//! these as defaults.

use std::time::Duration;

/// Most members of a fleet.
pub const MAX_MEMBERS: usize = 256;
/// Most holders that a database may ask for.
pub const MAX_HOLDERS: u8 = 5;
/// Holders that a database asks for unless it says otherwise.
pub const DEFAULT_HOLDERS: u8 = 2;
/// Most bytes of one frame between members, without its length: a batch of the largest size and its wrapping.
pub const MAX_FRAME_BYTES: usize = (4 << 20) + (64 << 10);
/// Most bytes of a heartbeat.
pub const MAX_BEAT_BYTES: usize = 512;
/// Most version vector entries in one frame.
pub const MAX_FRAME_ENTRIES: usize = 65_536;
/// Most bytes of a forwarded operation or of its answer.
pub const MAX_CALL_BYTES: usize = 4 << 20;
/// Most bytes of a peer id.
pub const MAX_PEER_BYTES: usize = 64;
/// Most bytes of the words with which a write is refused; what is longer is cut.
pub const MAX_REASON_BYTES: usize = 512;
/// Longest time that a holder waits for a dot that is to be read at, before the next holder is asked.
pub const DOT_PATIENCE: Duration = Duration::from_secs(2);
/// Largest capacity that a member may state.
pub const MAX_CAPACITY: u64 = 1 << 20;

/// Time between heartbeats.
pub const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Silence after which a member is probed.
pub const SUSPECT_AFTER: Duration = Duration::from_secs(3);
/// Silence after which a suspect is probed through another member.
pub const INDIRECT_AFTER: Duration = Duration::from_millis(4_500);
/// Silence, of beats and of probes, after which a member is dead.
pub const DEAD_AFTER: Duration = Duration::from_secs(6);
/// Time between two probes of one member.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Time after the start in which no claim is made and none given up.
pub const SETTLE_WINDOW: Duration = Duration::from_secs(8);
/// Starts of one member that are remembered with their counters.
pub const MAX_BOOTS_PER_MEMBER: usize = 32;

/// Time that a holder that is no longer desired goes on serving, unused, before it lets go.
pub const QUIET_TIME: Duration = Duration::from_secs(30);
/// Time that one attempt to let go waits for its answers.
pub const LEAVE_ATTEMPT: Duration = Duration::from_secs(10);
/// Attempts to let go after which the holder joins again.
pub const MAX_LEAVE_ATTEMPTS: u32 = 3;
/// Time after which a question between members that brought no answer is asked again.
pub const ASK_AGAIN: Duration = Duration::from_secs(2);
/// Time after which the claim of a member that is gone may be removed.
pub const DEAD_CLAIM_GRACE: Duration = Duration::from_secs(600);

/// Databases that a node joins at once.
pub const MAX_JOINING: usize = 4;
/// Databases that a node lets go of at once.
pub const MAX_LEAVING: usize = 4;
/// Databases looked at in one go.
pub const RECONCILE_BATCH: usize = 256;
/// Time after which every database has been looked at once, without any cause.
pub const RECONCILE_INTERVAL: Duration = Duration::from_secs(60);

/// Deadline of a call that names none.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);
/// Longest deadline of a call.
pub const MAX_DEADLINE: Duration = Duration::from_secs(60);
/// Calls that a node has under way, its own and those of others.
pub const MAX_CALLS: usize = 8_192;
/// Writes of one database that wait for their confirmation.
pub const MAX_WAITING_WRITES: usize = 4_096;
/// Questions of other members that wait until they can be answered, per member.
pub const MAX_WAITING_QUESTIONS: usize = 1_024;
/// Members that a call is forwarded to before it is given up.
pub const MAX_FORWARDS: u32 = 4;
/// Time after which a forwarded call that brought no answer tries the next holder.
pub const FORWARD_PATIENCE: Duration = Duration::from_secs(3);
/// Time that a holder to which a call is passed on has less than the caller, so that its answer comes back in time; a quarter
/// of what is left, if that is less.
pub const WAY_BACK: Duration = Duration::from_millis(250);

/// Longest settings or claim in the registry, in bytes.
pub const MAX_RECORD_BYTES: usize = 1_024;
/// Most databases in the registry that a node takes notice of.
pub const MAX_DATABASES: usize = 100_000;
