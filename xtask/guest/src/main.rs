//! Runs inside a test machine.
//!
//! - As process 1 it prepares the machine, runs the command in [`init::COMMAND`] and powers off.
//! - As `vm-guest load OBJECT [--attach]` it loads every program of a BPF object, and of that of the pod
//!   firewall beside it. It prints the verifier's instruction counts, one line `program NAME INSTRUCTIONS` each.

mod init;
mod load;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

fn main() -> ExitCode {
    if std::process::id() == 1 {
        init::run();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match perform(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line: the verifier's log has many lines, and the last ones have the reason.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(words: &[&str]) -> Result<()> {
    match words {
        ["load", object] => load::load(Path::new(object), load::Attach::No),
        ["load", object, "--attach"] => load::load(Path::new(object), load::Attach::Loopback),
        _ => bail!("usage: vm-guest load OBJECT [--attach]"),
    }
}
