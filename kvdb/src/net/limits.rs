//! Limits of replication: everything that a peer can make this node keep, send or wait for.

use std::time::Duration;

use crdt::limits::MAX_BLOCK_BYTES;

/// Most bytes of one sync frame without its length: a block of the largest size and its wrapping.
pub const MAX_FRAME_BYTES: usize = MAX_BLOCK_BYTES + (64 << 10);
/// Blocks of up to this many bytes share a frame; a larger block has its own.
pub const BLOCKS_FRAME_BYTES: usize = 64 << 10;
/// Most blocks in one frame.
pub const MAX_FRAME_BLOCKS: usize = 4_096;
/// Most version vector entries in one frame; longer lists are sent in parts.
pub const MAX_FRAME_ENTRIES: usize = 2_048;
/// Entries of writers unknown here that are kept of what a peer says it has: it can name any number of them. That there are
/// more is all that is remembered of the rest.
pub const MAX_STRANGE_ENTRIES: usize = 4_096;
/// New writers that one peer may bring at once, in all databases; what is more is put off.
pub const NEW_WRITERS_PER_PEER: u64 = 8_192;
/// New writers that one peer may bring each second after that.
pub const NEW_WRITERS_PER_PEER_PER_SECOND: u64 = 4;
/// New writers that all peers together may bring at once, those that were configured not counted: identities cost nothing.
pub const NEW_WRITERS: u64 = 32_768;
/// New writers that all of them may bring each second after that.
pub const NEW_WRITERS_PER_SECOND: u64 = 8;
/// Writers let in whose first block is on its way to the engine.
pub const MAX_WRITERS_LET_IN: usize = 16_384;
/// Bytes of blocks that cannot be merged, because others are missing, that one peer may send at once; for more the credit
/// comes back late.
pub const UNREADY_BYTES_PER_PEER: u64 = 1 << 20;
/// So many each second after that.
pub const UNREADY_BYTES_PER_PEER_PER_SECOND: u64 = 64 << 10;
/// The same for all peers together.
pub const UNREADY_BYTES: u64 = 4 << 20;
/// So many each second after that.
pub const UNREADY_BYTES_PER_SECOND: u64 = 512 << 10;
/// The longest time by which credit comes back late.
pub const MAX_CREDIT_DELAY: Duration = Duration::from_secs(10);
/// What the gossip of one peer may cost at once, in announcements; what is more is not looked at, and sync brings it.
pub const GOSSIP_COST_PER_PEER: u64 = 5_000;
/// So much each second after that.
pub const GOSSIP_COST_PER_PEER_PER_SECOND: u64 = 1_000;
/// The same for all peers together.
pub const GOSSIP_COST: u64 = 20_000;
/// So much each second after that.
pub const GOSSIP_COST_PER_SECOND: u64 = 4_000;
/// What a block costs that comes by gossip.
pub const GOSSIP_BLOCK_COST: u64 = 5;
/// Bytes of blocks that one session hands to the engine at a time, or one larger block.
pub const DELIVERY_BYTES: u64 = 64 << 10;
/// Longest text of an error frame, in bytes.
pub const MAX_ERROR_TEXT_BYTES: usize = 512;
/// Bytes of blocks in flight for one database to one peer, before the receiver has merged some.
pub const SYNC_CREDIT_BYTES: u64 = 256 << 10;
/// Most credit that a peer may grant for one database.
pub const MAX_SYNC_CREDIT_BYTES: u64 = 16 << 20;
/// Bytes of frames handed to the writer of one peer and not yet written; above it no more of the log is read for it.
pub const PEER_QUEUE_BYTES: usize = 512 << 10;
/// Bytes of blocks of one peer, over all databases, that wait to be merged; above it nothing more is read from it.
pub const PEER_UNMERGED_BYTES: usize = 8 << 20;
/// Most databases that a peer may name; a node itself has fewer open.
pub const MAX_OPEN_DATABASES: usize = 4_096;
/// Live feeds per database.
pub const MAX_FEEDS_PER_DATABASE: usize = 8;
/// Peers per database whose last word on what they have on disk is remembered while they are away.
pub const MAX_KNOWN_HOLDERS: usize = 64;
/// Dropped databases that peers which offer one are told of.
pub const MAX_DROPPED_DATABASES: usize = 4_096;
/// Most point look-ups to find where a peer's gap begins; with more gaps the log is read from its start.
pub const MAX_START_LOOKUPS: usize = 1_024;

/// Blocks up to this size are published whole by gossip.
pub const MAX_GOSSIP_BLOCK_BYTES: usize = 32 << 10;
/// Most bytes of one gossip message: a block that may be published whole, and its wrapping.
pub const MAX_GOSSIP_MESSAGE_BYTES: usize = MAX_GOSSIP_BLOCK_BYTES + 1_024;
/// Blocks that one database publishes by gossip each second; above it they are only announced.
pub const GOSSIP_BLOCKS_PER_SECOND: u64 = 50;
/// Bytes of blocks that one database publishes by gossip each second.
pub const GOSSIP_BYTES_PER_SECOND: u64 = 1 << 20;
/// Shortest time between two announcements of one database: 5 each second.
pub const MIN_ANNOUNCE_GAP: Duration = Duration::from_millis(200);
/// Time between announcements of what came from others, while there are more peers than feeds.
pub const RELAY_ANNOUNCE_GAP: Duration = Duration::from_secs(1);
/// Publishers of announcements that are remembered per database.
pub const MAX_PUBLISHERS_PER_DATABASE: usize = 1_024;
/// Boots remembered per publisher, so that announcements of an earlier run are known as stale.
pub const MAX_BOOTS_PER_PUBLISHER: usize = 4;
/// Rebroadcast intervals without a word from a connected co-subscriber until it is synced with and connected anew.
pub const DEAF_AFTER_INTERVALS: u32 = 3;
/// Largest gossip frame, for the data and the control side: one burst may be larger than one message.
pub const GOSSIP_FRAME_BYTES: usize = 1 << 20;

/// Shortest time between two exchanges of version vectors with one peer about one database.
pub const MIN_SYNC_GAP: Duration = Duration::from_millis(500);
/// Questions that a peer may ask about one database within a second; each may cost a whole version vector.
pub const MAX_QUESTIONS_PER_SECOND: u32 = 20;
/// Shortest time between two reads of the whole log for a peer that lacks blocks which are not kept any more.
pub const BELOW_FLOOR_READ_INTERVAL: Duration = Duration::from_secs(5);
/// Longest back-off of exchanges that bring nothing; at least this often everything is compared.
pub const MAX_SYNC_GAP: Duration = Duration::from_secs(600);

/// A frame that has begun must be complete within this time.
pub const FRAME_TIMEOUT: Duration = Duration::from_secs(30);
/// A peer that takes no byte of a waiting frame for this long is disconnected.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// A stream must bring its Hello within this time.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(20);
/// A connection must be encrypted, authenticated and multiplexed within this time.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections per peer: two, so that simultaneous dials do not kill each other.
pub const MAX_CONNECTIONS_PER_PEER: u32 = 2;
/// Connections in all; bootstrap peers are exempt.
pub const MAX_CONNECTIONS: u32 = 512;
/// Connections being accepted at once; when there are more, the oldest of the address with the most of them makes room.
pub const MAX_PENDING_INCOMING: usize = 64;
/// Connections being dialled at once.
pub const MAX_PENDING_OUTGOING: u32 = 64;
/// Longest wait until a bootstrap peer is dialled again; doubling from [`MIN_REDIAL`].
pub const MAX_REDIAL: Duration = Duration::from_secs(30);
/// First wait until a bootstrap peer is dialled again.
pub const MIN_REDIAL: Duration = Duration::from_secs(1);
/// A connection that lasted this long was a good one: the next redial waits [`MIN_REDIAL`] again.
pub const STABLE_CONNECTION: Duration = Duration::from_secs(30);
/// How long a peer's streams are refused after it broke the protocol, doubling each time.
pub const MIN_PENALTY: Duration = Duration::from_secs(5);
/// Longest refusal of a peer that broke the protocol.
pub const MAX_PENALTY: Duration = Duration::from_secs(600);
/// Peers whose misbehaviour is remembered.
pub const MAX_REMEMBERED_PEERS: usize = 1_024;
/// Addresses kept per peer.
pub const MAX_PEER_ADDRESSES: usize = 16;
/// Bootstrap addresses, listen addresses and allow-list entries, each.
pub const MAX_CONFIGURED_ADDRESSES: usize = 1_024;
/// Addresses found by mDNS that are dialled, as long as they are told of.
pub const MAX_FOUND_ADDRESSES: usize = 64;
/// Shortest and longest rebroadcast interval.
pub const REBROADCAST_INTERVAL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3_600));
/// Bytes of frames that wait for the writer of one peer; a peer that reads so little is disconnected.
pub const WRITE_QUEUE_BYTES: usize = 32 << 20;
/// How long a stream must be quiet before a replica with waiting blocks asks again.
pub const SYNC_QUIET: Duration = Duration::from_millis(300);
/// However busy a stream is, what was due is asked after this time.
pub const MAX_SYNC_DELAY: Duration = Duration::from_secs(10);
/// How long the larger peer id waits for the smaller one's first question.
pub const FIRST_QUESTION_WAIT: Duration = Duration::from_secs(5);

/// How long the writer of a stream that was given up goes on with what is queued.
pub const FAREWELL: Duration = Duration::from_secs(5);

/// How long a peer that broke the protocol stays connected, to read why.
pub const LAST_WORDS: Duration = Duration::from_millis(500);

/// How long opening a node waits for its listeners' addresses.
pub const LISTEN_WAIT: Duration = Duration::from_secs(2);

/// Gossip blocks on their way to the engine; beyond, they are dropped and sync brings them.
pub const MAX_GOSSIP_DELIVERIES: usize = 256;

/// Longest place in a snapshot that a frame names, in bytes: the longest key and a dot.
pub const MAX_PLACE_BYTES: usize = 1_100;
/// Longest head of a snapshot, in bytes.
pub const MAX_SNAPSHOT_HEAD_BYTES: usize = 128;
/// Chunks of a snapshot on their way, before the receiver has staged some: 2 MiB as a rule.
pub const SNAPSHOT_WINDOW_CHUNKS: u64 = 8;
/// Snapshots that a node sends at a time; further peers are told to come back.
pub const MAX_SNAPSHOTS_SERVED: usize = 2;
/// Views kept for snapshots in all, those of peers that may come back included.
pub const MAX_SNAPSHOT_VIEWS: usize = 8;
/// How long the view of a snapshot, and the history above it, is kept for a receiver that says nothing.
pub const SNAPSHOT_KEEP: Duration = Duration::from_secs(600);
/// How long a sender that sends nothing is waited for.
pub const SNAPSHOT_STALL: Duration = Duration::from_secs(60);
/// How long the sender of a snapshot that was cut has to come back before another one is asked.
pub const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(5);

/// Most parts in which a peer's range is told.
pub const MAX_RANGE_PARTS: usize = 64;
/// Keys that are read for one answer about a range; the rest is asked for anew.
pub const MAX_RANGE_KEYS: u64 = 65_536;
/// Ranges that are read for peers at a time; further ones are told to ask again.
pub const MAX_RANGE_READS: usize = 2;
/// Shortest time between two questions of one comparison.
pub const RANGE_GAP: Duration = Duration::from_millis(100);
/// First wait after two replicas were not of one moment, doubling to 8 times as much.
pub const RANGE_RETRY: Duration = Duration::from_millis(50);
/// Ranges that one comparison has still to ask about.
pub const MAX_RANGES_LEFT: usize = 512;
/// How often a range is asked about in vain, because the replicas go on changing, before the comparison is given up.
pub const MAX_RANGE_TRIES: u32 = 50;
/// How often in a row two replicas with different blocks may be found as they were, before the comparison is given up.
pub const MAX_RANGE_STILL: u32 = 6;
/// How long an answer about a range is waited for.
pub const RANGE_PATIENCE: Duration = Duration::from_secs(60);
/// Keys of one comparison that are listed; the others are counted.
pub const MAX_DIFFERING_KEYS: usize = 1_000;
/// Comparisons with peers that are remembered, those under way included.
pub const MAX_COMPARISONS: usize = 256;
/// Names that two blocks bear which are remembered of one peer and database.
pub const MAX_TWO_BLOCKS: usize = 256;
