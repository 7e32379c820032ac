//! Building a bed.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::addresses::{self, Dual, Family};
use super::{Bed, Host, Leg, Node, Pod, Shape, Wire};
use crate::net::{
    CardEnd, Cgroup, Namespace, Netlink, Offload, remove_leftovers, set_offload, take_card, write_sysctl,
};

const ANY: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0)),
];

/// Destinations and their gateways.
type Routes = Vec<(IpNet, IpAddr)>;

pub(super) fn build(shape: Shape) -> Result<Bed> {
    static BEDS: AtomicU32 = AtomicU32::new(1);
    remove_leftovers();
    let number = BEDS.fetch_add(1, Ordering::Relaxed);
    let create = |name: &str| Namespace::create(&format!("{number}-{name}"));
    let mut bed = Bed {
        number,
        wire: shape.wire,
        client: create("client")?,
        router: create("router")?,
        nodes: Vec::new(),
    };
    fs::create_dir_all(bed.directory()).context("can't make the bed's directory")?;

    prepare_router(&bed.router)?;
    connect_client(&bed)?;
    for node in 1..=shape.nodes {
        let name = format!("node{node}");
        let cgroup = Cgroup::create(&format!("{number}-{name}"))?;
        let namespace = Namespace::create_in(&format!("{number}-{name}"), Arc::clone(&cgroup))?;
        let namespace = Arc::new(namespace);
        bed.nodes.push(Node { name, number: node, namespace, pods: Vec::new(), cgroup });
        connect_node(&bed, node)?;
        for index in 0..shape.pods {
            let name = format!("pod-{node}{}", char::from(b'a' + index));
            let cgroup = Cgroup::create_below(&bed.node(node)?.cgroup, &name)?;
            let namespace = Namespace::create_in(&format!("{number}-{name}"), cgroup)?;
            let pod = Pod { name, addresses: addresses::pod(node, Some(index)), namespace };
            connect_pod(bed.node(node)?, &pod)?;
            bed.nodes.last_mut().context("the node was just added")?.pods.push(pod);
        }
    }
    for node in &bed.nodes {
        route_between_nodes(&bed, node)?;
    }
    route_from_router(&bed)?;
    Ok(bed)
}

/// Switches duplicate address detection off, so that addresses are usable at once. There are no
/// other hosts.
fn skip_address_detection() -> Result<()> {
    write_sysctl("net/ipv6/conf/default/accept_dad", "0")?;
    write_sysctl("net/ipv6/conf/all/accept_dad", "0")
}

fn forward_packets() -> Result<()> {
    write_sysctl("net/ipv4/ip_forward", "1")?;
    write_sysctl("net/ipv6/conf/all/forwarding", "1")
}

fn prepare_router(router: &Namespace) -> Result<()> {
    router.run(async || {
        skip_address_detection()?;
        forward_packets()?;
        let netlink = Netlink::open()?;
        netlink.add_bridge("lan").await?;
        add_addresses(&netlink, "lan", addresses::LAN_GATEWAY).await
    })
}

fn connect_client(bed: &Bed) -> Result<()> {
    let client = bed.client.file()?;
    bed.client.run(async || skip_address_detection())?;
    bed.router.run(async move || {
        let netlink = Netlink::open()?;
        netlink.add_veth("client", "eth0", &client).await?;
        netlink.set_up("client").await?;
        add_addresses(&netlink, "client", addresses::CLIENT_GATEWAY).await
    })?;
    // Cards finish what a virtual device leaves unfinished.
    let offloaded = bed.wire != Wire::Plain;
    bed.client.run(async move || {
        set_offload("eth0", Offload::TxChecksum, offloaded)?;
        join_network(addresses::CLIENT, addresses::CLIENT_GATEWAY).await
    })
}

fn connect_node(bed: &Bed, number: u8) -> Result<()> {
    let node = bed.node(number)?;
    node.namespace.run(async || {
        skip_address_detection()?;
        // Distributions set the strict reverse-path filter, which is the hardest for a service
        // proxy.
        write_sysctl("net/ipv4/conf/all/rp_filter", "1")?;
        write_sysctl("net/ipv4/conf/default/rp_filter", "1")?;
        // A CNI's bridge plugin switches forwarding on. Pods have no way out without it.
        forward_packets()
    })?;
    connect_uplink(bed, number)?;
    node.namespace.run(async move || {
        let netlink = Netlink::open()?;
        netlink.add_bridge("cni0").await?;
        add_addresses(&netlink, "cni0", addresses::pod(number, None)).await
    })
}

/// Lays the wire between the router and a node's `eth0`.
pub(super) fn connect_uplink(bed: &Bed, number: u8) -> Result<()> {
    let node = bed.node(number)?;
    if bed.wire == Wire::Cards {
        return connect_cards(bed, node);
    }
    let port = node.name.clone();
    let namespace = node.namespace.file()?;
    let offloaded = bed.wire == Wire::Offloaded;
    bed.router.run(async move || {
        let netlink = Netlink::open()?;
        netlink.add_veth(&port, "eth0", &namespace).await?;
        set_offload(&port, Offload::TxChecksum, offloaded)?;
        set_offload(&port, Offload::Receive, offloaded)?;
        netlink.add_port("lan", &port).await?;
        netlink.set_up(&port).await?;
        if offloaded { Ok(()) } else { netlink.attach_pass(&port).await }
    })?;
    node.namespace.run(async move || {
        set_offload("eth0", Offload::TxChecksum, offloaded)?;
        set_offload("eth0", Offload::Receive, offloaded)?;
        join_network(addresses::node(number), addresses::LAN_GATEWAY).await
    })
}

fn connect_cards(bed: &Bed, node: &Node) -> Result<()> {
    let (port, number) = (node.name.clone(), node.number);
    take_card(number, CardEnd::Router, &bed.router, &port)?;
    take_card(number, CardEnd::Node, &node.namespace, "eth0")?;
    bed.router.run(async move || {
        let netlink = Netlink::open()?;
        netlink.add_port("lan", &port).await?;
        netlink.set_up(&port).await
    })?;
    node.namespace.run(async move || join_network(addresses::node(number), addresses::LAN_GATEWAY).await)
}

/// Gives all nodes a second uplink `eth1` on a network of its own. Only the route of that network
/// leads there.
pub(super) fn add_second_uplinks(bed: &Bed) -> Result<()> {
    bed.router.run(async || {
        let netlink = Netlink::open()?;
        netlink.add_bridge("lan2").await?;
        add_addresses(&netlink, "lan2", addresses::SECOND_GATEWAY).await
    })?;
    let offloaded = bed.wire == Wire::Offloaded;
    for node in &bed.nodes {
        let (port, file, number) = (format!("{}-2", node.name), node.namespace.file()?, node.number);
        bed.router.run(async move || {
            let netlink = Netlink::open()?;
            netlink.add_veth(&port, "eth1", &file).await?;
            set_offload(&port, Offload::TxChecksum, offloaded)?;
            set_offload(&port, Offload::Receive, offloaded)?;
            netlink.add_port("lan2", &port).await?;
            netlink.set_up(&port).await?;
            if offloaded { Ok(()) } else { netlink.attach_pass(&port).await }
        })?;
        node.namespace.run(async move || {
            set_offload("eth1", Offload::TxChecksum, offloaded)?;
            set_offload("eth1", Offload::Receive, offloaded)?;
            let netlink = Netlink::open()?;
            netlink.set_up("eth1").await?;
            add_addresses(&netlink, "eth1", addresses::second_uplink(number)).await
        })?;
    }
    Ok(())
}

/// Connects a machine to the network of the nodes.
pub(super) fn add_host(bed: &Bed, name: &str, number: u8) -> Result<Host> {
    let namespace = Arc::new(Namespace::create(&format!("{}-{name}", bed.number))?);
    let addresses = addresses::host(number);
    let (port, file) = (name.to_owned(), namespace.file()?);
    namespace.run(async || skip_address_detection())?;
    bed.router.run(async move || {
        let netlink = Netlink::open()?;
        netlink.add_veth(&port, "eth0", &file).await?;
        netlink.add_port("lan", &port).await?;
        netlink.set_up(&port).await
    })?;
    let offloaded = bed.wire == Wire::Offloaded;
    namespace.run(async move || {
        set_offload("eth0", Offload::TxChecksum, offloaded)?;
        join_network(addresses, addresses::LAN_GATEWAY).await
    })?;
    Ok(Host { address: addresses.v4, namespace })
}

/// Puts a machine into a leg. It forwards packets of at most `bytes` bytes.
pub(super) fn add_narrows(bed: &Bed, leg: Leg, bytes: u32) -> Result<Host> {
    const NUMBER: u8 = 50;
    let gate = add_host(bed, "narrows", NUMBER)?;
    let ends = ends(bed, leg)?;
    let routes: Routes = ends.iter().flat_map(|(_, routes)| routes.clone()).collect();
    gate.namespace.run(async move || {
        forward_packets()?;
        // A redirect would tell the hosts of a shorter way.
        for device in ["all", "eth0"] {
            write_sysctl(&format!("net/ipv4/conf/{device}/send_redirects"), "0")?;
        }
        set_narrow_routes(routes, bytes).await
    })?;
    let through = addresses::host(NUMBER);
    for (namespace, routes) in ends {
        let detours = routes.into_iter().map(|(to, _)| (to, through.of(Family::of(to.addr()))));
        let detours: Vec<_> = detours.collect();
        namespace.run(async move || set_routes(detours).await)?;
    }
    Ok(gate)
}

/// Gives the senders into a leg routes for at most `bytes` bytes.
pub(super) fn narrow_routes(bed: &Bed, leg: Leg, bytes: u32) -> Result<()> {
    for (namespace, routes) in ends(bed, leg)? {
        namespace.run(async move || set_narrow_routes(routes, bytes).await)?;
    }
    Ok(())
}

/// Returns the senders into a leg, and their routes.
fn ends(bed: &Bed, leg: Leg) -> Result<Vec<(&Namespace, Routes)>> {
    let to_client = || addresses::CLIENT.networks().into_iter().zip(addresses::LAN_GATEWAY.both()).collect();
    Ok(match leg {
        Leg::Director => {
            vec![(&bed.router, vip_routes().collect()), (bed.node(1)?.namespace(), to_client())]
        }
        Leg::Nodes { from, to } => {
            // The node's own addresses come last. Once they are routed, no gateway is found there.
            let own = addresses::node(to).both().map(|address| (IpNet::from(address), address));
            vec![(bed.node(from)?.namespace(), pod_routes(to).chain(own).collect())]
        }
        Leg::ToClient(node) => vec![(bed.node(node)?.namespace(), to_client())],
    })
}

fn connect_pod(node: &Node, pod: &Pod) -> Result<()> {
    let namespace = pod.namespace.file()?;
    let device = pod.device();
    let (addresses, gateway) = (pod.addresses, addresses::pod(node.number, None));
    pod.namespace.run(async || skip_address_detection())?;
    node.namespace.run(async move || {
        let netlink = Netlink::open()?;
        netlink.add_veth(&device, "eth0", &namespace).await?;
        netlink.add_port("cni0", &device).await?;
        netlink.set_up(&device).await
    })?;
    pod.namespace.run(async move || join_network(addresses, gateway).await)
}

/// Gives `eth0` of the current namespace its addresses and a default route.
async fn join_network(addresses: Dual, gateway: Dual) -> Result<()> {
    let netlink = Netlink::open()?;
    netlink.set_up("eth0").await?;
    add_addresses(&netlink, "eth0", addresses).await?;
    for (destination, gateway) in ANY.into_iter().zip(gateway.both()) {
        netlink.set_route(destination, gateway).await?;
    }
    Ok(())
}

async fn add_addresses(netlink: &Netlink, device: &str, addresses: Dual) -> Result<()> {
    for network in addresses.networks() {
        netlink.add_address(device, network).await?;
    }
    Ok(())
}

/// Adds routes to the pod networks of the other nodes, directly through those nodes.
pub(super) fn route_between_nodes(bed: &Bed, node: &Node) -> Result<()> {
    let others = bed.nodes.iter().map(|other| other.number).filter(|other| *other != node.number);
    let routes: Vec<_> = others.flat_map(pod_routes).collect();
    node.namespace.run(async move || set_routes(routes).await)
}

fn route_from_router(bed: &Bed) -> Result<()> {
    let mut routes: Vec<_> = bed.nodes.iter().flat_map(|node| pod_routes(node.number)).collect();
    routes.extend(vip_routes());
    bed.router.run(async move || set_routes(routes).await)
}

fn pod_routes(number: u8) -> impl Iterator<Item = (IpNet, IpAddr)> {
    let networks = addresses::pod(number, None).networks();
    networks.into_iter().zip(addresses::node(number).both())
}

/// Returns the routes of load balancer and external addresses, which node 1 serves.
fn vip_routes() -> impl Iterator<Item = (IpNet, IpAddr)> {
    addresses::VIPS.networks().into_iter().zip(addresses::node(1).both())
}

async fn set_narrow_routes(routes: Routes, bytes: u32) -> Result<()> {
    let netlink = Netlink::open()?;
    for (destination, gateway) in routes {
        netlink.set_narrow_route(destination, gateway, bytes).await?;
    }
    Ok(())
}

async fn set_routes(routes: Routes) -> Result<()> {
    let netlink = Netlink::open()?;
    for (destination, gateway) in routes {
        netlink.set_route(destination, gateway).await?;
    }
    Ok(())
}
