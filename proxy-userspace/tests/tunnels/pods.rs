//! Pods that decapsulate themselves (`--dsr-dispatch pod`), as pods that kube-router has prepared.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use millrace_lab::capture::{Capture, Trail};
use millrace_lab::cluster::{Cluster, TARGET_PORT};
use millrace_lab::manifests::Service;
use millrace_lab::net::write_sysctl;
use millrace_lab::topology::{Dual, Family, vip};
use millrace_lab::traffic::{LongConnections, Protocol, Server, ask};

use crate::lab::{BODY, Lab, ip};

const FOU: [&str; 4] = ["--dsr-dispatch", "pod", "--dsr-encap", "fou"];
const LIMIT: Duration = Duration::from_secs(20);

/// A Service at node 1, with a pod that decapsulates and has a server of another name at the
/// Service's address.
struct Prepared {
    vip: Dual,
    _server: Server,
}

fn itself(pod: &str) -> String {
    format!("{pod} itself")
}

fn prepare(cluster: &Cluster, number: u8, name: &str) -> Result<Prepared> {
    let bed = cluster.bed();
    let (pod, node, vip) = (bed.pod(name)?, bed.node_of(name)?, vip(number));
    for words in ["link set lo up", "link set tunl0 up", "link set ip6tnl0 up"] {
        ip(pod.namespace(), words)?;
    }
    ip(pod.namespace(), &format!("address add {}/32 dev lo", vip.v4))?;
    ip(pod.namespace(), &format!("address add {}/128 dev lo nodad", vip.v6))?;
    for (namespace, device) in [(pod.namespace(), "tunl0"), (node.namespace(), "cni0")] {
        namespace.run(async move || {
            write_sysctl("net/ipv4/conf/all/rp_filter", "0")?;
            write_sysctl(&format!("net/ipv4/conf/{device}/rp_filter"), "0")
        })?;
    }
    let server = Server::at(pod.namespace(), &itself(name), vip, TARGET_PORT)?;
    let service = Service::new(&format!("taken-{number}"), number).port(TARGET_PORT, TARGET_PORT);
    let service = service.load_balancer(vip).annotation("millrace.dev/forwarding", "dsr").pod(node, pod);
    cluster.apply(&service, &[1, 2])?;
    Ok(Prepared { vip, _server: server })
}

fn asked(cluster: &Cluster, vip: Dual, family: Family, protocol: Protocol) -> Result<String> {
    let answer = ask(cluster.bed().client(), protocol, SocketAddr::new(vip.of(family), TARGET_PORT))?;
    ensure!(answer.kept_client(), "{answer:?}");
    Ok(answer.sighting.backend)
}

fn expect_bodies(cluster: &Cluster, vip: Dual) -> Result<()> {
    for family in Family::ALL {
        cluster.exchange(SocketAddr::new(vip.of(family), TARGET_PORT), BODY)?;
    }
    Ok(())
}

/// A client's packets leave the director for the pod. The pod's answers leave its node for the
/// client.
fn takes_off_the_header(cluster: &Cluster, prepared: &Prepared) -> Result<()> {
    let bed = cluster.bed();
    let (director, pod) = (bed.node(1)?.addresses(), bed.pod("pod-2a")?.addresses());
    for (family, protocol) in Family::ALL.into_iter().flat_map(|f| Protocol::ALL.map(|p| (f, p))) {
        let frontend = SocketAddr::new(prepared.vip.of(family), TARGET_PORT);
        let mut capture = Capture::start(bed.router(), &["node1", "node2"])?;
        let answer = ask(bed.client(), protocol, frontend)?;
        assert!(answer.sighting.backend == itself("pod-2a") && answer.kept_client(), "{answer:?}");
        let sent_on = capture.wait_for(LIMIT, |captured| {
            captured.packet.is_between(answer.client, frontend) && captured.packet.tunnel.is_some()
        })?;
        let tunnel = sent_on.packet.tunnel.unwrap();
        assert_eq!((tunnel.source, tunnel.destination), (director.of(family), pod.of(family)));
        let trail = Trail::of(capture.packets()?, answer.client, frontend);
        assert_eq!(trail, Trail::direct_return("node1", "node2"));
    }
    expect_bodies(cluster, prepared.vip)
}

/// The director's own pod decapsulates as well. Translated packets reach the server at the pod's
/// own address.
fn takes_off_the_header_on_the_directors_node(cluster: &Cluster) -> Result<()> {
    let prepared = prepare(cluster, 2, "pod-1a")?;
    for (family, protocol) in Family::ALL.into_iter().flat_map(|f| Protocol::ALL.map(|p| (f, p))) {
        assert_eq!(asked(cluster, prepared.vip, family, protocol)?, itself("pod-1a"));
    }
    expect_bodies(cluster, prepared.vip)
}

#[test]
fn pods_take_off_udp_as_well() -> Result<()> {
    let lab = Lab::start("off", &FOU)?;
    let cluster = &lab.cluster;
    for pod in cluster.bed().pods() {
        ip(pod.namespace(), "fou add port 5555 ipproto 4")?;
        ip(pod.namespace(), "-6 fou add port 5555 ipproto 41")?;
    }
    takes_off_the_header(cluster, &prepare(cluster, 1, "pod-2a")?)?;
    takes_off_the_header_on_the_directors_node(cluster)
}

/// The setting changes from `node` to `pod` and back. Existing connections stay with their backend,
/// and new ones use the new way.
#[test]
fn connections_go_on_while_the_setting_is_changed() -> Result<()> {
    let mut lab = Lab::start("native", &[])?;
    let prepared = prepare(&lab.cluster, 1, "pod-2a")?;
    let mut held = Vec::new();
    let settings = [("node", "pod-2a".to_owned()), ("pod", itself("pod-2a")), ("node", "pod-2a".to_owned())];
    for (former, (dispatch, answers)) in settings.iter().enumerate() {
        if former > 0 {
            for node in [1, 2] {
                lab.start_agent(node, &["--dsr-dispatch", dispatch])?;
                lab.cluster.proxy(node)?.wait_for_start(former + 1)?;
            }
        }
        let cluster = &lab.cluster;
        for (family, protocol) in Family::ALL.into_iter().flat_map(|f| Protocol::ALL.map(|p| (f, p))) {
            cluster.proxy(1)?.wait_until(&format!("{answers} answers"), || {
                Ok(asked(cluster, prepared.vip, family, protocol)? == *answers)
            })?;
        }
        for family in Family::ALL {
            let frontend = SocketAddr::new(prepared.vip.of(family), TARGET_PORT);
            held.push((dispatch, LongConnections::open(cluster.bed().client(), frontend, 5, 5)?));
        }
    }
    for (dispatch, connections) in held {
        let kept = connections.stop().with_context(|| format!("begun by {dispatch}"))?;
        assert_eq!(kept, 10, "{dispatch}");
    }
    expect_bodies(&lab.cluster, prepared.vip)
}
