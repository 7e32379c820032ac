//! The program of the image: one static file, built with musl.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::elf;
use super::platform::Arch;
use crate::setup::{ZIG, zig};
use crate::toolchain::{FLAG_SEPARATOR, LLVM, Toolchain, trim_paths};
use crate::workspace::Workspace;
use crate::{build, command};

/// How much the compiler optimises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// The program that is shipped.
    Shipped,
    /// A debug build, for tests: quick to build, slow and large.
    Quick,
}

impl Profile {
    /// Returns the name of the cargo profile in the workspace's Cargo.toml, and cargo's folder for it.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Shipped => ("image", "image"),
            Self::Quick => ("dev", "debug"),
        }
    }
}

/// No crt1.o and no libc.a of a Rust target, which Debian does not have: those of zig.
const FLAGS: [&str; 2] = ["-Clink-self-contained=no", "-Ctarget-feature=+crt-static"];

/// A built program.
#[derive(Debug)]
pub struct Binary {
    /// The program without symbols.
    pub program: PathBuf,
    /// Its symbols and lines, for debuggers.
    pub debug: PathBuf,
}

/// Builds the agent as a static program, after the BPF object that it embeds.
pub fn build(workspace: &Workspace, arch: Arch, profile: Profile) -> Result<Binary> {
    let (name, output) = profile.names();
    build::bpf_object(workspace, build::Warnings::Allowed)?;
    let folder = workspace.target().join("static");
    let tools = Tools::write(workspace, &folder.join("tools"), arch)?;
    let mut cargo = Toolchain::choose(workspace).cargo(workspace);
    cargo.args(["build", "--locked", "--package", "millrace", "--bin", "millrace", "--profile", name]);
    cargo.args(["--target", &arch.target(), "-Zbuild-std=std,panic_unwind"]);
    trim_paths(&mut cargo, name);
    cargo.env("CARGO_TARGET_DIR", &folder).env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join(FLAG_SEPARATOR));
    tools.set(&mut cargo, workspace, arch);
    command::run(&mut cargo)?;
    let linked = folder.join(arch.target()).join(output).join("millrace");
    let binary = split(workspace, &linked)?;
    check(workspace, &binary.program, arch, profile)?;
    Ok(binary)
}

/// Fails if the agent can't be compiled for the C library of the image. What is linked is not made, so the C parts of
/// dependencies may come from this machine's compiler.
pub fn check_source(workspace: &Workspace) -> Result<()> {
    let mut cargo = Toolchain::choose(workspace).cargo(workspace);
    let target = Arch::Amd64.target();
    cargo.args(["check", "--quiet", "--locked", "--package", "millrace", "--bin", "millrace"]);
    cargo.args(["--target", &target, "-Zbuild-std=std,panic_unwind"]);
    cargo.env("CARGO_TARGET_DIR", workspace.target().join("static"));
    cargo.env(format!("CC_{}", target.replace('-', "_")), "gcc");
    command::run(&mut cargo)
}

/// Returns the compiler and the C library that are in the program, for its SBOM.
pub fn compilers(workspace: &Workspace) -> Result<Vec<(&'static str, String)>> {
    let rustc = command::output(Toolchain::choose(workspace).rustc(workspace).arg("-vV"))?;
    let release = rustc.lines().find_map(|line| line.strip_prefix("release: "));
    let release = release.context("rustc -vV names no release")?;
    Ok(vec![("rust-std", release.to_owned()), ("zig", ZIG.to_owned())])
}

/// Scripts that call zig as the C compiler, linker and archiver of one architecture.
struct Tools {
    compiler: PathBuf,
    archiver: PathBuf,
}

impl Tools {
    fn write(workspace: &Workspace, folder: &Path, arch: Arch) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("can't create {}", folder.display()))?;
        let zig = zig(workspace);
        let zig = zig.display();
        let cpu = arch.cpu();
        // The crate cc adds Rust's name of the target, which zig does not know.
        let compiler = format!(
            "#!/bin/sh\nfor word; do\n  shift\n  case \"$word\" in --target=*) ;; *) set -- \"$@\" \"$word\" ;; esac\n\
             done\nexec '{zig}' cc -target {cpu}-linux-musl \"$@\"\n"
        );
        let archiver = format!("#!/bin/sh\nexec '{zig}' ar \"$@\"\n");
        Ok(Self {
            compiler: write_script(&folder.join(format!("zig-cc-{cpu}")), &compiler)?,
            archiver: write_script(&folder.join("zig-ar"), &archiver)?,
        })
    }

    fn set(&self, cargo: &mut Command, workspace: &Workspace, arch: Arch) {
        let target = arch.target().replace('-', "_");
        cargo.env(format!("CC_{target}"), &self.compiler).env(format!("AR_{target}"), &self.archiver);
        cargo.env(format!("CARGO_TARGET_{}_LINKER", target.to_uppercase()), &self.compiler);
        cargo.env("ZIG_GLOBAL_CACHE_DIR", workspace.cache.join("zig-cache"));
    }
}

/// Writes a script, unless it is there: cargo would build anew what depends on it.
fn write_script(path: &Path, script: &str) -> Result<PathBuf> {
    if !fs::read_to_string(path).is_ok_and(|before| before == script) {
        fs::write(path, script).with_context(|| format!("can't write {}", path.display()))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(path.to_path_buf())
}

/// Separates the symbols from the program.
fn split(workspace: &Workspace, linked: &Path) -> Result<Binary> {
    let (program, debug) = (linked.with_extension("stripped"), linked.with_extension("debug"));
    let mut objcopy = objcopy(workspace);
    command::run(
        objcopy.args(["--only-keep-debug", "--compress-debug-sections=zlib"]).arg(linked).arg(&debug),
    )?;
    command::run(objcopy_strip(workspace).arg(linked).arg(&program))?;
    Ok(Binary { program, debug })
}

fn objcopy(workspace: &Workspace) -> Command {
    workspace.command(format!("/usr/lib/llvm-{LLVM}/bin/llvm-objcopy"))
}

fn objcopy_strip(workspace: &Workspace) -> Command {
    let mut objcopy = objcopy(workspace);
    objcopy.arg("--strip-all");
    objcopy
}

/// Fails if the program is not static, is not for this architecture, or names a path of this machine.
fn check(workspace: &Workspace, program: &Path, arch: Arch, profile: Profile) -> Result<()> {
    let bytes = fs::read(program).with_context(|| format!("can't read {}", program.display()))?;
    let found = elf::read(&bytes).with_context(|| format!("can't read {}", program.display()))?;
    if found.arch != arch || found.interpreter.is_some() || !found.needed.is_empty() {
        bail!("{} is no static program for {}: {found:?}", program.display(), arch.name());
    }
    if profile == Profile::Quick {
        // Messages of unoptimised C code have paths. Such an image stays on this machine.
        return Ok(());
    }
    for folder in [Some(workspace.root.clone()), cargo_home()].into_iter().flatten() {
        let name = folder.display().to_string();
        if contains(&bytes, name.as_bytes()) {
            bail!(
                "{} has the path {name} in it, so another folder gives another image; look for it with `strings`",
                program.display()
            );
        }
    }
    Ok(())
}

fn cargo_home() -> Option<PathBuf> {
    let given = std::env::var_os("CARGO_HOME").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    given.or_else(|| Some(std::env::home_dir()?.join(".cargo")))
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
