//! Fleets: a few seeds of everything, and each situation by its name.

use simulations::runner::{Extras, run};
use simulations::scenarios::load;

use crate::check;

#[test]
fn a_few_seeds_of_fleets() {
    check("fleet-calm", 0..2);
    check("chaos-fleet", 0..4);
}

#[test]
fn the_same_seed_gives_the_same_fleet() {
    let scenario = load("chaos-fleet").unwrap();
    let trace = |seed| run(&scenario, seed, Extras::default()).trace;
    assert_eq!(trace(5), trace(5));
    assert_ne!(trace(5), trace(6));
}

macro_rules! cases {
    ($($name:ident $scenario:literal)*) => {
        $(#[test]
        fn $name() {
            check($scenario, 0..SEEDS);
        })*
    };
}

/// Each situation is run under so many seeds here; `simulations run` tries more.
const SEEDS: u64 = 2;

cases! {
    situation_01_a_confirmed_put_outlives_the_node_that_confirmed_it_and_its_disk "situation_01"
    situation_02_ends_between_commit_and_acknowledgement "situation_02"
    situation_03_hung_holders_and_one_cut_off_one_way "situation_03"
    situation_04_partitions_with_writers_on_both_sides "situation_04"
    situation_05_fresh_holders_are_asked_for_what_they_lack "situation_05"
    situation_06_joins_restarts_replacements_and_other_numbers_of_holders "situation_06"
    situation_07_partial_views_pauses_and_clocks_that_step "situation_07"
    situation_08_two_are_drained_at_once_under_writes "situation_08"
    situation_09_lost_answers_and_requests_that_come_twice "situation_09"
    situation_10_deleted_keys_do_not_return_through_another_holder "situation_10"
    situation_11_forged_beats_and_strangers_have_no_effect "situation_11"
    situation_12_a_death_moves_only_what_was_its_own "situation_12"
    situation_13_dropped_and_made_again "situation_13"
    situation_14_replaced_disks_older_images_and_a_fleet_without_power "situation_14"
    situation_15_hours_of_pause_and_one_identity_twice "situation_15"
}
