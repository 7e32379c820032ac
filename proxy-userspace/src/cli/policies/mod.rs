//! `millrace policies`.

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
    /// Directory with manifests of Namespaces, Pods, NetworkPolicies and Nodes
    #[arg(long, value_name = "DIRECTORY")]
    manifests: PathBuf,
    #[command(flatten)]
    pods: PodArgs,
    #[command(flatten)]
    question: QuestionArgs,
    #[command(flatten)]
    list: ListArgs,
}

/// The objects of the manifests.
struct Cluster {
    index: Index,
    /// The addresses of each node.
    nodes: BTreeMap<String, BTreeSet<IpAddr>>,
    /// Lines about objects that can't be carried out as they are.
    problems: Vec<String>,
}

/// Prints the policies of pods, or whether policies allow a connection.
pub fn run(args: &PoliciesArgs) -> Result<(), CliError> {
    // JSON names the node of this process, as with every command.
    let place = Place { bpffs_path: Place::DEFAULT.into() };
    let told = RefCell::new(BTreeSet::new());
    let read = || {
        let cluster = Cluster::read(&args.manifests)?;
        // With --watch, each problem is told once.
        for problem in &cluster.problems {
            if told.borrow_mut().insert(problem.clone()) {
                note(problem);
            }
        }
        Ok::<_, CliError>(cluster)
    };
    match args.question.asked() {
        Some(question) => args.list.show_document(&place, || question.answer(&read()?)),
        None => args.list.show(&place, || args.pods.list(&read()?.index, args.list.is_wide())),
    }
}

impl Cluster {
    fn read(directory: &Path) -> Result<Self, CliError> {
        let found = read_policies(directory).map_err(|error| {
            let takes = format!("an existing directory of .yaml, .yml and .json files: {error}");
            let message = Refused::new(&directory.display().to_string(), takes).to_string();
            ConfigError { origin: "--manifests".to_owned(), message }
        })?;
        let mut index = Index::default();
        for change in found.changes {
            index.apply(change);
        }
        let unresolved = index.unresolved_ports();
        let problems = found.problems.iter().chain(index.problems()).chain(&unresolved);
        let problems = problems.map(ToString::to_string).collect();
        Ok(Self { index, nodes: found.nodes, problems })
    }
}

#[cfg(test)]
mod tests;
