//! Another implementation of NetworkPolicy, as Go builds it with the repository's program around it.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::go::{Module, Program, ensure_built};
use crate::workspace::Workspace;

/// The variable that names the program.
pub const POLICY_PEER: &str = "MILLRACE_POLICY_PEER";

const MODULE: Module =
    Module { folder: "proxy-userspace/tests/policies/peer", release_of: "sigs.k8s.io/kube-network-policies" };
const PROGRAM: [Program; 1] = [(".", "policies", "kube-network-policies")];

/// Returns the path of the program: that of the environment, else one in the cache. Go builds it there if it is missing,
/// in seconds if it has built the API server.
pub fn ensure_policy_peer(workspace: &Workspace) -> Result<PathBuf> {
    let [(_, _, program)] = PROGRAM;
    if let Some(given) = env::var_os(POLICY_PEER).filter(|program| !program.is_empty()) {
        let given = PathBuf::from(given);
        if !given.is_file() {
            bail!("{POLICY_PEER} names {}, which is no program", given.display());
        }
        return Ok(given);
    }
    // Part of the program is the repository's, and changes without a release.
    let name = format!("policy-peer-{:016x}", hash(workspace)?);
    Ok(ensure_built(workspace, MODULE, &name, &PROGRAM)?.join(program))
}

/// Returns a hash of the files in the module's folder.
fn hash(workspace: &Workspace) -> Result<u64> {
    let folder = workspace.root.join(MODULE.folder);
    let failed = || format!("can't read {}", folder.display());
    let files = fs::read_dir(&folder).with_context(failed)?;
    let mut paths = files.map(|file| Ok(file?.path())).collect::<Result<Vec<_>>>().with_context(failed)?;
    paths.sort();
    let mut hasher = DefaultHasher::new();
    for path in paths {
        hasher.write(&fs::read(&path).with_context(|| format!("can't read {}", path.display()))?);
    }
    Ok(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_has_the_release_that_names_the_folder() {
        let workspace = Workspace::locate().unwrap();
        let (_, release) = MODULE.read(&workspace).unwrap();
        assert!(release.starts_with('v'), "{release}");
        assert_eq!(hash(&workspace).unwrap(), hash(&workspace).unwrap());
    }
}
