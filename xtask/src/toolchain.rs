//! The compiler of the BPF object. It needs its own library source, and the LLVM of bpf-linker.

use std::env::consts::ARCH;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::command;
use crate::workspace::Workspace;

/// The LLVM that bpf-linker is built with. The compiler must have the same.
pub const LLVM: &str = "22";

/// Separates several compiler flags in one variable for cargo.
pub const FLAG_SEPARATOR: &str = "\u{1f}";

/// Makes LLVM expand every `memset` and `memmove` of a few words (decision 108).
///
/// bpf-linker has LLVM leave them alone, for a pattern that some offloading hardware looks for.
/// Each one would then call a loop over single bytes.
const EXPAND: &str = "-Clink-arg=--disable-expand-memcpy-in-order";

/// Keeps paths of this machine out of what a release profile builds (decision 137).
///
/// Other options leave those of the standard library, or make the symbols depend on the folder.
pub fn trim_paths(cargo: &mut Command, profile: &str) {
    cargo.args(["-Ztrim-paths", "--config", &format!("profile.{profile}.trim-paths=\"all\"")]);
}

/// The compiler of the BPF object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toolchain {
    /// rustup's nightly, if it has rust-src and the LLVM of bpf-linker.
    Nightly,
    /// Debian's rustc-web, rust-web-src and cargo-web: a stable compiler that acts as a nightly.
    Debian,
}

impl Toolchain {
    /// Returns the toolchain that this machine will use. Debian's may have to be installed first.
    pub fn choose(workspace: &Workspace) -> Self {
        if nightly_fits(workspace) { Self::Nightly } else { Self::Debian }
    }

    /// Fails with one line if this compiler can't work with bpf-linker.
    pub fn check(self, workspace: &Workspace) -> Result<()> {
        let version = command::output(self.rustc(workspace).arg("-vV"))?;
        if llvm_of(&version) != Some(LLVM) {
            bail!(
                "the compiler for the BPF object must have LLVM {LLVM}, as bpf-linker has; it is:\n{version}"
            );
        }
        Ok(())
    }

    /// Returns this toolchain's cargo, which takes the options of a nightly.
    pub fn cargo(self, workspace: &Workspace) -> Command {
        let mut cargo = match self {
            Self::Nightly => rustup_nightly(workspace, "cargo"),
            Self::Debian => {
                let mut cargo = workspace.command("/usr/bin/cargo");
                cargo.env_remove("RUSTUP_TOOLCHAIN");
                cargo.env("RUSTC", "/usr/bin/rustc").env("RUSTC_BOOTSTRAP", "1");
                cargo
            }
        };
        cargo.env_remove("RUSTFLAGS");
        cargo
    }

    /// Returns the same cargo with all settings of the BPF object that do not depend on the crate.
    pub fn bpf_cargo(self, workspace: &Workspace) -> Command {
        let architecture = format!("--cfg=bpf_target_arch=\"{ARCH}\"");
        let flags = [architecture.as_str(), "-Cdebuginfo=2", "-Clink-arg=--btf", EXPAND];
        let mut cargo = self.cargo(workspace);
        cargo
            .env("CARGO_TARGET_DIR", workspace.target().join("bpf"))
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join(FLAG_SEPARATOR))
            .env("PATH", path_with_linker(workspace));
        cargo
    }

    /// Returns this toolchain's compiler.
    pub fn rustc(self, workspace: &Workspace) -> Command {
        match self {
            Self::Nightly => rustup_nightly(workspace, "rustc"),
            Self::Debian => {
                let mut rustc = workspace.command("/usr/bin/rustc");
                rustc.env_remove("RUSTUP_TOOLCHAIN");
                rustc
            }
        }
    }
}

/// The compiler looks for `bpf-linker` in PATH.
fn path_with_linker(workspace: &Workspace) -> OsString {
    let mut path = workspace.cache.join("bpf-linker/bin").into_os_string();
    if let Some(rest) = std::env::var_os("PATH") {
        path.push(":");
        path.push(rest);
    }
    path
}

fn rustup_nightly(workspace: &Workspace, program: &str) -> Command {
    let mut command = workspace.command("rustup");
    command.env("RUSTUP_AUTO_INSTALL", "0").env_remove("RUSTC").args(["run", "nightly", program]);
    command
}

fn nightly_fits(workspace: &Workspace) -> bool {
    let ask = |argument: &[&str]| command::output(rustup_nightly(workspace, "rustc").args(argument)).ok();
    let has_source = || {
        let sysroot = ask(&["--print", "sysroot"])?;
        Some(Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/Cargo.lock").exists())
    };
    ask(&["-vV"]).is_some_and(|version| llvm_of(&version) == Some(LLVM)) && has_source() == Some(true)
}

/// Returns the major version of LLVM in the output of `rustc -vV`.
fn llvm_of(version: &str) -> Option<&str> {
    let line = version.lines().find_map(|line| line.strip_prefix("LLVM version: "))?;
    line.split('.').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compilers_llvm_is_read_from_its_version() {
        assert_eq!(llvm_of("rustc 1.96.0\nbinary: rustc\nLLVM version: 22.1.8\n"), Some("22"));
        assert_eq!(llvm_of("rustc 1.96.0\n"), None);
    }
}
