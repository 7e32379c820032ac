//! `cargo xtask soak`: the test bed's soak, and its picture.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::dashboard::{Series, row};
use crate::setup::Need;
use crate::workspace::Workspace;
use crate::{build, command, setup};

const PICTURE: &str = "docs/pictures/soak.svg";
/// The charts beside each other, and their size, in Grafana's columns and rows.
const BESIDE: usize = 2;
const SIZE: (usize, usize) = (12, 9);

/// Arguments of `cargo xtask soak`.
#[derive(clap::Args)]
pub struct Args {
    /// Length; less than 9 minutes can't be compared
    #[arg(long, default_value = "60", value_parser = clap::value_parser!(u64).range(1..=1440))]
    minutes: u64,
    /// Replace the table in docs/soak.md and the picture
    #[arg(long)]
    write: bool,
    /// Only draw the record of an earlier soak
    #[arg(long, value_name = "FILE", conflicts_with_all = ["minutes", "xdp"])]
    draw: Option<PathBuf>,
    /// How the agents attach: native, generic, auto, or off for the TC path
    #[arg(long, value_name = "MODE", default_value = "native",
          value_parser = ["native", "generic", "auto", "off"])]
    xdp: String,
}

/// Builds everything, runs the soak and draws its record.
pub fn soak(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    let directory = workspace.target().join("soak");
    fs::create_dir_all(&directory)?;
    let picture = if args.write { workspace.root.join(PICTURE) } else { directory.join("soak.svg") };
    if let Some(record) = &args.draw {
        draw(record, &picture)?;
        println!("{} is drawn", picture.display());
        return Ok(ExitCode::SUCCESS);
    }
    setup::ensure(workspace, &[Need::Build, Need::Run])?;
    build::everything(workspace)?;
    let record = directory.join("record.json");
    // That of an earlier soak must not be drawn for this one.
    if record.exists() {
        fs::remove_file(&record)?;
    }
    let debug = workspace.target().join("debug");
    let mut lab = workspace.command(debug.join("millrace-lab"));
    lab.arg("soak")
        .args(["--xdp", &args.xdp, "--minutes", &args.minutes.to_string(), "--record"])
        .arg(&record);
    if args.write {
        lab.arg("--write");
    }
    lab.env("MILLRACE_BIN", debug.join("millrace"));
    eprintln!("+ {}", command::display(&lab));
    let status = lab.status().context("can't start the test bed")?;
    draw(&record, &picture)?;
    println!("{} is drawn", picture.display());
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Draws a record: a list of charts with `title`, `unit` and `series`.
fn draw(record: &Path, picture: &Path) -> Result<()> {
    let text = fs::read_to_string(record).with_context(|| format!("can't read {}", record.display()))?;
    let charts: Vec<Value> = serde_json::from_str(&text).context("can't read the record of the soak")?;
    let (wide, high) = SIZE;
    let panels: Vec<Value> = charts
        .iter()
        .enumerate()
        .map(|(index, chart)| {
            let (x, y) = (index % BESIDE * wide, index / BESIDE * high);
            json!({
                "type": "timeseries", "title": chart.get("title"), "series": chart.get("series"),
                "gridPos": {"x": x, "y": y, "w": wide, "h": high},
                "fieldConfig": {"defaults": {"unit": chart.get("unit")}},
            })
        })
        .collect();
    let drawn = row(&panels, |panel| Ok(series(panel)))?;
    fs::write(picture, drawn).with_context(|| format!("can't write {}", picture.display()))
}

fn series(chart: &Value) -> Vec<Series> {
    let list = chart.get("series").and_then(Value::as_array).cloned().unwrap_or_default();
    let point = |point: &Value| Some((point.get(0)?.as_f64()?, point.get(1)?.as_f64()?));
    let points = |one: &Value| Some(one.get("points")?.as_array()?.iter().filter_map(point).collect());
    let named =
        |one: &Value| Some(Series { name: one.get("name")?.as_str()?.to_owned(), points: points(one)? });
    list.iter().filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chart_of_a_record_is_drawn() {
        let directory = std::env::temp_dir().join(format!("millrace-soak-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (record, picture) = (directory.join("record.json"), directory.join("soak.svg"));
        let chart = |title: &str| json!({"title": title, "unit": "bytes", "series": [{"name": "node 1", "points": [[0, 1000], [60, 3000]]}]});
        fs::write(&record, json!([chart("Memory"), chart("Files")]).to_string()).unwrap();
        draw(&record, &picture).unwrap();
        let drawn = fs::read_to_string(&picture).unwrap();
        assert!(
            ["Memory", "Files", "3 kB", "node 1", "1 min"].iter().all(|text| drawn.contains(text)),
            "{drawn}"
        );
        fs::remove_dir_all(directory).unwrap();
    }
}
