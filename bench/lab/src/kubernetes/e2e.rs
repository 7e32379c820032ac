//! Kubernetes' own specs against a running cluster, and the table of their results.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::plan::OUTSIDE;
use super::programs::Assets;
use super::{Cluster, OUTSIDE_KUBECONFIG, containerd, dns};

/// The specs that are about what a service proxy does.
pub const FOCUS: &str = r"\[sig-network\].*(Services|EndpointSlice|Endpoints|Networking|HostPort|Conntrack|KubeProxy|DNS|Proxy|IPv4/IPv6 dual-stack|Traffic Distribution|Topology Hints|ServiceCIDR|NoSNAT)";
/// Specs that need what no cluster here can have: a cloud, ssh to nodes, the Internet, SCTP, or hours.
pub const SKIP: &str = r"\[Feature:(LoadBalancer|SCTPConnectivity|Networking-IPv6|Networking-Performance|Networking-DNS|GCEAlphaFeature|PerformanceDNS|Example|Ingress|NetworkPolicy|KubeProxyDaemonSetMigration)|\[Disruptive\]|SCTP|Internet|Netpol|NetworkPolic|\[Alpha\]|configMap nameserver";

/// A run of specs.
#[derive(Debug)]
pub struct Run<'a> {
    /// A regular expression of specs to run.
    pub focus: &'a str,
    /// A regular expression of specs not to run.
    pub skip: &'a str,
    /// The number of processes.
    pub processes: u8,
    /// The file for the report, which ginkgo writes as JSON.
    pub report: &'a Path,
}

impl Cluster {
    /// Runs specs from the machine outside the cluster. Returns how they ended.
    pub fn run_specs(&self, run: &Run, assets: &Assets) -> Result<Results> {
        for name in self.plan().node_names() {
            containerd::import(self, &name, assets)?;
        }
        let kubectl = self.kubectl();
        kubectl.apply(&dns::objects())?;
        kubectl.run(&[
            "--namespace",
            "kube-system",
            "rollout",
            "status",
            "deployment/coredns",
            "--timeout=90s",
        ])?;
        let file = run.report.file_name().and_then(|name| name.to_str()).context("the report has no name")?;
        let folder = run.report.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).with_context(|| format!("can't make {}", folder.display()))?;
        let namespace = self.plan().namespace(OUTSIDE);
        let mut ginkgo = std::process::Command::new("ip");
        ginkgo.args(["netns", "exec", &namespace]).arg(assets.program("ginkgo")?);
        ginkgo.arg(format!("--procs={}", run.processes)).args([
            "--timeout=3h",
            "--no-color",
            "--silence-skips",
        ]);
        ginkgo.args([format!("--focus={}", run.focus), format!("--skip={}", run.skip)]);
        ginkgo.arg(format!("--output-dir={}", folder.display())).arg(format!("--json-report={file}"));
        ginkgo.arg(assets.program("e2e.test")?).arg("--");
        ginkgo.arg(format!("--kubeconfig={}", self.directory.join(OUTSIDE_KUBECONFIG).display()));
        ginkgo.args(["--provider=skeleton", "--dump-logs-on-failure=false", "--node-os-distro=debian"]);
        ginkgo.arg(format!("--num-nodes={}", self.settings.nodes));
        ginkgo.env("PATH", assets.search_path());
        // Its status says only whether a spec failed, and so does the report.
        ginkgo.status().context("can't run ginkgo")?;
        let results = Results::read(run.report)?;
        ensure!(!results.0.is_empty(), "no spec fits `--focus {}` without `--skip {}`", run.focus, run.skip);
        Ok(results)
    }
}

/// How specs ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Results(BTreeMap<String, Outcome>);

/// How a spec ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It passed.
    Passed,
    /// It failed, with this first line.
    Failed(String),
    /// It found that this cluster can't run it, with this reason.
    Skipped(String),
}

impl Results {
    /// Reads a report of ginkgo.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is no report of ginkgo", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let suites: Vec<Suite> = serde_json::from_str(text)?;
        let specs = suites.into_iter().flat_map(|suite| suite.specs.unwrap_or_default());
        let specs = specs.filter(|spec| spec.kind == "It");
        Ok(Self(specs.filter_map(|spec| Some((spec.name(), spec.outcome()?))).collect()))
    }

    /// Returns the line with the counts.
    #[must_use]
    pub fn summary(&self) -> String {
        let count = |wanted: fn(&Outcome) -> bool| self.0.values().filter(|outcome| wanted(outcome)).count();
        format!(
            "{} passed, {} failed, {} skipped",
            count(|outcome| matches!(outcome, Outcome::Passed)),
            count(|outcome| matches!(outcome, Outcome::Failed(_))),
            count(|outcome| matches!(outcome, Outcome::Skipped(_))),
        )
    }

    /// Returns the specs that failed, with the first line of each failure.
    pub fn failures(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(|(name, outcome)| match outcome {
            Outcome::Failed(line) => Some((name.as_str(), line.as_str())),
            _ => None,
        })
    }
}

#[derive(Deserialize)]
struct Suite {
    #[serde(rename = "SpecReports")]
    specs: Option<Vec<Spec>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Spec {
    #[serde(rename = "LeafNodeType")]
    kind: String,
    #[serde(default)]
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_text: String,
    state: String,
    #[serde(default)]
    failure: Failure,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    #[serde(default)]
    message: String,
}

impl Spec {
    fn name(&self) -> String {
        let mut parts = self.container_hierarchy_texts.clone().unwrap_or_default();
        parts.push(self.leaf_node_text.clone());
        parts.join(" ")
    }

    /// Returns how it ended, or `None` if it was not chosen.
    fn outcome(&self) -> Option<Outcome> {
        let line = self.failure.message.lines().map(str::trim).find(|line| !line.is_empty());
        let line = line.unwrap_or_default().to_owned();
        match self.state.as_str() {
            "passed" => Some(Outcome::Passed),
            "skipped" | "pending" if line.is_empty() => None,
            "skipped" => Some(Outcome::Skipped(line)),
            "pending" => None,
            _ => Some(Outcome::Failed(line)),
        }
    }
}

/// Returns a table in Markdown: a row for each spec, a column for each name of a report's file. A later
/// report of the same name adds its specs to the column.
pub fn table(reports: &[PathBuf]) -> Result<String> {
    let mut columns: Vec<(&str, Results)> = Vec::new();
    for path in reports {
        let name = path.file_stem().and_then(|stem| stem.to_str()).context("a report has no name")?;
        let results = Results::read(path)?;
        match columns.iter_mut().find(|(column, _)| *column == name) {
            Some((_, before)) => before.0.extend(results.0),
            None => columns.push((name, results)),
        }
    }
    ensure!(!columns.is_empty(), "a table takes at least one report");
    let names: BTreeSet<&String> = columns.iter().flat_map(|(_, results)| results.0.keys()).collect();
    let head: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let mut lines =
        vec![format!("| Spec | {} |", head.join(" | ")), format!("|---|{}", "---|".repeat(head.len()))];
    for name in names {
        let cells = columns.iter().map(|(_, results)| match results.0.get(name) {
            Some(Outcome::Passed) => "passed",
            Some(Outcome::Failed(_)) => "**failed**",
            Some(Outcome::Skipped(_)) => "skipped",
            None => "-",
        });
        let cells: Vec<&str> = cells.collect();
        lines.push(format!("| {} | {} |", name.replace('|', "\\|"), cells.join(" | ")));
    }
    Ok(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_gives_the_specs_that_ran_and_their_first_lines() {
        let text = r#"[{"SpecReports": [
            {"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-network] Services"],
             "LeafNodeText": "answers", "State": "passed"},
            {"LeafNodeType": "It", "ContainerHierarchyTexts": null, "LeafNodeText": "fails", "State": "failed",
             "Failure": {"Message": "\n  no answer\nat a line"}},
            {"LeafNodeType": "It", "LeafNodeText": "not chosen", "State": "skipped"},
            {"LeafNodeType": "It", "LeafNodeText": "has no cloud", "State": "skipped",
             "Failure": {"Message": "needs a cloud"}},
            {"LeafNodeType": "BeforeSuite", "LeafNodeText": "", "State": "passed"}]}]"#;
        let results = Results::parse(text).unwrap();
        assert_eq!(results.summary(), "1 passed, 1 failed, 1 skipped");
        assert_eq!(results.failures().collect::<Vec<_>>(), [("fails", "no answer")]);
        assert!(results.0.contains_key("[sig-network] Services answers"));
    }

    #[test]
    fn reports_of_the_same_name_share_a_column() {
        let folder = std::env::temp_dir().join(format!("millrace-reports-{}", std::process::id()));
        let write = |path: &str, text: &str, state: &str| {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let spec = serde_json::json!({"LeafNodeType": "It", "LeafNodeText": text, "State": state});
            fs::write(&path, serde_json::json!([{"SpecReports": [spec]}]).to_string()).unwrap();
            path
        };
        let reports = [
            write("kube-proxy.json", "answers", "passed"),
            write("off.json", "answers", "failed"),
            write("rest/off.json", "hairpins", "passed"),
        ];
        let expected = "| Spec | kube-proxy | off |\n|---|---|---|\n\
                        | answers | passed | **failed** |\n| hairpins | - | passed |";
        assert_eq!(table(&reports).unwrap(), expected);
        fs::remove_dir_all(folder).unwrap();
    }
}
