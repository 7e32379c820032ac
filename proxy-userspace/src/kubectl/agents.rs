//! The agents' pods, and their answers to a command, by the API server's `pods/exec`.

use std::path::Path;
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{AttachParams, AttachedProcess, ListParams, LogParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

use super::error::KubectlError;
use crate::cli::ExitStatus;

/// The container of the agent in its pod.
pub const CONTAINER: &str = "agent";
/// Why a pod that is being deleted is not asked.
const ENDING: &str = "its pod is being deleted";
/// The nodes that are asked at once. Each is a connection to the API server.
const AT_ONCE: usize = 32;

/// An agent in a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Agent {
    /// The name of its node.
    pub node: String,
    /// The namespace of its pod.
    pub namespace: String,
    /// The name of its pod.
    pub pod: String,
    /// Why it can't be asked; none if its pod runs.
    pub absent: Option<String>,
}

/// A container with this program.
#[derive(Clone, Copy, Debug)]
pub struct Container<'a> {
    /// The namespace of its pod.
    pub namespace: &'a str,
    /// Its pod.
    pub pod: &'a str,
    /// Its name in the pod.
    pub name: &'a str,
}

/// The answer of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The node's name.
    pub node: String,
    /// The exit status; none if the command did not run to its end.
    pub status: Option<u8>,
    /// Its output.
    pub output: String,
    /// Its complaints, or the reason why it did not run.
    pub errors: String,
}

impl Answer {
    fn failed(node: &str, why: String) -> Self {
        Self { node: node.to_owned(), status: None, output: String::new(), errors: why }
    }

    /// Adds a line of complaint. An answer that was well is not any more.
    pub fn complain(&mut self, why: &str) {
        if !self.errors.is_empty() && !self.errors.ends_with('\n') {
            self.errors.push('\n');
        }
        self.errors.push_str(why);
        if self.status == Some(ExitStatus::Done.number()) {
            self.status = Some(ExitStatus::Failed.number());
        }
    }

    /// Returns the lines of complaint, without the program's name.
    pub fn complaints(&self) -> impl Iterator<Item = &str> {
        self.errors
            .lines()
            .map(|line| line.strip_prefix("millrace: ").unwrap_or(line))
            .filter(|line| !line.is_empty())
    }
}

/// Returns a client for a context of a kubeconfig file.
pub async fn client(file: Option<&Path>, context: Option<&str>) -> Result<Client, KubectlError> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let config = match file {
        Some(file) => Config::from_custom_kubeconfig(Kubeconfig::read_from(file)?, &options).await?,
        None => Config::from_kubeconfig(&options).await?,
    };
    Ok(Client::try_from(config)?)
}

/// Returns the agents on these nodes, or on all, sorted by node. A pod that does not run is an agent that can't be
/// asked: a roll-out that is stuck must show.
pub async fn find(client: &Client, selector: &str, nodes: &[String]) -> Result<Vec<Agent>, KubectlError> {
    let pods = Api::<Pod>::all(client.clone()).list(&ListParams::default().labels(selector)).await?;
    let mut agents = of_nodes(pods.items.iter().filter_map(agent).collect());
    if agents.is_empty() {
        return Err(KubectlError::NoAgents { selector: selector.to_owned() });
    }
    let has = |node: &String| agents.iter().any(|agent| agent.node == *node);
    let missing: Vec<String> = nodes.iter().filter(|node| !has(node)).cloned().collect();
    if !missing.is_empty() {
        return Err(KubectlError::NoSuchNode {
            missing,
            nodes: agents.into_iter().map(|agent| agent.node).collect(),
        });
    }
    agents.retain(|agent| nodes.is_empty() || nodes.contains(&agent.node));
    Ok(agents)
}

/// Returns the agents that run, and for a node without one the first that does not.
fn of_nodes(mut agents: Vec<Agent>) -> Vec<Agent> {
    // A pod that ends comes last: its successor counts.
    agents.sort_by_key(|agent| {
        let is_ending = agent.absent.as_deref() == Some(ENDING);
        (agent.node.clone(), agent.absent.is_some(), is_ending, agent.pod.clone())
    });
    let mut kept: Vec<Agent> = Vec::new();
    for agent in agents {
        let is_known = kept.last().is_some_and(|last| last.node == agent.node);
        if agent.absent.is_none() || !is_known {
            kept.push(agent);
        }
    }
    kept
}

/// Returns the agent of a pod; none for a pod without a node.
fn agent(pod: &Pod) -> Option<Agent> {
    let spec = pod.spec.as_ref()?;
    let node = spec.node_name.clone().or_else(|| wanted_node(spec))?;
    Some(Agent {
        node,
        namespace: pod.namespace().unwrap_or_default(),
        pod: pod.name_any(),
        absent: absent(pod),
    })
}

/// Returns the node for which a `DaemonSet` made a pod that the scheduler has not placed yet.
fn wanted_node(spec: &PodSpec) -> Option<String> {
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
    let mut fields = terms.iter().flat_map(|term| term.match_fields.iter().flatten());
    fields.find(|field| field.key == "metadata.name")?.values.as_ref()?.first().cloned()
}

/// Returns why the agent of a pod can't be asked; none if it can.
fn absent(pod: &Pod) -> Option<String> {
    if pod.metadata.deletion_timestamp.is_some() {
        return Some(ENDING.to_owned());
    }
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or("Unknown");
    let waits = status.and_then(waits_for);
    if phase == "Running" && waits.is_none() {
        return None;
    }
    let reason = waits.or_else(|| status?.reason.clone()).or_else(|| unscheduled(status?));
    Some(format!("its pod is {phase}{}", reason.map(|reason| format!(": {reason}")).unwrap_or_default()))
}

/// Returns what keeps the agent from starting, such as `ImagePullBackOff`. A container before it may be stuck.
fn waits_for(status: &PodStatus) -> Option<String> {
    let before = status.init_container_statuses.iter().flatten();
    let agents = status.container_statuses.iter().flatten().filter(|one| one.name == CONTAINER);
    let reasons = before.chain(agents).filter_map(|one| one.state.as_ref()?.waiting.as_ref()?.reason.clone());
    // The agent itself waits with this reason for a container before it, whose own is told first.
    reasons.min_by_key(|reason| reason == "PodInitializing")
}

fn unscheduled(status: &PodStatus) -> Option<String> {
    let condition = status.conditions.iter().flatten().find(|one| one.type_ == "PodScheduled")?;
    condition.reason.clone().filter(|_| condition.status == "False")
}

/// Runs `millrace WORDS` on all nodes at once. Returns the answers in the order of the agents.
pub async fn ask(client: &Client, agents: &[Agent], words: &[String], longest: Duration) -> Vec<Answer> {
    answers(client, agents, words, longest).collect().await
}

/// Returns the same answers one by one, each as soon as those before it are there.
pub fn answers<'a>(
    client: &'a Client,
    agents: &'a [Agent],
    words: &'a [String],
    longest: Duration,
) -> impl Stream<Item = Answer> + 'a {
    let answers = agents.iter().map(move |agent| async move {
        if let Some(why) = &agent.absent {
            return Answer::failed(&agent.node, why.clone());
        }
        let container = Container { namespace: &agent.namespace, pod: &agent.pod, name: CONTAINER };
        exec(client, &agent.node, &container, words, longest).await
    });
    stream::iter(answers).buffered(AT_ONCE)
}

/// Returns the end of an agent's log, or why there is none.
pub async fn log(client: &Client, agent: &Agent) -> String {
    let params =
        LogParams { container: Some(CONTAINER.to_owned()), tail_lines: Some(10_000), ..LogParams::default() };
    let pods = Api::<Pod>::namespaced(client.clone(), &agent.namespace);
    pods.logs(&agent.pod, &params).await.unwrap_or_else(|error| format!("no log: {error}\n"))
}

/// Runs `millrace WORDS` in a container, for this time at most. The answer has this name.
pub async fn exec(
    client: &Client,
    name: &str,
    container: &Container<'_>,
    words: &[String],
    longest: Duration,
) -> Answer {
    let mut heard = Heard::default();
    let end = timeout(longest, run(client, container, words, &mut heard)).await;
    // What came before a failure is shown, too.
    let [output, errors] =
        [heard.output, heard.errors].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let mut answer = Answer { node: name.to_owned(), status: None, output, errors };
    match end {
        Ok(Ok(status)) => answer.status = Some(status),
        Ok(Err(why)) => answer.complain(&why),
        Err(_) if answer.output.is_empty() => answer.complain(&format!("no answer within {longest:?}")),
        Err(_) => answer.complain(&format!("the answer was cut off after {longest:?}")),
    }
    answer
}

/// What a command has written.
#[derive(Default)]
struct Heard {
    output: Vec<u8>,
    errors: Vec<u8>,
}

/// Returns the exit status of a command, or why it did not run to its end.
async fn run(
    client: &Client,
    container: &Container<'_>,
    words: &[String],
    heard: &mut Heard,
) -> Result<u8, String> {
    let pods = Api::<Pod>::namespaced(client.clone(), container.namespace);
    let command: Vec<&str> = ["millrace"].into_iter().chain(words.iter().map(String::as_str)).collect();
    let params = AttachParams::default().container(container.name);
    let mut process = pods.exec(container.pod, command, &params).await.map_err(|error| error.to_string())?;
    finish(&mut process, heard).await
}

/// Reads both streams, and then the status.
async fn finish(process: &mut AttachedProcess, heard: &mut Heard) -> Result<u8, String> {
    let (output, errors) = (process.stdout(), process.stderr());
    let status = process.take_status();
    tokio::join!(read(output, &mut heard.output), read(errors, &mut heard.errors));
    let status = match status {
        Some(status) => status.await,
        None => None,
    };
    exit_status(status.as_ref()).ok_or_else(|| {
        let message = status.and_then(|status| status.message);
        message.unwrap_or_else(|| "the connection to the pod ended too early".to_owned())
    })
}

/// Reads a stream. Whatever was read is there if the time ends before the stream does.
async fn read(stream: Option<impl AsyncRead + Unpin>, bytes: &mut Vec<u8>) {
    if let Some(mut stream) = stream {
        // The status tells of a failure.
        while matches!(stream.read_buf(bytes).await, Ok(count) if count > 0) {}
    }
}

/// Returns the exit status in the API server's last word; none if the command could not be run.
fn exit_status(status: Option<&Status>) -> Option<u8> {
    let status = status?;
    if status.status.as_deref() == Some("Success") {
        return Some(0);
    }
    let causes = status.details.as_ref()?.causes.as_ref()?;
    let cause = causes.iter().find(|cause| cause.reason.as_deref() == Some("ExitCode"))?;
    cause.message.as_ref()?.parse().ok()
}

#[cfg(test)]
#[path = "agents_tests.rs"]
mod tests;
