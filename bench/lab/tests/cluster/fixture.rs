//! The common cluster of the tests, with clients in pods and on nodes.

use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use millrace_lab::kubernetes::{Assets, Cluster, Kubectl, Mode, Proxy, Settings, wait};
use serde_json::Value;

use super::objects;

/// The longest time of pods to start or end.
pub const PODS_LIMIT: Duration = Duration::from_secs(90);
/// The longest time of a change to reach all nodes.
pub const CHANGE_LIMIT: Duration = Duration::from_secs(20);
/// The number of nodes.
pub const NODES: u8 = 3;

/// The cluster, with everything running. The tests take turns.
pub fn shared() -> MutexGuard<'static, Cluster> {
    static SHARED: LazyLock<Mutex<Cluster>> = LazyLock::new(|| Mutex::new(start().unwrap()));
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the proxy under test.
pub fn proxy() -> Proxy {
    let name = std::env::var("MILLRACE_CLUSTER_PROXY").unwrap_or_else(|_| "millrace".to_owned());
    Proxy::from_str(&name, true).unwrap()
}

/// Returns what the cluster is made of.
pub fn assets() -> Result<Assets> {
    Assets::from_environment(PathBuf::from(env!("CARGO_BIN_EXE_millrace-lab")))
}

fn start() -> Result<Cluster> {
    let settings =
        Settings { name: String::new(), nodes: NODES, proxy: proxy(), mode: Mode::Ebpf, values: Vec::new() };
    let cluster = Cluster::up_until_exit(&settings, &assets()?)?;
    let kubectl = cluster.kubectl();
    kubectl.apply(&objects::clients())?;
    kubectl.apply(&objects::backends("web", NODES.into()))?;
    for workload in ["daemonset/pod-client", "daemonset/node-client", "deployment/web"] {
        roll_out(&kubectl, workload)?;
    }
    Ok(cluster)
}

/// Waits until a workload has all its pods.
pub fn roll_out(kubectl: &Kubectl, workload: &str) -> Result<()> {
    let limit = format!("--timeout={}s", PODS_LIMIT.as_secs());
    kubectl.run(&["rollout", "status", workload, &limit]).map(drop)
}

/// A Service as the API server has it.
pub struct Service(Value);

impl Service {
    /// Applies a Service, gives it load balancer addresses, and reads it back.
    pub fn put(kubectl: &Kubectl, object: Value, addresses: &[&str]) -> Result<Self> {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        kubectl.apply(&[object])?;
        if !addresses.is_empty() {
            let ingress: Vec<_> = addresses.iter().map(|ip| serde_json::json!({"ip": ip})).collect();
            let patch = serde_json::json!({"status": {"loadBalancer": {"ingress": ingress}}}).to_string();
            kubectl.run(&[
                "patch",
                "service",
                &name,
                "--subresource=status",
                "--type=merge",
                "-p",
                &patch,
            ])?;
        }
        Ok(Self(kubectl.json(&["get", "service", &name])?))
    }

    /// Returns its ClusterIPs.
    pub fn cluster_ips(&self) -> Vec<String> {
        let addresses = self.0["spec"]["clusterIPs"].as_array().unwrap();
        addresses.iter().map(|address| address.as_str().unwrap().to_owned()).collect()
    }

    /// Returns the node port of a port.
    pub fn node_port(&self, port: &str) -> u16 {
        let ports = self.0["spec"]["ports"].as_array().unwrap();
        let found = ports.iter().find(|found| found["name"] == port).unwrap();
        found["nodePort"].as_u64().unwrap().try_into().unwrap()
    }

    /// Returns the port of the health check for load balancers.
    pub fn health_check_port(&self) -> u16 {
        self.0["spec"]["healthCheckNodePort"].as_u64().unwrap().try_into().unwrap()
    }
}

/// Waits until the cluster has as many pods of an app as wanted, all ready.
pub fn wait_for_pods(kubectl: &Kubectl, app: &str, count: usize) -> Result<()> {
    let label = format!("app={app}");
    wait("pods", PODS_LIMIT, || {
        let pods = kubectl.json(&["get", "pods", "--selector", &label])?;
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        ensure!(pods.len() == count, "{} pods of {app} are there", pods.len());
        Ok(())
    })
}
