//! helm, kustomize and kubeconform, as Go builds them from the versions in `xtask/tools/go.mod`.

use std::path::PathBuf;

use anyhow::Result;

use super::go::{GCFLAGS, Module, Program, check_go, missing_program, put_in_place};
use crate::command;
use crate::workspace::Workspace;

const FOLDER: &str = "xtask/tools";
/// The programs, the quickest to build first.
const PROGRAMS: [Program; 3] = [
    ("github.com/yannh/kubeconform/cmd/kubeconform", "kubeconform", "kubeconform"),
    ("sigs.k8s.io/kustomize/kustomize/v5", "kustomize", "kustomize"),
    ("helm.sh/helm/v4/cmd/helm", "helm", "helm"),
];
/// The module of each.
const MODULES: [Module; 3] = [
    Module { folder: FOLDER, release_of: "github.com/yannh/kubeconform" },
    Module { folder: FOLDER, release_of: "sigs.k8s.io/kustomize/kustomize/v5" },
    Module { folder: FOLDER, release_of: "helm.sh/helm/v4" },
];

/// Returns the folder in the cache with the three programs. Go builds them there if they are missing.
pub fn ensure_manifest_tools(workspace: &Workspace) -> Result<PathBuf> {
    let mut versions = Vec::new();
    let mut text = String::new();
    for (module, (_, _, name)) in MODULES.iter().zip(PROGRAMS) {
        let release;
        (text, release) = module.read(workspace)?;
        versions.push(format!("{name}-{}", release.trim_start_matches('v')));
    }
    let folder = workspace.cache.join(format!("manifest-tools-{}", versions.join("-")));
    if missing_program(&folder, &PROGRAMS).is_none() {
        return Ok(folder);
    }
    check_go(workspace, &text, &PROGRAMS)?;
    eprintln!("building helm, kustomize and kubeconform; that takes minutes the first time");
    put_in_place(&folder, |partial| {
        // One after the other: each takes a gigabyte of memory.
        MODULES.iter().zip(PROGRAMS).try_for_each(|(module, (package, _, _))| {
            let mut go = module.go(workspace);
            // With the flags and the versions of the API server's module, Go has built half of the packages already.
            go.args(["build", "-p", "2", "-trimpath", "-gcflags", GCFLAGS]);
            go.args(["-ldflags", "-s -w", "-o"]).arg(partial);
            command::run(go.arg(package))
        })
    })?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_has_a_version() {
        let workspace = Workspace::locate().unwrap();
        for module in MODULES {
            assert!(module.read(&workspace).is_ok(), "{module:?}");
        }
    }
}
