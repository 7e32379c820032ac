//! The checks of what is shipped for a cluster: the Helm chart and the kustomize folders. Each counts as a test.

mod drift;
mod monitoring;
mod refusals;
mod render;
mod schemas;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use self::render::{BASE, Renderer};
use crate::command;
use crate::setup;
use crate::test::{Outcome, Tally};
use crate::workspace::Workspace;

type Check = fn(&Renderer<'_>) -> Result<()>;

const CHECKS: [(&str, Check); 8] = [
    ("helm lint", lint),
    ("the chart's objects fit Kubernetes' schemas", chart_fits),
    ("the kustomize folders' objects fit Kubernetes' schemas", kustomize_fits),
    ("the examples fit Kubernetes' schemas", examples_fit),
    ("the chart and the kustomize folders agree", drift::check),
    ("wrong values are one line each", refusals::check),
    ("promtool takes the rules, and each alert fires when it should", monitoring::rules),
    (
        "the chart's monitor finds the agents, and its rules and dashboard are the shipped ones",
        monitoring::chart,
    ),
];

/// Runs every check, also after one has failed. Without the programs none can run.
pub fn check_all(workspace: &Workspace) -> Outcome {
    let renderer = match renderer(workspace) {
        Ok(renderer) => renderer,
        Err(reason) => return Outcome::Unable(format!("{reason:#}")),
    };
    let results = CHECKS.iter().map(|(name, check)| {
        let result = check(&renderer);
        if let Err(error) = &result {
            eprintln!("error: {name}: {error:#}");
        }
        Tally::of(result.is_ok())
    });
    Outcome::Ran(results.sum())
}

/// Builds or fetches the programs and schemas of the checks.
pub fn prepare(workspace: &Workspace) -> Result<()> {
    renderer(workspace).map(drop)
}

fn renderer(workspace: &Workspace) -> Result<Renderer<'_>> {
    Ok(Renderer {
        workspace,
        tools: setup::ensure_manifest_tools(workspace)?,
        prometheus: setup::ensure_prometheus(workspace)?,
        schemas: schemas::ensure(workspace)?,
    })
}

fn lint(renderer: &Renderer<'_>) -> Result<()> {
    for values in renderer.values()? {
        let mut helm = renderer.helm();
        command::output(
            helm.args(["lint", "--strict", "--quiet"]).arg(renderer.chart()).arg("-f").arg(values),
        )?;
    }
    Ok(())
}

fn chart_fits(renderer: &Renderer<'_>) -> Result<()> {
    for values in renderer.values()? {
        renderer.fits(&renderer.template(&values)?).with_context(|| values.display().to_string())?;
    }
    Ok(())
}

fn kustomize_fits(renderer: &Renderer<'_>) -> Result<()> {
    for folder in renderer.folders()? {
        renderer.fits(&renderer.build(&folder)?).with_context(|| folder.display().to_string())?;
    }
    for component in ["api-server-address", "beside-kube-proxy", "l2", "network-policy"] {
        renderer.fits(&renderer.compose(BASE, component)?).with_context(|| component.to_owned())?;
    }
    Ok(())
}

fn examples_fit(renderer: &Renderer<'_>) -> Result<()> {
    let folder = renderer.workspace.root.join("manifests/examples");
    let entries = fs::read_dir(&folder).with_context(|| format!("can't read {}", folder.display()))?;
    let files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    if files.is_empty() {
        bail!("{} has no example", folder.display());
    }
    files.iter().try_for_each(|file| {
        renderer.fits(&fs::read_to_string(file)?).with_context(|| file.display().to_string())
    })
}
