//! The devices towards pods come and go.

use std::fs;
use std::net::IpAddr;

use anyhow::Result;
use ipnet::IpNet;
use millrace_lab::agent::Proxy;
use millrace_lab::cluster::Cluster;
use millrace_lab::net::{Medium, Namespace, Netlink, Wire};
use proxy_common::LAYOUT_VERSION;

use super::{Path, RELOAD, node, pod};

const HOOKS: [&str; 2] = ["tc_pod_in", "tc_pod_out"];

#[test]
fn a_pods_device_that_comes_later_is_attached_to_and_one_that_goes_leaves_nothing() -> Result<()> {
    let cluster = Path::Packets.own(1, 1)?;
    let proxy = cluster.proxy(1)?;
    proxy.wait_for_hooks("veth-1a", &HOOKS)?;
    let before = pins(proxy)?;
    let peer = Namespace::create("later-pod")?;
    let (file, device) = (peer.file()?, "veth-later");
    node(&cluster, 1)?.run(async move || {
        let netlink = Netlink::open()?;
        netlink.add_veth(device, "eth0", &file).await?;
        netlink.set_up(device).await
    })?;
    proxy.wait_for_hooks(device, &HOOKS)?;
    assert_eq!(pins(proxy)?.len(), before.len() + HOOKS.len());

    node(&cluster, 1)?.run(async move || Netlink::open()?.delete_link(device).await)?;
    proxy.wait_until("its links are gone", || Ok(pins(proxy)? == before))
}

/// Returns the names of the pinned links.
fn pins(proxy: &Proxy) -> Result<Vec<String>> {
    let links = fs::read_dir(proxy.bpffs().join(format!("millrace/v{LAYOUT_VERSION}/links")))?;
    let names = links.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<Result<Vec<_>>>()?;
    names.sort_unstable();
    Ok(names)
}

#[test]
fn devices_that_no_pattern_names_any_more_are_left() -> Result<()> {
    let mut cluster = Path::Packets.own(2, 2)?;
    cluster.proxy(1)?.wait_for_hooks("veth-1a", &HOOKS)?;
    cluster.start_agent_with(1, &["--socket-lb", "off", "--pod-interfaces", "cni0"])?;
    let proxy = cluster.proxy(1)?;
    proxy.wait_until_within(RELOAD, "the bridge alone is attached to", || {
        Ok(attached(proxy)? == ["cni0"; 2].map(str::to_owned))
    })?;
    expect_the_bridge_serves(&cluster)
}

/// Expects that the bridge serves pods. Frames between two ports do not pass the bridge device, so
/// the pods of one bridge are another matter.
fn expect_the_bridge_serves(cluster: &Cluster) -> Result<()> {
    for (number, backend) in [(1, "pod-2a"), (2, "pod-1a")] {
        let service = cluster.service(&format!("bridge-{number}"), number, &[backend])?;
        cluster.apply(&service, &[1])?;
        let from = pod(cluster, "pod-1a")?;
        Path::Packets.reaches(cluster, from, (service.cluster_ips(), 80), &[backend])?;
    }
    Ok(())
}

/// KubeVirt's case: the sockets are in another kernel, and the node sees frames of a TAP device.
#[test]
fn a_virtual_machine_reaches_services_through_its_tap_device() -> Result<()> {
    let mut cluster = Path::Packets.own(2, 1)?;
    let patterns = ["--socket-lb", "off", "--pod-interfaces", "veth*,cni0,tap*"];
    cluster.start_agent_with(1, &patterns)?;
    let node_end: [IpNet; 2] = ["10.99.0.1/24".parse()?, "2001:db8:99::1/64".parse()?];
    let guest_end: [IpNet; 2] = ["10.99.0.2/24".parse()?, "2001:db8:99::2/64".parse()?];
    let guest = Namespace::create("guest")?;
    let _wire = Wire::lay(Medium::Ethernet, "tap0", [(node(&cluster, 1)?, &node_end), (&guest, &guest_end)])?;
    cluster.proxy(1)?.wait_for_hooks("tap0", &HOOKS)?;
    for (network, version) in node_end.into_iter().zip(["0.0.0.0/0", "::/0"]) {
        let everything = version.parse()?;
        route(&guest, everything, network.addr())?;
        let first = cluster.bed().node(1)?.addresses();
        let gateway = if network.addr().is_ipv4() { first.v4.into() } else { first.v6.into() };
        route(node(&cluster, 2)?, network.trunc(), gateway)?;
    }
    for (number, backends) in [(1, ["pod-1a"].as_slice()), (2, &["pod-2a"]), (3, &["pod-1a", "pod-2a"])] {
        let service = cluster.service(&format!("guest-{number}"), number, backends)?;
        cluster.apply(&service, &[1])?;
        Path::Packets.reaches(&cluster, &guest, (service.cluster_ips(), 80), backends)?;
    }
    Ok(())
}

fn route(namespace: &Namespace, to: IpNet, gateway: IpAddr) -> Result<()> {
    namespace.run(async move || Netlink::open()?.set_route(to, gateway).await)
}

/// Returns the devices of pods' programs, one for each program.
fn attached(proxy: &Proxy) -> Result<Vec<String>> {
    let attached = proxy.attached()?.into_iter();
    let of_pods = attached.filter(|attached| HOOKS.contains(&attached.hook.as_ref()));
    Ok(of_pods.map(|attached| attached.device).collect())
}
