//! A machine that runs until it powers itself off, watched through its console.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::command;
use crate::workspace::Workspace;

/// Twenty times what a machine takes on two idle cores.
const BOUND: Duration = Duration::from_mins(5);
/// A busy host delivers timer interrupts too late for the kernel's check of them.
const APPEND: &str = "console=ttyS0 loglevel=4 panic=-1 no_timer_check";
const POLL: Duration = Duration::from_millis(50);
const PASS: &str = "MILLRACE-VM-PASS";
const FAIL: &str = "MILLRACE-VM-FAIL";
/// Lines of the console that are shown when the machine fails.
const TAIL: usize = 40;

/// Boots `kernel` with `image`; returns the console's text if its marker says that all went well.
pub fn run(workspace: &Workspace, kernel: &Path, image: &Path, console: &Path) -> Result<String> {
    let mut qemu = workspace.command("qemu-system-x86_64");
    // Emulated, also where /dev/kvm exists: nested virtualisation fails in too many ways to rely on. Without cmpxchg16b:
    // QEMU 7.2 now and then leaves garbage in the flags after it, and Linux's allocator branches on them.
    qemu.args(["-machine", "pc", "-accel", "tcg", "-cpu", "max,cx16=off", "-m", "1024", "-no-reboot"]);
    qemu.args(["-display", "none", "-nic", "none", "-append", APPEND]);
    qemu.arg("-kernel").arg(kernel).arg("-initrd").arg(image);
    qemu.arg("-serial").arg(format!("file:{}", console.display()));
    eprintln!("+ {}", command::display(&qemu));
    let child = qemu.stdin(Stdio::null()).spawn().context("can't start QEMU")?;
    let ended = wait(child)?;
    let bytes = fs::read(console).with_context(|| format!("can't read {}", console.display()))?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match (verdict(&text), ended) {
        (Verdict::Pass, Ended::Itself) => Ok(text),
        (Verdict::Fail(reason), _) => show_tail(&text, console, reason),
        (_, Ended::Killed) => show_tail(&text, console, &format!("no end within {} s", BOUND.as_secs())),
        (Verdict::None, Ended::Itself) => show_tail(&text, console, "the machine stopped without a verdict"),
    }
}

#[derive(Clone, Copy)]
enum Ended {
    Itself,
    Killed,
}

fn wait(mut child: Child) -> Result<Ended> {
    let start = Instant::now();
    while start.elapsed() < BOUND {
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

fn show_tail(text: &str, console: &Path, reason: &str) -> Result<String> {
    let lines: Vec<_> = text.lines().map(str::trim_end).collect();
    let tail = lines.iter().skip(lines.len().saturating_sub(TAIL));
    eprintln!("{}", tail.map(|line| format!("  | {line}")).collect::<Vec<_>>().join("\n"));
    bail!("{reason}; the whole console is in {}", console.display())
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
}
