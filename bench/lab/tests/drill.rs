//! Two cheap faults of the drill, and the check that it notices a real loss.

use std::time::Duration;

use millrace_lab::drill::{Drill, Fault, Form, Ground, Loss, Mend, Rates, all};
use millrace_lab::net::Netlink;

/// Cuts the connections of a backend, which no allowance explains.
fn cut(ground: &mut Ground) -> anyhow::Result<Mend> {
    ground.cluster_mut().stop_server("pod-2b")?;
    ground.cluster_mut().start_server("pod-2b")?;
    Ok(Box::new(|_| Ok(())))
}

/// Takes a backend away without a sign: its connections hang.
fn hang(ground: &mut Ground) -> anyhow::Result<Mend> {
    let set = |ground: &mut Ground, up: bool| {
        let bed = ground.cluster().bed();
        let (node, device) = (bed.node(3)?.namespace(), bed.pod("pod-3b")?.device());
        node.run(async move || {
            let netlink = Netlink::open()?;
            if up { netlink.set_up(&device).await } else { netlink.set_down(&device).await }
        })
    };
    set(ground, false)?;
    Ok(Box::new(move |ground| set(ground, true)))
}

#[test]
fn a_killed_agent_costs_nothing_and_a_real_loss_is_noticed() {
    let rates = Rates { long: 3, short: 5, steady: 10, fresh: 5 };
    let mut drill = Drill::start("native", rates).unwrap();
    let faults = all();
    let killed = faults.iter().find(|fault| fault.name == "agent-killed").unwrap();
    let row = drill.play(&[killed], Form::Short);
    // A busy machine may be late.
    let is_late = |line: &String| line.starts_with("the last trouble was");
    assert!(row.losses.is_empty() && row.excess.iter().all(is_late), "{row:?}");

    let row = drill.play(&[&Fault::new("cut", "A server is replaced.", cut).lasting(1, 1)], Form::Short);
    assert!(row.losses.get(&Loss::Cut).is_some_and(|cut| *cut > 0), "{row:?}");
    assert!(row.excess.iter().any(|line| line.contains("cut through node-port")), "{row:?}");

    let row = drill.play(&[&Fault::new("hang", "A device is set down.", hang).lasting(2, 2)], Form::Short);
    assert!(row.excess.iter().any(|line| line.contains("lost through dsr-fou")), "{row:?}");
    assert!(row.right.is_some_and(|right| right > Duration::from_secs(2)), "{row:?}");
}
