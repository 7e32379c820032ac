//! helm, kustomize and kubeconform, as Go builds them from the versions in `xtask/tools/go.mod`.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::go::{numbers, put_in_place, version_of};
use crate::command;
use crate::workspace::Workspace;

const MODULE: &str = "xtask/tools";
/// Each program, its module and its package, the quickest to build first.
const PROGRAMS: [(&str, &str, &str); 3] = [
    ("kubeconform", "github.com/yannh/kubeconform", "github.com/yannh/kubeconform/cmd/kubeconform"),
    ("kustomize", "sigs.k8s.io/kustomize/kustomize/v5", "sigs.k8s.io/kustomize/kustomize/v5"),
    ("helm", "helm.sh/helm/v4", "helm.sh/helm/v4/cmd/helm"),
];

/// Returns the folder in the cache with the three programs. Go builds them there if they are missing.
pub fn ensure_manifest_tools(workspace: &Workspace) -> Result<PathBuf> {
    let path = workspace.root.join(MODULE).join("go.mod");
    let module = std::fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
    let versions = PROGRAMS.iter().map(|(program, required, _)| {
        let version = version_of(&module, required);
        let version = version.with_context(|| format!("{MODULE}/go.mod has no version of {required}"))?;
        Ok(format!("{program}-{}", version.trim_start_matches('v')))
    });
    let versions: Vec<String> = versions.collect::<Result<_>>()?;
    let folder = workspace.cache.join(format!("manifest-tools-{}", versions.join("-")));
    if PROGRAMS.iter().all(|(program, _, _)| folder.join(program).is_file()) {
        return Ok(folder);
    }
    check_go(workspace, &module)?;
    eprintln!("building helm, kustomize and kubeconform; that takes minutes the first time");
    put_in_place(&folder, |partial| {
        // One after the other: each takes a gigabyte of memory.
        PROGRAMS.iter().try_for_each(|(_, _, package)| {
            let mut go = workspace.command("go");
            go.current_dir(workspace.root.join(MODULE)).env("CGO_ENABLED", "0");
            go.args(["build", "-p", "2", "-trimpath", "-ldflags", "-s -w", "-o"]).arg(partial);
            command::run(go.arg(package))
        })
    })?;
    Ok(folder)
}

fn check_go(workspace: &Workspace, module: &str) -> Result<()> {
    let wanted = module.lines().find_map(|line| line.strip_prefix("go ")).unwrap_or_default().trim();
    // Inside the module, Go would fetch the wanted version from the network, or fail.
    let mut version = workspace.command("go");
    let found = command::output(version.args(["env", "GOVERSION"]).current_dir("/"));
    let found = found.unwrap_or_else(|_| "missing".to_owned());
    if numbers(found.trim().trim_start_matches("go")) < numbers(wanted) {
        bail!("helm, kustomize and kubeconform take Go {wanted} to build them, and `go` is {}", found.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_has_a_version() {
        let workspace = Workspace::locate().unwrap();
        let module = std::fs::read_to_string(workspace.root.join(MODULE).join("go.mod")).unwrap();
        for (program, required, _) in PROGRAMS {
            assert!(version_of(&module, required).is_some(), "{program}");
        }
    }
}
