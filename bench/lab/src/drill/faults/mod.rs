//! The faults.

mod agents;
mod backends;
mod network;
mod pins;
mod programs;
mod source;
mod tables;

pub(crate) use pins::pins;
pub(crate) use tables::entries;

use super::fault::Fault;

/// Faults that this test bed can't play, and the reasons.
pub const NOT_PLAYABLE: [(&str, &str); 4] = [
    ("api-slow", "the agents follow a directory here; the layer `apiserver` has the API server"),
    ("clock-set", "the wall clock belongs to the machine, not to a namespace"),
    ("peer-other-mode", "this needs a kernel with IPVS; the layer `vm` has mode changes"),
    ("peer-other-version", "there is no released version yet"),
];

/// Returns all faults, in the order of the table.
#[must_use]
pub fn all() -> Vec<Fault> {
    [
        agents::FAULTS,
        source::FAULTS,
        backends::FAULTS,
        network::FAULTS,
        tables::FAULTS,
        programs::FAULTS,
        pins::FAULTS,
    ]
    .concat()
}

/// Returns the pairs of the long form: a fault of the network or of a node while all agents are dead.
#[must_use]
pub(super) fn pairs(faults: &[Fault]) -> Vec<Vec<&Fault>> {
    let named = |name: &str| faults.iter().find(|fault| fault.name == name);
    let others = ["backend-killed", "device-down"];
    let pair = |other: &str| Some(vec![named("agent-killed")?, named(other)?]);
    others.iter().filter_map(|other| pair(other)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_fault_has_a_name_of_its_own_and_each_allowance_a_reason() {
        let faults = all();
        let names: BTreeSet<&str> = faults.iter().map(|fault| fault.name).collect();
        assert_eq!(names.len(), faults.len());
        for fault in &faults {
            assert!(!fault.what.is_empty() && fault.short <= fault.long, "{}", fault.name);
            for allowance in fault.allowed {
                assert!(allowance.because.len() > 20 && !allowance.ways.is_empty(), "{}", fault.name);
            }
        }
    }

    #[test]
    fn all_pairs_are_of_known_faults() {
        assert_eq!(pairs(&all()).len(), 2);
    }
}
