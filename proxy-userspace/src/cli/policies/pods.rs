//! The pods with the policies that select them.

use std::net::IpAddr;

use clap::Args;
use serde::Serialize;

use crate::cli::error::CliError;
use crate::cli::output::{Column, Group, List, Row, some_of};
use crate::policy::{Direction, Index, PodView};

/// The line below the table: nobody shall take it for the state of a node.
const NOTICE: &str = "By the manifests alone, and not what a node enforces.";

/// The pods to show.
#[derive(Args, Clone, Debug)]
pub struct PodArgs {
    /// Pod: NAME or NAMESPACE/NAME [default: all]
    #[arg(value_name = "POD")]
    pod: Option<String>,
    /// Pods of the manifests on the node with this name
    #[arg(long, value_name = "NAME", requires = "manifests")]
    node: Option<String>,
    /// Pods of this namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
}

/// A pod, as in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct PodRow {
    namespace: String,
    name: String,
    /// Empty before the pod is scheduled.
    node: String,
    addresses: Vec<IpAddr>,
    /// Whether it is in the host's network, where no policy selects it.
    host_network: bool,
    /// Whether a policy isolates it for connections to it.
    ingress_isolated: bool,
    /// Whether a policy isolates it for connections from it.
    egress_isolated: bool,
    policies: Vec<PolicyRow>,
}

/// A policy that selects a pod. It is in the pod's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PolicyRow {
    pub name: String,
    /// The directions in which it isolates the pod: `ingress`, `egress`.
    directions: Vec<&'static str>,
}

impl PodArgs {
    /// Returns the chosen pods. Fails if one was named and none has its name.
    pub fn list(&self, index: &Index, is_wide: bool) -> Result<List, CliError> {
        let rows: Vec<PodRow> =
            index.pods().filter(|pod| self.keeps(pod)).map(|pod| PodRow::of(&pod)).collect();
        if let (Some(pod), []) = (&self.pod, rows.as_slice()) {
            return Err(CliError::NotFound(format!("no pod in the manifests matches \"{pod}\"")));
        }
        Ok(List::new("PodPolicyList", vec![Group::of_node(&rows, is_wide)?]).with_summary(NOTICE.to_owned()))
    }

    fn keeps(&self, pod: &PodView<'_>) -> bool {
        self.names(&pod.name.namespace, &pod.name.name)
            && self.node.as_ref().is_none_or(|node| *node == pod.node)
    }

    /// Returns the pod that was named.
    pub fn pod(&self) -> Option<&str> {
        self.pod.as_deref()
    }

    /// Whether all pods are meant.
    pub const fn is_all(&self) -> bool {
        self.pod.is_none() && self.namespace.is_none()
    }

    /// Whether a pod with this name is meant.
    pub fn names(&self, namespace: &str, name: &str) -> bool {
        let is_named = self.pod.as_ref().is_none_or(|wanted| match wanted.split_once('/') {
            Some((of_wanted, wanted)) => namespace == of_wanted && name == wanted,
            None => name == *wanted,
        });
        is_named && self.namespace.as_ref().is_none_or(|wanted| *wanted == namespace)
    }
}

impl PolicyRow {
    /// Returns a policy that isolates a pod in these directions.
    pub fn new(name: String, directions: &[Direction]) -> Self {
        Self { name, directions: directions.iter().map(|direction| direction.name()).collect() }
    }
}

impl PodRow {
    fn of(pod: &PodView<'_>) -> Self {
        let policies =
            pod.policies.iter().map(|one| PolicyRow::new(one.policy.name.clone(), &one.directions));
        Self {
            namespace: pod.name.namespace.clone(),
            name: pod.name.name.clone(),
            node: pod.node.to_owned(),
            addresses: pod.addresses.iter().copied().collect(),
            host_network: pod.is_host_network,
            ingress_isolated: pod.is_isolated(Direction::Ingress),
            egress_isolated: pod.is_isolated(Direction::Egress),
            policies: policies.collect(),
        }
    }

    fn isolation(&self, is_isolated: bool) -> String {
        match (self.host_network, is_isolated) {
            (true, _) => "host network",
            (false, true) => "isolated",
            (false, false) => "open",
        }
        .to_owned()
    }
}

impl Row for PodRow {
    const COLUMNS: &'static [Column] = &[
        Column::new("NAMESPACE", "namespace"),
        Column::new("POD", "name"),
        Column::new("NODE", "node").spare(1),
        Column::new("INGRESS", "ingress_isolated"),
        Column::new("EGRESS", "egress_isolated"),
        Column::new("POLICIES", "policies"),
        Column::wide("ADDRESSES", "addresses"),
    ];

    fn cells(&self, is_wide: bool) -> Vec<String> {
        let policies: Vec<&str> = self.policies.iter().map(|policy| policy.name.as_str()).collect();
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        vec![
            self.namespace.clone(),
            self.name.clone(),
            self.node.clone(),
            self.isolation(self.ingress_isolated),
            self.isolation(self.egress_isolated),
            if is_wide { policies.join(",") } else { some_of(&policies) },
            addresses.join(","),
        ]
    }

    fn name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}
