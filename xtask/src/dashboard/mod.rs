//! `cargo xtask dashboard`: pictures of the shipped dashboard from samples of running agents.
//!
//! Grafana can't be had without its own network of downloads. A real Prometheus evaluates each query as Grafana sends
//! it, and the pictures show the result.

mod draw;
mod prometheus;
mod samples;

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::setup;
use crate::workspace::Workspace;
pub use draw::row;
use prometheus::Prometheus;
pub use prometheus::Series;

const DASHBOARD: &str = "manifests/monitoring/grafana-millrace.json";
/// The pause between two samples, as of a quick scrape.
const INTERVAL: Duration = Duration::from_secs(5);

/// Arguments of `cargo xtask dashboard`.
#[derive(clap::Args)]
pub struct Args {
    /// Minutes for which the agents of `cargo xtask run` are sampled
    #[arg(long, default_value = "10", value_parser = clap::value_parser!(u64).range(1..=120))]
    minutes: u64,
    /// Folder for the pictures, one for each row of the dashboard
    #[arg(long, default_value = "docs/pictures")]
    output: PathBuf,
}

/// Samples the agents in this machine's network namespaces, and draws the dashboard.
pub fn dashboard(workspace: &Workspace, args: &Args) -> Result<()> {
    let programs = setup::ensure_prometheus(workspace)?;
    let agents = samples::agents(workspace)?;
    if agents.is_empty() {
        bail!("no network namespace has an agent; start some by: cargo xtask run");
    }
    println!("sampling {} for {} minutes ...", agents.join(", "), args.minutes);
    let end = Instant::now() + Duration::from_mins(args.minutes);
    let mut text = String::new();
    while Instant::now() < end {
        samples::add(workspace, &agents, &mut text);
        thread::sleep(INTERVAL);
    }
    text.push_str("# EOF\n");

    let store = workspace.target().join("dashboard");
    let server = Prometheus::start(workspace, &programs, &store, &text)?;
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(workspace.root.join(DASHBOARD))?)?;
    let panels = dashboard.get("panels").and_then(Value::as_array).context("the dashboard has no panels")?;
    let output = workspace.root.join(&args.output);
    fs::create_dir_all(&output)?;
    for row in panels.chunk_by(|_, next| text_at(next, "/type") != "row") {
        let title = row.first().map(|row| text_at(row, "/title")).unwrap_or_default();
        let picture = draw::row(row, |panel| server.series(workspace, panel, args.minutes))?;
        let name = format!("dashboard-{}.svg", title.to_lowercase().replace(' ', "-"));
        fs::write(output.join(&name), picture)?;
        println!("{}", args.output.join(name).display());
    }
    Ok(())
}

/// Returns the text at a JSON pointer.
fn text_at<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
