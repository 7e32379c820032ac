//! Frames with a priority in a VLAN tag. The card takes the tag out, or leaves it in the frame.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use millrace_lab::capture::{Capture, Captured, Direction, send_frame};
use millrace_lab::cluster::Cluster;
use millrace_lab::frame::Frame;
use millrace_lab::net::leave_tags_alone;
use millrace_lab::topology::{Family, vip};
use millrace_lab::traffic::{Protocol, ask};

use crate::fixture::{Way, shared};

const LIMIT: Duration = Duration::from_secs(30);

fn frontend(family: Family) -> SocketAddr {
    SocketAddr::new(vip(Way::Local.number()).of(family), 80)
}

/// Lets a client ask a local backend, and sends its datagram to node 1 again with a priority. The
/// backend must answer again.
fn expect_served_with_priority(cluster: &Cluster, family: Family) -> Result<()> {
    let frontend = frontend(family);
    let mut asked = Capture::start(cluster.bed().router(), &["node1"])?;
    let client = ask(cluster.bed().client(), Protocol::Udp, frontend)?.client;
    let is_question = |captured: &Captured| {
        captured.direction == Direction::Out
            && captured.packet.from() == Some(client)
            && captured.packet.to() == Some(frontend)
    };
    let question = asked.wait_for(LIMIT, is_question)?.frame;
    // The checksum of the captured frame is left to the card.
    let mut again =
        Frame::ip(client.ip(), frontend.ip()).udp(client.port(), frontend.port()).payload("again");
    again.destination_mac.copy_from_slice(&question[..6]);
    again.source_mac.copy_from_slice(&question[6..12]);
    let again = again.build();
    let (addresses, rest) = again.split_at(12);
    // Priority 5, VLAN 0.
    let frame = [addresses, &[0x81, 0, 0xa0, 0], rest].concat();
    let mut capture = Capture::start(cluster.bed().router(), &["node1"])?;
    send_frame(cluster.bed().router(), "node1", frame)?;
    capture.wait_for(LIMIT, |captured| {
        captured.packet.from() == Some(frontend) && captured.packet.to() == Some(client)
    })?;
    Ok(())
}

#[test]
fn a_frame_with_a_priority_is_served_whether_the_card_takes_the_tag_out_or_not() -> Result<()> {
    let cluster = shared();
    for family in Family::ALL {
        expect_served_with_priority(&cluster, family)?;
    }
    // A driver that can't change this has one of the two states.
    let node = cluster.bed().node(1)?.namespace();
    if node.run(async || leave_tags_alone("eth0")).is_ok() {
        // Some cards begin anew for it, and have no link meanwhile.
        let is_served = || ask(cluster.bed().client(), Protocol::Udp, frontend(Family::V4)).map(|_| true);
        cluster.proxy(1)?.wait_until("the link is back", is_served)?;
        for family in Family::ALL {
            expect_served_with_priority(&cluster, family)?;
        }
    }
    Ok(())
}
