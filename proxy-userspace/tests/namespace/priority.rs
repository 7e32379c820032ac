//! Frames with a priority in a VLAN tag without a VLAN. They belong to the device itself, wherever
//! the tag is.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use millrace_lab::capture::{Capture, Captured, Direction, send_frame};
use millrace_lab::cluster::Cluster;
use millrace_lab::frame::Frame;
use millrace_lab::net::leave_tags_alone;
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::{Protocol, ask};

use crate::fixture::{own, shared};

const LIMIT: Duration = Duration::from_secs(10);

/// Lets a client ask, and sends its datagram to node 1 again with a priority. Returns both ends.
fn ask_with_priority(
    cluster: &Cluster,
    frontend: SocketAddr,
    before: impl FnOnce() -> Result<Capture>,
) -> Result<(SocketAddr, Capture)> {
    let mut asked = Capture::start(cluster.bed().router(), &["node1"])?;
    let client = ask(cluster.bed().client(), Protocol::Udp, frontend)?.client;
    let is_question = |captured: &Captured| {
        captured.direction == Direction::Out
            && captured.packet.from() == Some(client)
            && captured.packet.to() == Some(frontend)
            && captured.packet.tunnel.is_none()
    };
    let question = asked.wait_for(LIMIT, is_question)?.frame;
    // If the wire leaves checksums to the device, that of the captured frame is unfinished.
    let mut again =
        Frame::ip(client.ip(), frontend.ip()).udp(client.port(), frontend.port()).payload("again");
    again.destination_mac.copy_from_slice(&question[..6]);
    again.source_mac.copy_from_slice(&question[6..12]);
    let again = again.build();
    let (addresses, rest) = again.split_at(12);
    // Priority 5, VLAN 0.
    let frame = [addresses, &[0x81, 0, 0xa0, 0], rest].concat();
    let capture = before()?;
    send_frame(cluster.bed().router(), "node1", frame)?;
    Ok((client, capture))
}

#[test]
fn a_frame_with_a_priority_reaches_a_backend_on_this_node() -> Result<()> {
    let cluster = shared();
    let service = cluster.service("urgent", 134, &["pod-1a"])?.load_balancer(vip(134));
    cluster.apply(&service, &[1])?;
    for family in Family::ALL {
        let frontend = SocketAddr::new(vip(134).of(family), 80);
        let before = || Capture::start(cluster.bed().router(), &["node1"]);
        let (client, mut capture) = ask_with_priority(&cluster, frontend, before)?;
        capture.wait_for(LIMIT, |captured| {
            captured.packet.from() == Some(frontend) && captured.packet.to() == Some(client)
        })?;
    }
    Ok(())
}

/// The capture leaves out frames with a tag.
#[test]
fn a_frame_with_a_priority_is_sent_on_without_it() -> Result<()> {
    let cluster = own(2, 1)?;
    let service = cluster.service("urgent-direct", 1, &["pod-2a"])?.load_balancer(vip(1));
    cluster.apply(&service.annotation("millrace.dev/forwarding", "dsr"), &[1, 2])?;
    let node = cluster.bed().node(1)?.namespace();
    node.run(async || leave_tags_alone("eth0"))?;
    for family in Family::ALL {
        let frontend = SocketAddr::new(vip(1).of(family), 80);
        let before = || Capture::start(node, &["eth0"]);
        let (client, mut capture) = ask_with_priority(&cluster, frontend, before)?;
        capture.wait_for(LIMIT, |captured| {
            captured.direction == Direction::Out
                && captured.packet.is_between(client, frontend)
                && captured.packet.tunnel.is_some()
        })?;
    }
    Ok(())
}
