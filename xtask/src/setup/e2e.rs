//! Kubernetes' own specs, and the program that runs them in parallel.

use std::path::PathBuf;

use anyhow::Result;

use super::apiserver::KUBERNETES;
use super::go::{Program, check_go, link_flags, missing_program, put_in_place};
use crate::command;
use crate::workspace::Workspace;

const GINKGO: Program = ("github.com/onsi/ginkgo/v2/ginkgo", "ginkgo", "ginkgo");
const SPECS: Program = ("./e2e", "e2e.test", "e2e.test");

/// Returns the folder with ginkgo and the specs. Go builds them there if they are missing.
pub fn ensure_e2e_programs(workspace: &Workspace) -> Result<PathBuf> {
    let folder = KUBERNETES.cached(workspace, "e2e")?;
    if missing_program(&folder, &[GINKGO, SPECS]).is_some() {
        let (module, release) = KUBERNETES.read(workspace)?;
        check_go(workspace, &module, &[SPECS])?;
        eprintln!("building Kubernetes' specs of the network; the first build takes ten minutes");
        put_in_place(&folder, |partial| {
            let builds: [(&[&str], Program); 2] = [(&["build"], GINKGO), (&["test", "-c"], SPECS)];
            for (words, (package, _, name)) in builds {
                let mut go = workspace.command("go");
                go.current_dir(workspace.root.join(KUBERNETES.folder)).env("CGO_ENABLED", "0");
                go.args(words).args(["-trimpath", "-ldflags", &link_flags(&release), "-o"]);
                command::run(go.arg(partial.join(name)).arg(package))?;
            }
            Ok(())
        })?;
    }
    Ok(folder)
}
