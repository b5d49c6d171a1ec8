//! Snapshots: read in chunks of any size, staged, joined in pieces beside writes, switched to.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bytes::Bytes;
use crdt::snapshot::{Chunk, JoinError, Joined, SnapshotError, SnapshotJoin, chunk_hash, read_piece, snapshot_head};
use crdt::testing::{MemoryStore, Reference};
use crdt::{
    Block, Cursor, Dot, Durability, Effect, RequestId, SnapshotHead, SnapshotId, SnapshotWrite, Step, Store, VersionVector, View,
};
use quickcheck::quickcheck;

use crate::world::{Node, Rng, database, delete, put};

const ID: SnapshotId = SnapshotId { boot: 7, view: 3 };

/// A snapshot as it travels: head, and each chunk with the place after it.
#[derive(Debug, Clone)]
struct Transfer {
    head: SnapshotHead,
    chunks: Chunks,
}

type Chunks = Vec<(Bytes, Bytes)>;

fn transfer(store: &MemoryStore, max_bytes: usize) -> Transfer {
    let view = store.view(&database()).unwrap();
    let state = view.state().unwrap();
    let mut chunks = Vec::new();
    let mut at = Some(Cursor::START);
    while let Some(cursor) = at {
        // Places survive their bytes, so a transfer can go on from any of them.
        let cursor = Cursor::decode(cursor.encode()).unwrap();
        let piece = read_piece(&view, &state, &cursor, max_bytes).unwrap();
        assert_eq!(Chunk::verify(&database(), chunk_hash(&piece.bytes), piece.bytes.clone()).unwrap().bytes(), &piece.bytes);
        let next = piece.next.as_ref().map_or(Bytes::new(), Cursor::encode);
        chunks.push((next, piece.bytes));
        at = piece.next;
    }
    let head = snapshot_head(ID, &state);
    assert_eq!(SnapshotHead::decode(head.encode()), Ok(head));
    Transfer { head, chunks }
}

fn stage(node: &mut Node, writes: Vec<SnapshotWrite>) {
    let step = node.replica.stage(writes, Vec::new());
    Step::commit_all(vec![step], &mut node.store, Durability::Buffered).unwrap();
}

fn stage_all(node: &mut Node, transfer: &Transfer) {
    stage(node, vec![SnapshotWrite::Begin { head: transfer.head.encode() }]);
    for (index, (next, bytes)) in (0..).zip(transfer.chunks.clone()) {
        stage(node, vec![SnapshotWrite::Chunk { index, next, bytes }]);
    }
    let staged = node.store.view(&database()).unwrap().staged().unwrap().unwrap();
    assert!(staged.is_complete());
}

type Failure = JoinError<<MemoryStore as Store>::Error>;

fn join(node: &Node) -> Result<SnapshotJoin, SnapshotError> {
    let staged = node.store.view(&database()).unwrap().staged().unwrap().unwrap();
    SnapshotJoin::new(database(), staged.head, node.replica.meta().revision)
}

/// One piece; the switch if it was the last.
fn piece(node: &mut Node, join: &mut SnapshotJoin) -> Result<bool, Failure> {
    let piece = {
        let view = node.store.view(&database()).unwrap();
        join.piece(&view, &node.replica.vv(), node.replica.meta().revision)?
    };
    let requests = piece.requests;
    let (step, done) = match piece.joined {
        Some(joined) => (switch(node, joined, piece.writes), true),
        None => (node.replica.stage(piece.writes, requests), false),
    };
    let committed = Step::commit_all(vec![step], &mut node.store, Durability::Sync).unwrap().remove(0);
    assert_eq!(committed.switched, done);
    if done {
        let view = node.store.view(&database()).unwrap();
        let mut turn = node.replica.begin();
        node.replica.release(&view, &mut turn).unwrap();
        let step = node.replica.finish(turn);
        Step::commit_all(vec![step], &mut node.store, Durability::Buffered).unwrap();
    }
    Ok(done)
}

fn switch(node: &mut Node, joined: Joined, writes: Vec<SnapshotWrite>) -> Step {
    node.replica.switch(joined, writes)
}

fn join_all(node: &mut Node) -> Result<(), Failure> {
    let mut under_way = join(node).map_err(JoinError::Invalid)?;
    while !piece(node, &mut under_way)? {}
    Ok(())
}

/// The node's state must be that of all blocks that its version vector names.
fn check(node: &Node, all: &BTreeMap<Dot, Block>) {
    let vv = node.vv();
    let reference = Reference::fold(all.values().filter(|block| vv.covers(&block.dot())));
    assert_eq!(vv, reference.vv, "version vector");
    assert_eq!(node.rows(), reference.rows, "rows");
    assert_eq!(*node.replica.heads(), reference.heads, "heads");
    assert_eq!(node.replica.meta().digest, reference.digest, "digest");
    assert_eq!(node.replica.meta().keys, reference.rows.len() as u64, "number of keys");
    let state = node.store.view(&database()).unwrap().state().unwrap();
    assert_eq!(state.heads, reference.heads, "stored heads");
    assert_eq!(state.meta, *node.replica.meta(), "stored figures");
    assert_eq!(state.floors, *node.replica.floors(), "stored floors");
    for (replica, entry) in &state.vv {
        assert_eq!((entry.author.replica(&database()), entry.seq), (*replica, vv.get(replica)));
    }
    // Whatever is not below a floor can still be served.
    for block in all.values().filter(|block| vv.covers(&block.dot())) {
        let kept = node.store.view(&database()).unwrap().block(&block.dot()).unwrap();
        let above = state.floors.get(&block.dot().replica) < block.dot().seq;
        assert!(kept.is_some() || !above, "{} is lost", block.dot());
    }
}

/// A few nodes that write and exchange blocks.
struct World {
    nodes: Vec<Node>,
    all: BTreeMap<Dot, Block>,
    rng: Rng,
}

impl World {
    fn new(nodes: u8, seed: u64) -> Self {
        Self { nodes: (1..=nodes).map(Node::new).collect(), all: BTreeMap::new(), rng: Rng(seed) }
    }

    fn write(&mut self, n: usize) {
        let mut ops = Vec::new();
        for _ in 0..=self.rng.below(3) {
            let at = format!("/k{}", self.rng.below(12));
            let len = [0, 10, 100, 600, 2_000][self.rng.below(5)];
            let fill = u8::try_from(self.rng.below(256)).unwrap();
            ops.push(if self.rng.below(3) == 0 { delete(&at) } else { put(&at, vec![fill; len]) });
        }
        let request = (self.rng.below(4) == 0).then(|| RequestId(u128::from(self.rng.next()).to_be_bytes()));
        for effect in self.nodes[n].group(vec![(request, ops)]) {
            if let Effect::Sealed { block, .. } = effect {
                self.all.insert(block.dot(), block);
            }
        }
    }

    /// Some of what a node lacks, in any order.
    fn deliver(&mut self, n: usize) {
        let mut blocks: Vec<Block> =
            self.all.values().filter(|block| !self.nodes[n].replica.covers(&block.dot())).cloned().collect();
        self.rng.shuffle(&mut blocks);
        blocks.truncate(self.rng.below(6));
        self.nodes[n].deliver(blocks, 1);
    }

    fn activity(&mut self, steps: usize) {
        for _ in 0..steps {
            let n = self.rng.below(self.nodes.len());
            if self.rng.below(2) == 0 { self.write(n) } else { self.deliver(n) }
        }
    }
}

#[test]
fn a_snapshot_joined_beside_writes_gives_the_state_of_both_merged_sets() {
    fn law(seed: u64) -> bool {
        let mut world = World::new(3, seed);
        let before = world.rng.below(60);
        world.activity(before);
        for _ in 0..3 {
            let (from, to) = (world.rng.below(3), world.rng.below(3));
            let max_bytes = [1, 200, 5_000, 1 << 20][world.rng.below(4)];
            let transfer = transfer(&world.nodes[from].store, max_bytes);
            let meanwhile = world.rng.below(20);
            world.activity(meanwhile);
            let union: VersionVector = {
                stage_all(&mut world.nodes[to], &transfer);
                let mut under_way = join(&world.nodes[to]).unwrap();
                if world.rng.below(4) == 0 {
                    // The process ends: what was built is built anew.
                    piece(&mut world.nodes[to], &mut under_way).unwrap();
                    world.nodes[to].reopen();
                    under_way = join(&world.nodes[to]).unwrap();
                }
                loop {
                    let busy = world.rng.below(4);
                    world.activity(busy);
                    let before = world.nodes[to].vv();
                    check(&world.nodes[to], &world.all);
                    if piece(&mut world.nodes[to], &mut under_way).unwrap() {
                        break before;
                    }
                }
            };
            assert!(world.nodes[to].vv().dominates(&union));
            assert_eq!(world.nodes[to].store.view(&database()).unwrap().staged().unwrap(), None);
            check(&world.nodes[to], &world.all);
            let again = world.rng.below(20);
            world.activity(again);
            (0..3).for_each(|n| check(&world.nodes[n], &world.all));
        }
        true
    }
    quickcheck(law as fn(u64) -> bool);
}

#[test]
fn blocks_that_waited_for_what_a_snapshot_brings_merge_after_it() {
    let mut writer = Node::new(1);
    writer.put("/a", "1");
    let transfer = transfer(&writer.store, 1 << 20);
    writer.put("/a", "2");
    let mut node = Node::new(2);
    let effects = node.deliver(vec![writer.last_block()], 1);
    assert!(matches!(effects.as_slice(), [Effect::Held { .. }]));
    stage_all(&mut node, &transfer);
    join_all(&mut node).unwrap();
    assert_eq!((node.vv(), node.get("/a").as_deref()), (writer.vv(), Some(b"2".as_slice())));
    assert_eq!(node.replica.pending(), (0, 0));
}

#[test]
fn d08_a_key_deleted_while_a_node_was_away_is_gone_after_its_snapshot() {
    let (mut one, mut away) = (Node::new(1), Node::new(2));
    for at in ["/stays", "/goes", "/big"] {
        one.put(at, vec![1; 600]);
    }
    away.pull(&one);
    away.put("/own", "mine");
    one.delete("/goes");
    one.put("/big", vec![2; 3_000]);
    stage_all(&mut away, &transfer(&one.store, 500));
    join_all(&mut away).unwrap();
    assert_eq!(away.get("/goes"), None);
    assert_eq!(away.get("/big").unwrap().len(), 3_000);
    assert_eq!(away.get("/own").as_deref(), Some(b"mine".as_slice()));
    // The other way round nothing but the own block is missing, and it is still there.
    let own: Vec<Block> = away.blocks().into_iter().filter(|block| !one.replica.covers(&block.dot())).collect();
    one.deliver(own, 1);
    assert_eq!((one.rows(), one.heads()), (away.rows(), away.heads()));
    // A delete that nobody else has seen survives a snapshot of the state before it.
    let old = transfer(&one.store, 1 << 20);
    away.delete("/stays");
    stage_all(&mut away, &old);
    join_all(&mut away).unwrap();
    assert_eq!(away.get("/stays"), None);
}

#[test]
fn a_join_whose_history_was_dropped_meanwhile_starts_anew() {
    let (mut one, mut two) = (Node::new(1), Node::new(2));
    one.put("/a", "1");
    stage_all(&mut two, &transfer(&one.store, 1 << 20));
    let mut under_way = join(&two).unwrap();
    piece(&mut two, &mut under_way).unwrap();
    two.put("/b", "1");
    two.turn(vec![crdt::Input::Truncate { token: crdt::Token(0), through: 1, limit: 10 }]);
    assert_eq!(piece(&mut two, &mut under_way), Err(JoinError::Stale));
    join_all(&mut two).unwrap();
    assert_eq!(two.rows().len(), 2);
}

#[test]
fn requests_answered_elsewhere_come_along() {
    let (mut one, mut two) = (Node::new(1), Node::new(2));
    let request = RequestId([9; 16]);
    one.group(vec![(Some(request), vec![put("/a", "1")])]);
    stage_all(&mut two, &transfer(&one.store, 1 << 20));
    join_all(&mut two).unwrap();
    let view = |node: &Node| node.store.view(&database()).unwrap().request(&request).unwrap();
    assert!(view(&one).is_some());
    assert_eq!(view(&one), view(&two));
}

#[test]
fn own_blocks_that_only_a_snapshot_knows_of_cost_the_own_name() {
    // Two processes on two copies of one disk, with one name, that have not heard of each other.
    let (mut one, mut copy) = (Node::new(1), Node::new(1));
    assert_eq!(one.put("/a", "1"), copy.put("/a", "1"));
    let later = one.put("/a", "2");
    stage_all(&mut copy, &transfer(&one.store, 1 << 20));
    join_all(&mut copy).unwrap();
    let next = copy.put("/a", "3");
    assert_ne!(next.replica, later.replica);
    one.deliver(vec![copy.last_block()], 1);
    assert_eq!((one.rows(), one.vv()), (copy.rows(), copy.vv()));
}

#[test]
fn a_snapshot_that_is_not_what_its_head_says_is_refused_and_changes_nothing() {
    let mut one = Node::new(1);
    (0..20).for_each(|n| _ = one.put(&format!("/k{n}"), vec![1; 700]));
    let good = transfer(&one.store, 2_000);
    let rows_at = good.chunks.iter().position(|(_, bytes)| bytes[1] == 3).unwrap();
    let head = |change: &dyn Fn(&mut SnapshotHead)| {
        let mut bad = good.clone();
        change(&mut bad.head);
        bad
    };
    let chunks = |change: &dyn Fn(&mut Chunks)| {
        let mut bad = good.clone();
        change(&mut bad.chunks);
        bad
    };
    let cases = [
        ("digest", head(&|head| head.digest.0 ^= 1)),
        ("keys", head(&|head| head.keys += 1)),
        ("replicas", head(&|head| head.replicas += 1)),
        ("fewer replicas", head(&|head| head.replicas -= 1)),
        ("heads", head(&|head| head.heads += 1)),
        ("fewer heads", head(&|head| head.heads -= 1)),
        ("a chunk is missing", chunks(&|chunks| drop(chunks.remove(rows_at)))),
        ("a chunk comes twice", chunks(&|chunks| chunks.insert(rows_at, chunks[rows_at].clone()))),
        ("chunks are swapped", chunks(&|chunks| chunks.swap(rows_at, rows_at + 1))),
        ("rows before the version vector", chunks(&|chunks| chunks.swap(0, rows_at))),
    ];
    for (what, bad) in cases {
        let mut node = Node::new(2);
        node.put("/k1", "own");
        let before = (node.rows(), node.vv());
        stage_all(&mut node, &bad);
        assert!(matches!(join_all(&mut node), Err(JoinError::Invalid(_))), "{what}");
        assert_eq!((node.rows(), node.vv()), before, "{what}");
        stage(&mut node, vec![SnapshotWrite::Discard]);
        stage_all(&mut node, &good);
        join_all(&mut node).unwrap();
        assert!(node.vv().dominates(&one.vv()));
    }
}

#[test]
fn a_damaged_value_is_named_and_other_damage_of_a_chunk_is_refused() {
    let mut one = Node::new(1);
    one.put("/k", "value");
    let (_, bytes) = transfer(&one.store, 1 << 20).chunks.pop().unwrap();
    let verify = |bytes: Vec<u8>| Chunk::verify(&database(), chunk_hash(&bytes), bytes.into());
    let mut damaged = bytes.to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    assert!(matches!(verify(damaged), Err(SnapshotError::Check { key, .. }) if key.as_str() == "/k"));
    assert_eq!(Chunk::verify(&database(), [0; 32], bytes.clone()), Err(SnapshotError::Hash));
    for cut in 0..bytes.len() {
        assert!(verify(bytes[..cut].to_vec()).is_err());
        let mut flipped = bytes.to_vec();
        flipped[cut] ^= 1;
        assert!(verify(flipped).is_err(), "byte {cut}");
    }
}

quickcheck! {
    fn no_bytes_make_the_snapshot_decoders_panic(bytes: Vec<u8>) -> bool {
        let _ = SnapshotHead::decode(bytes.clone().into());
        let _ = Cursor::decode(bytes.clone().into());
        let _ = Chunk::verify(&database(), chunk_hash(&bytes), bytes.into());
        true
    }
}

#[test]
fn golden_bytes_of_heads_places_and_chunks() {
    let hex = |bytes: &[u8]| {
        bytes.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        })
    };
    let mut one = Node::new(1);
    one.put("/k", "v");
    let made = transfer(&one.store, 1 << 20);
    let dot = one.last_block().dot();
    let replica = hex(&dot.replica.0);
    let digest = hex(&made.head.digest.0.to_be_bytes());
    let clock = hex(&made.head.clock.0.to_be_bytes());
    assert_eq!(hex(&made.head.encode()), format!("8707031b{clock}50{digest}010101"));
    assert_eq!(hex(&Cursor::START.encode()), "8100");
    assert_eq!(hex(&Cursor::Rows(Some(crate::world::key("/k"))).encode()), "8203622f6b");
    assert_eq!(hex(&Cursor::Row(crate::world::key("/k"), dot).encode()), format!("8404622f6b50{replica}01"));
    assert_eq!(hex(&Cursor::Heads(Some(dot)).encode()), format!("830150{replica}01"));
    assert_eq!(hex(&made.chunks[0].0), "8101", "after the version vector come the heads");
    let block = one.last_block();
    let nonce = {
        let state = one.store.view(&database()).unwrap().state().unwrap();
        state.vv[&dot.replica].author.nonce
    };
    let nonce = hex(&nonce.to_be_bytes());
    assert_eq!(hex(&made.chunks[0].1), format!("82008183 5820{} 1b{nonce} 01", "01".repeat(32)).replace(' ', ""));
    assert_eq!(
        hex(&made.chunks[1].1),
        format!("82018184 50{replica} 01 5820{} 1b{clock}", hex(&block.hash().0)).replace(' ', "")
    );
    assert_eq!(hex(&made.chunks[2].1), format!("82038187 622f6b 50{replica} 01 1b{clock} 00 50{digest} 4176").replace(' ', ""));
}
