//! Loads every program of an object with all features of the load-time constants. Loads the deep
//! programs also as they are during a mode change, and those of the pod firewall.

use std::fs::File;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use aya::maps::ProgramArray;
use aya::programs::{CgroupAttachMode, Program, TcAttachType, XdpMode, tc};
use aya::util::KernelVersion;
use aya::{Ebpf, EbpfLoader};
use proxy_common::config::{
    DEFAULT_MARK, SHARE_ALONE, SHARE_NEWER, SHARE_OLDER, TAKES_FOU, TAKES_IPIP, TAKES_POD_PACKETS, global,
};
use proxy_common::part::PARTS;

/// The object of the pod firewall, which lies beside the other one.
const POLICY_BPF: &str = "millrace-policy-bpf";
const LOOPBACK: &str = "lo";
const CGROUP: &str = "/sys/fs/cgroup";
/// The features that are off by default. The verifier walks through enabled code only.
const EVERYTHING: [&str; 3] = [global::DSR_POD, global::DSR_FOU, global::OUTER_SPREAD];
/// What nodes decapsulate.
const TAKEN: u32 = TAKES_IPIP | TAKES_FOU | TAKES_POD_PACKETS;
/// The programs that ask for a connection's owner during a mode change, as their parts do.
const SHARING: [&str; 3] = ["xdp_ingress", "tc_ingress", "tc_ingress_l3"];
/// The `SHARE_*` words of a mode change, and the suffix of the programs with each of them.
const SHARES: [(u32, &str); 2] = [(SHARE_NEWER, "newer"), (SHARE_OLDER, "older")];

/// Whether the programs are also attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// The programs are only loaded, and the machine stays as it is.
    No,
    /// The programs are attached to the loopback device and to all sockets, which end with the
    /// machine.
    Loopback,
}

/// Loads, prints the verifier's counts, and attaches. A refused program does not stop the others.
pub fn load(object: &Path, attach: Attach) -> Result<()> {
    let bytes = std::fs::read(object).with_context(|| format!("can't read {}", object.display()))?;
    let mut ebpf = make_maps(&bytes, SHARE_ALONE)?;
    let mut refused = load_all(&mut ebpf, |_| true, str::to_owned);
    // The kernel verifies them in parallel.
    refused.extend(thread::scope(|scope| {
        let bytes = &bytes;
        let threads = SHARES.map(|(share, suffix)| {
            scope.spawn(move || {
                let mut ebpf = make_maps(bytes, share)?;
                Ok(load_all(&mut ebpf, is_sharing, |name| format!("{name}/{suffix}")))
            })
        });
        let results =
            threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?);
        results.collect::<Result<Vec<_>>>().map(|all| all.concat())
    })?);
    let firewall = object.with_file_name(POLICY_BPF);
    let bytes = std::fs::read(&firewall).with_context(|| format!("can't read {}", firewall.display()))?;
    let mut firewall = EbpfLoader::new().load(&bytes).context("can't make the maps of the firewall")?;
    refused.extend(load_all(&mut firewall, |_| true, str::to_owned));
    if !refused.is_empty() {
        bail!("the kernel refuses {}", refused.join(", "));
    }
    fill_parts(&mut ebpf)?;
    if attach == Attach::Loopback { attach_all(&mut ebpf) } else { Ok(()) }
}

fn is_sharing(name: &str) -> bool {
    let part = PARTS.iter().find(|part| part.name == name);
    SHARING.contains(&part.map_or(name, |part| part.of))
}

/// Puts the parts into the arrays of their programs, which only take programs of one kind.
fn fill_parts(ebpf: &mut Ebpf) -> Result<()> {
    for part in PARTS {
        let program = ebpf.program(part.name).with_context(|| format!("no program {}", part.name))?;
        let program = program.fd()?.try_clone()?;
        let array = ebpf.map_mut(part.array).with_context(|| format!("no map {}", part.array))?;
        ProgramArray::try_from(array)?
            .set(part.part as u32, &program, 0)
            .with_context(|| format!("{} does not take {}", part.array, part.name))?;
    }
    Ok(())
}

fn make_maps(object: &[u8], share: u32) -> Result<Ebpf> {
    let mut loader = EbpfLoader::new();
    loader.override_global(global::MARK_VALUE, &DEFAULT_MARK, false);
    loader.override_global(global::MARK_MASK, &DEFAULT_MARK, false);
    // As in agents, these depend on the kernel.
    let decapsulates = since(6, 3);
    let has_source = since(6, 7);
    loader.override_global(global::TC_DECAP_FLAGS, &decapsulates, true);
    loader.override_global(global::FIB_SOURCE, &has_source, true);
    loader.override_global(global::SHARE, &share, true);
    loader.override_global(global::DSR_TAKES, &TAKEN, true);
    for name in EVERYTHING {
        loader.override_global(name, &1_u32, true);
    }
    loader.load(object).context("can't make the maps")
}

fn since(major: u8, minor: u8) -> u32 {
    u32::from(KernelVersion::current().is_ok_and(|current| current >= KernelVersion::new(major, minor, 0)))
}

/// Loads the wanted programs and prints their counts. Returns the names of those that the kernel
/// refuses.
fn load_all(ebpf: &mut Ebpf, is_wanted: fn(&str) -> bool, called: impl Fn(&str) -> String) -> Vec<String> {
    let mut refused = Vec::new();
    for (name, program) in ebpf.programs_mut().filter(|(name, _)| is_wanted(name)) {
        let name = called(name);
        match load_one(program) {
            Ok(count) => println!("program {name} {count}"),
            Err(error) => {
                eprintln!("{name}: {error:#}");
                refused.push(name);
            }
        }
    }
    refused
}

/// Loads one program. Returns the number of instructions that the verifier walked through.
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
    let is_part = |name: &str| PARTS.iter().any(|part| part.name == name);
    for (name, program) in ebpf.programs_mut().filter(|(name, _)| !is_part(name)) {
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
