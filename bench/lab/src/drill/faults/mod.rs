//! The faults.

mod agents;
mod backends;
mod memory;
mod network;
mod pins;
mod programs;
mod services;
mod source;
mod tables;
mod upgrade;

pub(crate) use pins::pins;
pub(crate) use tables::entries;
pub(super) use upgrade::check_former;

use super::fault::{Allowance, Bound, Fault, Loss};
use super::way::Way;

/// Faults that this test bed can't play, and the reasons.
pub const NOT_PLAYABLE: [(&str, &str); 3] = [
    ("api-slow", "the agents follow a directory here; the layer `apiserver` has the API server"),
    ("clock-set", "the wall clock belongs to the machine, not to a namespace"),
    ("peer-other-mode", "this needs a kernel with IPVS; the layer `vm` has mode changes"),
];

/// Returns all faults, in the order of the table.
#[must_use]
pub fn all() -> Vec<Fault> {
    [
        agents::FAULTS,
        memory::FAULTS,
        source::FAULTS,
        services::FAULTS,
        backends::FAULTS,
        network::FAULTS,
        tables::FAULTS,
        programs::FAULTS,
        pins::FAULTS,
    ]
    .concat()
}

/// Returns the steps of an upgrade, in their order.
#[must_use]
pub const fn of_upgrade() -> &'static [Fault] {
    upgrade::FAULTS
}

/// Pairs that are played at once. The first begins first, and is mended last.
const PAIRS: [(&str, &[&str]); 9] = [
    (
        "agent-killed",
        &[
            "backend-killed",
            "device-down",
            "device-renamed",
            "uplink-replaced",
            "address-changed",
            "route-changed",
            "neighbour-gone",
            "mtu-lowered",
            "maps-full",
            "conntrack-flushed",
            "program-before",
        ],
    ),
    ("agent-frozen", &["maps-full", "route-changed"]),
    ("source-away", &["backend-killed", "device-renamed", "conntrack-flushed"]),
    ("flow-tables-resized", &["route-changed", "backend-killed"]),
    ("snat-ports-changed", &["neighbour-gone"]),
    ("maps-full", &["device-down", "conntrack-flushed"]),
    ("mtu-lowered", &["route-changed"]),
    ("address-changed", &["program-instead"]),
    ("pins-lost", &["neighbour-gone"]),
];

/// Losses that a pair may cause beside those of its faults.
const OF_PAIRS: [(&str, &str, &[Allowance]); 1] = [(
    "agent-killed",
    "uplink-replaced",
    &[Allowance {
        loss: Loss::Cut,
        ways: &[Way::NodePort],
        backend: None,
        bound: Bound::Most(30),
        because: "the new uplink has no program until an agent runs, so the kernel of node 3 refuses its packets",
    }],
)];

/// Returns the losses that faults may cause at once, beside those of each.
pub(super) fn allowed_at_once(faults: &[&Fault]) -> &'static [Allowance] {
    let [first, other] = faults else { return &[] };
    let of_pair = OF_PAIRS.iter().find(|pair| (pair.0, pair.1) == (first.name, other.name));
    of_pair.map_or(&[], |pair| pair.2)
}

/// Returns the pairs.
#[must_use]
pub(super) fn pairs(faults: &[Fault]) -> Vec<Vec<&Fault>> {
    let named = |name: &str| faults.iter().find(|fault| fault.name == name);
    let pairs = PAIRS.iter().flat_map(|(first, others)| others.iter().map(move |other| (first, other)));
    pairs.filter_map(|(first, other)| Some(vec![named(first)?, named(other)?])).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_fault_has_a_name_of_its_own_and_each_allowance_a_reason() {
        for faults in [all(), of_upgrade().to_vec()] {
            let names: BTreeSet<&str> = faults.iter().map(|fault| fault.name).collect();
            assert_eq!(names.len(), faults.len());
            for fault in &faults {
                assert!(!fault.what.is_empty() && fault.short <= fault.long, "{}", fault.name);
                for allowance in fault.allowed {
                    assert!(allowance.because.len() > 20 && !allowance.ways.is_empty(), "{}", fault.name);
                }
            }
        }
    }

    #[test]
    fn no_step_of_an_upgrade_is_played_alone() {
        let names: BTreeSet<&str> = all().iter().map(|fault| fault.name).collect();
        // Both tables begin with the traffic alone.
        let shared: Vec<&str> =
            of_upgrade().iter().map(|step| step.name).filter(|name| names.contains(name)).collect();
        assert_eq!(shared, ["nothing"]);
    }

    #[test]
    fn an_upgrade_costs_nothing() {
        let upgrades = of_upgrade().iter().filter(|step| !step.name.contains("rolled-back"));
        assert!(upgrades.clone().all(|step| step.allowed.is_empty() && step.right.is_none()));
        assert_eq!(upgrades.count(), of_upgrade().len() - 1);
    }

    #[test]
    fn all_pairs_are_of_known_faults() {
        let wanted: usize = PAIRS.iter().map(|(_, others)| others.len()).sum();
        let faults = all();
        let pairs = pairs(&faults);
        assert_eq!(pairs.len(), wanted);
        let allowed = pairs.iter().filter(|pair| !allowed_at_once(pair).is_empty()).count();
        assert_eq!(allowed, OF_PAIRS.len());
    }
}
