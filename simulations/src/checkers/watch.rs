//! What a watcher was told, applied to a map, is what its node has; a token is refused exactly when the log cannot tell what
//! came after it, and a watcher that missed something is told so.

use std::collections::BTreeMap;

use crdt::{Dot, Key, Prefix, WallTime};
use kvdb::watch::{WatchChange, WatchEvent, WatchToken};

use super::{Check, Copy, Truth, Verdict};
use crate::observe::{Observation, Watched};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Watching(BTreeMap<usize, Known>);

/// What is known of one watcher.
#[derive(Debug, Default)]
struct Known {
    /// The revision up to which it has been told everything, at least.
    told: u64,
    /// The revision at which its map was compared.
    compared: Option<u64>,
}

impl Check for Watching {
    fn name(&self) -> &'static str {
        "watchers miss nothing"
    }

    fn seen(&mut self, seen: &Observation<'_>, truth: &Truth) -> Verdict {
        let Observation::Watch { watcher, node, database, prefix, what } = seen else { return Ok(()) };
        let copy = truth.copy(*node, *database);
        let Known { told, compared } = self.0.entry(*watcher).or_default();
        let said = |what: String| Err(format!("watcher {watcher} of n{node} {what}"));
        match what {
            Watched::Listed { map, at, wall } => {
                (*told, *compared) = (*at, None);
                let must = copy.alive.keys().filter(|key| prefix.covers(key));
                let must: BTreeMap<Key, Dot> = must.filter_map(|key| Some((key.clone(), copy.winner(key, *wall)?))).collect();
                if **map == must {
                    Ok(())
                } else {
                    said(format!("is given a list of {} keys, there are {}", map.len(), must.len()))
                }
            }
            Watched::Resumed(token) => {
                let (revision, dot) = parts(token);
                (*told, *compared) = (revision, None);
                if has(copy, revision, dot) { Ok(()) } else { said(format!("goes on from {token}, which the log does not have")) }
            }
            Watched::TooOld(token) => {
                let (revision, dot) = parts(token);
                let good = has(copy, revision, dot) && copy.switched_at() <= revision;
                if good { said(format!("may not go on from {token}, though all that came after it is kept")) } else { Ok(()) }
            }
            Watched::Ready(event, wall) => ready(*told, event, copy, *wall).or_else(said),
            Watched::Event(event) => {
                *told = event.token.map_or(*told, |token| parts(&token).0.max(*told));
                Ok(())
            }
            Watched::CaughtUp { .. } if *compared == Some(copy.revision()) => Ok(()),
            Watched::CaughtUp { map } => {
                *compared = Some(copy.revision());
                caught_up(*told, map, prefix, copy).or_else(said)
            }
        }
    }
}

/// An event tells of the key as it is at that moment; a reset that something cannot be told.
fn ready(told: u64, event: &WatchEvent, copy: &Copy, wall: WallTime) -> Verdict {
    let (key, says) = match &event.change {
        WatchChange::Reset if copy.switched_at() > told || copy.floor > told => return Ok(()),
        WatchChange::Reset => return Err(format!("is told to begin anew at {told}, though nothing after it is gone")),
        WatchChange::Listed => return Ok(()),
        WatchChange::Put(put) => (&put.key, Some(put.dot)),
        WatchChange::Deleted(key) => (key, None),
    };
    let must = copy.winner(key, wall);
    if says == must { Ok(()) } else { Err(format!("is told of {says:?} at {key}, a read finds {must:?}")) }
}

/// Nothing is left to tell: what was told is what is there. What has expired is told only with its tombstone.
fn caught_up(told: u64, map: &BTreeMap<Key, Dot>, prefix: &Prefix, copy: &Copy) -> Verdict {
    if copy.switched_at() > told {
        return Err(format!("hears nothing of a snapshot's rows at {}, it has been told up to {told}", copy.switched_at()));
    }
    let keys = map.keys().chain(copy.alive.keys().filter(|key| prefix.covers(key)));
    for key in keys {
        let puts = copy.alive.get(key);
        if puts.is_some_and(|puts| puts.values().any(|put| put.expiry.is_some())) {
            continue;
        }
        let (has, must) = (map.get(key).copied(), copy.winner(key, WallTime(0)));
        if has != must {
            return Err(format!("has {has:?} at {key} and nothing more to hear, there is {must:?}"));
        }
    }
    Ok(())
}

/// Whether the log has the token's block, or all from the beginning on.
fn has(copy: &Copy, revision: u64, dot: Option<Dot>) -> bool {
    match dot {
        None => copy.floor == 0,
        Some(_) => {
            let at = usize::try_from(revision.saturating_sub(1)).ok();
            revision > copy.floor && at.and_then(|at| copy.log.get(at)).copied().flatten() == dot
        }
    }
}

fn parts(token: &WatchToken) -> (u64, Option<Dot>) {
    let text = token.to_string();
    let (revision, dot) = text.split_once('-').unwrap_or((&text, ""));
    (revision.parse().unwrap_or(0), dot.parse().ok())
}
