//! `millrace ready`.

use clap::Args;

use super::error::CliError;
use super::output::write_out;
use super::place::Place;
use crate::health::ReadyView;

/// Arguments of `millrace ready`.
#[derive(Args, Clone, Debug)]
pub struct ReadyArgs {
    #[command(flatten)]
    place: Place,
}

/// Asks the agent on this node. Fails with the conditions that do not hold.
pub fn run(args: &ReadyArgs) -> Result<(), CliError> {
    match args.place.agent().map(|agent| agent.readiness) {
        Some(view) if view.ready => Ok(write_out("this node is ready\n")?),
        Some(view) => Err(CliError::NotReady(reasons(&view).join("; "))),
        None => Err(CliError::NotReady("no agent answers".to_owned())),
    }
}

/// Returns the conditions that fail, each with its reason and its cause.
pub fn reasons(view: &ReadyView) -> Vec<String> {
    let failing = view.failing.iter().map(|failing| {
        let cause = failing.cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("{}: {}{cause}", failing.condition, failing.message)
    });
    failing.collect()
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
        assert_eq!(reasons(&view), ["source-listed: why: refused", "data-plane: why"]);
    }
}
