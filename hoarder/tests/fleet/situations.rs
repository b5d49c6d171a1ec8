//! The situations that must be shown, each by its name, as far as the machines alone can show them.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use crdt::DatabaseId;
use hoarder::claims::Readiness;
use hoarder::controller::{RecordDone, RegistryError};
use hoarder::registry::{ClaimState, registry_id};
use hoarder::wire::{Code, Operation};
use hoarder::{Durability, Input};

use crate::world::{SECOND, World, name};

/// How often something random is tried; `TIMES=10` for ten times as often.
fn times(default: u64) -> u64 {
    default * std::env::var("TIMES").map_or(1, |text| text.parse().unwrap())
}

/// A fleet with one database that has its holders.
pub(crate) fn with_database(seed: u64, size: usize, holders: u8) -> (World, DatabaseId) {
    let mut world = World::up(seed, size);
    let database = world.create(0, 1, "a", holders);
    world.until("created", 20, |world| world.records.contains_key(&1));
    assert_eq!(world.records[&1], Ok(RecordDone::Created(database)));
    world.until("held", 90, |world| placed(world, &database));
    (world, database)
}

/// Held by whom it should be, and by nobody else.
pub(crate) fn placed(world: &World, database: &DatabaseId) -> bool {
    let controllers: Vec<_> = world.nodes.iter().filter_map(|node| node.controller.as_ref()).collect();
    let desired = |c: &&hoarder::Controller| c.desired(database).iter().map(|peer| world.number(peer)).collect::<BTreeSet<_>>();
    let views: BTreeSet<_> = controllers.iter().map(desired).collect();
    let agreed = |c: &&hoarder::Controller| {
        let claims = c.registry().claims(database);
        claims.len() == world.ready(database).len() && claims.values().all(|claim| claim.state == ClaimState::Ready)
    };
    controllers.iter().all(agreed)
        && views.len() == 1
        && views.first().is_some_and(|wanted| wanted.iter().copied().eq(world.ready(database)))
}

pub(crate) fn confirm(world: &mut World, node: usize, token: u64, database: DatabaseId, k: u8) {
    world.write(node, token, token, database, Durability::Require(k));
    world.until("answered", 15, |world| world.replies.contains_key(&token));
    assert_eq!(world.replies[&token].0, Code::Done, "{}", world.picture());
}

fn code(world: &World, token: u64) -> Code {
    world.replies[&token].0
}

fn read(world: &mut World, node: usize, token: u64, database: DatabaseId) -> Code {
    let operation = Operation::Read { stale: false, confirmed: false, payload: Bytes::new() };
    world.call(node, token, token, database, operation);
    world.until("read", 15, |world| world.replies.contains_key(&token));
    code(world, token)
}

fn other(world: &World, database: &DatabaseId) -> usize {
    let ready = world.ready(database);
    (0..world.nodes.len()).find(|node| !ready.contains(node)).unwrap()
}

#[test]
fn a_fleet_comes_up_makes_a_database_and_confirms_a_write_from_any_node() {
    let (mut world, database) = with_database(1, 3, 2);
    for node in 0..3 {
        confirm(&mut world, node, 10 + node as u64, database, 2);
        assert_eq!(world.replies[&(10 + node as u64)].1.holders.len(), 2);
    }
}

#[test]
fn situation_01_a_confirmed_put_outlives_the_node_that_confirmed_it_and_its_disk() {
    for seed in 0..times(8) {
        let (mut world, database) = with_database(seed, 3, 2);
        let server = world.ready(&database)[0];
        for token in 10..20 {
            world.write(server, token, token, database, Durability::Require(2));
        }
        world.until("one is confirmed", 10, |world| !world.writes.is_empty());
        world.wipe(server);
        world.until("moved", 60, |world| world.ready(&database).len() == 2);
        let confirmed = world.writes.iter().map(|write| write.dot).collect::<Vec<_>>();
        for node in world.ready(&database) {
            let replica = world.replica(node, &database).unwrap();
            assert!(confirmed.iter().all(|dot| replica.vv.covers(dot)), "seed {seed}");
        }
        let caller = other(&world, &database);
        world.start(caller);
        world.run(SECOND);
        confirm(&mut world, (caller + 1) % 3, 50, database, 2);
        world.start(server);
        world.until("home again", 120, |world| placed(world, &database));
    }
}

#[test]
fn situation_02_a_holder_killed_at_any_moment_between_commit_and_ack_never_makes_an_unconfirmed_write_a_confirmed_one() {
    // By default each fifth millisecond of the first eighty.
    for moment in (0..80).step_by(usize::try_from(5 / times(1).min(5)).unwrap()) {
        let (mut world, database) = with_database(moment, 3, 2);
        let holders = world.ready(&database);
        let victim = holders[usize::try_from(moment % 2).unwrap()];
        let caller = other(&world, &database);
        world.write(caller, 10, 10, database, Durability::Require(2));
        world.run(moment);
        // The world's checks see to it that what was answered as confirmed is on two disks, and stays so.
        world.crash(victim);
        world.until("answered", 20, |world| world.replies.contains_key(&10));
        assert!(matches!(
            code(&world, 10),
            Code::Done | Code::Unconfirmed | Code::Broken | Code::NotReady | Code::NotEnoughHolders
        ));
        world.start(victim);
        world.until("settled", 120, |world| placed(world, &database));
        world.check_copies();
    }
}

#[test]
fn situation_03_a_hung_holder_beside_a_healthy_one_costs_nothing_and_alone_it_leaves_the_write_unconfirmed() {
    let (mut world, database) = with_database(3, 4, 3);
    let holders = world.ready(&database);
    world.pause(holders[2], 5 * SECOND);
    confirm(&mut world, holders[0], 10, database, 2);
    assert!(world.now < 60 * SECOND, "the healthy one's ack is enough");

    let (mut world, database) = with_database(4, 2, 2);
    let [serving, hung] = world.ready(&database)[..] else { panic!() };
    world.pause(hung, 20 * SECOND);
    world.write(serving, 10, 10, database, Durability::Require(2));
    world.write(serving, 11, 11, database, Durability::Prefer(2));
    world.until("answered", 10, |world| world.replies.len() == 2);
    assert_eq!(code(&world, 10), Code::Unconfirmed);
    assert_eq!(world.replies[&10].1.holders, [world.nodes[serving].peer]);
    assert_eq!(code(&world, 11), Code::Done);

    let (mut world, database) = with_database(5, 2, 2);
    let [serving, cut] = world.ready(&database)[..] else { panic!() };
    world.cut.insert((cut, serving));
    world.write(serving, 10, 10, database, Durability::Require(2));
    world.until("answered", 10, |world| world.replies.contains_key(&10));
    assert_ne!(code(&world, 10), Code::Done);
}

#[test]
fn situation_04_in_a_partition_the_side_without_enough_holders_confirms_nothing_and_all_converge_after_it() {
    let (mut world, database) = with_database(6, 5, 2);
    let holders = world.ready(&database);
    let lonely = holders[0];
    for node in (0..5).filter(|node| *node != lonely) {
        world.cut.extend([(node, lonely), (lonely, node)]);
    }
    for token in 10..40 {
        let node = if token % 2 == 0 { lonely } else { holders[1] };
        world.write(node, token, token, database, Durability::Require(2));
        world.run(SECOND);
    }
    world.run(10 * SECOND);
    assert!((10..40).step_by(2).all(|token| code(&world, token) != Code::Done), "alone, and confirmed");
    assert!((11..40).step_by(2).any(|token| code(&world, token) == Code::Done), "the others have re-homed by now");
    world.cut.clear();
    world.until("healed", 120, |world| placed(world, &database));
    world.run(5 * SECOND);
    let vvs: Vec<_> = world.ready(&database).iter().map(|node| world.replica(*node, &database).unwrap().vv.clone()).collect();
    assert_eq!(vvs[0], vvs[1]);
    assert!(world.writes.iter().all(|write| vvs[0].covers(&write.dot)));
}

#[test]
fn situation_05_r27_a_fresh_holder_serves_nothing_before_it_has_what_was_confirmed_before() {
    let (mut world, database) = with_database(7, 3, 2);
    confirm(&mut world, 0, 10, database, 2);
    let fresh = other(&world, &database);
    let gone = world.ready(&database)[0];
    let left = world.ready(&database)[1];
    world.crash(gone);
    // The other holder hears the fresh one, but nothing of it reaches the fresh one.
    world.cut.insert((left, fresh));
    for token in 20..40 {
        assert_ne!(world.readiness(fresh, &database), Readiness::Ready);
        world.call(fresh, token, token, database, Operation::Read { stale: false, confirmed: false, payload: Bytes::new() });
        world.run(SECOND);
    }
    assert!((20..40).all(|token| world.replies.get(&token).is_none_or(|(code, _)| *code != Code::Done && *code != Code::Absent)));
    world.cut.clear();
    // `World` checks at the moment it becomes ready that it has all that was confirmed.
    world.until("ready", 60, |world| world.readiness(fresh, &database) == Readiness::Ready);
    assert_eq!(read(&mut world, fresh, 50, database), Code::Done);
}

#[test]
fn situation_06_three_join_at_once_and_every_node_is_replaced_one_after_the_other() {
    let (mut world, database) = with_database(8, 6, 2);
    confirm(&mut world, 0, 10, database, 2);
    let token = 11;
    let patience = Duration::from_secs(10);
    world.input(0, Input::SetHolders { token, name: name("a"), holders: 5, patience });
    world.until("five holders", 90, |world| world.ready(&database).len() == 5);
    confirm(&mut world, 1, 12, database, 5);
    // What was confirmed with two is with five by now, and is relied on only then.
    let least = |world: &World| world.nodes[0].controller.as_ref().unwrap().registry().live(&database).unwrap().settings.least;
    world.until("the least is raised", 90, |world| least(world) == 5);
    world.writes.iter_mut().for_each(|write| write.k = write.k.min(2));
    world.input(0, Input::SetHolders { token: 13, name: name("a"), holders: 2, patience });
    world.until("two holders again", 120, |world| placed(world, &database) && world.ready(&database).len() == 2);
    world.check_copies();
    // Rolling replacement: each disk is lost once the one before has been made good.
    for node in 0..6 {
        world.wipe(node);
        world.run(2 * SECOND);
        world.start(node);
        world.until("made good", 150, |world| placed(world, &database));
        confirm(&mut world, node, 100 + node as u64, database, 2);
    }
    let replica = world.replica(world.ready(&database)[0], &database).unwrap();
    assert!(world.writes.iter().all(|write| replica.vv.covers(&write.dot)));
}

#[test]
fn situation_06_a_node_that_returns_after_long_finds_its_claim_gone_and_catches_up_before_it_serves() {
    let (mut world, database) = with_database(9, 3, 2);
    confirm(&mut world, 0, 10, database, 2);
    let away = world.ready(&database)[0];
    world.crash(away);
    let peer = world.nodes[away].peer;
    let seen = |world: &World| {
        let node = world.nodes.iter().find_map(|node| node.controller.as_ref()).unwrap();
        node.registry().claims(&database).contains_key(&peer)
    };
    world.until("its claim is removed", 120, |world| !seen(world));
    confirm(&mut world, (away + 1) % 3, 11, database, 2);
    world.start(away);
    world.until("home again", 120, |world| placed(world, &database));
    assert_eq!(read(&mut world, away, 12, database), Code::Done);
}

#[test]
fn situation_06_a_rolling_restart_confirms_all_along() {
    let (mut world, database) = with_database(10, 3, 2);
    for round in 0..6 {
        let node = round % 3;
        world.input(node, Input::Leave);
        world.run(50);
        world.crash(node);
        world.run(500);
        world.start(node);
        world.until("served again", 60, |world| world.ready(&database).len() >= 2);
        confirm(&mut world, node, 10 + round as u64, database, 2);
    }
}

#[test]
fn situation_07_r30_paused_and_isolated_nodes_claim_nothing_and_confirm_nothing() {
    let (mut world, database) = with_database(11, 3, 2);
    let holder = world.ready(&database)[0];
    for duration in [SECOND, 7 * SECOND, 3_600 * SECOND] {
        world.pause(holder, duration);
        world.run(duration / 2);
        world.write(holder, 1_000 + duration, 1_000 + duration, database, Durability::Require(2));
        world.run(duration / 2 + 1);
        world.until("well again", 120, |world| placed(world, &database));
    }
    // Alone after a boot: whatever it finds on its disk, it is not ready, and makes no claim.
    let fresh = other(&world, &database);
    world.crash(holder);
    world.crash(fresh);
    for node in (0..3).filter(|node| *node != holder) {
        world.cut.extend([(node, holder), (holder, node)]);
    }
    world.start(holder);
    let claims = world.nodes[holder].disk.replicas[&registry_id()].log.len();
    for token in 20..50 {
        world.write(holder, token, token, database, Durability::Require(2));
        world.run(SECOND);
        assert_ne!(world.readiness(holder, &database), Readiness::Ready);
    }
    world.run(10 * SECOND);
    assert!((20..50).all(|token| code(&world, token) != Code::Done));
    assert_eq!(world.nodes[holder].disk.replicas[&registry_id()].log.len(), claims, "it wrote to the registry");
    world.cut.clear();
    world.start(fresh);
    world.until("well again", 120, |world| placed(world, &database));
}

#[test]
fn situation_07_steps_of_the_wall_clock_change_nothing() {
    let (mut world, database) = with_database(12, 3, 2);
    for (round, skew) in [3_600_000, -900_000, 0].into_iter().enumerate() {
        world.nodes[round].skew = skew;
        let before = world.ready(&database);
        world.run(20 * SECOND);
        assert_eq!(world.ready(&database), before);
        confirm(&mut world, round, 10 + round as u64, database, 2);
    }
}

#[test]
fn situation_08_two_drained_at_once_let_go_one_after_the_other_and_never_leave_fewer_than_k() {
    for seed in 0..times(3) {
        let (mut world, database) = with_database(seed, 5, 2);
        let both = world.ready(&database);
        for (token, node) in both.iter().enumerate() {
            confirm(&mut world, *node, 10 + token as u64, database, 2);
            world.input(*node, Input::Drain(true));
        }
        for step in 0..2_000_u64 {
            // Writers on all along.
            if step % 10 == 0 {
                let node = usize::try_from(step % 5).unwrap();
                world.write(node, 1_000 + step, 1_000 + step, database, Durability::Require(2));
            }
            world.run(100);
            assert!(world.ready(&database).len() >= 2, "seed {seed}: {}", world.picture());
        }
        world.until("drained", 60, |world| placed(world, &database));
        assert!(both.iter().all(|node| world.replica(*node, &database).is_none()), "the data are gone from both");
        assert!(world.replies.values().all(|(code, _)| *code == Code::Done), "seed {seed}: a write failed during the move");
    }
}

#[test]
fn situation_09_a_retry_through_another_node_is_the_same_write() {
    let (mut world, database) = with_database(13, 3, 2);
    let [first, second] = world.ready(&database)[..] else { panic!() };
    // The same request three times at once, and once more while the one who answered is gone: the answer was lost.
    for token in [10, 11, 12] {
        world.write(first, token, 77, database, Durability::Require(2));
    }
    world.until("answered", 15, |world| (10..13).all(|token| world.replies.contains_key(&token)));
    world.crash(first);
    let caller = 3 - first - second;
    for token in [13, 14] {
        world.write(caller, token, 77, database, Durability::Require(1));
        world.until("answered", 15, |world| world.replies.contains_key(&token));
    }
    let log: Vec<_> = world.replica(second, &database).unwrap().log.iter().map(|block| block.dot).collect();
    assert_eq!(log.len(), 1, "written once");
    assert!((10..15).all(|token| world.replies[&token].1.dot == Some(log[0])), "and every answer names it");
}

#[test]
fn situation_12_d22_many_databases_move_a_few_at_a_time() {
    let mut world = World::up(14, 3);
    let databases: Vec<_> = (0..40).map(|n| world.create(0, 100 + n, &format!("db{n}"), 2)).collect();
    world.until("all held", 300, |world| databases.iter().all(|database| placed(world, database)));
    world.crash(2);
    for _ in 0..600 {
        world.run(100);
        for node in 0..2 {
            let joining = databases.iter().filter(|database| {
                let controller = world.nodes[node].controller.as_ref().unwrap();
                let claim = controller.registry().claims(database).get(&world.nodes[node].peer);
                claim.is_some_and(|claim| !claim.ever_ready)
            });
            assert!(joining.count() <= world.options.max_joining);
        }
    }
    world.until("re-homed", 200, |world| databases.iter().all(|database| world.ready(database) == [0, 1]));
}

fn drop_it(world: &mut World, node: usize, token: u64) {
    world.input(node, Input::Drop { token, name: name("a"), patience: Duration::from_secs(20) });
    world.until("dropped", 25, |world| world.records.contains_key(&token));
}

#[test]
fn situation_13_dropped_and_made_again_while_a_holder_was_away() {
    let (mut world, old) = with_database(15, 3, 2);
    confirm(&mut world, 0, 10, old, 2);
    let away = world.ready(&old)[0];
    world.crash(away);
    world.dropped.insert(old);
    let node = (away + 1) % 3;
    drop_it(&mut world, node, 11);
    assert_eq!(world.records[&11], Ok(RecordDone::Dropped(old)));
    world.until("destroyed", 30, |world| (0..3).all(|other| other == away || world.replica(other, &old).is_none()));
    world.create(node, 12, "a", 2);
    world.until("made again", 25, |world| world.records.contains_key(&12));
    let new = crdt::DatabaseId::of(&name("a"), 1);
    assert_eq!(world.records[&12], Ok(RecordDone::Created(new)));
    world.until("held", 90, |world| placed(world, &new));
    confirm(&mut world, node, 13, new, 2);
    world.start(away);
    world.until("nothing of the old one is left", 90, |world| world.replica(away, &old).is_none() && placed(world, &new));
    let replica = world.replica(world.ready(&new)[0], &new).unwrap();
    assert_eq!(replica.log.len(), 1);
    world.write(node, 14, 14, old, Durability::Require(2));
    assert_eq!(code(&world, 14), Code::NoDatabase);
}

#[test]
fn situation_13_two_that_make_one_name_at_once_make_one_database() {
    for seed in 0..times(12) {
        let mut world = World::up(seed, 4);
        if seed % 2 == 0 {
            world.cut.extend([(0, 1), (1, 0)]);
        }
        let database = world.create(0, 1, "a", 2);
        world.run(seed * 3);
        world.create(1, 2, "a", 2);
        world.run(5 * SECOND);
        world.cut.clear();
        world.until("held", 120, |world| placed(world, &database));
        for node in 0..4 {
            confirm(&mut world, node, 10 + node as u64, database, 2);
        }
    }
}

#[test]
fn situation_13_a_creator_that_dies_at_once_leaves_a_name_that_can_be_dropped_and_made_again() {
    let mut world = World::up(16, 3);
    let old = world.create(0, 1, "a", 2);
    // The record has reached the others, the creator's claim has not.
    world.until("seen", 5, |world| world.registry_seen(1, &old) && world.registry_seen(2, &old));
    world.wipe(0);
    world.run(20 * SECOND);
    assert!(world.ready(&old).is_empty(), "nobody takes an empty database for the real one");
    world.input(
        1,
        Input::Create {
            token: 2,
            name: name("a"),
            holders: 2,
            durability: Durability::Require(2),
            patience: Duration::from_secs(9),
        },
    );
    assert_eq!(world.records[&2], Err(RegistryError::Exists));
    world.dropped.insert(old);
    drop_it(&mut world, 1, 3);
    world.create(1, 4, "a", 2);
    let new = crdt::DatabaseId::of(&name("a"), 1);
    world.until("held", 90, |world| world.ready(&new).len() == 2);
    confirm(&mut world, 2, 10, new, 2);
}

#[test]
fn situation_13_a_drop_that_races_writes_confirms_none_after_it() {
    let (mut world, database) = with_database(17, 3, 2);
    for token in 10..30 {
        world.write(usize::try_from(token % 3).unwrap(), token, token, database, Durability::Require(2));
    }
    world.dropped.insert(database);
    drop_it(&mut world, 1, 5);
    world.run(10 * SECOND);
    assert!((10..30).all(|token| world.replies.contains_key(&token)), "somebody waits for ever");
    assert!((0..3).all(|node| world.replica(node, &database).is_none()));
}

#[test]
fn situation_14_a_replaced_disk_or_an_older_image_never_serves_alone() {
    // With five the fleet knows itself without the two, so that nothing but the rule keeps the empty one back.
    for (image, size) in [(false, 3), (true, 3), (false, 5), (true, 5)] {
        let (mut world, database) = with_database(18, size, 2);
        let [one, other] = world.ready(&database)[..] else { panic!() };
        let old = world.nodes[one].disk.clone();
        if image {
            // The image is of the opening before this one.
            world.crash(one);
            world.start(one);
            world.until("ready again", 60, |world| world.ready(&database).len() == 2);
        }
        confirm(&mut world, one, 10, database, 2);
        if image {
            world.replace(one, old);
        } else {
            world.wipe(one);
        }
        world.crash(other);
        world.start(one);
        for _ in 0..60 {
            world.run(SECOND);
            let dot = world.writes[0].dot;
            let empty = |node: &usize| !world.replica(*node, &database).is_some_and(|replica| replica.vv.covers(&dot));
            assert!(!world.ready(&database).iter().any(empty), "image {image}, {size} nodes: {}", world.picture());
        }
        world.start(other);
        world.until("well again", 120, |world| placed(world, &database));
    }
}

#[test]
fn situation_14_a_holder_that_remembers_more_than_is_there_says_so() {
    let (mut world, database) = with_database(19, 2, 2);
    let [one, other] = world.ready(&database)[..] else { panic!() };
    let store = world.nodes[one].disk.store;
    let mut old = world.nodes[one].disk.clone();
    confirm(&mut world, other, 10, database, 2);
    // An image of this very opening: only the other holder can know.
    old.opening += 1;
    world.replace(one, old);
    world.deaf.insert(one);
    world.start(one);
    world.until("it was told", 60, |world| world.fallen > 0);
    world.deaf.clear();
    world.until("it has started from nothing", 60, |world| world.nodes[one].disk.store != store);
    world.until("well again", 60, |world| world.ready(&database).len() == 2);
}

#[test]
fn situation_14_a_whole_fleet_without_power_comes_back_by_itself_with_stale_registries_on_some() {
    for seed in 0..times(5) {
        let (mut world, database) = with_database(seed, 5, 2);
        confirm(&mut world, 0, 10, database, 2);
        // Two miss the latest of the registry.
        let away: Vec<usize> = (0..5).filter(|node| !world.ready(&database).contains(node)).take(2).collect();
        for node in away {
            world.crash(node);
        }
        world.create(world.ready(&database)[0], 2, "b", 2);
        world.run(10 * SECOND);
        for node in 0..5 {
            if world.nodes[node].controller.is_some() {
                world.crash(node);
            }
        }
        for node in 0..5 {
            let delay = world.random.below(5_000);
            world.restart_after(node, delay);
        }
        world.until("back", 120, |world| placed(world, &database));
        let second = crdt::DatabaseId::of(&name("b"), 0);
        world.until("the second one too", 120, |world| placed(world, &second));
        confirm(&mut world, 3, 20, database, 2);
    }
}

#[test]
fn situation_15_after_a_pause_of_hours_while_others_took_over_nothing_stale_is_served() {
    let (mut world, database) = with_database(20, 3, 2);
    let paused = world.ready(&database)[0];
    world.pause(paused, 4 * 3_600 * SECOND);
    world.run(60 * SECOND);
    confirm(&mut world, (paused + 1) % 3, 10, database, 2);
    // It wakes with a read in its queue: the first thing it notices is the pause.
    world.run(4 * 3_600 * SECOND - 60 * SECOND - 100);
    world.call(paused, 11, 11, database, Operation::Read { stale: false, confirmed: false, payload: Bytes::new() });
    world.run(200);
    let stale =
        world.replies.get(&11).is_some_and(|(code, answer)| *code == Code::Done && answer.served_by == world.nodes[paused].peer);
    let caught_up = world.replica(paused, &database).unwrap().vv.covers(&world.writes[0].dot);
    assert!(!stale || caught_up, "it answered from what it had hours ago");
    world.until("well again", 120, |world| placed(world, &database));
}
