//! `kubectl millrace bugtool`: what all nodes show, in an archive.

use std::path::Path;
use std::time::Duration;

use kube::Client;

use super::agents::{self, Agent};
use super::error::KubectlError;
use crate::cli::bugtool::{COMMANDS, default_path, write};
use crate::cli::{ExitStatus, note, write_out};

/// Writes the archive: a folder for each node. A node that does not answer has its reason in the place of the answer.
pub async fn run(
    client: &Client,
    agents: &[Agent],
    longest: Duration,
    path: Option<&Path>,
) -> Result<ExitStatus, KubectlError> {
    let mut files = Vec::new();
    let mut silent = 0;
    for (name, words) in COMMANDS {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        for answer in agents::ask(client, agents, &words, longest).await {
            silent += usize::from(answer.status.is_none());
            let text = if answer.errors.is_empty() { answer.output } else { answer.output + &answer.errors };
            files.push((format!("{}/{name}", answer.node), text));
        }
    }
    for agent in agents {
        files.push((format!("{}/agent.log", agent.node), agents::log(client, agent).await));
    }
    let path = path.map_or_else(default_path, Path::to_owned);
    write(&path, &files)?;
    write_out(&format!("{}: {} files of {} nodes\n", path.display(), files.len(), agents.len()))?;
    if silent > 0 {
        note(&format!("{silent} questions have no answer; their files say why"));
        return Ok(ExitStatus::Failed);
    }
    Ok(ExitStatus::Done)
}
