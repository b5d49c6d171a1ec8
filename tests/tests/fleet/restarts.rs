//! Members that are restarted, one after the other, and drained.

use serde_json::{Value, json};

use super::{Fleet, QUICK, Times, Writers, assert_kept, drain, wait_for};

#[test]
fn situation_06_a_rolling_restart_under_writes_loses_nothing() {
    let mut fleet = Fleet::start(3, 2, QUICK);
    let writers = Writers::start(&fleet);
    writers.wait_more(10);
    for at in 0..3 {
        assert_eq!(fleet.nodes[at].stop(), Some(0), "{}", fleet.nodes[at].log());
        writers.wait_more(3);
        fleet.spawn(at);
        fleet.nodes[at].wait_ready();
        fleet.wait_holders(2);
    }
    writers.wait_more(10);
    let kept = writers.stop();
    assert_kept(&fleet, &kept);
    for node in &mut fleet.nodes {
        assert_eq!(node.stop(), Some(0), "{}", node.log());
    }
}

#[test]
fn situation_14_a_fleet_that_lost_power_as_a_whole_comes_back_by_itself() {
    let mut fleet = Fleet::start(3, 2, QUICK);
    let writers = Writers::start(&fleet);
    writers.wait_more(20);
    for node in &mut fleet.nodes {
        node.kill();
    }
    let kept = writers.stop();
    for at in 0..3 {
        fleet.spawn(at);
    }
    fleet.wait_holders(2);
    assert_kept(&fleet, &kept);
    let answer = wait_for("a write", || fleet.put(2, "/after", "1", "").filter(|answer| answer.status == 200));
    assert!(answer.holders().len() >= 2, "{answer:?}");
}

#[test]
fn a_drained_member_hands_over_before_it_lets_go_and_may_hold_again() {
    let fleet = Fleet::start(3, 2, Times { dead: 5_000, quiet: 500 });
    let keys: Vec<String> = (0..50).map(|n| format!("/k/{n}")).collect();
    let ops: Vec<Value> = keys.iter().map(|key| json!({ "put": key, "value": key })).collect();
    let answer = fleet.ask(0, "POST", "/v1/databases/demo/batch", json!({ "ops": ops }).to_string().as_bytes()).unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    let drained = fleet.wait_settled(2)[0];
    // Asked for at another member, which passes it on.
    let asked = (drained + 1) % 3;
    let answer = drain(&fleet, asked, &json!({ "peer_id": fleet.ids[drained] }));
    assert_eq!((answer.status, &answer.json()["peer_id"]), (200, &json!(fleet.ids[drained])), "{answer:?}");
    fleet.wait_ready(|ready| ready.len() == 2 && !ready.contains(&drained));
    wait_for("its claim is gone", || {
        let claims = fleet.ask(asked, "GET", "/v1/fleet/claims", &[])?.json();
        let claims = claims["claims"].as_array()?;
        claims.iter().all(|claim| claim["peer_id"] != fleet.ids[drained].as_str()).then_some(())
    });
    for at in 0..3 {
        let all = fleet.all(at);
        assert!(keys.iter().all(|key| all.get(key) == Some(key)), "at {at}: {all:?}");
    }
    let members = fleet.nodes[asked].get("/v1/fleet/members").unwrap().1;
    let members: Value = serde_json::from_str(&members).unwrap();
    let is_draining = |member: &&Value| member["draining"] == true;
    assert_eq!(members["members"].as_array().unwrap().iter().filter(is_draining).count(), 1, "{members}");
    // Strangers and nonsense are refused.
    for body in [json!({ "peer_id": "nobody" }), json!({ "drain": 1 }), json!([1])] {
        assert_eq!(drain(&fleet, asked, &body).status, 400, "{body}");
    }
    let stranger = "12D3KooWGzBAoAtC4QRaWwqWnLkBqhEmjrmMbPpKUHDVSGgVFLjR";
    assert_eq!(drain(&fleet, asked, &json!({ "peer_id": stranger })).code(), "no_member");
    let answer = drain(&fleet, asked, &json!({ "peer_id": fleet.ids[drained], "draining": false }));
    assert_eq!(answer.status, 200, "{answer:?}");
    fleet.wait_ready(|ready| ready.contains(&drained));
}

#[test]
fn holders_are_raised_and_lowered_in_use_and_wrong_numbers_are_refused() {
    let fleet = Fleet::start(3, 1, Times { dead: 5_000, quiet: 500 });
    let change = |holders: Value| {
        let body = json!({ "holders": holders }).to_string();
        fleet.ask(1, "PATCH", "/v1/databases/demo", body.as_bytes()).unwrap()
    };
    for wrong in [json!(0), json!(4), json!(6), json!(256), json!("2"), Value::Null] {
        let answer = change(wrong.clone());
        assert_eq!((answer.status, answer.code().as_str()), (400, "bad_request"), "{wrong}: {answer:?}");
    }
    wait_for("raised", || (change(json!(3)).status == 200).then_some(()));
    fleet.wait_holders(3);
    let answer = wait_for("three confirm", || fleet.put(0, "/a", "1", "").filter(|answer| answer.status == 200));
    assert_eq!(answer.holders().len(), 3, "the default follows: {answer:?}");
    wait_for("lowered", || (change(json!(2)).status == 200).then_some(()));
    fleet.wait_ready(|ready| ready.len() == 2);
    assert_eq!(fleet.value(2, "/a"), "1");
    let missing = fleet.ask(1, "PATCH", "/v1/databases/nothing", json!({ "holders": 2 }).to_string().as_bytes()).unwrap();
    assert_eq!((missing.status, missing.code().as_str()), (404, "database_not_found"));
}
