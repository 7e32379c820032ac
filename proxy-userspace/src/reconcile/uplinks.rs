//! The failures of a sync that concern the uplinks, in either data plane.
//!
//! A retry would not help: the node monitor publishes a new topology when a device appears.

use crate::dataplane::SyncFailure;
use crate::node::Topology;

/// Returns this node's failure where no device is an uplink.
pub(super) fn none(topology: &Topology) -> Option<SyncFailure> {
    let hint = if topology.missing_uplinks.is_empty() { ": name it with --uplinks" } else { "" };
    (!topology.has_uplink()).then(|| SyncFailure::Node(format!("no device is an uplink{hint}")))
}

/// Returns a failure for each device that `--uplinks` names and that does not exist.
pub(super) fn missing(topology: &Topology) -> impl Iterator<Item = SyncFailure> {
    topology.missing_uplinks.iter().map(|name| {
        SyncFailure::Device(format!(
            "--uplinks: there is no device {name}; it is taken up as soon as it appears"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(uplinks: &[&str], missing: &[&str]) -> Vec<String> {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let topology =
            Topology { uplinks: names(uplinks), missing_uplinks: names(missing), ..Topology::default() };
        let failures = none(&topology).into_iter().chain(super::missing(&topology));
        failures.map(|failure| format!("{}: {failure}", failure.concern())).collect()
    }

    #[test]
    fn an_uplink_that_is_not_there_is_named_and_none_at_all_is_the_nodes_failure() {
        let missing = "device: --uplinks: there is no device eth9; it is taken up as soon as it appears";
        assert_eq!(words(&["eth0"], &[]), [""; 0]);
        assert_eq!(words(&["eth0"], &["eth9"]), [missing]);
        assert_eq!(words(&[], &["eth9"]), ["node: no device is an uplink", missing]);
        assert_eq!(words(&[], &[]), ["node: no device is an uplink: name it with --uplinks"]);
    }
}
