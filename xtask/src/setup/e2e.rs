//! Kubernetes' own specs, the program that runs them in parallel, and what their images are made of.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::apiserver::KUBERNETES;
use super::go::{Module, Program, check_go, ensure_built, link_flags, missing_program, put_in_place};
use crate::command;
use crate::workspace::Workspace;

const GINKGO: Program = ("github.com/onsi/ginkgo/v2/ginkgo", "ginkgo", "ginkgo");
const REGRESSION: Program = (
    "k8s.io/kubernetes/test/images/regression-issue-74839",
    "regression-issue-74839",
    "regression-issue-74839",
);
const SPECS: Program = ("./e2e", "e2e.test", "e2e.test");
const COREDNS: Module =
    Module { folder: "bench/lab/tests/cluster/coredns", release_of: "github.com/coredns/coredns" };

/// Returns the folders with the specs and what they need. Go builds the missing ones.
pub fn ensure_e2e_programs(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let specs = KUBERNETES.cached(workspace, "e2e")?;
    if missing_program(&specs, &[GINKGO, REGRESSION, SPECS]).is_some() {
        build(workspace, &specs).context("can't build Kubernetes' specs")?;
    }
    Ok(vec![specs, ensure_built(workspace, COREDNS, "coredns", &[(".", "coredns", "coredns")])?])
}

fn build(workspace: &Workspace, folder: &Path) -> Result<()> {
    let (module, release) = KUBERNETES.read(workspace)?;
    check_go(workspace, &module, &[SPECS])?;
    eprintln!("building Kubernetes' specs of the network; the first build takes ten minutes");
    put_in_place(folder, |partial| {
        let builds: [(&[&str], Program); 3] =
            // vet would read all packages of Kubernetes once more.
            [(&["build"], GINKGO), (&["build"], REGRESSION), (&["test", "-c", "-vet=off"], SPECS)];
        for (words, (package, _, name)) in builds {
            let mut go = KUBERNETES.go(workspace);
            go.args(words).args(["-trimpath", "-ldflags", &link_flags(&release), "-o"]);
            command::run(go.arg(partial.join(name)).arg(package))?;
        }
        Ok(())
    })
}

/// Returns the files that agnhost reads in its image, with their paths there: a certificate and its key.
pub fn agnhost_data(workspace: &Workspace) -> Result<Vec<(String, PathBuf)>> {
    let porter = KUBERNETES.source(workspace)?.join("test/images/agnhost/porter");
    Ok(["localhost.crt", "localhost.key"].map(|name| (name.to_owned(), porter.join(name))).to_vec())
}
