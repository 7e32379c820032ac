//! Programs of others on the uplink of node 1.

use anyhow::{Result, ensure};

use super::pins::links_of;
use crate::drill::fault::{Allowance, Bound, Fault, Loss, Mend};
use crate::drill::ground::Ground;
use crate::drill::way::Way;
use crate::net::{NEXT, Netlink, TcHook, attach_first, detach_link};

const NODE: u8 = 1;
const UPLINK: &str = "eth0";

/// The faults of this file.
pub(super) const FAULTS: &[Fault] = &[
    Fault::new("links-detached", "Another program detaches all programs of node 1's uplink.", detach)
        .allowing(&[
            until_attached(Loss::Failed, Bound::Most(60)),
            until_attached(Loss::Lost, Bound::Most(600)),
        ])
        .right_after(3, "TCP repeats a lost SYN after a second"),
    Fault::new(
        "program-before",
        "Another program puts TC programs, which only look, before those of node 1's uplink.",
        put_before,
    ),
    Fault::new(
        "program-instead",
        "Another program takes the place of the XDP program of node 1's uplink, and goes away.",
        take_place,
    ),
];

/// The attempts to be faster than the agent.
const TRIES: u32 = 20;
/// The ways through the uplink of node 1.
const THROUGH_NODE_1: &[Way] =
    &[Way::Local, Way::Snat, Way::DsrIpip, Way::DsrFou, Way::PolicyLocal, Way::NodePort];

const fn until_attached(loss: Loss, bound: Bound) -> Allowance {
    let because = "the agent looks four times a second, and attaches the programs again";
    Allowance { loss, ways: THROUGH_NODE_1, backend: None, bound, because }
}

fn detach(ground: &mut Ground) -> Result<Mend> {
    for link in links_of(ground, uplink(ground)?)? {
        detach_link(&link)?;
    }
    Ok(Box::new(|_| Ok(())))
}

fn put_before(ground: &mut Ground) -> Result<Mend> {
    let node = ground.cluster().bed().node(NODE)?.namespace();
    let attach = |hook| node.run(async move || attach_first(UPLINK, hook, NEXT));
    let links = [attach(TcHook::Ingress)?, attach(TcHook::Egress)?];
    Ok(Box::new(move |_| {
        drop(links);
        Ok(())
    }))
}

fn take_place(ground: &mut Ground) -> Result<Mend> {
    // The agent looks four times a second, and may be faster than the other program.
    let taken = (0..TRIES).any(|_| replace_xdp(ground).is_ok());
    ensure!(taken, "the agent put its XDP program back {TRIES} times before another one was there");
    Ok(Box::new(|ground| {
        let node = ground.cluster().bed().node(NODE)?.namespace();
        node.run(async || Netlink::open()?.detach_xdp(UPLINK).await)
    }))
}

/// Detaches our XDP program, and attaches one that passes all.
fn replace_xdp(ground: &Ground) -> Result<()> {
    for link in links_of(ground, uplink(ground)?)? {
        if link.file_name().is_some_and(|name| name.to_string_lossy().starts_with("xdp")) {
            detach_link(&link)?;
        }
    }
    let node = ground.cluster().bed().node(NODE)?.namespace();
    node.run(async || Netlink::open()?.attach_pass(UPLINK).await)
}

/// Returns the index of the uplink.
fn uplink(ground: &Ground) -> Result<u32> {
    let node = ground.cluster().bed().node(NODE)?.namespace();
    node.run(async || Ok(nix::net::if_::if_nametoindex(UPLINK)?))
}
