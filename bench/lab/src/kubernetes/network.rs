//! The namespaces and the wires between them.
//!
//! A bridge on the control machine joins the nodes. The same machine routes between the nodes and the
//! client outside. Static routes lead to the pods of each node.

use std::net::IpAddr;

use anyhow::Result;
use ipnet::IpNet;

use super::plan::{API_ADDRESS, CONTROL, OUTSIDE, Plan, net, node_name, with_prefix};
use crate::net::{Namespace, Netlink, Offload, set_offload, write_sysctl};
use crate::topology::Wire;

/// The bridge between the nodes.
const FABRIC: &str = "fabric";
/// The device of a node, and of the client outside.
const UPLINK: &str = "eth0";

/// Makes all namespaces and joins them. They stay when this process ends.
pub(super) fn create(plan: &Plan, wire: Wire) -> Result<()> {
    let control = Namespace::create_lasting(&plan.namespace(CONTROL))?;
    control.run(async || {
        forward()?;
        let netlink = Netlink::open()?;
        netlink.add_bridge(FABRIC).await?;
        netlink.add_address(FABRIC, net(API_ADDRESS, 32)).await?;
        add_addresses(&netlink, FABRIC, Plan::control()).await
    })?;
    for number in 1..=plan.nodes {
        add_node(plan, &control, number, wire)?;
    }
    add_outside(plan, &control, wire)
}

/// Removes the namespaces of a cluster. They end with their processes.
pub(super) fn remove(name: &str) {
    let prefix = Plan::prefix(name);
    for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        if let Some(found) = entry.file_name().to_str().filter(|found| found.starts_with(&prefix)) {
            Namespace::delete(found);
        }
    }
}

fn add_node(plan: &Plan, control: &Namespace, number: u8, wire: Wire) -> Result<()> {
    let node = Namespace::create_lasting(&plan.namespace(&node_name(number)))?;
    let file = node.file()?;
    control.run(async move || {
        let netlink = Netlink::open()?;
        let port = node_name(number);
        netlink.add_veth(&port, UPLINK, &file).await?;
        set_wire(wire, &port)?;
        netlink.add_port(FABRIC, &port).await?;
        netlink.set_up(&port).await
    })?;
    let nodes = plan.nodes;
    node.run(async move || {
        forward()?;
        let netlink = Netlink::open()?;
        set_wire(wire, UPLINK)?;
        netlink.set_up(UPLINK).await?;
        add_addresses(&netlink, UPLINK, Plan::node(number)).await?;
        set_default_routes(&netlink, Plan::control()).await?;
        for other in (1..=nodes).filter(|other| *other != number) {
            set_routes(&netlink, Plan::pods(other), Plan::node(other)).await?;
        }
        Ok(())
    })?;
    control.run(async move || {
        let netlink = Netlink::open()?;
        set_routes(&netlink, Plan::pods(number), Plan::node(number)).await
    })
}

fn add_outside(plan: &Plan, control: &Namespace, wire: Wire) -> Result<()> {
    let outside = Namespace::create_lasting(&plan.namespace(OUTSIDE))?;
    let file = outside.file()?;
    control.run(async move || {
        let netlink = Netlink::open()?;
        netlink.add_veth(OUTSIDE, UPLINK, &file).await?;
        set_wire(wire, OUTSIDE)?;
        netlink.set_up(OUTSIDE).await?;
        add_addresses(&netlink, OUTSIDE, Plan::router()).await?;
        set_routes(&netlink, Plan::load_balancers(), Plan::node(1)).await
    })?;
    outside.run(async move || {
        let netlink = Netlink::open()?;
        set_wire(wire, UPLINK)?;
        netlink.set_up(UPLINK).await?;
        add_addresses(&netlink, UPLINK, Plan::outside()).await?;
        set_default_routes(&netlink, Plan::router()).await
    })
}

async fn add_addresses(netlink: &Netlink, device: &str, addresses: [IpAddr; 2]) -> Result<()> {
    for address in with_prefix(addresses) {
        netlink.add_address(device, address).await?;
    }
    Ok(())
}

async fn set_routes(netlink: &Netlink, destinations: [IpNet; 2], gateways: [IpAddr; 2]) -> Result<()> {
    for (destination, gateway) in destinations.into_iter().zip(gateways) {
        netlink.set_route(destination, gateway).await?;
    }
    Ok(())
}

async fn set_default_routes(netlink: &Netlink, gateways: [IpAddr; 2]) -> Result<()> {
    let all = gateways.map(|gateway| if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" });
    for (destination, gateway) in all.into_iter().zip(gateways) {
        netlink.set_route(destination.parse()?, gateway).await?;
    }
    Ok(())
}

/// Sets an end of a wire, which belongs to the current thread's namespace.
fn set_wire(wire: Wire, device: &str) -> Result<()> {
    for offload in [Offload::TxChecksum, Offload::Receive] {
        set_offload(device, offload, wire == Wire::Offloaded)?;
    }
    Ok(())
}

fn forward() -> Result<()> {
    write_sysctl("net/ipv4/ip_forward", "1")?;
    write_sysctl("net/ipv6/conf/all/forwarding", "1")
}
