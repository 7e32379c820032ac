//! The devices that lead to pods come and go.

use std::fs;

use anyhow::Result;
use millrace_lab::agent::Proxy;
use millrace_lab::cluster::Cluster;
use millrace_lab::net::{Namespace, Netlink};
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

/// The names of the links that are pinned.
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

/// What a bridge passes between its ports does not come by it, so a pod beside the asking one is another matter.
fn expect_the_bridge_serves(cluster: &Cluster) -> Result<()> {
    for (number, backend) in [(1, "pod-2a"), (2, "pod-1a")] {
        let service = cluster.service(&format!("bridge-{number}"), number, &[backend])?;
        cluster.apply(&service, &[1])?;
        let from = pod(cluster, "pod-1a")?;
        Path::Packets.reaches(cluster, from, (service.cluster_ips(), 80), &[backend])?;
    }
    Ok(())
}

/// The devices of pods' programs, each as often as it has one.
fn attached(proxy: &Proxy) -> Result<Vec<String>> {
    let attached = proxy.attached()?.into_iter();
    let of_pods = attached.filter(|attached| HOOKS.contains(&attached.hook.as_str()));
    Ok(of_pods.map(|attached| attached.device).collect())
}
