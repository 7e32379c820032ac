//! Programs that Go builds once, into the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command;
use crate::workspace::Workspace;

/// A package, the name Go gives its program, and the name it gets.
pub(super) type Program = (&'static str, &'static str, &'static str);

/// Flags of the compiler. Nobody debugs these programs: without its tables they build in seven eighths of the time. All have
/// the same flags, so that those built later find the packages of earlier ones in Go's cache.
pub(super) const GCFLAGS: &str = "all=-dwarf=false";

/// A module of the repository that requires the programs' packages.
#[derive(Clone, Copy, Debug)]
pub struct Module {
    /// The folder with go.mod.
    pub folder: &'static str,
    /// The required module whose version names the folder in the cache.
    pub release_of: &'static str,
}

impl Module {
    /// Returns the text of go.mod, and the release in it.
    pub(super) fn read(self, workspace: &Workspace) -> Result<(String, String)> {
        let path = workspace.root.join(self.folder).join("go.mod");
        let text = fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
        let release = version_of(&text, self.release_of)
            .with_context(|| format!("{} has no version of {}", path.display(), self.release_of))?
            .to_owned();
        Ok((text, release))
    }

    /// Returns a call of Go in the module. Its programs are static.
    pub(super) fn go(self, workspace: &Workspace) -> Command {
        let mut go = workspace.command("go");
        go.current_dir(workspace.root.join(self.folder)).env("CGO_ENABLED", "0");
        // The compiler collects its garbage less often: a sixth less time, for half a gigabyte.
        go.env("GOGC", "400");
        go
    }

    /// Returns the folder with the sources of the required module. Go has them in its cache.
    pub fn source(self, workspace: &Workspace) -> Result<PathBuf> {
        let mut go = self.go(workspace);
        let found = command::output(go.args(["mod", "download", "-json", self.release_of]))?;
        let found: Value = serde_json::from_str(&found)?;
        let folder = found.get("Dir").and_then(Value::as_str);
        folder.map(PathBuf::from).with_context(|| format!("Go has no sources of {}", self.release_of))
    }

    /// Returns the folder of programs in the cache, which need not exist.
    pub fn cached(self, workspace: &Workspace, name: &str) -> Result<PathBuf> {
        let (_, release) = self.read(workspace)?;
        Ok(workspace.cache.join(format!("{name}-{}", release.trim_start_matches('v'))))
    }
}

/// Returns the folder in the cache with these programs, of the release in go.mod.
pub(super) fn ensure_built(
    workspace: &Workspace,
    module: Module,
    name: &str,
    programs: &[Program],
) -> Result<PathBuf> {
    let (text, release) = module.read(workspace)?;
    let folder = module.cached(workspace, name)?;
    if missing_program(&folder, programs).is_some() {
        check_go(workspace, &text, programs)?;
        build(workspace, module, &release, &folder, programs)
            .with_context(|| format!("can't build {}", names(programs)))?;
    }
    Ok(folder)
}

fn names(programs: &[Program]) -> String {
    programs.iter().map(|(_, _, name)| *name).collect::<Vec<_>>().join(" and ")
}

/// Returns the first of the programs that a folder lacks.
pub(super) fn missing_program(folder: &Path, programs: &[Program]) -> Option<&'static str> {
    programs.iter().map(|(_, _, name)| *name).find(|name| !folder.join(name).is_file())
}

pub(super) fn check_go(workspace: &Workspace, module: &str, programs: &[Program]) -> Result<()> {
    let wanted = module.lines().find_map(|line| line.strip_prefix("go ")).unwrap_or_default().trim();
    let missing = format!("{} are missing: install Go {wanted}, which builds them", names(programs));
    // Inside the module, Go would fetch the wanted version from the network, or fail.
    let mut version = workspace.command("go");
    version.args(["env", "GOVERSION"]).current_dir("/");
    let Ok(found) = command::output(&mut version) else { bail!("{missing} (there is no `go`)") };
    let found = found.trim().trim_start_matches("go");
    if numbers(found) < numbers(wanted) {
        bail!("{missing} (`go` is {found}, which is too old)");
    }
    Ok(())
}

fn build(
    workspace: &Workspace,
    module: Module,
    release: &str,
    folder: &Path,
    programs: &[Program],
) -> Result<()> {
    eprintln!("building {} {release}; the first build takes up to a quarter of an hour", names(programs));
    put_in_place(folder, |partial| {
        let mut go = module.go(workspace);
        go.args(["build", "-trimpath", "-gcflags", GCFLAGS, "-ldflags", &link_flags(release), "-o"])
            .arg(partial);
        command::run(go.args(programs.iter().map(|(package, _, _)| package)))?;
        programs.iter().filter(|(_, built, name)| built != name).try_for_each(|(_, built, name)| {
            fs::rename(partial.join(built), partial.join(name))
                .with_context(|| format!("there is no {built}"))
        })
    })
}

/// Fills a folder under a temporary name, then renames it. A run that is killed leaves no
/// incomplete folder.
pub(super) fn put_in_place(folder: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let mut partial = folder.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    for rest in [&partial, folder] {
        if rest.exists() {
            fs::remove_dir_all(rest).with_context(|| format!("can't remove {}", rest.display()))?;
        }
    }
    fs::create_dir_all(&partial).with_context(|| format!("can't create {}", partial.display()))?;
    fill(&partial)?;
    fs::rename(&partial, folder).with_context(|| format!("can't create {}", folder.display()))
}

/// Returns the linker flags with the version. The API server needs it to know its features.
pub(super) fn link_flags(release: &str) -> String {
    let mut parts = release.trim_start_matches('v').split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let set = |name: &str, value: &str| format!(" -X k8s.io/component-base/version.{name}={value}");
    format!("-s -w{}{}{}", set("gitVersion", release), set("gitMajor", major), set("gitMinor", minor))
}

/// Returns the version of a module that a go.mod requires.
pub(super) fn version_of<'a>(module: &'a str, path: &str) -> Option<&'a str> {
    module.lines().find_map(|line| {
        let mut words = line.trim().trim_start_matches("require ").split_whitespace();
        (words.next() == Some(path)).then(|| words.next()).flatten().filter(|word| word.starts_with('v'))
    })
}

/// Returns the leading numbers of a version, such as 1.26.8 of `1.26.8-something`.
fn numbers(version: &str) -> Vec<u32> {
    let parts = version.split('.');
    let digits = |part: &str| part.split(|c: char| !c.is_ascii_digit()).next().map(str::to_owned);
    parts.map_while(|part| digits(part)?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;

    const PROGRAMS: [Program; 2] = [("", "kube-apiserver", "kube-apiserver"), ("", "server", "etcd")];

    #[test]
    fn the_release_is_read_from_the_module() {
        let module = "require (\n\tk8s.io/kubernetes v1.36.3 // indirect\n)\n\
                      replace (\n\tk8s.io/api => k8s.io/api v0.36.3\n)\n";
        assert_eq!(version_of(module, "k8s.io/kubernetes"), Some("v1.36.3"));
        assert_eq!(version_of(module, "k8s.io/api"), None);
    }

    #[test]
    fn versions_of_go_are_compared_by_their_numbers() {
        assert!(numbers("1.19.8") < numbers("1.26.0"));
        assert!(numbers("1.26.8") >= numbers("1.26.0"));
        assert!(numbers("1.27rc1") >= numbers("1.26.0"));
    }

    #[test]
    fn the_programs_are_linked_with_their_version() {
        let flags = link_flags("v1.36.3");
        assert!(flags.contains("gitVersion=v1.36.3") && flags.ends_with("gitMinor=36"), "{flags}");
    }

    #[test]
    fn a_folder_without_etcd_is_not_taken() {
        let folder = env::temp_dir().join(format!("millrace-xtask-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("kube-apiserver"), "").unwrap();
        assert_eq!(missing_program(&folder, &PROGRAMS), Some("etcd"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_interrupted_build_leaves_no_folder_and_begins_anew() {
        let scratch = env::temp_dir().join(format!("millrace-xtask-build-{}", std::process::id()));
        let folder = scratch.join("apiserver-1.2.3");
        let half = put_in_place(&folder, |partial| {
            fs::write(partial.join("kube-apiserver"), "half of it")?;
            bail!("killed")
        });
        assert_eq!(half.unwrap_err().to_string(), "killed");
        assert_eq!(missing_program(&folder, &PROGRAMS), Some("kube-apiserver"));

        let fill = |partial: &Path| {
            assert_eq!(fs::read_dir(partial)?.count(), 0, "the remains are gone");
            for (_, _, name) in PROGRAMS {
                fs::write(partial.join(name), "")?;
            }
            assert!(!folder.exists(), "it must not exist before it is complete");
            Ok(())
        };
        put_in_place(&folder, fill).unwrap();
        assert_eq!(missing_program(&folder, &PROGRAMS), None);
        assert_eq!(fs::read_dir(&scratch).unwrap().count(), 1);

        // The same happens if one of the programs was removed.
        fs::remove_file(folder.join("etcd")).unwrap();
        put_in_place(&folder, fill).unwrap();
        assert_eq!(missing_program(&folder, &PROGRAMS), None);
        fs::remove_dir_all(scratch).unwrap();
    }
}
