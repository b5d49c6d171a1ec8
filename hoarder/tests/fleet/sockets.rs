//! A fleet of real nodes in one process, over real sockets and disks.

use std::collections::BTreeSet;
use std::time::Duration;

use hoarder::controller::Options;
use hoarder::{DatabaseSettings, Durability, Fleet, FleetError, PeerId, Placement, ReadOptions, Refusal, WriteOptions};
use kvdb::{DatabaseName, Key, Multiaddr, NetworkOptions, Node, NodeOptions};
use tempfile::TempDir;

pub(crate) struct Member {
    pub(crate) directory: TempDir,
    pub(crate) node: Node,
    pub(crate) fleet: Option<Fleet>,
}

pub(crate) fn options(members: &BTreeSet<PeerId>) -> Options {
    let mut options = Options { members: members.clone(), ..Options::default() };
    // As quick as a test wants it; the proportions are the usual ones.
    options.beat_interval = Duration::from_millis(300);
    options.membership.suspect_after = Duration::from_secs(1);
    options.membership.indirect_after = Duration::from_millis(1_500);
    options.membership.dead_after = Duration::from_secs(2);
    options.membership.settle_window = Duration::from_secs(2);
    options.claims.quiet_time = Duration::from_secs(2);
    options.claims.ask_again = Duration::from_millis(500);
    options
}

pub(crate) async fn open(directory: &TempDir, bootstrap: Vec<Multiaddr>) -> Node {
    let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
    let network = NetworkOptions { listen, bootstrap, ..NetworkOptions::default() };
    let mut options = NodeOptions::new(directory.path());
    options.network = Some(network);
    Node::open(options).await.unwrap()
}

pub(crate) async fn three() -> Vec<Member> {
    let mut members: Vec<Member> = Vec::new();
    for _ in 0..3 {
        let directory = tempfile::tempdir().unwrap();
        let known = members.iter().flat_map(|member| member.node.listen_addresses()).collect();
        let node = open(&directory, known).await;
        members.push(Member { directory, node, fleet: None });
    }
    let peers: BTreeSet<PeerId> = members.iter().map(|member| member.node.peer_id()).collect();
    for member in &mut members {
        let fleet = Fleet::start(member.node.clone(), member.directory.path().to_owned(), options(&peers)).await.unwrap();
        member.fleet = Some(fleet);
    }
    members
}

pub(crate) fn fleet(member: &Member) -> &Fleet {
    member.fleet.as_ref().unwrap()
}

pub(crate) async fn value(member: &Member, name: &DatabaseName, key: &Key) -> Option<bytes::Bytes> {
    let read = fleet(member).get(name, key, ReadOptions::default()).await.unwrap();
    assert!(!read.stale);
    read.entry.map(|entry| entry.value)
}

/// Until the fleet knows itself it says so.
pub(crate) async fn create(member: &Member, name: &DatabaseName, holders: u8) {
    let settings = DatabaseSettings { holders, durability: None };
    let mut created = fleet(member).create(name, settings).await;
    for _ in 0..150 {
        if created.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        created = fleet(member).create(name, settings).await;
    }
    created.unwrap();
}

pub(crate) async fn wait(what: &str, member: &Member, name: &DatabaseName, condition: impl Fn(&Placement) -> bool) -> Placement {
    for _ in 0..600 {
        if let Ok(placement) = fleet(member).placement(name).await
            && condition(&placement)
        {
            return placement;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("not within a minute: {what}: {:?}", fleet(member).placement(name).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_hold_a_database_with_two_confirm_writes_and_go_on_when_one_is_closed() {
    let mut members = three().await;
    let name: DatabaseName = "a".parse().unwrap();
    create(&members[0], &name, 2).await;
    for member in &members {
        wait("two holders", member, &name, |placement| placement.ready.len() == 2).await;
    }
    // Any node takes a write for any database; the answer names two holders.
    for (number, member) in members.iter().enumerate() {
        let key = Key::parse(&format!("/k/{number}")).unwrap();
        let confirmed = fleet(member).put(&name, &key, format!("v{number}"), Durability::Require(2)).await.unwrap();
        assert_eq!(confirmed.holders.len(), 2, "{confirmed:?}");
        assert!(confirmed.dot.is_some());
    }
    // One holder is closed: its claim moves to the third node, which catches up before it serves.
    let holder = wait("two holders", &members[0], &name, |placement| placement.ready.len() == 2).await.ready[0];
    let at = members.iter().position(|member| member.node.peer_id() == holder).unwrap();
    let gone = members.remove(at);
    fleet(&gone).close().await;
    gone.node.close().await.unwrap();
    for member in &members {
        wait("the third takes over", member, &name, |placement| placement.ready.len() == 2 && !placement.ready.contains(&holder))
            .await;
    }
    let key = Key::parse("/k/after").unwrap();
    let confirmed = fleet(&members[0]).put(&name, &key, "v", Durability::Require(2)).await.unwrap();
    assert!(!confirmed.holders.contains(&holder));
    for member in &members {
        for number in 0..3 {
            let key = Key::parse(&format!("/k/{number}")).unwrap();
            assert_eq!(value(member, &name, &key).await.unwrap(), format!("v{number}"));
        }
        assert_eq!(value(member, &name, &Key::parse("/none").unwrap()).await, None);
    }
    for member in &members {
        fleet(member).close().await;
        member.node.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_comes_back_catches_up_and_another_number_of_holders_is_taken_up_while_in_use() {
    let mut members = three().await;
    let peers: BTreeSet<PeerId> = members.iter().map(|member| member.node.peer_id()).collect();
    let name: DatabaseName = "a".parse().unwrap();
    create(&members[0], &name, 2).await;
    wait("two holders", &members[0], &name, |placement| placement.ready.len() == 2).await;
    let key = |number: usize| Key::parse(&format!("/k/{number}")).unwrap();
    fleet(&members[1]).put(&name, &key(0), "before", WriteOptions::default()).await.unwrap();

    // One goes; what is written meanwhile it has not got.
    let Member { directory, node, fleet: left } = members.remove(2);
    let peer = node.peer_id();
    left.unwrap().close().await;
    node.close().await.unwrap();
    drop(node);
    wait("two holders", &members[0], &name, |placement| placement.ready.len() == 2 && !placement.ready.contains(&peer)).await;
    fleet(&members[0]).put(&name, &key(1), "meanwhile", Durability::Require(2)).await.unwrap();

    let known = members.iter().flat_map(|member| member.node.listen_addresses()).collect();
    let node = open(&directory, known).await;
    assert_eq!(node.peer_id(), peer);
    let back = Fleet::start(node.clone(), directory.path().to_owned(), options(&peers)).await.unwrap();
    members.push(Member { directory, node, fleet: Some(back) });
    fleet(&members[0]).set_holders(&name, 3).await.unwrap();
    for member in &members {
        wait("three holders", member, &name, |placement| placement.ready.len() == 3).await;
    }
    let confirmed = fleet(&members[2]).put(&name, &key(2), "all", Durability::Require(3)).await.unwrap();
    assert_eq!(confirmed.holders.len(), 3);
    for (number, expected) in ["before", "meanwhile", "all"].into_iter().enumerate() {
        assert_eq!(value(&members[2], &name, &key(number)).await.unwrap(), expected);
    }
    // Asked for more than there are to be, nothing is written.
    let refused = fleet(&members[0]).put(&name, &key(9), "x", Durability::Require(4)).await;
    assert_eq!(refused, Err(FleetError::Refused(Refusal::MoreThanHolders { needed: 4, holders: 3 })));
    assert_eq!(value(&members[0], &name, &key(9)).await, None);
    let nowhere = fleet(&members[0]).get(&"b".parse().unwrap(), &key(0), ReadOptions::default()).await;
    assert_eq!(nowhere, Err(FleetError::NoDatabase));
    for member in &members {
        fleet(member).close().await;
        member.node.close().await.unwrap();
    }
    assert_eq!(fleet(&members[0]).members().await, Err(FleetError::Closed));
}
