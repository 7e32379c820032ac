//! `millrace policies`.

mod node;
mod pods;
mod question;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Args;

use super::error::CliError;
use super::output::{ListArgs, note};
use super::place::Place;
use crate::config::{ConfigError, Refused};
use crate::policy::Index;
use crate::source::directory::read_policies;
use pods::PodArgs;
use question::QuestionArgs;

/// Arguments of `millrace policies`.
#[derive(Args, Clone, Debug)]
pub struct PoliciesArgs {
    /// Directory with manifests of Namespaces, Pods, NetworkPolicies and Nodes [default: what is in force on this node]
    #[arg(long, value_name = "DIRECTORY")]
    manifests: Option<PathBuf>,
    #[command(flatten)]
    pods: PodArgs,
    #[command(flatten)]
    question: QuestionArgs,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    place: Place,
}

/// The objects of the manifests.
struct Cluster {
    index: Index,
    /// The addresses of each node.
    nodes: BTreeMap<String, BTreeSet<IpAddr>>,
    /// Lines about objects that can't be carried out as they are.
    problems: Vec<String>,
}

/// Prints what is in force on this node. With manifests: the policies of pods, or whether policies allow a connection.
pub fn run(args: &PoliciesArgs) -> Result<(), CliError> {
    match &args.manifests {
        Some(directory) => run_on_manifests(args, directory),
        None => args.list.show(&args.place, || node::list(&args.pods, &args.place, args.list.is_wide())),
    }
}

fn run_on_manifests(args: &PoliciesArgs, directory: &Path) -> Result<(), CliError> {
    let told = RefCell::new(BTreeSet::new());
    let read = || {
        let cluster = Cluster::read(directory)?;
        // With --watch, each problem is told once.
        for problem in &cluster.problems {
            if told.borrow_mut().insert(problem.clone()) {
                note(problem);
            }
        }
        Ok::<_, CliError>(cluster)
    };
    match args.question.asked() {
        Some(question) => args.list.show_document(&args.place, || question.answer(&read()?)),
        None => args.list.show(&args.place, || args.pods.list(&read()?.index, args.list.is_wide())),
    }
}

impl Cluster {
    fn read(directory: &Path) -> Result<Self, CliError> {
        let found = read_policies(directory).map_err(|error| {
            let takes = format!("an existing directory of .yaml, .yml and .json files: {error}");
            let message = Refused::new(&directory.display().to_string(), takes).to_string();
            ConfigError { origin: "--manifests".to_owned(), message }
        })?;
        if let [first, others @ ..] = &found.unread[..] {
            let others =
                if others.is_empty() { String::new() } else { format!(" (and {} more)", others.len()) };
            let message = format!("{first}{others}; an object that is not read may change every answer");
            return Err(ConfigError { origin: "--manifests".to_owned(), message }.into());
        }
        let mut index = Index::default();
        for change in found.changes {
            index.apply(change);
        }
        let unresolved = index.unresolved_ports();
        let problems = found.problems.iter().chain(index.problems()).chain(&unresolved);
        let mut problems: Vec<String> = problems.map(ToString::to_string).collect();
        let unknown = index.unknown_namespaces();
        problems.extend(unknown.iter().map(|name| {
            format!("Namespace {name} is not in the manifests: selectors of its labels match nothing")
        }));
        let nodes: BTreeSet<&str> =
            index.pods().map(|pod| pod.node).filter(|node| !node.is_empty()).collect();
        let absent = nodes.iter().filter(|node| !found.nodes.contains_key(**node));
        problems.extend(absent.map(|node| {
            format!("Node {node} is not in the manifests: that it reaches its own pods is not seen")
        }));
        Ok(Self { index, nodes: found.nodes, problems })
    }
}

#[cfg(test)]
mod tests;
