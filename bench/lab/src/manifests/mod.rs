//! The cluster's objects, as a directory of manifests that the agents watch.

mod service;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

pub use service::Service;

use crate::topology::{Bed, Node};

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
