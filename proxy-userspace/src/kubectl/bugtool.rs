//! `kubectl millrace bugtool`: what all nodes show, in an archive.

use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use kube::Client;

use super::agents::{self, Agent};
use super::error::KubectlError;
use crate::cli::bugtool::{Archive, COMMANDS, default_path};
use crate::cli::{ExitStatus, note, write_out};

/// Writes the archive: a folder for each node. Nodes have large outputs, so each is written
/// as it comes. A node that does not answer has its reason in the place of the answer.
pub async fn run(
    client: &Client,
    agents: &[Agent],
    longest: Duration,
    path: Option<&Path>,
) -> Result<ExitStatus, KubectlError> {
    let mut archive = Archive::create(path.map_or_else(default_path, Path::to_owned))?;
    let mut silent = 0;
    for (name, words) in COMMANDS {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let mut answers = pin!(agents::answers(client, agents, &words, longest));
        while let Some(answer) = answers.next().await {
            silent += usize::from(answer.status.is_none());
            archive.add_output(&format!("{}/{name}", answer.node), answer.output, &answer.errors)?;
        }
    }
    for agent in agents {
        archive.add(&format!("{}/agent.log", agent.node), &agents::log(client, agent).await)?;
    }
    write_out(&format!("{} of {} nodes\n", archive.finish()?, agents.len()))?;
    if silent > 0 {
        note(&format!("{silent} questions have no answer; their files say why"));
        return Ok(ExitStatus::Failed);
    }
    Ok(ExitStatus::Done)
}

#[cfg(test)]
mod tests {
    use kube::Config;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_path_that_can_not_be_written_is_told_before_a_node_is_asked() {
        // It takes connections, and never answers.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = silent.local_addr().unwrap();
        let client = Client::try_from(Config::new(format!("http://{address}").parse().unwrap())).unwrap();
        let agent = Agent {
            node: "node-a".to_owned(),
            namespace: "kube-system".to_owned(),
            pod: "millrace-a".to_owned(),
            absent: None,
        };
        let path = Some(Path::new("/nonexistent/a.tar.gz"));
        let agents = [agent];
        let asked = run(&client, &agents, Duration::from_mins(10), path);
        let error = tokio::time::timeout(Duration::from_secs(20), asked).await.unwrap().unwrap_err();
        assert!(error.to_string().starts_with("/nonexistent/a.tar.gz: No such file"), "{error}");
    }
}
