//! The paths of the workspace, and commands that run in it.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// The name of the BPF object of `millrace monitor --kernel`.
pub const KERNEL_BPF: &str = "millrace-kernel-bpf";
/// The name of the BPF object of the pod firewall.
pub const POLICY_BPF: &str = "millrace-policy-bpf";

/// The repository and the cache beside it.
pub struct Workspace {
    /// The directory of the workspace's Cargo.toml.
    pub root: PathBuf,
    /// Tools and kernels, kept outside `target` so that `cargo clean` spares them.
    pub cache: PathBuf,
}

impl Workspace {
    /// Returns the workspace that this xtask was built from.
    pub fn locate() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("xtask lies in no directory")?
            .to_path_buf();
        let base = env::var_os("XDG_CACHE_HOME")
            .filter(|directory| !directory.is_empty())
            .map(PathBuf::from)
            .or_else(|| env::home_dir().map(|home| home.join(".cache")))
            .context("neither XDG_CACHE_HOME nor HOME is set")?;
        Ok(Self { root, cache: base.join("millrace") })
    }

    /// Returns cargo's output directory.
    pub fn target(&self) -> PathBuf {
        self.root.join("target")
    }

    /// Returns the path of the BPF object that agents embed.
    pub fn bpf_object(&self) -> PathBuf {
        self.target().join("bpf/millrace-bpf")
    }

    /// Returns the path of the BPF object of the pod firewall, which agents embed as well.
    pub fn policy_bpf_object(&self) -> PathBuf {
        self.bpf_object().with_file_name(POLICY_BPF)
    }

    /// Returns the path of the BPF object from the linker, with debug information.
    pub fn linked_object(&self) -> PathBuf {
        self.target().join("bpf/bpfel-unknown-none/release/millrace-bpf")
    }

    /// Returns the path of a tool that was installed into the cache with a root of its own.
    pub fn tool(&self, name: &str) -> PathBuf {
        self.cache.join(name).join("bin").join(name)
    }

    /// Returns a command that runs in the workspace, without the variables that cargo set for xtask
    /// itself.
    ///
    /// Build scripts that watch those variables would run again each time. Another toolchain would
    /// find the wrong libraries.
    pub fn command(&self, program: impl Into<OsString>) -> Command {
        let mut command = Command::new(program.into());
        command.current_dir(&self.root);
        for (name, _) in env::vars_os() {
            if name.to_str().is_some_and(is_set_by_cargo_run) {
                command.env_remove(name);
            }
        }
        command
    }

    /// Returns the cargo that runs xtask, with the workspace's target directory.
    pub fn cargo(&self) -> Command {
        let mut command = self.command(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.env("CARGO_TARGET_DIR", self.target());
        command
    }
}

fn is_set_by_cargo_run(name: &str) -> bool {
    const PREFIXES: [&str; 5] =
        ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"];
    const NAMES: [&str; 4] = ["CARGO", "OUT_DIR", "LD_LIBRARY_PATH", "CARGO_TARGET_DIR"];
    NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_variables_that_cargo_run_sets_are_removed() {
        assert!(is_set_by_cargo_run("CARGO_PKG_NAME"));
        assert!(is_set_by_cargo_run("LD_LIBRARY_PATH"));
        assert!(!is_set_by_cargo_run("CARGO_HOME"));
        assert!(!is_set_by_cargo_run("RUSTUP_TOOLCHAIN"));
    }
}
