//! Which members should hold a database: weighted rendezvous hashing, the same on every node with the same view.
//!
//! Each member draws a ticket for each database from a hash of both. The best K tickets win. When a member goes, only
//! databases for which it had a winning ticket change; when one comes, only those for which it gets one.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crdt::DatabaseId;
use kvdb::PeerId;
use sha2::{Digest as _, Sha256};

/// Fractional bits of the logarithm.
const FRACTION: u32 = 32;

/// All candidates for a database, best first.
#[must_use]
pub fn order(database: &DatabaseId, candidates: &BTreeMap<PeerId, u64>) -> Vec<PeerId> {
    let mut tickets: Vec<(u64, u64, PeerId)> =
        candidates.iter().map(|(peer, weight)| ((*weight).max(1), ticket(database, peer), *peer)).collect();
    tickets.sort_by(better);
    tickets.into_iter().map(|(_, _, peer)| peer).collect()
}

/// The desired holders: the best K, or all if there are fewer.
#[must_use]
pub fn desired(database: &DatabaseId, candidates: &BTreeMap<PeerId, u64>, k: u8) -> Vec<PeerId> {
    let mut order = order(database, candidates);
    order.truncate(usize::from(k));
    order
}

/// The greatest `weight / ticket` first; equal ones by id.
fn better(one: &(u64, u64, PeerId), other: &(u64, u64, PeerId)) -> Ordering {
    let (left, right) = (u128::from(one.0) * u128::from(other.1), u128::from(other.0) * u128::from(one.1));
    right.cmp(&left).then_with(|| one.2.cmp(&other.2))
}

/// −log2 of a number drawn evenly from (0, 1], as a fixed-point number: exponentially distributed, so that dividing it by the
/// weight gives each member a share in proportion. In integers, so that all machines agree.
fn ticket(database: &DatabaseId, peer: &PeerId) -> u64 {
    let hash: [u8; 32] =
        Sha256::new().chain_update(b"kvdb/place/1").chain_update(database.0).chain_update(peer.to_bytes()).finalize().into();
    let mut head = [0; 8];
    head.copy_from_slice(hash.split_at(8).0);
    (64 << FRACTION) - log2(u64::from_be_bytes(head).max(1))
}

/// log2 with [`FRACTION`] bits after the point, by repeated squaring.
fn log2(value: u64) -> u64 {
    let whole = value.ilog2();
    // The value scaled to [1, 2), with 63 bits after the point.
    let mut scaled = u128::from(value) << (63 - whole);
    let mut log = u64::from(whole) << FRACTION;
    for bit in (0..FRACTION).rev() {
        scaled = (scaled * scaled) >> 63;
        if scaled >> 64 != 0 {
            scaled >>= 1;
            log |= 1 << bit;
        }
    }
    log
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crdt::DatabaseName;

    use super::*;
    use crate::testing::member;

    fn databases(count: usize) -> Vec<DatabaseId> {
        (0..count).map(|n| DatabaseId::of(&DatabaseName::parse(&format!("db-{n}")).unwrap(), 0)).collect()
    }

    fn shares(candidates: &BTreeMap<PeerId, u64>, databases: &[DatabaseId], k: u8) -> BTreeMap<PeerId, usize> {
        let mut shares = BTreeMap::new();
        for database in databases {
            for peer in desired(database, candidates, k) {
                *shares.entry(peer).or_insert(0) += 1;
            }
        }
        shares
    }

    #[test]
    fn log2_is_right_at_known_points() {
        assert_eq!(log2(1), 0);
        assert_eq!(log2(1 << 40), 40 << FRACTION);
        // log2(3) = 1.5849625007
        let three = log2(3);
        assert_eq!(three >> FRACTION, 1);
        let fraction = ((three & 0xffff_ffff) * 1_000_000) >> FRACTION;
        assert_eq!(fraction, 584_962);
    }

    #[test]
    fn situation_12_ten_thousand_databases_on_five_nodes_are_balanced_and_a_death_moves_only_its_own() {
        let databases = databases(10_000);
        let five: BTreeMap<PeerId, u64> = (1..=5).map(|n| (member(n), 100)).collect();
        let shares = shares(&five, &databases, 2);
        let mean = databases.len() * 2 / 5;
        for (peer, share) in &shares {
            assert!(share.abs_diff(mean) * 10 <= mean, "{peer} has {share}, the mean is {mean}");
        }
        let mut four = five.clone();
        four.remove(&member(3));
        for database in &databases {
            let before: BTreeSet<PeerId> = desired(database, &five, 2).into_iter().collect();
            let after: BTreeSet<PeerId> = desired(database, &four, 2).into_iter().collect();
            let stayed = before.intersection(&after).count();
            assert_eq!(stayed, if before.contains(&member(3)) { 1 } else { 2 });
        }
    }

    #[test]
    fn shares_follow_the_weights() {
        let databases = databases(6_000);
        let weighted = BTreeMap::from([(member(1), 100), (member(2), 200), (member(3), 300)]);
        let shares = shares(&weighted, &databases, 1);
        for (n, wanted) in [(1, 1_000), (2, 2_000), (3, 3_000)] {
            let share: usize = shares[&member(n)];
            assert!(share.abs_diff(wanted) * 10 <= wanted, "member {n} has {share}, wanted {wanted}");
        }
    }

    #[test]
    fn fewer_members_than_holders_all_hold() {
        let two = BTreeMap::from([(member(1), 1), (member(2), 1)]);
        assert_eq!(desired(&databases(1)[0], &two, 5).len(), 2);
        assert!(desired(&databases(1)[0], &BTreeMap::new(), 2).is_empty());
    }
}
