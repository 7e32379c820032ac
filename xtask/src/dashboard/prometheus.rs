//! A Prometheus with the samples, which answers the dashboard's queries.

use std::fs;
use std::path::Path;
use std::process::Child;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::text_at;
use crate::command;
use crate::workspace::Workspace;

const ADDRESS: &str = "127.0.0.1:19090";
/// The points of a line.
const POINTS: u64 = 120;

/// The server. It ends with this value.
pub struct Prometheus {
    server: Child,
    url: String,
}

/// A series of a panel: its legend, its labels, and its points.
pub struct Series {
    /// The legend, or all labels.
    pub name: String,
    /// Time and value.
    pub points: Vec<(f64, f64)>,
}

impl Prometheus {
    /// Makes a store of the samples, and starts the server on it.
    pub fn start(workspace: &Workspace, programs: &Path, store: &Path, samples: &str) -> Result<Self> {
        if store.exists() {
            fs::remove_dir_all(store)?;
        }
        fs::create_dir_all(store)?;
        let (input, blocks, config) =
            (store.join("samples"), store.join("blocks"), store.join("prometheus.yml"));
        fs::write(&input, samples)?;
        fs::write(&config, "{}\n")?;
        let mut promtool = workspace.command(programs.join("promtool"));
        promtool.args(["tsdb", "create-blocks-from", "openmetrics", "--quiet"]).arg(&input).arg(&blocks);
        command::run(&mut promtool)?;
        let mut server = workspace.command(programs.join("prometheus"));
        server.arg(format!("--config.file={}", config.display()));
        server.arg(format!("--storage.tsdb.path={}", blocks.display()));
        server.args([&format!("--web.listen-address={ADDRESS}"), "--log.level=error"]);
        let server = Self {
            server: server.spawn().context("can't start prometheus")?,
            url: format!("http://{ADDRESS}"),
        };
        for _ in 0..100 {
            let mut ready = workspace.command("curl");
            if command::succeeds(ready.args(["--silent", "--fail", &format!("{}/-/ready", server.url)])) {
                return Ok(server);
            }
            thread::sleep(Duration::from_millis(200));
        }
        bail!("prometheus does not answer at {ADDRESS}")
    }

    /// Returns the series of a panel over the last minutes.
    pub fn series(&self, workspace: &Workspace, panel: &Value, minutes: u64) -> Result<Vec<Series>> {
        let end = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let (start, step) = (end - minutes * 60, (minutes * 60 / POINTS).max(1));
        let mut series = Vec::new();
        for target in panel.get("targets").and_then(Value::as_array).into_iter().flatten() {
            let query = text_at(target, "/expr").replace("$__rate_interval", "1m");
            let query = ["cluster", "node", "namespace", "service"]
                .iter()
                .fold(query, |query, name| query.replace(&format!("${name}"), ".*"));
            let mut curl = workspace.command("curl");
            curl.args(["--silent", "--get", &format!("{}/api/v1/query_range", self.url)]);
            for (name, value) in [
                ("query", query),
                ("start", start.to_string()),
                ("end", end.to_string()),
                ("step", step.to_string()),
            ] {
                curl.args(["--data-urlencode", &format!("{name}={value}")]);
            }
            let answer: Value = serde_json::from_str(&command::output(&mut curl)?)?;
            if text_at(&answer, "/status") != "success" {
                bail!("{}: {}", text_at(panel, "/title"), text_at(&answer, "/error"));
            }
            let found = answer.pointer("/data/result").and_then(Value::as_array);
            series.extend(
                found.into_iter().flatten().map(|one| Series::of(one, text_at(target, "/legendFormat"))),
            );
        }
        series.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(series)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Series {
    fn of(result: &Value, legend: &str) -> Self {
        let labels = result.get("metric").and_then(Value::as_object);
        let labels = labels.into_iter().flatten().filter_map(|(name, value)| Some((name, value.as_str()?)));
        let name = if legend.is_empty() {
            labels
                .filter(|(_, value)| !value.is_empty())
                .map(|(name, value)| format!("{name} {value}"))
                .collect::<Vec<_>>()
                .join(", ")
        } else {
            labels.fold(legend.to_owned(), |name, (label, value)| {
                name.replace(&format!("{{{{{label}}}}}"), value)
            })
        };
        let points = result
            .get("values")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|point| Some((point.get(0)?.as_f64()?, point.get(1)?.as_str()?.parse().ok()?)));
        Self { name, points: points.filter(|(_, value): &(f64, f64)| value.is_finite()).collect() }
    }
}
