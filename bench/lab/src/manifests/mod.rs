//! The cluster's objects, as a directory of manifests that the agents watch.

mod service;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

pub use service::Service;

use crate::topology::{Bed, Node, Pod};

/// Returns whether all agents carry out NetworkPolicies, and policies select all pods and allow everything:
/// `MILLRACE_POLICIES=on`. Each test must pass with it as without.
#[must_use]
pub fn has_policies() -> bool {
    std::env::var("MILLRACE_POLICIES").is_ok_and(|value| value == "on")
}

/// The directory that all agents of a bed follow.
#[derive(Clone, Debug)]
pub struct Manifests {
    directory: PathBuf,
    staging: PathBuf,
}

impl Manifests {
    /// Makes the bed's directory of manifests, with the Node objects in it.
    pub fn create(bed: &Bed) -> Result<Self> {
        let directory = bed.directory().join("manifests");
        fs::create_dir_all(&directory)?;
        let manifests = Self { directory, staging: bed.directory().join("staging") };
        // JSON is a part of YAML.
        let nodes = json!({"apiVersion": "v1", "kind": "List", "items": nodes(bed)});
        manifests.put("nodes.yaml", &nodes.to_string())?;
        if has_policies() {
            let objects = json!({"apiVersion": "v1", "kind": "List", "items": allowed_pods(bed)});
            manifests.put("policies-for-all.yaml", &objects.to_string())?;
        }
        Ok(manifests)
    }

    /// Returns the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// Writes a file in one step, so that no agent reads half of it.
    pub fn put(&self, name: &str, text: &str) -> Result<()> {
        fs::write(&self.staging, text)?;
        let path = self.directory.join(name);
        fs::rename(&self.staging, &path).with_context(|| format!("can't write {}", path.display()))
    }

    /// Writes a Service and its EndpointSlices to `<name>.yaml`.
    pub fn put_service(&self, service: &Service) -> Result<()> {
        self.put(&format!("{}.yaml", service.name()), &service.manifest())
    }

    /// Removes a file.
    pub fn remove(&self, name: &str) -> Result<()> {
        let path = self.directory.join(name);
        fs::remove_file(&path).with_context(|| format!("can't remove {}", path.display()))
    }
}

/// Returns the pods of a bed, and a policy that selects them all and allows everything. The firewall then looks at each
/// packet of theirs.
fn allowed_pods(bed: &Bed) -> Vec<Value> {
    let pod = |node: &Node, pod: &Pod| {
        let addresses = pod.addresses().both().map(|address| json!({"ip": address}));
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": "bed", "name": pod.name(), "uid": pod.name()},
            "spec": {"nodeName": node.name(), "containers": []},
            "status": {"podIPs": addresses},
        })
    };
    let pods = bed.nodes().iter().flat_map(|node| node.pods().iter().map(move |one| pod(node, one)));
    let all = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"namespace": "bed", "name": "all"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{}], "egress": [{}]},
    });
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bed"}});
    pods.chain([namespace, all]).collect()
}

/// Returns the Node objects of a bed.
#[must_use]
pub fn nodes(bed: &Bed) -> Vec<Value> {
    let object = |node: &Node| {
        let addresses =
            node.addresses().both().map(|address| json!({"type": "InternalIP", "address": address}));
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": node.name()},
            "spec": {"podCIDRs": node.pod_ranges()},
            "status": {"addresses": addresses},
        })
    };
    bed.nodes().iter().map(object).collect()
}
