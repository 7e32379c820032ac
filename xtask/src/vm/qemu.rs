//! A machine that runs until it powers itself off. Its console tells the outcome.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::nic::Nic;
use super::wires::Wires;
use crate::command;
use crate::workspace::Workspace;

/// Without two checks: a busy host delivers timer interrupts too late for the first
/// (`no_timer_check`), and zeroed allocations only cost time (`init_on_alloc`).
const APPEND: &str = "console=ttyS0 loglevel=4 panic=-1 no_timer_check init_on_alloc=0";
/// The emulated processor, without some features:
///
/// - `erms`, `fsrm` (`rep movsb`): the kernel copies with it, and the emulator then copies byte by
///   byte. Without it, the verifier, which copies its states, takes half the time.
/// - `la57` (a fifth level of page tables), `smap`, `smep`, `pku` (checks on entry to the kernel):
///   they cost time.
/// - `cx16` (cmpxchg16b): QEMU 7.2 sometimes leaves garbage in the flags after it, and Linux's
///   allocator branches on them.
const CPU: &str = "max,cx16=off,erms=off,fsrm=off,la57=off,smap=off,smep=off,pku=off";
/// The clock counts instructions: each takes a nanosecond. So no timeout in the machine ends early on a busy host.
/// When the machine has nothing to do, its clock goes ahead to the next timer (`sleep=off`), which saves time.
///
/// Frames that pass a bridge of the host take time that this clock would not see. Counting costs two thirds more time, so a
/// machine that waits for nothing does without.
const CLOCK: [&str; 2] = ["-icount", "shift=0,sleep=off"];
const POLL: Duration = Duration::from_millis(50);
const PASS: &str = "MILLRACE-VM-PASS";
const FAIL: &str = "MILLRACE-VM-FAIL";
/// The number of console lines that are shown if the machine fails.
const TAIL: usize = 40;
/// The first line of the first process.
const BEGIN: &str = "MILLRACE-VM-BEGIN";
const PANIC: &str = "Kernel panic";
/// How often a machine is booted if it panics before its first process runs.
const BOOTS: usize = 3;

/// The parts of a machine.
pub struct Machine<'a> {
    /// The kernel.
    pub kernel: &'a Path,
    /// The image of its initial root.
    pub image: &'a Path,
    /// The file of its console.
    pub console: &'a Path,
    /// Its network cards, if it has any.
    pub nic: Option<&'a Nic>,
    /// Whether it waits: for limits of time, or for other machines.
    pub waits: bool,
    /// Its longest duration. A longer one is a hang.
    pub bound: Duration,
}

/// The outcome of a machine.
pub struct Ran {
    /// The whole text of the console.
    pub console: String,
    /// The reason of a failure.
    pub failure: Option<String>,
}

impl Ran {
    /// Returns the console of a machine that has not failed. Shows the last lines if it has.
    pub fn require(self, console: &Path) -> Result<String> {
        let Some(reason) = self.failure else {
            return Ok(self.console);
        };
        let lines: Vec<_> = self.console.lines().map(str::trim_end).collect();
        let tail = lines.iter().skip(lines.len().saturating_sub(TAIL));
        eprintln!("{}", tail.map(|line| format!("  | {line}")).collect::<Vec<_>>().join("\n"));
        bail!("{reason}; the whole console is in {}", console.display())
    }
}

/// Boots a machine and waits until it has powered itself off. The first marker on its console is
/// the outcome.
///
/// Under QEMU 7.2, kernels with two processors sometimes panicked in their first seconds. No kernel
/// with one processor did so far. A machine that panics before its first process runs is booted
/// again.
pub fn run(workspace: &Workspace, machine: &Machine) -> Result<Ran> {
    for _ in 1..BOOTS {
        let ran = boot(workspace, machine)?;
        if ran.failure.is_none() || has_begun(&ran.console) || !ran.console.contains(PANIC) {
            return Ok(ran);
        }
        eprintln!("  the kernel panicked before its first process ran; booting again");
    }
    boot(workspace, machine)
}

fn boot(workspace: &Workspace, machine: &Machine) -> Result<Ran> {
    let Machine { kernel, image, console, nic, waits, bound } = *machine;
    let processors = nic.map_or(1, Nic::processors);
    let wires = nic.map(|nic| Wires::of(workspace, nic)).transpose()?.flatten();
    // Machines compute all the time. Tests that run beside them have limits of time, so a machine gets only what
    // they leave.
    let mut qemu = match &wires {
        Some(wires) => wires.command(workspace, "chrt"),
        None => workspace.command("chrt"),
    };
    qemu.args(["--idle", "0", "qemu-system-x86_64"]);
    // Emulated even if /dev/kvm exists: nested virtualisation fails in too many ways.
    qemu.args(["-machine", "pc", "-cpu", CPU, "-m", "4096", "-no-reboot"]);
    // In turns: when two processors run at the same time, the kernel sometimes dies as it patches code on one while
    // the other runs that code. Machines run in parallel instead.
    qemu.args(["-accel", "tcg,thread=single", "-smp", &processors.to_string()]);
    if waits && wires.is_none() {
        qemu.args(CLOCK);
    }
    qemu.args(["-display", "none", "-nic", "none", "-append", APPEND]);
    qemu.arg("-kernel").arg(kernel).arg("-initrd").arg(image);
    qemu.args(nic.map(Nic::arguments).unwrap_or_default());
    qemu.arg("-serial").arg(format!("file:{}", console.display()));
    eprintln!("+ {}", command::display(&qemu));
    let child = qemu.stdin(Stdio::null()).spawn().context("can't start QEMU")?;
    let ended = wait(child, bound)?;
    let bytes = fs::read(console).with_context(|| format!("can't read {}", console.display()))?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let failure = match (verdict(&text), ended) {
        (Verdict::Pass, Ended::Itself) => None,
        (Verdict::Fail(reason), _) => Some(reason.to_owned()),
        (_, Ended::Killed) => Some(format!("no end within {} s", bound.as_secs())),
        (Verdict::None, Ended::Itself) => Some("the machine stopped without a verdict".to_owned()),
    };
    Ok(Ran { console: text, failure })
}

#[derive(Clone, Copy)]
enum Ended {
    Itself,
    Killed,
}

fn wait(mut child: Child, bound: Duration) -> Result<Ended> {
    let start = Instant::now();
    while start.elapsed() < bound {
        if child.try_wait().context("QEMU is gone")?.is_some() {
            return Ok(Ended::Itself);
        }
        sleep(POLL);
    }
    child.kill().context("can't kill QEMU")?;
    child.wait().context("QEMU is gone")?;
    Ok(Ended::Killed)
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict<'a> {
    Pass,
    Fail(&'a str),
    None,
}

fn verdict(console: &str) -> Verdict<'_> {
    let mut lines = console.lines().map(str::trim_end);
    let marker = |line: &&str| *line == PASS || line.starts_with(FAIL);
    match lines.find(marker) {
        Some(PASS) => Verdict::Pass,
        Some(line) => Verdict::Fail(line.trim_start_matches(FAIL).trim_start()),
        None => Verdict::None,
    }
}

/// Returns whether our first process ran.
fn has_begun(console: &str) -> bool {
    console.lines().any(|line| line.trim_end() == BEGIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_marker_decides() {
        assert_eq!(verdict("boot\r\nMILLRACE-VM-PASS\r\n"), Verdict::Pass);
        assert_eq!(verdict("MILLRACE-VM-FAIL no veth\r\nMILLRACE-VM-PASS\r\n"), Verdict::Fail("no veth"));
        assert_eq!(verdict("Kernel panic - not syncing\r\n"), Verdict::None);
    }

    #[test]
    fn a_machine_has_begun_once_its_first_process_says_so() {
        assert!(!has_begun("Kernel panic - not syncing\r\n"));
        assert!(has_begun("boot\r\nMILLRACE-VM-BEGIN\r\nKernel panic - not syncing\r\n"));
    }
}
