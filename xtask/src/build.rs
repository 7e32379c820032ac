//! Builds. The BPF object comes first, because the agent embeds it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::toolchain::{Toolchain, trim_paths};
use crate::workspace::{KERNEL_BPF, POLICY_BPF, Workspace};
use crate::{command, object_check, slim, stack_check};

/// The effect of the compiler's warnings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warnings {
    /// They are shown.
    Allowed,
    /// They fail the build.
    Denied,
}

/// Builds the BPF object, the agent, the test bed and the bench.
pub fn everything(workspace: &Workspace) -> Result<()> {
    bpf_object(workspace, Warnings::Allowed)?;
    let packages = ["-p", "millrace", "-p", "millrace-lab", "-p", "millrace-bench"];
    command::run(workspace.cargo().arg("build").args(packages))
}

/// Builds the agent alone, after the BPF objects that it embeds. Returns its path.
pub fn agent(workspace: &Workspace) -> Result<PathBuf> {
    bpf_object(workspace, Warnings::Allowed)?;
    command::run(workspace.cargo().args(["build", "--locked", "-p", "millrace", "--bin", "millrace"]))?;
    Ok(workspace.target().join("debug/millrace"))
}

/// Builds the BPF programs, and fails if one of them could panic.
pub fn bpf_object(workspace: &Workspace, warnings: Warnings) -> Result<()> {
    let mut cargo = bpf_cargo(workspace, "millrace-bpf");
    let further = further_objects(workspace)?;
    cargo.args(further.iter().flat_map(|name| ["--bin", name]));
    if warnings == Warnings::Denied {
        // Unlike -Dwarnings, this is no compiler flag, so cargo does not build again what it has
        // built.
        cargo.env("CARGO_BUILD_WARNINGS", "deny").arg("-Zwarnings");
    }
    command::run(&mut cargo)?;
    let (linked, object) = (workspace.linked_object(), workspace.bpf_object());
    further
        .iter()
        .try_for_each(|name| checked(&linked.with_file_name(name), &object.with_file_name(name)))?;
    checked(&linked, &object)
}

/// Returns the names of the objects that agents embed beside that of the data path. A former version has fewer.
fn further_objects(workspace: &Workspace) -> Result<Vec<&'static str>> {
    let path = workspace.root.join("proxy-ebpf/Cargo.toml");
    let manifest =
        std::fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
    Ok(declared(&manifest, &[KERNEL_BPF, POLICY_BPF]))
}

/// Returns those of the names that a manifest gives to a binary.
fn declared(manifest: &str, names: &[&'static str]) -> Vec<&'static str> {
    let is_declared = |name: &str| manifest.lines().any(|line| line == format!("name = \"{name}\""));
    names.iter().copied().filter(|name| is_declared(name)).collect()
}

/// Checks an object from the linker, and writes what agents embed.
fn checked(linked: &Path, object: &Path) -> Result<()> {
    let bytes = std::fs::read(linked).with_context(|| format!("can't read {}", linked.display()))?;
    let traces = object_check::panic_traces(&bytes)?;
    if !traces.is_empty() {
        bail!(
            "{} can panic, and the kernel would refuse it: {}; look for an index, a slice or a division whose \
             bounds the compiler can't prove",
            linked.display(),
            traces.join(", ")
        );
    }
    let loops = object_check::byte_loops(&bytes)?;
    if !loops.is_empty() {
        bail!(
            "{} calls {}, a loop over single bytes; copy and clear only blocks of a constant size that fits the stack",
            linked.display(),
            loops.join(", ")
        );
    }
    check_stack(&bytes)?;
    write_slimmed(&bytes, object)
}

/// Builds the BPF programs that log each packet's steps, for developers. Returns the path of the object.
///
/// The feature would build all anew that another build left in the same directory.
pub fn trace_object(workspace: &Workspace) -> Result<PathBuf> {
    let directory = workspace.target().join("bpf-trace");
    let mut cargo = bpf_cargo(workspace, "millrace-bpf");
    command::run(cargo.args(["--features", "trace"]).env("CARGO_TARGET_DIR", &directory))?;
    let linked = directory.join("bpfel-unknown-none/release/millrace-bpf");
    let bytes = std::fs::read(&linked).with_context(|| format!("can't read {}", linked.display()))?;
    let object = directory.join("millrace-bpf");
    write_slimmed(&bytes, &object)?;
    Ok(object)
}

/// Builds an agent whose programs log each packet's steps. Returns its path.
///
/// The next build of the agent has the usual programs again.
pub fn tracing_agent(workspace: &Workspace) -> Result<PathBuf> {
    let object = trace_object(workspace)?;
    let agent = object.with_file_name("millrace");
    command::run(workspace.cargo().args(["build", "-p", "millrace"]).env("MILLRACE_BPF_OBJECT", &object))?;
    std::fs::copy(workspace.target().join("debug/millrace"), &agent)
        .with_context(|| format!("can't write {}", agent.display()))?;
    Ok(agent)
}

/// Fails if a supported kernel would refuse a program for its stack.
fn check_stack(bytes: &[u8]) -> Result<()> {
    for (program, chain) in stack_check::deepest_chains(bytes)? {
        if chain.bytes > stack_check::LIMIT {
            let frames: Vec<_> =
                chain.frames.iter().map(|(name, stack)| format!("  {stack:>4}  {name}")).collect();
            bail!(
                "{program} needs {} bytes of stack on kernels before 6.4, where a frame counts in steps of 32; {} are allowed:\n{}",
                chain.bytes,
                stack_check::LIMIT,
                frames.join("\n")
            );
        }
    }
    Ok(())
}

/// Writes the object that agents load.
fn write_slimmed(linked: &[u8], object: &Path) -> Result<()> {
    let slimmed = slim::slim(linked)?;
    // A write would make cargo build all dependants again.
    if std::fs::read(object).is_ok_and(|before| before == slimmed) {
        return Ok(());
    }
    std::fs::write(object, slimmed).with_context(|| format!("can't write {}", object.display()))
}

/// Builds the benches' own programs: those that restore frames, and those that send and count them.
pub fn bench_object(workspace: &Workspace) -> Result<()> {
    for name in ["millrace-bench-bpf", "millrace-rate-bpf"] {
        command::run(&mut bpf_cargo(workspace, name))?;
        let linked = workspace.linked_object().with_file_name(name);
        let bytes = std::fs::read(&linked).with_context(|| format!("can't read {}", linked.display()))?;
        write_slimmed(&bytes, &workspace.bpf_object().with_file_name(name))?;
    }
    Ok(())
}

fn bpf_cargo(workspace: &Workspace, bin: &str) -> Command {
    let mut cargo = Toolchain::choose(workspace).bpf_cargo(workspace);
    cargo.args(["build", "--release", "-p", "proxy-ebpf", "--bin", bin, "--features", "bpf"]);
    cargo.args(["--target", "bpfel-unknown-none", "-Zbuild-std=core"]);
    // The description of types (BTF) names source files.
    trim_paths(&mut cargo, "release");
    cargo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_objects_are_those_that_the_version_has() {
        let present = include_str!("../../proxy-ebpf/Cargo.toml");
        assert_eq!(declared(present, &[KERNEL_BPF, POLICY_BPF]), [KERNEL_BPF, POLICY_BPF]);
        let former = "[[bin]]\nname = \"millrace-bpf\"\n\n[[bin]]\nname = \"millrace-kernel-bpf\"\n";
        assert_eq!(declared(former, &[KERNEL_BPF, POLICY_BPF]), [KERNEL_BPF]);
    }
}
