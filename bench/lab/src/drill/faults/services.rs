//! Changes of Services while their traffic flows.

use anyhow::Result;

use super::agents::start_with;
use crate::drill::fault::{Allowance, Bound, Fault, Loss, Mend};
use crate::drill::ground::{Ground, NODES};
use crate::drill::way::Way;

/// The ways with Direct Server Return.
const DSR: &[Way] = &[Way::DsrIpip, Way::DsrFou];

/// The faults of this file.
pub(super) const FAULTS: &[Fault] = &[
    Fault::new("dsr-turned-on", "A Service goes from SNAT to Direct Server Return, and back.", turn_on),
    Fault::new("dsr-turned-off", "Services go from Direct Server Return to SNAT, and back.", turn_off)
        .allowing(&[elsewhere(
            Bound::PerSecond(240),
            "a director with SNAT sends from its own address; a stream of datagrams has no entry there, and gets another backend",
        )])
        .right_after(3, "streams of datagrams get another backend with each change"),
    Fault::new(
        "maglev-resized",
        "All agents are killed, and started with Maglev tables of another size; then back again.",
        resize,
    )
    .allowing(&[elsewhere(
        Bound::Most(60),
        "a stream of datagrams has no entry on its director, and another slot in the new table",
    )])
    .right_after(3, "streams of datagrams get another backend with each change"),
];

const fn elsewhere(bound: Bound, because: &'static str) -> Allowance {
    Allowance { loss: Loss::Wrong, ways: DSR, backend: None, bound, because }
}

fn turn_on(ground: &mut Ground) -> Result<Mend> {
    forward(ground, &[Way::Snat], "dsr")?;
    Ok(Box::new(|ground| forward(ground, &[Way::Snat], "snat")))
}

fn turn_off(ground: &mut Ground) -> Result<Mend> {
    forward(ground, DSR, "snat")?;
    Ok(Box::new(|ground| forward(ground, DSR, "dsr")))
}

/// Sets the forwarding of Services, and waits until all nodes have it.
fn forward(ground: &Ground, ways: &[Way], forwarding: &str) -> Result<()> {
    let cluster = ground.cluster();
    ways.iter().try_for_each(|way| cluster.apply(&way.forwarded(cluster, forwarding)?, &NODES))
}

fn resize(ground: &mut Ground) -> Result<Mend> {
    start_with(ground, &["--maglev-table-size", "251"])
}
