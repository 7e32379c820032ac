//! Samples of agents, as `promtool tsdb create-blocks-from openmetrics` takes them.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;

use crate::command;
use crate::workspace::Workspace;

const URL: &str = "http://127.0.0.1:10249/metrics";

/// Returns the network namespaces in which an agent answers.
pub fn agents(workspace: &Workspace) -> Result<Vec<String>> {
    let list = command::output(workspace.command("ip").args(["netns", "list"]))?;
    let names = list.lines().filter_map(|line| line.split_whitespace().next());
    Ok(names.filter(|name| scrape(workspace, name).is_ok()).map(str::to_owned).collect())
}

/// Adds a sample of each agent. One that does not answer is down.
pub fn add(workspace: &Workspace, agents: &[String], text: &mut String) {
    for agent in agents {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let answer = scrape(workspace, agent);
        let up = format!("up {}", i32::from(answer.is_ok()));
        let answer = answer.unwrap_or_default();
        for line in answer.lines().filter(|line| !line.starts_with('#')).chain([up.as_str()]) {
            text.push_str(&labelled(line, agent, now));
        }
    }
}

fn scrape(workspace: &Workspace, namespace: &str) -> Result<String> {
    let mut curl = workspace.command("ip");
    curl.args(["netns", "exec", namespace, "curl", "--silent", "--fail", "--max-time", "3"]);
    command::output(curl.args(["--header", "Accept: application/openmetrics-text", URL]))
}

/// Returns a line with the labels of a scrape, and its time.
fn labelled(line: &str, node: &str, now: f64) -> String {
    // The name in the bed has the bed's name before the node's.
    let node = node.rsplit('-').next().unwrap_or(node);
    let labels = format!("job=\"millrace\",node=\"{node}\",instance=\"{node}:10249\"");
    let (series, value) = line.rsplit_once(' ').unwrap_or((line, "0"));
    match series.split_once('{') {
        Some((name, rest)) => format!("{name}{{{labels},{rest} {value} {now:.3}\n"),
        None => format!("{series}{{{labels}}} {value} {now:.3}\n"),
    }
}

#[test]
fn a_sample_has_the_labels_of_a_scrape_and_its_time() {
    let labels = "job=\"millrace\",node=\"node1\",instance=\"node1:10249\"";
    let line = labelled("x_total{a=\"b c\"} 3", "bed-7-node1", 1.5);
    assert_eq!(line, format!("x_total{{{labels},a=\"b c\"}} 3 1.500\n"));
    assert_eq!(labelled("up 1", "node1", 2.0), format!("up{{{labels}}} 1 2.000\n"));
}
