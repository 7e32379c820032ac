//! Loads every program of an object, with all that load-time constants can switch on.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, bail};
use aya::programs::{CgroupAttachMode, Program, TcAttachType, XdpMode, tc};
use aya::{Ebpf, EbpfLoader};
use proxy_common::config::{DEFAULT_MARK, global};

const LOOPBACK: &str = "lo";
const CGROUP: &str = "/sys/fs/cgroup";
/// What is off by default. The verifier walks through what is on, and nothing else.
const EVERYTHING: [&str; 3] = [global::DSR_POD, global::DSR_FOU, global::OUTER_SPREAD];

/// Whether the programs are attached as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// They are loaded only, so the machine stays as it is.
    No,
    /// To the loopback device and to all sockets, which end with the machine.
    Loopback,
}

/// Loads, prints the verifier's counts, and attaches. All programs are tried, also after one was refused.
pub fn load(object: &Path, attach: Attach) -> Result<()> {
    let bytes = std::fs::read(object).with_context(|| format!("can't read {}", object.display()))?;
    let mut loader = EbpfLoader::new();
    loader.override_global(global::MARK_VALUE, &DEFAULT_MARK, false);
    loader.override_global(global::MARK_MASK, &DEFAULT_MARK, false);
    for name in EVERYTHING {
        loader.override_global(name, &1_u32, true);
    }
    let mut ebpf = loader.load(&bytes).context("can't make the maps")?;
    let mut refused = Vec::new();
    let mut programs = 0;
    for (name, program) in ebpf.programs_mut() {
        programs += 1;
        match load_one(program) {
            Ok(count) => println!("program {name} {count}"),
            Err(error) => {
                eprintln!("{name}: {error:#}");
                refused.push(name.to_owned());
            }
        }
    }
    if programs == 0 {
        bail!("{} has no programs", object.display());
    }
    if !refused.is_empty() {
        bail!("the kernel refuses {}", refused.join(", "));
    }
    if attach == Attach::Loopback { attach_all(&mut ebpf) } else { Ok(()) }
}

/// The number of instructions the verifier walked through.
fn load_one(program: &mut Program) -> Result<u32> {
    match program {
        Program::Xdp(xdp) => xdp.load()?,
        Program::SchedClassifier(classifier) => classifier.load()?,
        Program::CgroupSockAddr(hook) => hook.load()?,
        Program::CgroupSock(hook) => hook.load()?,
        _ => bail!("of a kind this loader does not know"),
    }
    program.info()?.verified_instruction_count().context("the kernel counts no instructions")
}

fn attach_all(ebpf: &mut Ebpf) -> Result<()> {
    let cgroup = File::open(CGROUP).with_context(|| format!("can't open {CGROUP}"))?;
    tc::qdisc_add_clsact(LOOPBACK).context("can't add the clsact queueing discipline")?;
    for (name, program) in ebpf.programs_mut() {
        match program {
            Program::Xdp(xdp) => xdp.attach(LOOPBACK, XdpMode::Skb).map(drop),
            Program::CgroupSockAddr(hook) => hook.attach(&cgroup, CgroupAttachMode::Single).map(drop),
            Program::CgroupSock(hook) => hook.attach(&cgroup, CgroupAttachMode::Single).map(drop),
            Program::SchedClassifier(classifier) => {
                let direction =
                    if name.ends_with("_egress") { TcAttachType::Egress } else { TcAttachType::Ingress };
                classifier.attach(LOOPBACK, direction).map(drop)
            }
            _ => continue,
        }
        .with_context(|| format!("can't attach {name}"))?;
    }
    Ok(())
}
