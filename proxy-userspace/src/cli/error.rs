//! The failures of a subcommand, and their exit statuses.

use std::io;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::ExitStatus;
use crate::agent::AgentError;
use crate::config::ConfigError;
use crate::dataplane::ebpf::OpenError;
use crate::dataplane::ebpf::kernel_drops::KernelDropsError;
use crate::dataplane::ebpf::read::ReadError;
use crate::dataplane::ipvs::OpenError as IpvsError;
use crate::node::NodeError;
use crate::source::SourceError;

/// The failure of a subcommand.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Dataplane(#[from] OpenError),
    #[error(transparent)]
    Ipvs(#[from] IpvsError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("--kernel: {0}")]
    KernelDrops(#[from] KernelDropsError),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("this node is not ready: {0}")]
    NotReady(String),
    #[error("not all is well: {0}")]
    Found(String),
    #[error("the walk and the programs differ: please report: {0}")]
    Differ(String),
    #[error("an agent{} is running here; end it first", numbered(*process))]
    Running {
        /// Its process, if it is visible.
        process: Option<u32>,
    },
    #[error(
        "the pod firewall is off at {path}: no NetworkPolicy is in force on this node; agents with --network-policy on \
         carry them out"
    )]
    NoFirewall {
        /// The BPF file system.
        path: String,
    },
    #[error("{0}")]
    NotFound(String),
    #[error("the kernel does not {action}: {error}")]
    Kernel {
        /// What it was asked to do.
        action: &'static str,
        error: io::Error,
    },
    #[error("not everything could be removed; left: {0}")]
    Left(String),
    #[error("JSON can't be written: {0}")]
    Json(#[from] serde_json::Error),
    #[error("YAML can't be written: {0}")]
    Yaml(#[from] serde_norway::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl CliError {
    /// Returns the exit status.
    pub fn status(&self) -> ExitStatus {
        match self {
            Self::Config(_)
            | Self::Source(SourceError::NoConfiguration | SourceError::Kubeconfig { .. })
            | Self::Agent(
                AgentError::OuterSource { .. }
                | AgentError::Source(
                    SourceError::Directory { .. }
                    | SourceError::NoConfiguration
                    | SourceError::Kubeconfig { .. },
                ),
            ) => ExitStatus::Usage,
            Self::Read(ReadError::Absent { .. }) | Self::NoFirewall { .. } => ExitStatus::NoDataplane,
            Self::Read(ReadError::Denied { .. }) | Self::KernelDrops(KernelDropsError::Denied) => {
                ExitStatus::NotPermitted
            }
            Self::Dataplane(error) | Self::Agent(AgentError::Dataplane(error)) => of_ebpf(error),
            Self::Ipvs(error) | Self::Agent(AgentError::Ipvs(error)) => of_ipvs(error),
            Self::Io(error) | Self::Kernel { error, .. }
                if error.kind() == io::ErrorKind::PermissionDenied =>
            {
                ExitStatus::NotPermitted
            }
            Self::NotReady(_) | Self::Found(_) => ExitStatus::Wrong,
            Self::NotFound(_) => ExitStatus::NotFound,
            _ => ExitStatus::Failed,
        }
    }
}

fn of_ebpf(error: &OpenError) -> ExitStatus {
    match error {
        OpenError::BpffsPath { .. } => ExitStatus::Usage,
        error if error.is_of_rights() => ExitStatus::NotPermitted,
        _ => ExitStatus::Failed,
    }
}

const fn of_ipvs(error: &IpvsError) -> ExitStatus {
    match error {
        IpvsError::Capability => ExitStatus::NotPermitted,
        _ => ExitStatus::Failed,
    }
}

fn numbered(process: Option<u32>) -> String {
    process.map_or_else(String::new, |process| format!(" (process {process})"))
}

/// Returns the refusal of a value or a subcommand, or else clap's message without the usage below it.
pub fn one_line(error: &clap::Error) -> String {
    if let Some(error) = ConfigError::of_flag(error) {
        return error.to_string();
    }
    if let Some(line) = unknown_command(error) {
        return line;
    }
    let message = error.to_string();
    let is_more = |line: &str| line.starts_with("Usage:") || line.starts_with("For more information");
    let about = message.lines().map(str::trim).take_while(|line| !is_more(line));
    let words: Vec<&str> = about.filter(|line| !line.is_empty()).collect();
    let line = words.join(" ");
    line.strip_prefix("error: ").map_or(line.clone(), str::to_owned)
}

/// Returns the line for a mistyped subcommand, with the ones that it may have meant.
fn unknown_command(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let hint = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(names)) if !names.is_empty() => {
            let names: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
            format!("did you mean {}?", names.join(" or "))
        }
        _ => "see `millrace --help`".to_owned(),
    };
    Some(format!("there is no command '{given}'; {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_the_status_of_its_cause() {
        let denied = || io::Error::from_raw_os_error(libc::EACCES);
        let file = |error| OpenError::File { path: "/sys/fs/bpf/millrace".into(), error };
        let path = || "/sys/fs/bpf/millrace".to_owned();
        for (error, status) in [
            (CliError::Read(ReadError::Absent { path: path() }), ExitStatus::NoDataplane),
            (CliError::Read(ReadError::Denied { path: path() }), ExitStatus::NotPermitted),
            (CliError::KernelDrops(KernelDropsError::Denied), ExitStatus::NotPermitted),
            (CliError::KernelDrops(KernelDropsError::TooOld), ExitStatus::Failed),
            (CliError::Dataplane(file(denied())), ExitStatus::NotPermitted),
            (CliError::Agent(AgentError::Dataplane(file(denied()))), ExitStatus::NotPermitted),
            (CliError::Dataplane(file(io::Error::other("broken"))), ExitStatus::Failed),
            (CliError::Ipvs(IpvsError::Capability), ExitStatus::NotPermitted),
            (CliError::Agent(AgentError::Ipvs(IpvsError::NoIpvs)), ExitStatus::Failed),
            (CliError::Io(denied()), ExitStatus::NotPermitted),
            (CliError::NotReady("why".to_owned()), ExitStatus::Wrong),
            (CliError::Found("uplinks".to_owned()), ExitStatus::Wrong),
            (CliError::NotFound("shop/wep".to_owned()), ExitStatus::NotFound),
            (CliError::Running { process: None }, ExitStatus::Failed),
        ] {
            assert_eq!(error.status(), status, "{error}");
        }
    }

    #[test]
    fn missing_rights_name_the_place_and_the_remedy() {
        let denied = ReadError::Denied { path: "/sys/fs/bpf/millrace/v5".to_owned() };
        assert_eq!(
            denied.to_string(),
            "/sys/fs/bpf/millrace/v5 can't be read: run as root, or with CAP_BPF (and CAP_NET_ADMIN)"
        );
    }

    #[test]
    fn an_agent_in_the_way_is_named_by_its_process() {
        let running = |process| CliError::Running { process }.to_string();
        assert_eq!(running(Some(4711)), "an agent (process 4711) is running here; end it first");
        assert_eq!(running(None), "an agent is running here; end it first");
    }
}
