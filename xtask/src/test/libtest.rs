//! Runs of cargo's tests, with counts.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Tally;
use crate::command;

/// How much of the tests' own output is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// All output, as it comes.
    Shown,
    /// All but the passed tests, only after a failure.
    OnFailure,
}

/// Runs a `cargo test` command and sums its result lines.
///
/// A run that fails without a failed test (the build, a crash) counts as one failed test. So does a
/// run that has not ended after `bound`. That run is killed.
pub fn run(cargo: &mut Command, output: Output, bound: Duration) -> Result<Tally> {
    eprintln!("+ {}", command::display(cargo));
    let mut child = cargo.stdout(Stdio::piped()).spawn().context("can't start cargo")?;
    let lines = follow(child.stdout.take().context("cargo has no output")?);
    let deadline = Instant::now() + bound;
    let mut tally = Tally::default();
    let mut kept = Vec::new();
    let in_time = loop {
        let line = match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => break true,
            Err(RecvTimeoutError::Timeout) => break false,
        };
        tally += Tally::from_result_line(&line).unwrap_or_default();
        if output == Output::Shown || line.contains(" has been running for over ") {
            println!("{line}");
        } else if !line.ends_with(" ... ok") {
            kept.push(line);
        }
    };
    if !in_time {
        kept.push(format!("killed: no end after {} minutes", bound.as_secs() / 60));
        kill_with_descendants(child.id());
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

/// Sends the lines as they come. The channel closes when the last process that could write has
/// ended.
fn follow(stdout: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Kills a process with its descendants: cargo alone would leave its test binary behind. The
/// children are read before their parent is killed.
fn kill_with_descendants(process: u32) {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    let _ = Command::new("kill").args(["-KILL", &process.to_string()]).status();
    children.split_whitespace().filter_map(|child| child.parse().ok()).for_each(kill_with_descendants);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Tally {
        let mut command = Command::new("sh");
        run(command.args(["-c", script]), Output::OnFailure, Duration::from_secs(10)).unwrap()
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

    #[test]
    fn a_run_without_end_is_killed_with_its_descendants() {
        let start = Instant::now();
        let mut command = Command::new("sh");
        command.args(["-c", "sh -c 'sleep 60; true'; true"]);
        assert_eq!(run(&mut command, Output::OnFailure, Duration::from_millis(200)).unwrap(), Tally::FAILED);
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
