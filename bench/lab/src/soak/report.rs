//! The table for docs/soak.md, and the record of all samples.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::sample::{Held, Sample};
use super::verdict::{Growth, Verdict};
use crate::drill::page;

/// The page.
const PAGE: &str = "../../docs/soak.md";
/// The command that replaces its table.
const COMMAND: &str = "cargo xtask soak --write";

/// Returns the part of the page.
pub(super) fn page_part(minutes: u64, samples: &[Sample], verdict: &Verdict) -> String {
    let exchanges: usize = samples.iter().map(|sample| sample.exchanges).sum();
    let mut text = format!("{minutes} minutes, {exchanges} exchanges, {} failed.\n\n", verdict.failed);
    text += "| node | figure | after 5 minutes | at the end | change |\n|---|---|---:|---:|---:|\n";
    for growth in &verdict.growth {
        let Growth { node, what, early, late } = growth;
        let shown = |value: u64| match *what {
            "open files" => value.to_string(),
            _ => format!("{} kB", value >> 10),
        };
        let change = growth.thousandths();
        let sign = if change < 0 { '-' } else { '+' };
        let (whole, tenth) = (change.abs() / 10, change.abs() % 10);
        let (early, late) = (shown(*early), shown(*late));
        let _ = writeln!(text, "| {node} | {what} | {early} | {late} | {sign}{whole}.{tenth} % |");
    }
    text += "\nDropped packets, by reason:\n\n";
    for (reason, packets, because) in &verdict.drops {
        let _ = writeln!(text, "- `{reason}`: {packets}. {}", because.unwrap_or("**Not explained.**"));
    }
    if verdict.drops.is_empty() {
        text += "- none\n";
    }
    for fault in &verdict.faults {
        let _ = writeln!(text, "- **fault**: {fault}");
    }
    text
}

/// Replaces the part of the page between the marks.
pub(super) fn write_page(part: &str) -> Result<PathBuf> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    page::write(&path, COMMAND, part)?;
    Ok(path)
}

/// Writes the charts of all samples: a list with `title`, `unit` and `series`, each with a `name` and `points` of
/// seconds and values.
pub(super) fn write_record(path: &Path, samples: &[Sample]) -> Result<()> {
    let seconds = |sample: &Sample| sample.at.as_secs_f64();
    let of_all = |value: fn(&Sample) -> Value| -> Vec<Value> {
        samples.iter().map(|sample| json!([seconds(sample), value(sample)])).collect()
    };
    let of_nodes = |value: fn(&Held) -> u64| -> Vec<Value> {
        let nodes = samples.first().map_or(0, |first| first.nodes.len());
        let of = |node: usize| -> Vec<Value> {
            let held = |sample: &Sample| Some(json!([seconds(sample), value(sample.nodes.get(node)?)]));
            samples.iter().filter_map(held).collect()
        };
        (0..nodes).map(|node| json!({"name": format!("node {}", node + 1), "points": of(node)})).collect()
    };
    let chart =
        |title: &str, unit: &str, series: Vec<Value>| json!({"title": title, "unit": unit, "series": series});
    let charts = json!([
        chart("Resident memory of the agents", "bytes", of_nodes(|held| held.resident)),
        chart("Memory of the maps", "bytes", of_nodes(|held| held.maps)),
        chart("Open files of the agents", "short", of_nodes(|held| held.files)),
        chart("Flow entries", "short", of_nodes(|held| held.flows)),
        chart(
            "Kernel memory of the machine: slabs and areas for each CPU",
            "bytes",
            vec![json!({"name": "machine", "points": of_all(|sample| sample.kernel.into())}),]
        ),
        chart(
            "Duration of an exchange",
            "s",
            vec![
                json!({"name": "median", "points": of_all(|sample| sample.median.as_secs_f64().into())}),
                json!({"name": "99 of 100", "points": of_all(|sample| sample.slow.as_secs_f64().into())}),
            ]
        ),
    ]);
    fs::write(path, charts.to_string()).with_context(|| format!("can't write {}", path.display()))
}
