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
}

impl ExitStatus {
    /// All statuses, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Done, Self::Failed, Self::Usage];

    /// Returns the number that a shell sees.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            // The status of kube-proxy, and of programs that use getopt.
            Self::Usage => 2,
        }
    }

    /// Returns the meaning, for the reference page.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Done => {
                "The command did its work. The agent ends so on SIGTERM and SIGINT, and when the file of \
                 `--config` has changed. A reader that closes standard output early is no failure."
            }
            Self::Failed => {
                "Something failed: the data plane, the source or the node's network for the agent; for the other \
                 commands, nothing of Millrace is on this node, or it can't be read or removed. The reason is one \
                 line on standard error. The data path of an agent goes on."
            }
            Self::Usage => {
                "A flag, its value, a field of the `--config` file or the kubeconfig is wrong, or the subcommand is \
                 missing. One line on standard error names it and what it takes. A second try ends the same way."
            }
        }
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(status.number())
    }
}
