//! One test for each scenario that is named after a case of `tests/CASES.md`.

/// Each scenario is run under so many seeds here; `make sim` and `simulations run` try more.
const SEEDS: u64 = 2;

macro_rules! cases {
    ($($name:ident $scenario:literal)*) => {
        $(#[test]
        fn $name() {
            check($scenario);
        })*
    };
}

cases! {
    c03_clocks_wrong_by_hours_and_years "c03"
    c04_connections_that_half_die "c04"
    c06_rolling_restarts_under_writes "c06"
    c08_a_start_at_the_moment_of_a_write "c08"
    c10_an_idle_half_hour_and_a_write "c10"
    d01_a_long_catch_up_is_broken_off_again_and_again "d01"
    d02_crashes_at_commit_after_commit "d02"
    d05_heads_are_tips_after_losses_and_restarts "d05"
    d06_children_that_overtake_their_parents "d06"
    d11_what_was_offered_is_dropped_before_it_is_sent "d11"
    d13_two_that_differ_meet_and_nobody_writes "d13"
    d14_what_nobody_can_provide_holds_up_nobody "d14"
    d18_all_gossip_lost_and_no_further_write "d18"
    d19_writes_during_every_exchange "d19"
    d20_parents_are_the_heads_of_the_commit "d20"
    d21_bad_blocks_without_end_hold_up_no_good_ones "d21"
    d22_questions_back_off_from_a_peer_that_does_not_answer "d22"
    d23_versions_of_the_wire_roll_forth_and_back "d23"
    g05_old_messages_come_again_and_again "g05"
    g06_a_stopped_node_while_much_is_written "g06"
    m01_put_put_delete_against_a_concurrent_put "m01"
    m06_as_many_writes_on_both_sides "m06"
    m07_the_same_value_put_twice_at_once "m07"
    m08_two_concurrent_deletes_and_a_third_node "m08"
    m09_a_key_made_again_after_its_delete "m09"
    m10_a_busier_writer_does_not_win "m10"
    r01_crashes_in_the_middle_of_branches "r01"
    r09_the_identical_first_write_and_a_delete "r09"
    r10_history_of_a_loser_is_gone_when_the_winner_is_deleted "r10"
    r11_a_slow_writer_builds_on_history_that_is_gone "r11"
    r12_a_crash_between_any_two_parts_of_a_snapshot "r12"
    r13_two_compact_by_different_views_and_a_third_writes "r13"
    r18_versions_and_deletes "r18"
    r19_fifteen_writers_of_one_key "r19"
    r20_fifty_lost_and_the_last_heard "r20"
    t02_two_sides_compact_and_write_apart "t02"
    t06_history_goes_by_what_others_have_read "t06"
}

fn check(name: &str) {
    crate::check(name, 0..SEEDS);
}
