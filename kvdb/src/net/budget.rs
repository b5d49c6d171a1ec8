//! What a peer may cost: so much at once, and so much a second from then on. Nothing is refused for good by it, only put off.

use std::collections::BTreeMap;
use std::time::Duration;

use libp2p::PeerId;

use super::Moment;
use super::limits::MAX_REMEMBERED_PEERS;

/// How much of something: the whole of it may come at once, and then so much each second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rate {
    /// At once.
    pub(super) burst: u64,
    /// Each second.
    pub(super) per_second: u64,
}

/// What has been spent of a [`Rate`]: the moment at which all of it will be there again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Spent(Moment);

impl Spent {
    /// Spends, whether it is there or not; how long until it would have been.
    fn spend(&mut self, amount: u64, rate: Rate, now: Moment) -> Duration {
        self.0 = self.0.max(now) + rate.time(amount);
        self.0.saturating_sub(now + rate.time(rate.burst))
    }

    fn has(self, amount: u64, rate: Rate, now: Moment) -> bool {
        self.0.max(now) + rate.time(amount) <= now + rate.time(rate.burst)
    }
}

impl Rate {
    fn time(self, amount: u64) -> Duration {
        Duration::from_nanos(amount.saturating_mul(1_000_000_000 / self.per_second.max(1)))
    }
}

/// A budget for each peer, and one for all of them together, since identities cost nothing.
#[derive(Debug)]
pub(super) struct Budget {
    each: Rate,
    all: Rate,
    spent: BTreeMap<PeerId, Spent>,
    spent_by_all: Spent,
}

impl Budget {
    pub(super) fn new(each: Rate, all: Rate) -> Self {
        Self { each, all, spent: BTreeMap::new(), spent_by_all: Spent::default() }
    }

    /// Spends so much of a peer's, and of what all have, if it is there.
    pub(super) fn allows(&mut self, peer: PeerId, amount: u64, now: Moment) -> bool {
        let (each, all) = (self.each, self.all);
        let spent = self.spent_of(peer, now);
        if !spent.has(amount, each, now) || !self.spent_by_all.has(amount, all, now) {
            return false;
        }
        self.charge(peer, amount, now);
        true
    }

    /// Spends so much, whether it is there or not; how long until it would have been.
    pub(super) fn charge(&mut self, peer: PeerId, amount: u64, now: Moment) -> Duration {
        let each = self.each;
        let own = self.spent_of(peer, now).spend(amount, each, now);
        own.max(self.spent_by_all.spend(amount, self.all, now))
    }

    /// Who owes nothing is not remembered, and when too many do, the one who owes least is forgotten.
    fn spent_of(&mut self, peer: PeerId, now: Moment) -> &mut Spent {
        if !self.spent.contains_key(&peer) && self.spent.len() >= MAX_REMEMBERED_PEERS {
            self.spent.retain(|_, spent| spent.0 > now);
            if self.spent.len() >= MAX_REMEMBERED_PEERS {
                let least = self.spent.iter().min_by_key(|(_, spent)| spent.0).map(|(peer, _)| *peer);
                least.map(|peer| self.spent.remove(&peer));
            }
        }
        self.spent.entry(peer).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EACH: Rate = Rate { burst: 10, per_second: 2 };
    const ALL: Rate = Rate { burst: 30, per_second: 4 };

    fn seconds(n: u64) -> Moment {
        Moment::from_secs(n)
    }

    #[test]
    fn so_much_at_once_and_so_much_a_second_then() {
        let mut budget = Budget::new(EACH, ALL);
        let peer = PeerId::random();
        let now = seconds(100);
        assert_eq!((0..20).filter(|_| budget.allows(peer, 1, now)).count(), 10);
        assert_eq!((0..20).filter(|_| budget.allows(peer, 1, now + seconds(3))).count(), 6);
        assert_eq!((0..20).filter(|_| budget.allows(peer, 1, now + seconds(60))).count(), 10, "never more than the burst");
    }

    #[test]
    fn many_identities_share_what_all_have() {
        let mut budget = Budget::new(EACH, ALL);
        let allowed = |budget: &mut Budget, now| (0..100).filter(|_| budget.allows(PeerId::random(), 1, now)).count();
        assert_eq!(allowed(&mut budget, seconds(1)), 30);
        assert_eq!(allowed(&mut budget, seconds(2)), 4);
    }

    #[test]
    fn what_is_overdrawn_is_a_time_to_wait() {
        let mut budget = Budget::new(EACH, ALL);
        let peer = PeerId::random();
        assert_eq!(budget.charge(peer, 10, seconds(1)), Duration::ZERO);
        assert_eq!(budget.charge(peer, 6, seconds(1)), seconds(3));
        assert_eq!(budget.charge(peer, 0, seconds(3)), seconds(1));
        // Another one pays for itself only, as long as there is enough for all.
        assert_eq!(budget.charge(PeerId::random(), 10, seconds(3)), Duration::ZERO);
        assert_eq!(budget.charge(PeerId::random(), 10, seconds(3)), Duration::ZERO);
        assert!(budget.charge(PeerId::random(), 8, seconds(3)) > Duration::ZERO);
    }

    #[test]
    fn those_who_owe_most_are_remembered() {
        let mut budget = Budget::new(EACH, Rate { burst: 1 << 30, per_second: 1 << 30 });
        let debtor = PeerId::random();
        budget.charge(debtor, 100, seconds(1));
        for _ in 0..3 * MAX_REMEMBERED_PEERS {
            budget.charge(PeerId::random(), 1, seconds(1));
        }
        assert_eq!(budget.spent.len(), MAX_REMEMBERED_PEERS);
        assert!(!budget.allows(debtor, 1, seconds(2)));
    }
}
