//! Who is not in the fleet, or not let in.

use std::time::Duration;

use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use kvdb::{NetworkOptions, NodeOptions, PeerId};
use serde_json::Value;

use super::{Fleet, QUICK, Times, wait_for};
use crate::cluster::{Node, PATIENCE};

fn members(fleet: &Fleet, at: usize) -> Vec<(String, String)> {
    let answer = fleet.ask(at, "GET", "/v1/fleet/members", &[]).unwrap().json();
    let text = |member: &Value, field: &str| member[field].as_str().unwrap().to_owned();
    let members = answer["members"].as_array().unwrap().iter();
    members.map(|member| (text(member, "peer_id"), text(member, "standing"))).collect()
}

#[test]
fn x08_a_daemon_that_calls_itself_a_member_is_none() {
    let fleet = Fleet::start(3, 2, QUICK);
    // It lists all of them and itself, and dials them; none of them lists it.
    let mut stranger = Node::new();
    let id = stranger.init();
    stranger.env = fleet.nodes[0].env.clone();
    let listed = format!("{},{id}", fleet.ids.join(","));
    stranger.env.retain(|(name, _)| *name != "KVDB_FLEET_MEMBERS");
    stranger.env.push(("KVDB_FLEET_MEMBERS", listed.into()));
    let ports: Vec<u16> = fleet.nodes.iter().map(|node| node.peer).collect();
    stranger.spawn(&ports);
    stranger.wait_up();
    for n in 0..20 {
        let answer = wait_for("a write", || fleet.put(n % 3, "/a", "1", "").filter(|answer| answer.status == 200));
        assert!(!answer.holders().contains(&id), "{answer:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    wait_for("it sees that it is alone", || stranger.get("/readyz").filter(|(status, _)| *status == 503));
    for at in 0..3 {
        let members = members(&fleet, at);
        assert!(members.len() == 3 && members.iter().all(|(peer, _)| *peer != id), "{members:?}");
        let peers = fleet.nodes[at].get("/v1/peers").unwrap().1;
        assert!(!peers.contains(&id), "{peers}");
    }
    // It can neither make nor serve anything.
    let made = super::request(stranger.http, "PUT", "/v1/databases/mine", "", &[]).unwrap();
    assert_eq!(made.status, 503, "{made:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn x08_who_is_let_into_the_network_but_not_into_the_fleet_is_not_heard() {
    let directory = tempfile::tempdir().unwrap();
    let open = |bootstrap| {
        let network = NetworkOptions { listen: Vec::new(), bootstrap, ..NetworkOptions::default() };
        kvdb::Node::open(NodeOptions::new(directory.path()).network(network))
    };
    // Its name is needed before the fleet starts.
    let named = open(Vec::new()).await.unwrap();
    let id = named.peer_id();
    named.close().await.unwrap();
    let mut fleet = Fleet::new(3, QUICK);
    let allow = format!("{},{id}", fleet.ids.join(","));
    for node in &mut fleet.nodes {
        node.env.push(("KVDB_P2P_ALLOW", allow.clone().into()));
    }
    for at in 0..3 {
        fleet.spawn(at);
    }
    fleet.wait_holders(2);
    let addresses = fleet.nodes.iter().map(|node| format!("/ip4/127.0.0.1/tcp/{}", node.peer).parse().unwrap()).collect();
    let stranger = open(addresses).await.unwrap();
    let peer: PeerId = fleet.ids[0].parse().unwrap();
    for protocol in ["/kvdb/fleet-http/1", "/kvdb/fleet/1"] {
        let mut streams = stranger.streams().unwrap();
        let mut stream = loop {
            match tokio::time::timeout(PATIENCE, streams.open(peer, protocol)).await.expect("no stream in time") {
                Ok(stream) => break stream,
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        };
        // Either end may be gone already.
        drop(stream.write_all(b"GET /v1/databases/demo/list HTTP/1.1\r\nhost: member\r\n\r\n").await);
        drop(stream.flush().await);
        let mut answer = Vec::new();
        drop(tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("neither answer nor end"));
        assert!(answer.is_empty(), "{protocol}: {}", String::from_utf8_lossy(&answer));
    }
    let metrics = fleet.nodes[0].get("/metrics").unwrap().1;
    assert!(metrics.contains("kvdb_fleet_member_requests_total{outcome=\"stranger\"} 1"), "{metrics}");
    assert_eq!(members(&fleet, 0).len(), 3);
    let answer = wait_for("a write", || fleet.put(0, "/a", "1", "").filter(|answer| answer.status == 200));
    assert!(!answer.holders().contains(&id.to_string()));
    stranger.close().await.unwrap();
}

#[test]
fn c11_a_member_with_another_network_key_says_which_setting_and_harms_nobody() {
    let mut fleet = Fleet::new(3, Times { quiet: 500, ..QUICK });
    for node in &mut fleet.nodes {
        node.env.push(("KVDB_P2P_NETWORK_KEY", "1".repeat(64).into()));
    }
    for at in 0..3 {
        fleet.spawn(at);
    }
    let holders = fleet.wait_settled(2);
    let wrong = (0..3).find(|at| !holders.contains(at)).unwrap();
    assert_eq!(fleet.nodes[wrong].stop(), Some(0), "{}", fleet.nodes[wrong].log());
    fleet.nodes[wrong].env.retain(|(name, _)| *name != "KVDB_P2P_NETWORK_KEY");
    fleet.nodes[wrong].env.push(("KVDB_P2P_NETWORK_KEY", "2".repeat(64).into()));
    fleet.spawn(wrong);
    wait_for("it says why", || fleet.nodes[wrong].log().contains("network_key").then_some(()));
    let (status, _) = wait_for("it is not ready", || fleet.nodes[wrong].get("/readyz").filter(|(status, _)| *status == 503));
    assert_eq!(status, 503);
    wait_for("the others see it as gone", || {
        let members = members(&fleet, holders[0]);
        members.contains(&(fleet.ids[wrong].clone(), "dead".to_owned())).then_some(())
    });
    let answer = wait_for("a write", || fleet.put(holders[1], "/a", "1", "").filter(|answer| answer.status == 200));
    assert!(answer.holders().len() >= 2, "{answer:?}");
}
