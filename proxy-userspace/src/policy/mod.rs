//! Says which connections NetworkPolicies allow. Pure: no I/O, no clock, no aya.
//!
//! A change is parsed at once: text becomes selectors, prefixes and ports, and the rest a [`Problem`].
//! [`Index::compile`] turns the objects into the tables of one node, and [`Compiled::decide`] reads these
//! tables as a program would: one longest-prefix look-up for the peer, one for protocol and port.
//! [`Index::step`] brings the tables to pods that come and go.
//! [`Index::explain`] answers the same question from the objects, and names policies and rules.
//!
//! What the API leaves open, or what cannot be done as it says, is decided here:
//!
//! - **Pods of the host's network.** Policies do not select them, and selectors of peers do not match them.
//!   Their address is that of their node, and no program can tell the two apart. The API leaves this to the
//!   implementation and calls it the usual choice. An `ipBlock` matches the node's address.
//! - **The own node.** It always reaches its pods, since the kubelet's probes come from there. The other
//!   way round, policies apply to a pod's packets to its node. Kubernetes' page on policies lets these pass, too; then a
//!   pod that may reach nothing would reach all ports of its node. Calico and Cilium judge them as well.
//! - **A name of several ports.** All ports of the pod with this name and protocol count.
//! - **A name of a port behind an `ipBlock`.** It is the port of the pod that has the peer's address. An
//!   address without a pod has no names.
//! - **A namespace that is not known.** Its labels may be anything. Only what holds in any case holds: the
//!   empty selector, and its name as `kubernetes.io/metadata.name`.
//! - **An address of several pods**, as between two changes. It counts for a rule only where the rule
//!   admits each of these pods.
//! - **Other protocols**, such as ICMP. A rule without ports admits them, a rule with ports does not.
//!
//! An invalid part never admits more than the valid rest: an invalid peer or port matches nothing. A policy
//! with an invalid `podSelector` isolates the pods that the rest of the selector matches, and allows nothing.
#![forbid(unsafe_code)]

mod basis;
mod block;
mod changes;
mod classes;
mod compile;
mod compiled;
mod explain;
mod index;
mod labels;
mod numbers;
mod object;
mod pod;
mod ports;
mod prefixes;
mod problem;
mod rule_set;
mod sets;
mod spec;
mod step;
mod unresolved;
mod view;

pub use basis::Site;
pub use changes::Changes;
pub use compile::LocalPod;
pub use compiled::{Compiled, Decision, PeerEntry, RuleKey, Rules, SelectedPod, Traffic};
pub use explain::{Connection, Explanation, RuleName, Side, Verdict};
pub use index::Index;
pub use object::{Change, Kind, NamespacedName, Object, ObjectKey};
pub use prefixes::Prefixes;
pub use problem::Problem;
pub use spec::Direction;
pub use step::Step;
pub use view::{PodView, Selecting};

#[cfg(test)]
#[path = "../../tests/clusters/mod.rs"]
#[expect(dead_code, reason = "other tests need the rest")]
mod clusters;
#[cfg(test)]
mod invalid_tests;
#[cfg(test)]
mod pods_tests;
#[cfg(test)]
mod scale_tests;
#[cfg(test)]
mod semantics_tests;
#[cfg(test)]
mod step_tests;
#[cfg(test)]
mod tables_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod truth_tests;
