//! Forged tunnels: packets for Services that pods encapsulate themselves. Node 1 serves by IPVS, and forwards
//! none of them.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use millrace_lab::capture::Capture;
use millrace_lab::cluster::Cluster;
use millrace_lab::frame::Frame;
use millrace_lab::net::Namespace;
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::send_encapsulated;
use proxy_common::way::FOU_PORT;
use tokio::net::UdpSocket;

use crate::direct::{direct, wait_for_places};
use crate::fixture::{Altered, FLAGS, LIMIT, output, start_agent};

const ETHERNET_HEADER: usize = 14;
const NODE_PORT: u16 = 31610;
/// The payload of packets that must not leave. It must not begin with an IP version, or a capture would read
/// it as a header.
const FORGED: &[u8] = b"unwanted packet";
/// The payload of packets that must leave. It must not begin with an IP version, either.
const SENT: &[u8] = b"trustworthy packet";
/// The masquerading of CNI plugins: packets of pods leave with the node's address.
const MASQUERADE: &str = "add table inet others; \
    add chain inet others post { type nat hook postrouting priority 100; }; \
    add rule inet others post oifname eth0 masquerade";

/// Returns the shared cluster while node 1 masquerades its pods.
fn shared() -> Altered {
    let cluster = Altered::new(|cluster| {
        output(cluster, &["nft", "delete", "table", "inet", "others"])?;
        start_agent(cluster, 1, &FLAGS)
    });
    output(&cluster, &["nft", MASQUERADE]).unwrap();
    cluster
}

/// Returns a datagram with the address of a client, without an Ethernet header.
fn inner(to: IpAddr, port: u16, payload: &[u8]) -> Vec<u8> {
    let client: IpAddr = match Family::of(to) {
        Family::V4 => [198, 51, 100, 99].into(),
        Family::V6 => "2001:db8:51::99".parse().expect("an address"),
    };
    Frame::ip(client, to)
        .udp(4000, port)
        .payload(payload.to_vec())
        .build()
        .split_off(ETHERNET_HEADER)
        .to_vec()
}

/// Sends a datagram to the port at which nodes decapsulate FoU.
fn send_in_udp(namespace: &Namespace, target: IpAddr, payload: Vec<u8>) -> Result<()> {
    namespace.run(async move || {
        let any: IpAddr = if target.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await?;
        socket.send_to(&payload, SocketAddr::new(target, FOU_PORT)).await?;
        Ok(())
    })
}

/// Returns the number of forged tunnels that node 1 has counted.
fn counted(cluster: &Cluster) -> Result<Option<u64>> {
    Ok(cluster.proxy(1)?.json("status")?["forged_tunnel"].as_u64())
}

fn holds(frame: &[u8], payload: &[u8]) -> bool {
    frame.windows(payload.len()).any(|bytes| bytes == payload)
}

/// Waits until the permitted packets have left. No forged packet may leave before the last of them.
fn expect(cluster: &Cluster, capture: Capture, sent: usize) -> Result<()> {
    let capture = RefCell::new(capture);
    let count = |payload| -> Result<usize> {
        Ok(capture.borrow_mut().packets()?.iter().filter(|captured| holds(&captured.frame, payload)).count())
    };
    cluster.proxy(1)?.wait_until_within(LIMIT, "packets leave", || Ok(count(SENT)? >= sent))?;
    assert_eq!(count(FORGED)?, 0, "forged packets left");
    Ok(())
}

#[test]
fn tunnels_of_a_masqueraded_pod_for_a_service_are_dropped_and_others_leave() -> Result<()> {
    let cluster = shared();
    let service = direct(&cluster, "forged", 61, &["pod-2a"])?.node_ports(NODE_PORT);
    cluster.manifests().put_service(&service)?;
    wait_for_places(&cluster, 1, "marks", 61, 80)?;
    let bed = cluster.bed();
    let (pod, victim) = (bed.pod("pod-1a")?.namespace(), bed.node(2)?);
    let before = counted(&cluster)?.unwrap_or_default();
    let mut forged = 0;
    for outer in Family::ALL {
        let node = victim.addresses().of(outer);
        let capture = Capture::start(bed.router(), &["node1"])?;
        for inside in [(vip(61).of(outer), 80), (node, NODE_PORT)] {
            for target in [node, bed.pod("pod-2a")?.addresses().of(outer)] {
                send_encapsulated(pod, target, &inner(inside.0, inside.1, FORGED))?;
                forged += 1;
            }
        }
        for family in Family::ALL {
            send_in_udp(pod, node, inner(vip(61).of(family), 80, FORGED))?;
            // An unprivileged process of the node can try the same. The kernel refuses it with an error.
            let refused = send_in_udp(bed.node(1)?.namespace(), node, inner(vip(61).of(family), 80, FORGED));
            assert!(refused.is_err());
            forged += 2;
        }
        let stranger = match outer {
            Family::V4 => [192, 0, 2, 77].into(),
            Family::V6 => "2001:db8:77::77".parse()?,
        };
        send_encapsulated(pod, node, &inner(stranger, 80, SENT))?;
        send_in_udp(pod, node, inner(stranger, 80, SENT))?;
        send_in_udp(pod, node, SENT.to_vec())?;
        expect(&cluster, capture, 3)?;
        // Node 1 forwards the tunnel of another node. It has other addresses than the forged one, because
        // connection tracking would drop it otherwise.
        let receiver = bed.pod("pod-1b")?;
        let capture = Capture::start(receiver.namespace(), &["eth0"])?;
        send_encapsulated(
            victim.namespace(),
            receiver.addresses().of(outer),
            &inner(vip(61).of(outer), 80, SENT),
        )?;
        expect(&cluster, capture, 1)?;
    }
    assert_eq!(counted(&cluster)?, Some(before + forged));
    Ok(())
}

#[test]
fn if_nodes_accept_fou_no_pod_reaches_its_port() -> Result<()> {
    let mut cluster = shared();
    start_agent(&mut cluster, 1, &[&FLAGS[..], &["--dsr-encap", "ipip,fou"]].concat())?;
    let bed = cluster.bed();
    let pod = bed.pod("pod-1a")?.namespace();
    for family in Family::ALL {
        let before = counted(&cluster)?.unwrap_or_default();
        let capture = Capture::start(bed.router(), &["node1"])?;
        // One UDP header may cover many segments, and the first may have any content.
        send_in_udp(pod, bed.node(2)?.addresses().of(family), FORGED.to_vec())?;
        send_in_udp(pod, bed.client_addresses().of(family), SENT.to_vec())?;
        expect(&cluster, capture, 1)?;
        assert_eq!(counted(&cluster)?, Some(before + 1));
    }
    Ok(())
}
