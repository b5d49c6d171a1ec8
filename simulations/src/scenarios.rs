//! The scenarios that come with the program, and those in files.

use crate::random::Random;
use crate::scenario::{Scenario, Topology};
use crate::script::Script;

macro_rules! built_in {
    ($($name:literal)*) => {
        /// Name and text.
        const BUILT_IN: &[(&str, &str)] = &[$(($name, include_str!(concat!("../scenarios/", $name, ".toml"))),)*];
    };
}

built_in! {
    "chaos" "swarm" "chaos-fleet" "fleet-calm" "situation_01" "situation_02" "situation_03" "situation_04" "situation_05" "situation_06" "situation_07" "situation_08" "situation_09" "situation_10" "situation_11" "situation_12" "situation_13" "situation_14" "situation_15" "calm" "wide" "scale" "compaction" "mutation-hunt" "crowd" "retries" "gossip" "conditions" "upkeep" "snapshots" "joins" "expiry" "hostile" "reads" "broad" "c03" "c04"
    "c06" "c08" "c10" "d01" "d02" "d05" "d06" "d13"
    "d14" "d18" "d19" "d20" "d22" "g05" "g06" "m01"
    "m06" "m07" "m08" "m09" "m10" "r01" "r09" "r18"
    "r19" "r20" "r10" "r11" "r12" "r13" "d11" "d21" "d23" "t02" "t06"
}

/// All that come with the program. Those that cannot be read are a fault of the build, which a test finds.
#[must_use]
pub fn all() -> Vec<Scenario> {
    BUILT_IN.iter().filter_map(|(name, text)| parse(name, text).ok()).collect()
}

/// A scenario by its name, or from a file.
///
/// # Errors
/// When there is none, or its text is wrong.
pub fn load(name: &str) -> Result<Scenario, String> {
    if let Some((name, text)) = BUILT_IN.iter().find(|(built_in, _)| *built_in == name) {
        return parse(name, text);
    }
    let path = std::path::Path::new(name);
    if path.extension().is_some_and(|extension| extension == "toml") {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
        return parse(name, &text);
    }
    let names: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
    Err(format!("there is no scenario {name}; there are {}, and files that end in .toml", names.join(", ")))
}

fn parse(name: &str, text: &str) -> Result<Scenario, String> {
    let scenario: Scenario = toml::from_str(text).map_err(|error| format!("{name}: {error}"))?;
    Script::parse(&scenario.script).map_err(|what| format!("{name}: {what}"))?;
    for kind in scenario.faults.kinds.iter().chain(&scenario.faults.without) {
        if crate::faults::number_of(kind).is_none() {
            return Err(format!("{name}: there is no fault {kind}"));
        }
    }
    if scenario.nodes == 0 || scenario.nodes > MAX_NODES {
        return Err(format!("{name}: 1 to {MAX_NODES} nodes can be simulated, not {}", scenario.nodes));
    }
    Ok(scenario)
}

const MAX_NODES: usize = 1_000;

/// The scenario that this seed runs: of a swarm another profile for each, else the scenario itself.
#[must_use]
pub fn drawn(scenario: &Scenario, seed: u64) -> Scenario {
    let mut drawn = scenario.clone();
    if !scenario.swarm {
        return drawn;
    }
    // Another stream than the run's own, which begins from the same seed.
    let mut random = Random::new(seed ^ 0x5eed_5a47);
    let topologies = [Topology::Mesh, Topology::Line, Topology::Ring, Topology::Star, Topology::Random];
    drawn.nodes = random.index(8) + 2;
    drawn.databases = if random.below(4) == 0 { random.index(5) + 1 } else { 1 };
    drawn.topology = random.pick(&topologies).copied().unwrap_or(Topology::Mesh);
    drawn.latency_mean_us = 10_u64.pow(u32::try_from(random.between(2, 5)).unwrap_or(2));
    drawn.clock_skew_ms = if random.below(2) == 0 { 0 } else { random.below(7_200_000) };
    drawn.faults.swarm = true;
    drawn.faults.gap_ms = random.between(200, 5_000);
    drawn.faults.lasts_ms = random.between(100, 10_000);
    let workload = &mut drawn.workload;
    workload.clients = random.index(12) + 1;
    workload.keys = 10_u64.pow(u32::try_from(random.below(4)).unwrap_or(1));
    workload.hot_percent = u32::try_from(random.below(100)).unwrap_or(0);
    workload.delete_percent = u32::try_from(random.below(70)).unwrap_or(0);
    workload.batch_percent = u32::try_from(random.below(60)).unwrap_or(0);
    workload.large_permille = if random.below(3) == 0 { 10 } else { 0 };
    workload.sync_percent = u32::try_from(random.below(101)).unwrap_or(0);
    workload.think_ms = 10_u64.pow(u32::try_from(random.between(0, 3)).unwrap_or(1));
    workload.burst_percent = u32::try_from(random.below(100)).unwrap_or(0);
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_scenarios_can_be_read_and_are_named_after_their_files() {
        for (name, text) in BUILT_IN {
            let scenario = parse(name, text).unwrap();
            assert_eq!(scenario.name, *name);
            assert!(!scenario.about.is_empty(), "{name}");
        }
        assert_eq!(all().len(), BUILT_IN.len());
    }

    #[test]
    fn a_swarm_draws_the_same_profile_for_the_same_seed_only() {
        let swarm = load("swarm").unwrap();
        assert_eq!(drawn(&swarm, 3), drawn(&swarm, 3));
        assert_ne!(drawn(&swarm, 3), drawn(&swarm, 4));
        assert!(load("none").unwrap_err().contains("swarm"));
    }
}
