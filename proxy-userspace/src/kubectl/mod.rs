//! `kubectl millrace`: the command line on all nodes of a cluster at once.
//!
//! The program is the same under the name `kubectl-millrace`. It runs `millrace` in the agents' pods, so each node
//! answers in its own version, and joins the answers.
#![forbid(unsafe_code)]

mod agents;
mod arguments;
mod bugtool;
mod connectivity;
mod diff;
mod error;
mod merge;

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use kube::Client;

use self::agents::{Agent, Answer};
use self::arguments::{Call, Cli, Command, Target};
use self::error::KubectlError;
use crate::cli::{ExitStatus, NoCommand, note, parse, write_out};

/// The name under which kubectl finds a plugin.
const PLUGIN: &str = "kubectl-millrace";

/// Returns whether the program was called as a plugin of kubectl.
#[must_use]
pub fn is_called(program: Option<&OsStr>) -> bool {
    let name = program.and_then(|program| Path::new(program).file_stem());
    name.is_some_and(|name| name == PLUGIN)
}

/// Parses the arguments of this process and runs the command in the cluster.
#[must_use]
pub fn run() -> ExitStatus {
    let cli = match parse::<Cli>() {
        Ok(cli) => cli,
        Err(NoCommand::Wrong) => return ExitStatus::Usage,
        Err(NoCommand::Help(text)) => return ended(Err(KubectlError::Help(text))),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    ended(runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(execute(cli))))
}

fn ended(result: Result<ExitStatus, KubectlError>) -> ExitStatus {
    match result {
        Ok(status) => status,
        // The reader of the output has closed it, as `head` does.
        Err(KubectlError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitStatus::Done,
        Err(KubectlError::Help(text)) => {
            ended(write_out(&text).map(|()| ExitStatus::Done).map_err(Into::into))
        }
        Err(error) => {
            note(&error.to_string());
            error.status()
        }
    }
}

async fn execute(cli: Cli) -> Result<ExitStatus, KubectlError> {
    let mut target = cli.target;
    match cli.command {
        Command::Diff(args) => {
            let (client, agents) = connect(&target).await?;
            let found = diff::run(&client, &agents, target.timeout).await;
            found.complaints().for_each(|line| note(&line));
            write_out(&found.text(args.output)?)?;
            Ok(found.status())
        }
        Command::Bugtool(args) => {
            let (client, agents) = connect(&target).await?;
            bugtool::run(&client, &agents, target.timeout, args.output_file.as_deref()).await
        }
        Command::Test(args) => {
            let (client, agents) = connect(&target).await?;
            let agents = running(agents, !target.on.is_empty())?;
            connectivity::run(&client, &agents, target.on.is_empty(), &args).await
        }
        Command::Other(words) => {
            let call = Call::parse(words, &mut target)?;
            let (client, agents) = connect(&target).await?;
            let mut answers = agents::ask(&client, &agents, &call.words, target.timeout).await;
            show(&call, &mut answers)
        }
    }
}

async fn connect(target: &Target) -> Result<(Client, Vec<Agent>), KubectlError> {
    let client = agents::client(target.kubeconfig.as_deref(), target.context.as_deref()).await?;
    let agents = agents::find(&client, &target.selector, &target.on).await?;
    Ok((client, agents))
}

/// Returns the agents that run. Names the others on standard error; one that somebody named is an error.
fn running(agents: Vec<Agent>, are_named: bool) -> Result<Vec<Agent>, KubectlError> {
    for agent in &agents {
        match &agent.absent {
            Some(why) if are_named => {
                return Err(KubectlError::Usage(format!("--on: {}: {why}", agent.node)));
            }
            Some(why) => note(&format!("{} is left out: {why}", agent.node)),
            None => {}
        }
    }
    let running: Vec<Agent> = agents.into_iter().filter(|agent| agent.absent.is_none()).collect();
    if running.is_empty() { Err(KubectlError::NoNodes) } else { Ok(running) }
}

/// Writes what the nodes answered, and what they complained of.
fn show(call: &Call, answers: &mut [Answer]) -> Result<ExitStatus, KubectlError> {
    let text = merge::text(call, answers)?;
    for answer in answers.iter() {
        for line in answer.complaints() {
            note(&format!("{}: {line}", answer.node));
        }
    }
    write_out(&text)?;
    let status = merge::status(answers);
    if !call.is_status() {
        return Ok(status);
    }
    let not_ready = merge::not_ready(&merge::statuses(answers));
    if not_ready > 0 {
        note(&format!("{not_ready} of {} nodes are not ready", answers.len()));
    }
    Ok(of_readiness(status, not_ready))
}

/// Returns the status of `status`: a node that can't be asked is one that is not ready.
fn of_readiness(status: ExitStatus, not_ready: usize) -> ExitStatus {
    if not_ready > 0 && [ExitStatus::Done, ExitStatus::Failed].contains(&status) {
        return ExitStatus::Wrong;
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_program_makes_it_a_plugin() {
        for (program, is_plugin) in [
            ("kubectl-millrace", true),
            ("/usr/local/bin/kubectl-millrace", true),
            ("millrace", false),
            ("/usr/bin/kubectl", false),
        ] {
            assert_eq!(is_called(Some(OsStr::new(program))), is_plugin, "{program}");
        }
        assert!(!is_called(None));
    }

    #[test]
    fn a_node_that_is_not_ready_or_silent_makes_the_status_4() {
        assert_eq!(of_readiness(ExitStatus::Done, 0), ExitStatus::Done);
        assert_eq!(of_readiness(ExitStatus::Done, 1), ExitStatus::Wrong);
        assert_eq!(of_readiness(ExitStatus::Failed, 1), ExitStatus::Wrong);
        assert_eq!(of_readiness(ExitStatus::NotPermitted, 1), ExitStatus::NotPermitted);
    }

    #[test]
    fn a_test_leaves_out_the_agents_that_do_not_run() {
        let agent = |node: &str, absent: Option<&str>| Agent {
            node: node.to_owned(),
            namespace: String::new(),
            pod: String::new(),
            absent: absent.map(str::to_owned),
        };
        let some = || vec![agent("a", None), agent("b", Some("its pod is Pending"))];
        assert_eq!(running(some(), false).unwrap(), [agent("a", None)]);
        assert_eq!(running(some(), true).unwrap_err().to_string(), "--on: b: its pod is Pending");
        let none = running(some().split_off(1), false);
        assert!(matches!(none, Err(KubectlError::NoNodes)), "{none:?}");
    }
}
