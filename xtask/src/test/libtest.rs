//! Cargo's test runs, counted.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::Tally;
use crate::command;

/// What is shown of the tests' own output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Everything, as it comes.
    Shown,
    /// All but the passed tests, and only after a failure.
    OnFailure,
}

/// Runs a `cargo test` command and sums its result lines. A run that fails without a failed test (the build, a crash)
/// counts as one.
pub fn run(cargo: &mut Command, output: Output) -> Result<Tally> {
    eprintln!("+ {}", command::display(cargo));
    let mut child = cargo.stdout(Stdio::piped()).spawn().context("can't start cargo")?;
    let stdout = child.stdout.take().context("cargo has no output")?;
    let mut tally = Tally::default();
    let mut kept = Vec::new();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = String::from_utf8_lossy(&line.context("can't read the tests' output")?).into_owned();
        if let Some(counts) = Tally::from_result_line(&line) {
            tally += counts;
        }
        match output {
            Output::Shown => println!("{line}"),
            Output::OnFailure if line.ends_with(" ... ok") => {}
            Output::OnFailure => kept.push(line),
        }
    }
    let status = child.wait().context("cargo is gone")?;
    if !status.success() {
        if tally.failed == 0 {
            kept.push(format!("`{}` failed ({status})", command::display(cargo)));
            tally += Tally::FAILED;
        }
        println!("{}", kept.join("\n"));
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Tally {
        run(Command::new("sh").args(["-c", script]), Output::OnFailure).unwrap()
    }

    #[test]
    fn the_result_lines_of_several_binaries_are_summed() {
        let line = "echo 'test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out'";
        assert_eq!(shell(&format!("{line}; {line}")), Tally { passed: 4, failed: 0, skipped: 2 });
    }

    #[test]
    fn a_run_that_fails_without_a_failed_test_counts_as_one() {
        assert_eq!(shell("exit 101"), Tally::FAILED);
    }
}
