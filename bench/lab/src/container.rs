//! The rights of a process in a pod's container that is not privileged.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;

/// Numbers of capabilities, from `linux/capability.h`.
const NET_ADMIN: u32 = 12;
const PERFMON: u32 = 38;
const BPF: u32 = 39;

/// The capabilities that the agent is to need, as a set in `/proc/PID/status`.
pub const AGENT_CAPABILITIES: u64 = 1 << NET_ADMIN | 1 << PERFMON | 1 << BPF;

/// Has the command run as in the DaemonSet: these capabilities alone, no way to more, and a root file system
/// and a `/proc/sys` that are read-only.
pub fn contain(command: &mut Command, capabilities: u64) {
    // SAFETY: between fork and exec the child makes system calls and nothing else.
    unsafe { command.pre_exec(move || read_only().and_then(|()| bound(capabilities))) };
}

fn read_only() -> io::Result<()> {
    let none: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some("/proc/sys"), "/proc/sys", none, MsFlags::MS_BIND, none)?;
    let again = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(none, "/proc/sys", none, again, none)?;
    mount(none, "/", none, again, none)?;
    Ok(())
}

/// Takes all other capabilities out of the bounding set: root gets no more at the following exec.
fn bound(capabilities: u64) -> io::Result<()> {
    for capability in (0..u64::BITS).filter(|capability| capabilities & 1 << capability == 0) {
        // SAFETY: this prctl takes a number.
        match Errno::result(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) }) {
            // Behind the kernel's last one.
            Err(Errno::EINVAL) => break,
            dropped => dropped?,
        };
    }
    Ok(prctl::set_no_new_privs()?)
}

/// Returns the effective capabilities of a process.
#[must_use]
pub fn capabilities_of(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}
