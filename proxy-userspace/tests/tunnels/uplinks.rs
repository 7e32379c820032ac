//! Nodes that reach each other over devices without XDP, which TC serves.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ipnet::IpNet;
use millrace_lab::agent::Proxy;
use millrace_lab::capture::{Capture, Direction};
use millrace_lab::net::{End, Netlink, Overlay};
use millrace_lab::topology::{Bed, Dual, Family, Node, vip};
use millrace_lab::traffic::{Answer, Protocol, ask};

use crate::lab::Lab;

const LIMIT: Duration = Duration::from_secs(20);
/// The size of a body of many packets.
const BODY: usize = 300_000;
const DIRECT: u8 = 9;

/// Returns a node's address in an overlay. The networks are numbered by their place in
/// [`Overlay::ALL`].
fn inside(overlay: Overlay, node: u8) -> Dual {
    let number = number(overlay);
    Dual {
        v4: [10, 77, number, node].into(),
        v6: [0x2001, 0xdb8, 0xba4e, number.into(), 0, 0, 0, node.into()].into(),
    }
}

/// Returns the overlay's number, which is also that of its Service.
fn number(overlay: Overlay) -> u8 {
    match overlay {
        Overlay::Vxlan => 1,
        Overlay::Vlan => 2,
        Overlay::IpIp => 3,
        Overlay::Ip6Tnl => 4,
        Overlay::WireGuard => 5,
    }
}

/// Returns the pod of node 2 that is reached over the overlay.
fn backend(overlay: Overlay) -> String {
    format!("pod-2{}", char::from(b'a' + number(overlay) - 1))
}

/// Routes packets for these addresses of node `to` over the overlay, as its plugin does: by a
/// gateway, with any address of the device as source.
fn route_over(overlay: Overlay, from: &Node, to: u8, targets: impl Iterator<Item = IpAddr>) -> Result<()> {
    let carries = |target: &IpAddr| overlay.families().contains(&Family::of(*target));
    let targets: Vec<IpAddr> = targets.filter(carries).collect();
    from.namespace().run(async move || {
        let netlink = Netlink::open()?;
        for target in targets {
            netlink.set_route(target.into(), inside(overlay, to).of(Family::of(target))).await?;
        }
        Ok(())
    })
}

/// Joins nodes 1 and 2 over their second uplinks. A pod of node 2 is reached that way.
fn join(bed: &Bed, overlay: Overlay) -> Result<()> {
    let (one, two) = (bed.node(1)?, bed.node(2)?);
    let network = |address: IpAddr| IpNet::new_assert(address, if address.is_ipv4() { 24 } else { 64 });
    let end = |node, number| End {
        namespace: Node::namespace(node),
        below: Node::second_addresses(node),
        addresses: overlay.families().iter().map(|f| network(inside(overlay, number).of(*f))).collect(),
    };
    overlay.join("eth1", [end(one, 1), end(two, 2)])?;
    route_over(overlay, one, 2, bed.pod(&backend(overlay))?.addresses().both().into_iter())
}

/// Starts the lab with XDP on the devices towards the client. The overlays have none.
fn start() -> Result<Lab> {
    let mut lab = Lab::without_agents(Overlay::ALL.len(), "native")?;
    lab.cluster.bed().add_second_uplinks()?;
    for overlay in Overlay::ALL {
        join(lab.cluster.bed(), overlay)?;
    }
    let uplinks = [&["eth0"][..], &Overlay::ALL.map(Overlay::device)].concat();
    for node in [1, 2] {
        lab.start_agent(node, &["--uplinks", &uplinks.join(",")])?;
    }
    for node in [1, 2] {
        lab.cluster.wait_for_hooks(node)?;
        for overlay in Overlay::ALL {
            lab.cluster.proxy(node)?.wait_for_hooks(overlay.device(), &["tc_ingress", "tc_egress"])?;
        }
    }
    Ok(lab)
}

fn kinds(overlay: Overlay) -> impl Iterator<Item = (Family, Protocol)> {
    overlay.families().iter().flat_map(|family| Protocol::ALL.map(|protocol| (*family, protocol)))
}

/// The client asks a Service. The answer comes by the router's device `node`, from the Service's
/// address.
fn ask_service(lab: &Lab, number: u8, kind: (Family, Protocol), node: &str) -> Result<Answer> {
    let (family, protocol) = kind;
    let (bed, frontend) = (lab.cluster.bed(), SocketAddr::new(vip(number).of(family), 80));
    let mut capture = Capture::start(bed.router(), &["node1", "node2"])?;
    let answer = ask(bed.client(), protocol, frontend)?;
    let seen = capture.wait_for(LIMIT, |captured| {
        captured.direction == Direction::In && captured.packet.is_between(frontend, answer.client)
    })?;
    ensure!(&*seen.device == node, "{} answered, not {node}", seen.device);
    Ok(answer)
}

fn expect_bodies(lab: &Lab, number: u8, overlay: Overlay) -> Result<()> {
    let targets = overlay.families().iter().map(|family| SocketAddr::new(vip(number).of(*family), 80));
    targets.into_iter().try_for_each(|target| lab.cluster.exchange(target, BODY))
}

fn translates(lab: &Lab, overlay: Overlay) -> Result<()> {
    let (number, backend) = (number(overlay), backend(overlay));
    let service = lab.cluster.service(&format!("snat-{number}"), number, &[&backend])?;
    lab.cluster.apply(&service.load_balancer(vip(number)), &[1, 2])?;
    for kind in kinds(overlay) {
        let answer = ask_service(lab, number, kind, "node1")?;
        let seen = (&*answer.sighting.backend, answer.sighting.peer.ip());
        ensure!(seen == (&backend, inside(overlay, 1).of(kind.0)), "not from the device's own: {answer:?}");
    }
    expect_bodies(lab, number, overlay)
}

/// The nodes' ways to each other lead over the overlay.
fn returns_directly(lab: &Lab, overlay: Overlay) -> Result<()> {
    let bed = lab.cluster.bed();
    let (one, two) = (bed.node(1)?, bed.node(2)?);
    route_over(overlay, one, 2, two.addresses().both().into_iter())?;
    route_over(overlay, two, 1, one.addresses().both().into_iter())?;
    let device = overlay.device();
    let index = one.namespace().run(async move || Ok(nix::net::if_::if_nametoindex(device)?))?;
    for family in overlay.families() {
        let target = two.addresses().of(*family);
        let proxy = lab.cluster.proxy(1)?;
        proxy.wait_until(&format!("{target} is reached by {device}"), || proxy.leads_by(target, index))?;
    }
    for kind in kinds(overlay) {
        let answer = ask_service(lab, DIRECT, kind, "node2")?;
        ensure!(answer.kept_client() && answer.sighting.backend == "pod-2a", "{answer:?}");
    }
    expect_bodies(lab, DIRECT, overlay)
}

/// Expects counts by TC, and by no other program.
fn expect_counted(lab: &Lab, node: u8, reasons: &[&str]) -> Result<()> {
    let counters = lab.cluster.proxy(node)?.counters()?;
    for reason in reasons {
        let counted = counters.iter().filter(|counter| counter.reason == *reason && counter.packets > 0);
        let programs: Vec<&str> = counted.map(|counter| &*counter.program).collect();
        ensure!(programs == ["tc_ingress"], "{reason} on node {node}: {programs:?}");
    }
    Ok(())
}

#[test]
fn nodes_serve_over_devices_without_xdp() -> Result<()> {
    let lab = start()?;
    let service = lab.cluster.service("dsr", DIRECT, &["pod-2a"])?.load_balancer(vip(DIRECT));
    lab.cluster.apply(&service.annotation("millrace.dev/forwarding", "dsr"), &[1, 2])?;
    for overlay in Overlay::ALL {
        let served = translates(&lab, overlay).and_then(|()| returns_directly(&lab, overlay));
        served.with_context(|| {
            let counters = lab.cluster.proxies().iter().flat_map(Proxy::counters).flatten();
            let counted: Vec<_> = counters.filter(|counter| counter.packets > 0).collect();
            format!("{overlay:?}: {counted:?}")
        })?;
    }
    expect_counted(&lab, 1, &["sent_snat", "reply_snat", "sent_dsr"])?;
    expect_counted(&lab, 2, &["served_dsr"])
}
