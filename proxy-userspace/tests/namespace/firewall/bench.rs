//! A cluster with the firewall, its pods as objects, and tables of who reaches whom.

use std::fmt::Write;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use millrace_lab::cluster::{Cluster, TARGET_PORT};
use millrace_lab::net::Namespace;
use millrace_lab::topology::{Dual, Family, Shape};
use millrace_lab::traffic::{ANSWER_LIMIT, Protocol, Unanswered, send};
use serde_json::{Value, json};

use crate::fixture::xdp;

/// The longest time until a change is in force on a busy test machine.
pub const LIMIT: Duration = Duration::from_secs(20);

/// A cluster whose agents have `--network-policy on`.
pub struct Guarded {
    pub cluster: Cluster,
}

/// A question: does it get an answer?
pub struct Question {
    name: String,
    asks: Unanswered,
    /// Whether an answer has come; `None` before the request's end.
    answered: Option<bool>,
    is_allowed: bool,
}

impl Question {
    fn new(name: String, asks: Unanswered, is_allowed: bool) -> Self {
        Self { name, asks, answered: None, is_allowed }
    }

    fn has_answer(&mut self) -> bool {
        self.answered = self.answered.or_else(|| self.asks.is_answered());
        self.answered == Some(true)
    }
}

impl Guarded {
    /// Starts the cluster. Each pod has the label `app` with the last letter of its name.
    pub fn start(nodes: u8, pods: u8, flags: &[&str]) -> Result<Self> {
        let flags: Vec<&str> = ["--network-policy", "on"].iter().chain(flags).copied().collect();
        let cluster = Cluster::without_agents(Shape { nodes, pods, ..Shape::default() }, &xdp())?;
        let mut guarded = Self { cluster };
        guarded.put_pods(&[])?;
        for node in 1..=nodes {
            guarded.cluster.start_agent_with(node, &flags)?;
        }
        for node in 1..=nodes {
            guarded.cluster.wait_for_hooks(node)?;
        }
        Ok(guarded)
    }

    /// Writes the Namespace and all pods but these.
    pub fn put_pods(&self, missing: &[&str]) -> Result<()> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "shop", "labels": {"team": "shop"}}});
        let mut items = vec![namespace];
        for node in self.cluster.bed().nodes() {
            for pod in node.pods().iter().filter(|pod| !missing.contains(&pod.name())) {
                let app = pod.name().chars().next_back().map(String::from).unwrap_or_default();
                let addresses: Vec<Value> =
                    pod.addresses().both().iter().map(|ip| json!({"ip": ip})).collect();
                items.push(json!({"apiVersion": "v1", "kind": "Pod",
                    "metadata": {"namespace": "shop", "name": pod.name(), "uid": pod.name(), "labels": {"app": app}},
                    "spec": {"nodeName": node.name(), "containers": [{"name": "main", "image": "x",
                        "ports": [{"name": "web", "containerPort": TARGET_PORT}]}]},
                    "status": {"phase": "Running", "podIPs": addresses}}));
            }
        }
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        self.cluster.manifests().put("pods.yaml", &list.to_string())
    }

    /// Writes these policies, by name, in the place of those before.
    pub fn put_policies(&self, policies: &[(&str, Value)]) -> Result<()> {
        let items: Vec<Value> = policies
            .iter()
            .map(|(name, spec)| {
                json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                    "metadata": {"namespace": "shop", "name": name}, "spec": spec})
            })
            .collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        self.cluster.manifests().put("policies.yaml", &list.to_string())
    }

    /// Returns a pod's namespace.
    pub fn pod(&self, name: &str) -> Result<&Namespace> {
        Ok(self.cluster.bed().pod(name)?.namespace())
    }

    /// Returns a pod's addresses.
    pub fn addresses(&self, name: &str) -> Result<Dual> {
        Ok(self.cluster.bed().pod(name)?.addresses())
    }

    /// Asks from a pod to the server of another one, in both families and protocols.
    pub fn ask_pod(&self, from: &str, to: &str, is_allowed: bool) -> Result<Vec<Question>> {
        let to_all = self.addresses(to)?;
        Ok(ask_all(self.pod(from)?, &format!("{from} to {to}"), to_all, TARGET_PORT, is_allowed))
    }

    /// Waits until TCP from one pod to another is allowed, or is not.
    pub fn wait_until_pod(&self, from: &str, to: &str, is_allowed: bool) -> Result<Duration> {
        let target = SocketAddr::new(self.addresses(to)?.of(Family::V4), TARGET_PORT);
        wait_until_answer(self.pod(from)?, target, is_allowed)
    }
}

/// Asks from a namespace to a port of an address of each family.
pub fn ask_all(from: &Namespace, name: &str, to: Dual, port: u16, is_allowed: bool) -> Vec<Question> {
    let mut questions = Vec::new();
    for family in Family::ALL {
        for protocol in Protocol::ALL {
            let target = SocketAddr::new(to.of(family), port);
            let asks = send(from, protocol, target);
            let name = format!("{name} {} {target}", protocol.name());
            questions.push(Question::new(name, asks, is_allowed));
        }
    }
    questions
}

/// Waits until a TCP request is answered, or is not. A request without an answer is given up after a moment.
pub fn wait_until_answer(from: &Namespace, target: SocketAddr, is_allowed: bool) -> Result<Duration> {
    const MOMENT: Duration = Duration::from_millis(300);
    // On a busy machine one answer may take longer than a moment.
    let wanted = if is_allowed { 1 } else { 3 };
    let (start, mut in_a_row) = (Instant::now(), 0);
    while start.elapsed() < LIMIT {
        let begun = start.elapsed();
        let mut asked = Question::new(target.to_string(), send(from, Protocol::Tcp, target), is_allowed);
        while !asked.has_answer() && start.elapsed() < begun + MOMENT {
            sleep(Duration::from_millis(5));
        }
        in_a_row = if asked.has_answer() == is_allowed { in_a_row + 1 } else { 0 };
        if in_a_row == wanted {
            return Ok(begun);
        }
        sleep(Duration::from_millis(10));
    }
    anyhow::bail!("{target} is not {} after {LIMIT:?}", if is_allowed { "open" } else { "closed" })
}

/// Waits for the answers, and fails with a list of all questions that did not end as they should.
pub fn judge(mut questions: Vec<Question>) -> Result<()> {
    // Without a policy each of them is answered within milliseconds.
    let start = Instant::now();
    let waits = |one: &mut Question| one.is_allowed && !one.has_answer();
    while questions.iter_mut().any(waits) && start.elapsed() < ANSWER_LIMIT {
        sleep(Duration::from_millis(20));
    }
    sleep(Duration::from_secs(1).saturating_sub(start.elapsed()));
    let mut wrong = String::new();
    for question in &mut questions {
        let has_answer = question.has_answer();
        if has_answer != question.is_allowed {
            let got = if has_answer { "an answer" } else { "no answer" };
            write!(wrong, "\n{}: {got}", question.name)?;
        }
    }
    ensure!(wrong.is_empty(), "of {} questions:{wrong}", questions.len());
    Ok(())
}
