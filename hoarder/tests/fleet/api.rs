//! What `Fleet` offers, on real nodes.

use std::time::Duration;

use hoarder::{Durability, FleetError, ReadOptions, Refusal, Serving, WriteOptions};
use kvdb::{Batch, DatabaseName, Dot, Expiry, Key, Op, OpOutcome, ReplicaId, RequestId};

use crate::sockets::{Member, create, fleet, three, value, wait};

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

pub(crate) async fn close(members: Vec<Member>) {
    for member in &members {
        fleet(member).close().await;
        member.node.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn situation_05_conditions_are_right_whichever_node_is_asked_and_a_retry_gets_the_first_outcome() {
    let members = three().await;
    let name: DatabaseName = "a".parse().unwrap();
    create(&members[0], &name, 2).await;
    for member in &members {
        wait("two holders", member, &name, |placement| placement.ready.len() == 2).await;
    }
    let options = WriteOptions { deadline: Duration::from_secs(60), ..WriteOptions::from(Durability::Require(2)) };
    let mut last: Option<Dot> = None;
    for (number, member) in members.iter().enumerate() {
        // Of the three only the first finds nothing; each of them replaces what the one before it has put.
        let absent = Batch::from(Op::put(key("/c"), format!("{number}")).if_absent())
            .request(RequestId([u8::try_from(number).unwrap(); 16]));
        let put = fleet(member).batch(&name, absent.clone(), options).await;
        match last {
            None => last = put.clone().unwrap().dot,
            Some(dot) => {
                let refusal = Refusal::Condition { key: key("/c"), current: Some(dot) };
                assert_eq!(put, Err(FleetError::Refused(refusal)));
                let matched = Op::put(key("/c"), format!("{number}")).if_match(dot);
                let put = fleet(member).batch(&name, matched, options).await.unwrap();
                assert_eq!(put.holders.len(), 2);
                // On a slow machine the call may have been tried again, and so be answered by its own first attempt.
                assert!(matches!(put.ops[..], [OpOutcome::Put | OpOutcome::Repeated]), "{:?}", put.ops);
                last = put.dot;
            }
        }
        if number == 0 {
            // A retry through another node gets the first outcome, though its condition does not hold any more.
            let again = fleet(&members[2]).batch(&name, absent, options).await.unwrap();
            assert_eq!((again.dot, again.ops), (last, vec![OpOutcome::Repeated]));
        }
    }
    let dot = last.unwrap();
    for member in &members {
        // At the dot of the last write, and with everything that was confirmed before.
        for (at, confirmed) in [(Some(dot), false), (None, true), (Some(dot), true)] {
            let read = ReadOptions { at, confirmed, deadline: Duration::from_secs(60), ..ReadOptions::default() };
            let read = fleet(member).get(&name, &key("/c"), read).await.unwrap();
            assert_eq!(read.entry.unwrap().dot, dot);
        }
        // A dot that nobody has is waited for, and not taken for there.
        let nowhere = Dot { replica: ReplicaId([9; 16]), seq: 1 };
        let read = ReadOptions { at: Some(nowhere), deadline: Duration::from_millis(500), ..ReadOptions::default() };
        assert_eq!(fleet(member).get(&name, &key("/c"), read).await, Err(FleetError::Behind { dot: nowhere }));
    }
    // Dots seen, expiries and deletes arrive as they were meant.
    let expiry = Expiry::at_unix_ms(1 << 60);
    let sibling = Op::put_until(key("/c"), "b", expiry.unwrap()).seen([]);
    fleet(&members[1]).batch(&name, sibling, options).await.unwrap();
    let read =
        fleet(&members[2]).get(&name, &key("/c"), ReadOptions { confirmed: true, ..ReadOptions::default() }).await.unwrap();
    let entry = read.entry.unwrap();
    assert_eq!((entry.value.as_ref(), entry.expiry, entry.siblings), (b"b".as_ref(), expiry, 2));
    let gone = fleet(&members[0]).delete(&name, &key("/none"), options).await.unwrap();
    assert_eq!((gone.dot, gone.ops), (None, vec![OpOutcome::Absent]));
    fleet(&members[0]).delete(&name, &key("/c"), options).await.unwrap();
    assert_eq!(value(&members[0], &name, &key("/c")).await, None);
    serving_is_told(&members, &name).await;
    close(members).await;
}

/// Each node says that it serves, or who does; and says so when there is no such database.
async fn serving_is_told(members: &[Member], name: &DatabaseName) {
    let mut here = 0;
    for member in members {
        let ready = wait("two holders", member, name, |placement| placement.ready.len() == 2).await.ready;
        match fleet(member).serving(name).await.unwrap() {
            Serving::Here(database) => {
                assert!(ready.contains(&member.node.peer_id()) && database.name() == name);
                here += 1;
            }
            Serving::There(others) => assert_eq!(others, ready),
            Serving::Stale(_) => panic!("all are there"),
        }
        let nowhere = fleet(member).serving(&"b".parse().unwrap()).await;
        assert!(matches!(nowhere, Err(FleetError::NoDatabase)), "{nowhere:?}");
    }
    assert_eq!(here, 2);
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..600 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("not within a minute: {what}");
}

fn has(member: &Member, id: kvdb::DatabaseId) -> bool {
    member.node.databases().unwrap().iter().any(|info| info.id == id)
}

#[tokio::test(flavor = "multi_thread")]
async fn situation_13_a_name_dropped_and_made_again_begins_anew_everywhere_and_what_is_let_go_of_is_deleted() {
    let members = three().await;
    let name: DatabaseName = "a".parse().unwrap();
    create(&members[0], &name, 2).await;
    let options = WriteOptions { deadline: Duration::from_secs(60), ..WriteOptions::from(Durability::Require(2)) };
    fleet(&members[0]).put(&name, &key("/old"), "v", options).await.unwrap();
    let old = fleet(&members[0]).placement(&name).await.unwrap().database;

    fleet(&members[1]).drop_database(&name).await.unwrap();
    for member in &members {
        until("the data of a dropped database are gone", || !has(member, old)).await;
    }
    create(&members[2], &name, 2).await;
    for member in &members {
        wait("two holders of the new one", member, &name, |placement| placement.database != old && placement.ready.len() == 2)
            .await;
        assert_eq!(value(member, &name, &key("/old")).await, None);
    }
    fleet(&members[0]).put(&name, &key("/new"), "v", options).await.unwrap();

    // A holder that is drained hands over to the third, and then deletes its copy; the others still have everything.
    let placement = fleet(&members[0]).placement(&name).await.unwrap();
    let drained = members.iter().find(|member| placement.ready.contains(&member.node.peer_id())).unwrap();
    fleet(drained).drain(true).await.unwrap();
    until("what was let go of is deleted", || !has(drained, placement.database)).await;
    assert_eq!(value(drained, &name, &key("/new")).await.unwrap(), "v");
    // No generation has ended by that: wanted again, it takes the same database in.
    fleet(drained).drain(false).await.unwrap();
    wait("three holders", drained, &name, |placement| placement.ready.contains(&drained.node.peer_id())).await;
    let after = fleet(drained).placement(&name).await.unwrap();
    assert_eq!(after.database, placement.database);
    assert!(has(drained, placement.database) && !has(drained, old));
    close(members).await;
}
