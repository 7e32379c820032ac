//! Faults of the source of objects, here a directory of manifests.

use anyhow::{Context, Result};

use crate::drill::fault::{Fault, Mend};
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
    ),
];

fn take_away(ground: &mut Ground) -> Result<Mend> {
    let directory = ground.cluster().manifests().path().to_owned();
    let away = directory.with_file_name("away");
    std::fs::rename(&directory, &away).context("can't take the directory away")?;
    ground.kill_agents(&NODES)?;
    ground.start_agents(&NODES)?;
    Ok(Box::new(move |_| std::fs::rename(&away, &directory).context("can't bring the directory back")))
}

fn go_back(ground: &mut Ground) -> Result<Mend> {
    for way in Way::ALL {
        let older = way.older_service(ground.cluster())?;
        ground.cluster().apply(&older, &NODES)?;
    }
    Ok(Box::new(|ground| {
        Way::ALL.iter().try_for_each(|way| ground.cluster().apply(&way.service(ground.cluster())?, &NODES))
    }))
}
