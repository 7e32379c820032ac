//! The failures of `kubectl millrace`.

use std::io;
use std::time::Duration;

use crate::cli::{CliError, ExitStatus};

/// The failure of a command in the cluster.
#[derive(Debug, thiserror::Error)]
pub enum KubectlError {
    #[error("no cluster: {0}; set --kubeconfig or KUBECONFIG")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    #[error("the API server: {0}")]
    Api(Box<kube::Error>),
    #[error("there is no pod with the label {selector}; is Millrace installed, and in this cluster?")]
    NoAgents {
        /// The selector of `--selector`.
        selector: String,
    },
    #[error("no agent is on {}; there are agents on: {}", missing.join(", "), nodes.join(", "))]
    NoSuchNode {
        /// The nodes of `--on` without an agent.
        missing: Vec<String>,
        /// The nodes with one.
        nodes: Vec<String>,
    },
    #[error("no node is left to test on")]
    NoNodes,
    #[error("after {longest:?} still: {what}")]
    NotInTime {
        /// What was not as it should be.
        what: String,
        /// The time.
        longest: Duration,
    },
    #[error("interrupted")]
    Interrupted,
    #[error("{0}")]
    Usage(String),
    /// The help of a command, which is no failure.
    #[error("{0}")]
    Help(String),
    #[error(transparent)]
    Cli(#[from] CliError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl KubectlError {
    /// Returns the exit status.
    pub fn status(&self) -> ExitStatus {
        match self {
            Self::Kubeconfig(_) | Self::Usage(_) => ExitStatus::Usage,
            Self::NoSuchNode { .. } => ExitStatus::NotFound,
            Self::NoAgents { .. } | Self::NoNodes => ExitStatus::NoDataplane,
            Self::Api(error) if is_of_rights(error) => ExitStatus::NotPermitted,
            Self::Api(_) | Self::NotInTime { .. } | Self::Interrupted | Self::Io(_) => ExitStatus::Failed,
            Self::Cli(error) => error.status(),
            Self::Help(_) => ExitStatus::Done,
        }
    }
}

impl From<kube::Error> for KubectlError {
    fn from(error: kube::Error) -> Self {
        Self::Api(Box::new(error))
    }
}

fn is_of_rights(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 401 || status.code == 403)
}
