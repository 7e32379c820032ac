//! The first process of a test machine.

use std::convert::Infallible;
use std::fs::{self, File};
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::resource::{Resource, setrlimit};

/// The file with the command's words, one a line.
pub const COMMAND: &str = "/command";
/// The file with the command's environment, `NAME=VALUE` on each line.
const ENVIRONMENT: &str = "/environment";
/// The file systems that programs expect.
const MOUNTS: [(&str, &str); 7] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("bpf", "/sys/fs/bpf"),
    ("cgroup2", "/sys/fs/cgroup"),
    ("devtmpfs", "/dev"),
    ("tmpfs", "/run"),
    ("tmpfs", "/tmp"),
];
/// The directory of modules, which are loaded in the order of their names.
const MODULES: &str = "/modules";
/// The number of files that a process may have open.
const OPEN_FILES: u64 = 1 << 16;
/// The units of /proc/stat in a second (`USER_HZ`).
const TICKS: f64 = 100.0;
/// Linux's `MODULE_INIT_COMPRESSED_FILE`, which nix does not name.
const COMPRESSED: i32 = 4;

/// Runs the machine to its end.
///
/// The first line of ours on the console is `MILLRACE-VM-BEGIN`. The last one is
/// `MILLRACE-VM-PASS`, or `MILLRACE-VM-FAIL` and the reason.
pub fn run() -> ! {
    println!("MILLRACE-VM-BEGIN");
    let ended = prepare().and_then(|()| command());
    println!("{}", times());
    match ended {
        Ok(()) => println!("MILLRACE-VM-PASS"),
        Err(error) => println!("MILLRACE-VM-FAIL {error:#}"),
    }
    match reboot(RebootMode::RB_POWER_OFF) {
        Err(error) => panic!("can't power off: {error}"),
        Ok(never) => match never as Infallible {},
    }
}

/// Returns how long the processor worked in programs and in the kernel, and waited. A second is 10^9 instructions, so
/// this says what an emulated run is made of.
fn times() -> String {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let seconds: Vec<f64> = text
        .lines()
        .next()
        .into_iter()
        .flat_map(str::split_whitespace)
        .filter_map(|ticks| ticks.parse::<f64>().ok())
        .map(|ticks| ticks / TICKS)
        .collect();
    match seconds[..] {
        [user, nice, system, idle, ..] => {
            format!("{:.1} s in programs, {system:.1} s in the kernel, {idle:.1} s idle", user + nice)
        }
        _ => "the machine's times are unknown".to_owned(),
    }
}

fn prepare() -> Result<()> {
    for (kind, directory) in MOUNTS {
        fs::create_dir_all(directory).with_context(|| format!("can't make {directory}"))?;
        mount(Some(kind), directory, Some(kind), MsFlags::empty(), None::<&str>)
            .with_context(|| format!("can't mount {directory}"))?;
    }
    let mut modules: Vec<_> = fs::read_dir(MODULES)
        .with_context(|| format!("can't list {MODULES}"))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    modules.sort_unstable();
    for path in modules {
        let name = path.display();
        let file = File::open(&path).with_context(|| format!("can't open {name}"))?;
        let compressed = path.extension().is_some_and(|extension| extension != "ko");
        let flags = ModuleInitFlags::from_bits_retain(if compressed { COMPRESSED as _ } else { 0 });
        finit_module(&file, c"", flags).with_context(|| format!("can't insert {name}"))?;
    }
    Ok(())
}

fn command() -> Result<()> {
    // A test that loads programs in many settings keeps as many maps open.
    setrlimit(Resource::RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES)
        .context("can't raise the limit of open files")?;
    let text = fs::read_to_string(COMMAND).with_context(|| format!("can't read {COMMAND}"))?;
    let mut words = text.lines();
    let program = words.next().with_context(|| format!("{COMMAND} is empty"))?;
    let variables = fs::read_to_string(ENVIRONMENT).with_context(|| format!("can't read {ENVIRONMENT}"))?;
    let variables = variables.lines().filter_map(|line| line.split_once('='));
    let mut command = Command::new(program);
    let status =
        command.args(words).envs(variables).status().with_context(|| format!("can't start {program}"))?;
    if !status.success() {
        bail!("{program} ended with {status}");
    }
    Ok(())
}
