//! Faults of a node's network: devices, addresses, routes, neighbours.

use std::net::SocketAddr;

use anyhow::{Context, Result};

use crate::drill::fault::{Allowance, Bound, Fault, Loss, Mend};
use crate::drill::ground::{Ground, NODES};
use crate::drill::way::Way;
use crate::net::Netlink;
use crate::process;
use crate::topology::Family;

/// The ways with a backend on node 3, or through it.
const THROUGH_NODE_3: &[Way] = &[Way::Snat, Way::DsrIpip, Way::DsrFou, Way::NodePort, Way::Socket];

/// The faults of this file.
pub(super) const FAULTS: &[Fault] = &[
    Fault::new("device-renamed", "The device of pod-3a gets another name, and its own back.", rename)
        .allowing(&[Allowance {
            loss: Loss::Lost,
            ways: &[Way::Snat, Way::DsrIpip, Way::Socket],
            backend: Some("pod-3a"),
            bound: Bound::Most(40),
            because: "Linux renames only a device that is down; it is down for some milliseconds, twice",
        }])
        .right_after(3, "TCP repeats a lost SYN after a second"),
    Fault::new(
        "uplink-replaced",
        "The uplink of node 3 is pulled out, and another one of the same name and MAC address comes.",
        replace_uplink,
    )
    .allowing(&[at_node_3(Loss::Failed, Bound::PerSecond(75)), at_node_3(Loss::Lost, Bound::PerSecond(300))])
    .right_after(15, "node 3 has no network until the repair; TCP doubles its pause with each repetition"),
    Fault::new("address-changed", "The uplink of node 1 gets a second address, and loses it.", add_address),
    Fault::new(
        "route-changed",
        "Node 1 reaches node 2 and its pods through the router, and then directly again.",
        change_routes,
    ),
    Fault::new("neighbour-gone", "All nodes forget their neighbours.", forget_neighbours),
    Fault::new(
        "mtu-lowered",
        "The wires to all nodes carry 1400 bytes only. Bodies of 200 kB must arrive meanwhile.",
        lower_mtu,
    ),
];

const fn at_node_3(loss: Loss, bound: Bound) -> Allowance {
    let because = "node 3 has no network until the repair";
    Allowance { loss, ways: THROUGH_NODE_3, backend: None, bound, because }
}

fn rename(ground: &mut Ground) -> Result<Mend> {
    let device = ground.cluster().bed().pod("pod-3a")?.device();
    let rename = |ground: &Ground, from: &str, to: &str| {
        ground.ip(3, &["link", "set", from, "down"])?;
        ground.ip(3, &["link", "set", from, "name", to])?;
        ground.ip(3, &["link", "set", to, "up"])
    };
    rename(ground, &device, "veth-other")?;
    Ok(Box::new(move |ground| rename(ground, "veth-other", &device)))
}

fn replace_uplink(ground: &mut Ground) -> Result<Mend> {
    let bed = ground.cluster().bed();
    let mac = bed.node(3)?.namespace().run(async || Netlink::open()?.mac_of("eth0").await)?;
    bed.delete_uplink(3)?;
    Ok(Box::new(move |ground| {
        let bed = ground.cluster().bed();
        bed.restore_uplink(3)?;
        bed.node(3)?.namespace().run(async move || Netlink::open()?.set_mac("eth0", mac).await)?;
        // Beside another fault the agent may be dead. It attaches its programs when it starts.
        if ground.cluster().has_agent(3) { ground.cluster().wait_for_hooks(3) } else { Ok(()) }
    }))
}

fn add_address(ground: &mut Ground) -> Result<Mend> {
    fn change(ground: &Ground, verb: &str) -> Result<()> {
        ["172.30.0.201/24", "2001:db8:a::201/64"]
            .into_iter()
            .try_for_each(|address| ground.ip(1, &["address", verb, address, "dev", "eth0"]))
    }
    change(ground, "add")?;
    Ok(Box::new(|ground| change(ground, "delete")))
}

fn change_routes(ground: &mut Ground) -> Result<Mend> {
    let bed = ground.cluster().bed();
    let (node, pods) = (bed.node(2)?.addresses(), ["10.244.2.0/24", "2001:db8:f:2::/64"]);
    let router = ["172.30.0.1", "2001:db8:a::1"];
    for (family, (network, router)) in Family::ALL.into_iter().zip(pods.into_iter().zip(router)) {
        ground.ip(1, &["route", "replace", &node.of(family).to_string(), "via", router])?;
        ground.ip(1, &["route", "replace", network, "via", router])?;
    }
    Ok(Box::new(move |ground| {
        for (family, (network, router)) in Family::ALL.into_iter().zip(pods.into_iter().zip(router)) {
            let address = node.of(family).to_string();
            ground.ip(1, &["route", "delete", &address, "via", router])?;
            ground.ip(1, &["route", "replace", network, "via", &address])?;
        }
        Ok(())
    }))
}

fn forget_neighbours(ground: &mut Ground) -> Result<Mend> {
    // `ip` deletes again and again until no entry is left. Not those that the kernel asks for just then: it refuses the
    // packets that wait for such an entry.
    let known = ["reachable", "stale", "delay", "probe"].map(|state| ["nud", state]);
    for (node, device) in NODES.iter().flat_map(|node| ["eth0", "cni0"].map(|device| (*node, device))) {
        ground.ip(node, &[&["neighbour", "flush", "dev", device], known.as_flattened()].concat())?;
    }
    Ok(Box::new(|_| Ok(())))
}

fn lower_mtu(ground: &mut Ground) -> Result<Mend> {
    /// Sets both ends of the wires.
    fn set(ground: &Ground, bytes: &str) -> Result<()> {
        let bed = ground.cluster().bed();
        for node in bed.nodes() {
            ground.ip(node.number(), &["link", "set", "eth0", "mtu", bytes])?;
            process::output(bed.router(), &["ip", "link", "set", node.name(), "mtu", bytes])?;
        }
        Ok(())
    }
    set(ground, "1400")?;
    Ok(Box::new(|ground| {
        let exchanged = exchange_bodies(ground);
        set(ground, "1500")?;
        exchanged
    }))
}

/// Sends bodies through all ways of the outside client, and back.
fn exchange_bodies(ground: &Ground) -> Result<()> {
    for (way, family) in Way::OUTSIDE.into_iter().flat_map(|way| Family::ALL.map(|family| (way, family))) {
        let target: SocketAddr = way.target(ground.cluster(), family)?;
        let exchanged = ground.cluster().exchange(target, 200_000);
        exchanged.with_context(|| format!("a body through {way} {family}"))?;
    }
    Ok(())
}
