//! `millrace ready`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use super::CliError;
use crate::health::{self, ReadyView};

/// Arguments of `millrace ready`.
#[derive(Args, Clone, Debug)]
pub struct ReadyArgs {
    /// BPF file system of the agent, or the directory in it
    #[arg(long, value_name = "PATH", default_value = "/sys/fs/bpf")]
    bpffs_path: PathBuf,
}

/// Asks the agent on this node. Fails with the conditions that do not hold.
pub fn run(args: &ReadyArgs) -> Result<(), CliError> {
    match health::ask(&args.bpffs_path).map(|agent| agent.readiness) {
        Some(view) if view.ready => Ok(writeln!(io::stdout(), "this node is ready")?),
        Some(view) => Err(CliError::NotReady(reasons(&view))),
        None => Err(CliError::NotReady("no agent answers".to_owned())),
    }
}

/// Returns the conditions that fail, each with its reason and its cause.
fn reasons(view: &ReadyView) -> String {
    let failing = view.failing.iter().map(|failing| {
        let cause = failing.cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("{}: {}{cause}", failing.condition, failing.message)
    });
    failing.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::FailingView;

    #[test]
    fn each_failing_condition_is_named_with_its_cause() {
        let failing = |condition: &str, cause: Option<&str>| FailingView {
            condition: condition.to_owned(),
            message: "why".to_owned(),
            cause: cause.map(str::to_owned),
        };
        let failing = vec![failing("source-listed", Some("refused")), failing("data-plane", None)];
        let view = ReadyView { ready: false, failing, failures: Vec::new() };
        assert_eq!(reasons(&view), "source-listed: why: refused; data-plane: why");
    }
}
