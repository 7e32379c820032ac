//! A draining server is removed after its last connection.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use millrace_lab::topology::vip;
use millrace_lab::traffic::LongConnections;

use crate::fixture::{Altered, FLAGS, apply, servers, start_agent};

/// The longest wait. Agents check once a minute, and an emulated machine is slow.
const LIMIT: Duration = Duration::from_mins(3);
/// Makes IPVS forget a closed connection after one second. Its default is two minutes.
const CONFIG: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
ipvs: {tcpTimeout: 900s, tcpFinTimeout: 1s, udpTimeout: 300s}
";

#[test]
fn a_server_is_removed_when_its_last_connection_has_ended() -> Result<()> {
    let mut cluster = Altered::new(|cluster| start_agent(cluster, 1, &FLAGS));
    let path = cluster.bed().directory().join("kube-proxy.yaml");
    std::fs::write(&path, CONFIG)?;
    start_agent(&mut cluster, 1, &[&FLAGS[..], &["--config", &path.to_string_lossy()]].concat())?;
    let of =
        |pods: &[&str]| Ok::<_, anyhow::Error>(cluster.service("drained", 25, pods)?.load_balancer(vip(25)));
    apply(&cluster, 25, &of(&["pod-1a", "pod-2a"])?)?;
    let target = SocketAddr::new(vip(25).v4.into(), 80);
    let connections = LongConnections::open(cluster.bed().client(), target, 4, 2)?;
    apply(&cluster, 25, &of(&["pod-2a"])?)?;
    let weights = || Ok::<_, anyhow::Error>(servers(&cluster, target)?.into_iter().map(|(_, weight)| weight));
    assert_eq!(weights()?.filter(|weight| *weight == 0).count(), 1);
    assert_eq!(connections.stop()?, 6);
    cluster.proxy(1)?.wait_until_within(LIMIT, "the server is gone", || Ok(weights()?.eq([1])))
}
