//! Faults of the source of objects, here a directory of manifests.

use anyhow::{Context, Result};

use crate::drill::fault::{Allowance, Bound, Fault, Loss, Mend};
use crate::drill::ground::{Ground, NODES};
use crate::drill::way::Way;

/// The faults of this file.
pub(super) const FAULTS: &[Fault] = &[
    Fault::new(
        "source-away",
        "The source of objects is away, and the agents are killed and started meanwhile.",
        take_away,
    ),
    Fault::new(
        "source-older",
        "The source of objects is back with an older state: all Services have one endpoint less.",
        go_back,
    )
    .allowing(&[
        unnamed(&[Way::Snat, Way::DsrIpip], "pod-3a"),
        unnamed(&[Way::DsrFou], "pod-3b"),
        unnamed(&[Way::NodePort], "pod-2b"),
        moved(),
    ])
    .right_after(10, "connections of such an endpoint end three seconds after the change"),
];

const fn unnamed(ways: &'static [Way], backend: &'static str) -> Allowance {
    let because = "no Service names this endpoint any more, so it is gone after three seconds (decision 29)";
    Allowance { loss: Loss::Cut, ways, backend: Some(backend), bound: Bound::Most(60), because }
}

const fn moved() -> Allowance {
    let because = "each stream of datagrams goes to an endpoint that its Service names, and may go back";
    Allowance { loss: Loss::Wrong, ways: &Way::ALL, backend: None, bound: Bound::Most(28), because }
}

fn take_away(ground: &mut Ground) -> Result<Mend> {
    let directory = ground.cluster().manifests().path().to_owned();
    let away = directory.with_file_name("away");
    std::fs::rename(&directory, &away).context("can't take the directory away")?;
    ground.kill_agents(&NODES)?;
    ground.start_agents(&NODES)?;
    Ok(Box::new(move |ground| {
        std::fs::rename(&away, &directory).context("can't bring the directory back")?;
        // An agent without its source ends, and a kubelet starts it again.
        let ended: Vec<u8> = NODES.into_iter().filter(|node| !ground.cluster().has_agent(*node)).collect();
        ground.start_agents(&ended)
    }))
}

fn go_back(ground: &mut Ground) -> Result<Mend> {
    ground.put_services(Way::older_service)?;
    Ok(Box::new(|ground| ground.put_services(Way::service)))
}
