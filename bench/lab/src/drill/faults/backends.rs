//! Faults of a backend: its process, its device. Only its own traffic may suffer.

use anyhow::Result;

use crate::drill::fault::{Allowance, Bound, Fault, Loss, Mend};
use crate::drill::ground::Ground;
use crate::drill::way::Way;
use crate::net::Netlink;

/// The backend, on node 2.
const POD: &str = "pod-2a";
/// The ways that have it as one of several backends.
const WAYS: &[Way] = &[Way::Snat, Way::DsrIpip, Way::Socket];

/// The faults of this file.
pub(super) const FAULTS: &[Fault] = &[
    Fault::new("backend-killed", "The server of pod-2a ends, and is started again.", kill_server)
        .allowing(&[
            own(Loss::Cut, Bound::Most(90), "a backend that ends cuts its own connections"),
            own(Loss::Failed, Bound::PerSecond(40), "its Service still names it, as no probe has told the cluster"),
            own(Loss::Lost, Bound::PerSecond(240), "its Service still names it, as no probe has told the cluster"),
        ])
        .right_after(3, "the backend is away until the repair"),
    Fault::new("device-down", "The device of pod-2a is set down, and up again.", set_device_down)
        .allowing(&[
            own(Loss::Failed, Bound::PerSecond(40), "the backend is out of reach while its device is down"),
            own(Loss::Lost, Bound::PerSecond(240), "the backend is out of reach while its device is down"),
        ])
        .right_after(15, "TCP doubles its pause with each repetition, so its own connections wait longer than the fault lasts"),
];

const fn own(loss: Loss, bound: Bound, because: &'static str) -> Allowance {
    Allowance { loss, ways: WAYS, backend: Some(POD), bound, because }
}

fn kill_server(ground: &mut Ground) -> Result<Mend> {
    ground.cluster_mut().stop_server(POD)?;
    Ok(Box::new(|ground| ground.cluster_mut().start_server(POD)))
}

fn set_device_down(ground: &mut Ground) -> Result<Mend> {
    let device = ground.cluster().bed().pod(POD)?.device();
    let node = ground.cluster().bed().node_of(POD)?.namespace();
    let name = device.clone();
    node.run(async move || Netlink::open()?.set_down(&name).await)?;
    Ok(Box::new(move |ground| {
        let node = ground.cluster().bed().node_of(POD)?.namespace();
        node.run(async move || Netlink::open()?.set_up(&device).await)
    }))
}
