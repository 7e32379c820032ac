//! Exit statuses of `millrace`.

use std::process::ExitCode;

/// The end of a run of `millrace`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// The command did its work.
    Done,
    /// Something failed.
    Failed,
    /// The command got an argument that it does not accept.
    Usage,
    /// The object that the command was asked for does not exist.
    NotFound,
    /// A check found something wrong.
    Wrong,
    /// There is no data plane on this node.
    NoDataplane,
    /// The process lacks the rights.
    NotPermitted,
}

impl ExitStatus {
    /// All statuses, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Done,
        Self::Failed,
        Self::Usage,
        Self::NotFound,
        Self::Wrong,
        Self::NoDataplane,
        Self::NotPermitted,
    ];

    /// Returns the number that a shell sees.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            // The status of kube-proxy, and of programs that use getopt.
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Wrong => 4,
            Self::NoDataplane => 5,
            Self::NotPermitted => 6,
        }
    }

    /// Returns the meaning, for the reference page and the manual pages.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Done => {
                "The command did its work. The agent ends so on SIGTERM and SIGINT, and when the file of \
                 `--config` has changed. A reader that closes standard output early is no failure."
            }
            Self::Failed => {
                "Something failed: the data plane, the source or the node's network for the agent; a map or the kernel's \
                 answer for the other commands. An agent that runs makes `cleanup` fail. The reason is one line on \
                 standard error. The data path of an agent goes on."
            }
            Self::Usage => {
                "A flag, its value, a field of the `--config` file or the kubeconfig is wrong, or there is no such \
                 subcommand. One line on standard error names it and what it takes. A second try ends the same way."
            }
            Self::NotFound => "No object has the name or the address that the command was asked for.",
            Self::Wrong => {
                "A check found something wrong, or the node is not ready. The line on standard error names the checks or \
                 conditions."
            }
            Self::NoDataplane => {
                "No data plane is on this node: no agent has run here with this `--bpffs-path`, or it was cleaned up. For \
                 `policies`: the pod firewall is off here."
            }
            Self::NotPermitted => {
                "The process lacks the rights: run it as root, or with the capabilities that the line on standard error \
                 names."
            }
        }
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(status.number())
    }
}
