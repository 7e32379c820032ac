//! A Kubernetes namespace of a test's own: objects in, and a node's maps of it out, as lines of
//! text.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use millrace_lab::agent;
use millrace_lab::apiserver::Kube;
use millrace_lab::cluster::Cluster;
use serde_json::{Value, json};

pub const SLICES: &str = "discovery.k8s.io/v1";

/// The namespace. Its Services and EndpointSlices are deleted on drop.
pub struct Scene<'a> {
    cluster: &'a Cluster,
    namespace: &'static str,
}

impl<'a> Scene<'a> {
    pub fn new(cluster: &'a Cluster, namespace: &'static str) -> Result<Self> {
        let scene = Self { cluster, namespace };
        scene
            .kube()
            .put(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}))?;
        Ok(scene)
    }

    pub fn kube(&self) -> &Kube {
        self.cluster.api_server().expect("the shared cluster has one").kube()
    }

    /// Puts a Service: its spec, and its other top-level fields.
    pub fn service(&self, name: &str, spec: Value, more: Value) -> Result<()> {
        let mut object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {}, "spec": spec});
        merge(&mut object, more);
        self.put(name, object)
    }

    /// Puts an IPv4 EndpointSlice of a Service with one unnamed port over TCP.
    pub fn slice(&self, name: &str, service: &str, port: u16, endpoints: Value) -> Result<()> {
        self.slice_with(name, service, json!({"ports": [{"port": port}], "endpoints": endpoints}))
    }

    /// Puts an EndpointSlice of a Service, of IPv4 unless `fields` have another address type.
    pub fn slice_with(&self, name: &str, service: &str, fields: Value) -> Result<()> {
        let mut object = json!({
            "apiVersion": SLICES,
            "kind": "EndpointSlice",
            "metadata": {"labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4",
        });
        merge(&mut object, fields);
        self.put(name, object)
    }

    pub fn delete_service(&self, name: &str) -> Result<()> {
        self.kube().delete("v1", "Service", self.namespace, name)
    }

    pub fn delete_slice(&self, name: &str) -> Result<()> {
        self.kube().delete(SLICES, "EndpointSlice", self.namespace, name)
    }

    /// Waits until a node's maps have exactly these lines of the namespace.
    pub fn expect(&self, node: u8, lines: &[&str]) -> Result<()> {
        let proxy = self.cluster.proxy(node)?;
        let waited = proxy.wait_until("the maps have it", || Ok(self.lines(node)? == lines));
        if let Err(error) = waited {
            bail!(
                "wanted on node{node}:\n{}\nfound:\n{}\n{error:#}",
                lines.join("\n"),
                self.lines(node)?.join("\n")
            );
        }
        Ok(())
    }

    /// Waits as [`expect`](Self::expect) does, on every served node.
    pub fn expect_everywhere(&self, lines: &[&str]) -> Result<()> {
        crate::fixture::SERVED.into_iter().try_for_each(|node| self.expect(node, lines))
    }

    /// Returns the lists in a node's maps for clients of uplinks, one a line.
    pub fn lines(&self, node: u8) -> Result<Vec<String>> {
        let rows = self.cluster.proxy(node)?.services()?;
        let own = rows.iter().filter(|row| row.namespace == self.namespace);
        Ok(own.filter_map(line).collect())
    }

    fn put(&self, name: &str, mut object: Value) -> Result<()> {
        object["metadata"]["namespace"] = self.namespace.into();
        object["metadata"]["name"] = name.into();
        self.kube().put(object)
    }
}

impl Drop for Scene<'_> {
    fn drop(&mut self) {
        for (version, kind) in [("v1", "Service"), (SLICES, "EndpointSlice")] {
            for object in self.kube().list(version, kind, self.namespace).unwrap_or_default() {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let _ = self.kube().delete(version, kind, self.namespace, name);
            }
        }
    }
}

/// `web:http IPv4 Cluster [NodePort 172.30.0.11:30080 TCP] -> 10.244.1.10:8080`
fn line(row: &agent::ServiceView) -> Option<String> {
    let mut frontends: Vec<String> =
        row.frontends.iter().filter(|frontend| frontend.scope == "external").map(frontend).collect();
    if frontends.is_empty() {
        return None;
    }
    frontends.sort_unstable();
    let backends: Vec<String> = row.backends.iter().map(ToString::to_string).collect();
    let backends = match (backends.is_empty(), row.elsewhere) {
        (true, true) => "none here".to_owned(),
        (true, false) => "none".to_owned(),
        (false, _) => backends.join(" "),
    };
    let port = if row.port.is_empty() { String::new() } else { format!(":{}", row.port) };
    Some(format!("{}{port} {} {} {} -> {backends}", row.name, row.family, row.list, frontends.join(" ")))
}

fn frontend(frontend: &agent::FrontendView) -> String {
    let mut text = format!("[{} {} {}", frontend.kind, frontend.address, frontend.protocol);
    if frontend.forwarding != "snat" {
        let _ = write!(text, " {}", frontend.forwarding);
    }
    if frontend.affinity_seconds != 0 {
        let _ = write!(text, " affinity {} s", frontend.affinity_seconds);
    }
    if let Some(ranges) = &frontend.source_ranges {
        let ranges: Vec<_> = ranges.iter().map(ToString::to_string).collect();
        let _ = write!(text, " from {}", ranges.join(","));
    }
    text.push(']');
    text
}

/// Sets fields. Objects on both sides are merged.
fn merge(object: &mut Value, fields: Value) {
    match (object, fields) {
        (Value::Object(object), Value::Object(fields)) => {
            for (name, field) in fields {
                merge(object.entry(name).or_insert(Value::Null), field);
            }
        }
        (object, field) => *object = field,
    }
}
