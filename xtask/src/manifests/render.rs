//! Runs helm, kustomize and kubeconform.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::command;
use crate::workspace::Workspace;

const CHART: &str = "manifests/charts/millrace";
/// A file of values for each way to install the chart. They are for users, too.
const VALUES: &str = "manifests/charts/values";
/// The folder of the agent, without any component.
pub const BASE: &str = "manifests/base";
/// Kinds of Prometheus' operator, which Kubernetes has no schema of.
const OF_OPERATOR: &str = "PodMonitor,PrometheusRule";
/// The name and the namespace of the rendered release: those of the base.
const RELEASE: [&str; 4] = ["template", "millrace", "--namespace", "kube-system"];

/// The programs, and the schemas of the kinds.
pub struct Renderer<'a> {
    pub workspace: &'a Workspace,
    pub tools: PathBuf,
    pub prometheus: PathBuf,
    pub schemas: PathBuf,
}

impl Renderer<'_> {
    pub fn chart(&self) -> PathBuf {
        self.workspace.root.join(CHART)
    }

    /// Returns helm without the user's own settings.
    pub fn helm(&self) -> Command {
        let mut helm = self.workspace.command(self.tools.join("helm"));
        for (variable, folder) in
            [("HELM_CACHE_HOME", "cache"), ("HELM_CONFIG_HOME", "config"), ("HELM_DATA_HOME", "data")]
        {
            helm.env(variable, self.scratch("helm").join(folder));
        }
        helm
    }

    /// Returns `helm template` of the chart, without values.
    pub fn helm_template(&self) -> Command {
        let mut helm = self.helm();
        helm.args(RELEASE).arg(self.chart());
        helm
    }

    /// Returns a folder below cargo's output directory.
    fn scratch(&self, name: &str) -> PathBuf {
        self.workspace.target().join("manifests").join(name)
    }

    /// Returns the files of values.
    pub fn values(&self) -> Result<Vec<PathBuf>> {
        entries(&self.workspace.root.join(VALUES))
    }

    /// Returns the file of values of this name.
    pub fn values_of(&self, name: &str) -> PathBuf {
        self.workspace.root.join(VALUES).join(name).with_extension("yaml")
    }

    /// Returns the kustomize folders that can be applied as they are.
    pub fn folders(&self) -> Result<Vec<PathBuf>> {
        let mut folders = entries(&self.workspace.root.join("manifests/overlays"))?;
        folders.extend(
            [BASE, "manifests/cleanup", "manifests/controller"]
                .map(|folder| self.workspace.root.join(folder)),
        );
        Ok(folders)
    }

    /// Returns the objects of the chart with a file of values.
    pub fn template(&self, values: &Path) -> Result<String> {
        command::output(self.helm_template().arg("-f").arg(values))
    }

    /// Returns the objects of the chart with `--set`.
    pub fn template_with(&self, set: &str) -> Result<String> {
        command::output(self.helm_template().args(["--set", set]))
    }

    /// Returns the objects of a kustomize folder.
    pub fn build(&self, folder: &Path) -> Result<String> {
        let mut kustomize = self.workspace.command(self.tools.join("kustomize"));
        command::output(kustomize.arg("build").arg(folder))
    }

    /// Returns the objects of a folder with a component.
    pub fn compose(&self, folder: &str, component: &str) -> Result<String> {
        let scratch = self.scratch(component);
        fs::create_dir_all(&scratch).with_context(|| format!("can't create {}", scratch.display()))?;
        // kustomize takes no absolute paths. The scratch folder is three levels below the workspace.
        let text = format!(
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../../../{folder}]\n\
             components: [../../../manifests/components/{component}]\n"
        );
        fs::write(scratch.join("kustomization.yaml"), text)?;
        self.build(&scratch)
    }

    /// Fails if an object has a field that its kind lacks, or a value of another type.
    pub fn fits(&self, objects: &str) -> Result<()> {
        let location = self.schemas.join("{{ .ResourceKind }}{{ .KindSuffix }}.json");
        let mut kubeconform = self.workspace.command(self.tools.join("kubeconform"));
        kubeconform.args(["-strict", "-summary", "-skip", OF_OPERATOR, "-schema-location"]).arg(location);
        let mut child = kubeconform.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        child.stdin.take().context("kubeconform has no input")?.write_all(objects.as_bytes())?;
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() || said.contains("Summary: 0 resources") {
            bail!("kubeconform: {}", said.trim());
        }
        Ok(())
    }
}

/// Returns the value at a JSON pointer, and null where there is none.
pub fn at<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    value.pointer(pointer).unwrap_or(&Value::Null)
}

/// Returns the objects in a text.
pub fn objects(text: &str) -> Result<Vec<Value>> {
    let documents = serde_norway::Deserializer::from_str(text);
    let objects = documents.map(|document| Ok(Value::deserialize(document)?));
    objects.filter(|object| !matches!(object, Ok(Value::Null))).collect()
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let listing = fs::read_dir(folder).with_context(|| format!("can't read {}", folder.display()))?;
    let mut paths: Vec<PathBuf> = listing.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.sort();
    if paths.is_empty() {
        bail!("{} is empty", folder.display());
    }
    Ok(paths)
}
