//! The drill: faults, played one after another on running traffic, and a table of what each cost.
//!
//! - [`way`](Way): the ways of forwarding that the traffic takes.
//! - [`Ground`]: the cluster. A fault changes it.
//! - [`Fault`]: its name, its play, its repair, and the losses that it may cause.
//! - `traffic` and `ledger`: the traffic, and the record of its trouble.
//! - `play`: one fault on running traffic, and the comparison of its losses with the allowed ones.
//! - `report` and `page`: the table, and the document with it.

mod fault;
mod faults;
mod ground;
mod ledger;
pub(crate) mod page;
mod play;
mod report;
mod traffic;
mod way;

use std::path::PathBuf;

use anyhow::{Context, Result};

pub use fault::{Allowance, Bound, Fault, Loss, Mend, Right};
pub use faults::{NOT_PLAYABLE, all, of_upgrade};
pub(crate) use faults::{entries, pins};
pub use ground::Ground;
pub(crate) use ground::NODES;
pub(crate) use ledger::{Ledger, Trouble};
pub(crate) use play::settle;
pub use play::{Form, Row};
pub use traffic::Rates;
pub(crate) use traffic::Traffic;
pub use way::Way;

use crate::agent::former_binary;

/// The choices of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// The agents' `--xdp`.
    pub xdp: String,
    /// The length.
    pub form: Form,
    /// Whether pairs of faults follow.
    pub pairs: bool,
    /// The name of the only fault, or of faults at once with a plus between them.
    pub only: Option<String>,
    /// Whether the steps of an upgrade are played, and no fault.
    pub upgrade: bool,
    /// Whether the table of docs/drill.md is replaced.
    pub write: bool,
}

impl Options {
    /// Returns the command whose part of docs/drill.md is replaced.
    const fn write_command(&self) -> &'static str {
        if self.upgrade { "cargo xtask drill --upgrade --write" } else { "cargo xtask drill --write" }
    }
}

/// A cluster with running traffic.
#[derive(Debug)]
pub struct Drill {
    // The traffic ends before the cluster.
    traffic: Traffic,
    ledger: Ledger,
    ground: Ground,
}

impl Drill {
    /// Builds the cluster and starts the traffic.
    pub fn start(xdp: &str, rates: Rates) -> Result<Self> {
        Self::on(Ground::start(xdp)?, rates)
    }

    /// Builds the cluster with agents of a former version, and starts the traffic.
    ///
    /// Then each Service gets its last endpoint. So the flow entries alone keep many connections at their backends:
    /// the hash of their packets leads to the new one.
    pub fn start_former(xdp: &str, rates: Rates, former: PathBuf) -> Result<Self> {
        let ground = Ground::start_former(xdp, former)?;
        faults::check_former(&ground)?;
        let drill = Self::on(ground, rates)?;
        drill.ground.put_services(Way::service)?;
        Ok(drill)
    }

    fn on(ground: Ground, rates: Rates) -> Result<Self> {
        let ledger = Ledger::default();
        Ok(Self { traffic: Traffic::start(&ground, &ledger, rates)?, ledger, ground })
    }

    /// Plays faults at once.
    pub fn play(&mut self, faults: &[&Fault], form: Form) -> Row {
        play::play(&mut self.ground, &self.ledger, faults, form)
    }
}

/// Returns the faults of each row.
fn turns<'a>(faults: &'a [Fault], options: &Options) -> Result<Vec<Vec<&'a Fault>>> {
    let Some(only) = &options.only else {
        let alone = faults.iter().map(|fault| vec![fault]);
        let pairs = if options.pairs { faults::pairs(faults) } else { Vec::new() };
        return Ok(alone.chain(pairs).collect());
    };
    let named = |name: &str| {
        faults.iter().find(|fault| fault.name == name.trim()).with_context(|| {
            let names: Vec<&str> = faults.iter().map(|fault| fault.name).collect();
            format!("there is no fault `{name}`; there are {}", names.join(", "))
        })
    };
    Ok(vec![only.split('+').map(named).collect::<Result<_>>()?])
}

/// Plays all faults, or the chosen one, and prints the table. Returns whether all is as allowed.
pub fn run(options: &Options) -> Result<bool> {
    let faults = if options.upgrade { of_upgrade().to_vec() } else { all() };
    let turns = turns(&faults, options)?;
    let former = options.upgrade.then(former_binary).transpose()?;
    println!("Building three nodes with an agent each, and the traffic ...");
    let mut drill = match former {
        Some(former) => Drill::start_former(&options.xdp, Rates::default(), former)?,
        None => Drill::start(&options.xdp, Rates::default())?,
    };
    println!("{}", report::head());
    let mut rows = Vec::new();
    for turn in turns {
        let row = drill.play(&turn, options.form);
        println!("{}", report::lines(&row));
        rows.push(row);
    }
    let is_complete = options.only.is_none() && !options.upgrade;
    for (name, reason) in NOT_PLAYABLE.iter().filter(|_| is_complete) {
        println!("{}is not played: {reason}", report::first_cell(name));
    }
    if options.write {
        println!("{} is written", report::write_page(options.write_command(), &rows)?.display());
    }
    drop(drill.traffic);
    let bad: Vec<&str> =
        rows.iter().filter(|row| !row.excess.is_empty()).map(|row| row.name.as_str()).collect();
    match bad.as_slice() {
        [] => println!("\nEach loss is allowed"),
        _ => println!("\nNot all losses are allowed: {}", bad.join(", ")),
    }
    Ok(bad.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upgrade_has_all_steps_in_their_order() {
        let options = Options {
            xdp: "native".to_owned(),
            form: Form::Short,
            pairs: false,
            only: None,
            upgrade: true,
            write: false,
        };
        let turns = turns(of_upgrade(), &options).unwrap();
        let names: Vec<&str> = turns.iter().flatten().map(|step| step.name).collect();
        assert_eq!(names, of_upgrade().iter().map(|step| step.name).collect::<Vec<_>>());
        assert_eq!(names.first(), Some(&"nothing"));
    }
}
