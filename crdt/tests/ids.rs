//! Hashes that every node must compute alike, with values worked out by another program.

use crdt::row::check;
use crdt::{Author, DatabaseId, DatabaseName, Dot, Expiry, ReplicaId, Stamp, WallTime};

use crate::world::{Node, key, put};

#[test]
fn database_replica_and_row_hashes() {
    let demo = DatabaseName::parse("demo").unwrap();
    let id = DatabaseId::of(&demo, 0);
    assert_eq!(id.to_string(), "1b5139b62be81611994b87f4c17db2e1068c15f5e7fce9ab18f4ca20bd1720be");
    let third = DatabaseId::of(&demo, 3);
    assert_eq!(third.to_string(), "48df6164f4b1f23fdcf1beb28aeeea855a85ddc079561f9306ddbc0068ff0b8c");
    let replica = Author { public_key: [2; 32], nonce: 1_000 }.replica(&id);
    assert_eq!(replica.to_string(), "92b1b9ca2601e6309a792b580b267730");
    let dot = Dot { replica, seq: 7 };
    let empty = check(&key("/a/b"), &dot, Stamp(1 << 40), None, b"");
    assert_eq!(empty.0, 0x2024_1829_079e_8c4b_a729_3f4e_4827_e9a7);
    let expiring = check(&key("/a/b"), &dot, Stamp(1 << 40), Expiry::at_unix_ms(9_000), b"value");
    assert_eq!(expiring.0, 0xbee9_5bde_0ef2_6ed8_4649_6a12_2687_28ed);
}

#[test]
fn one_pair_of_key_and_nonce_gives_one_replica() {
    let id = crate::world::database();
    let author = |public_key, nonce| Author { public_key, nonce }.replica(&id);
    assert_ne!(author([1; 32], 1), author([1; 32], 2));
    assert_ne!(author([1; 32], 1), author([2; 32], 1));
    assert_ne!(author([1; 32], 1), ReplicaId([0; 16]));
}

#[test]
fn stamps_follow_the_clock_within_the_drift() {
    let mut node = Node::new(1);
    let stamp = |node: &Node| node.last_block().stamp();
    node.now = WallTime(5_000);
    node.put("/k", "1");
    assert_eq!(stamp(&node), Stamp(5_000 << 16));
    node.put("/k", "2");
    assert_eq!(stamp(&node), Stamp((5_000 << 16) + 1));
    // Somebody a day ahead: this node follows by a minute at most, and its informed write wins all the same.
    let mut ahead = Node::new(2);
    ahead.now = WallTime(86_400_000);
    ahead.put("/k", "ahead");
    node.pull(&ahead);
    node.reopen();
    assert_eq!(node.get("/k").unwrap(), "ahead");
    node.put("/k", "3");
    assert_eq!(stamp(&node), Stamp((65_000 << 16) + 1));
    assert_eq!(node.get("/k").unwrap(), "3");
    assert_eq!(node.replica.meta().clock, Stamp(86_400_000 << 16), "what was seen is kept");
    node.batch(vec![put("/k", "4")]);
    node.check();
}
