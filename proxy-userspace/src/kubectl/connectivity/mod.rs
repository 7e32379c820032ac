//! `kubectl millrace test`: pods on several nodes ask Services of every kind, and say what they met.

mod cluster;
mod objects;
mod plan;
mod report;
mod verdict;

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use clap::Args;
use futures_util::future::join_all;
use kube::Client as Api;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::cluster::Place;
use self::plan::{Case, Client, Setting, Test};
use self::report::TestFormat;
use super::agents::Agent;
use super::error::KubectlError;
use crate::check::{Finding, Outcome};
use crate::cli::{ExitStatus, duration, note, write_out};
use crate::config::Refused;
use crate::echo::{self, Probe, Reply};

/// The nodes without `--on`.
const NODES: usize = 3;
/// The longest time for an answer of this machine's own requests.
const PATIENCE: Duration = Duration::from_secs(3);

/// Arguments of `kubectl millrace test`.
#[derive(Args, Clone, Debug)]
pub struct TestArgs {
    /// Tests to run, by name or by the first part of it, such as nodeport [default: all]
    #[arg(value_name = "TEST")]
    tests: Vec<String>,
    /// Namespace of the pods and Services, removed at the end. One that a former test left is removed before
    #[arg(long, default_value = "millrace-test")]
    namespace: String,
    /// Let this machine ask NodePorts, too; it must be outside the cluster, and reach the nodes
    #[arg(long)]
    from_here: bool,
    /// Leave the namespace in the cluster
    #[arg(long)]
    keep: bool,
    /// Image of the pods [default: the agents']
    #[arg(long)]
    image: Option<String>,
    /// Longest time until all pods are ready
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = duration)]
    start_timeout: Duration,
    /// Format
    #[arg(short, long, value_enum, default_value = "table")]
    output: TestFormat,
}

impl TestArgs {
    /// Returns the tests that are meant.
    fn chosen(&self) -> Result<Vec<Test>, KubectlError> {
        for name in &self.tests {
            if !plan::ALL.iter().any(|test| test.is_named(name)) {
                let ids: Vec<&str> = plan::ALL.iter().map(|test| test.id).collect();
                let refused = Refused::new(name, ids.join(", "));
                return Err(KubectlError::Usage(format!("TEST: {refused}")));
            }
        }
        let is_meant =
            |test: &Test| self.tests.is_empty() || self.tests.iter().any(|name| test.is_named(name));
        Ok(plan::ALL.into_iter().filter(is_meant).collect())
    }
}

/// Makes what the tests need, runs them, prints what they found, and removes everything. Nobody named the agents, if
/// they are `all`: the first few are enough then.
pub async fn run(
    client: &Api,
    agents: &[Agent],
    are_all: bool,
    args: &TestArgs,
) -> Result<ExitStatus, KubectlError> {
    let tests = args.chosen()?;
    let agents = if are_all { agents.get(..NODES).unwrap_or(agents) } else { agents };
    let place = Place { client, namespace: &args.namespace, longest: args.start_timeout };
    let mut signals = Signals::new()?;
    signals.until(place.make_room()).await?;
    // Not interrupted: nobody would know whether it is there. A signal that comes meanwhile ends what follows.
    place.make_namespace().await?;
    let verdicts = signals.until(Box::pin(verdicts(&place, agents, &tests, args))).await;
    let delete = format!("`kubectl delete namespace {}` removes it", args.namespace);
    if args.keep {
        // If this fails, the next test waits for a while or asks for another name.
        let _ = place.keep().await;
        note(&format!("the namespace {} is left; {delete}", args.namespace));
    } else if let Err(error) = place.remove().await {
        // What was found counts more.
        note(&format!("the namespace {} is left: {error}; {delete}", args.namespace));
    }
    let verdicts = verdicts?;
    write_out(&report::text(&verdicts, args.output)?)?;
    if !verdicts.iter().any(|(_, finding)| finding.outcome == Outcome::Fail) {
        return Ok(ExitStatus::Done);
    }
    if !args.keep {
        note("the Services are removed: repeat with --keep, and explain finds them");
    }
    Ok(ExitStatus::Wrong)
}

/// The signals that end the process. They must not leave pods behind. One that comes while nobody waits is kept.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn until<T>(
        &mut self,
        work: impl Future<Output = Result<T, KubectlError>>,
    ) -> Result<T, KubectlError> {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => Err(KubectlError::Interrupted),
            _ = self.terminate.recv() => Err(KubectlError::Interrupted),
            _ = self.hang_up.recv() => Err(KubectlError::Interrupted),
            result = work => result,
        }
    }
}

async fn verdicts(
    place: &Place<'_>,
    agents: &[Agent],
    tests: &[Test],
    args: &TestArgs,
) -> Result<Vec<(Test, Finding)>, KubectlError> {
    let names: Vec<String> = agents.iter().map(|agent| agent.node.clone()).collect();
    let first = agents.first().ok_or(KubectlError::NoNodes)?;
    let image = match &args.image {
        Some(image) => image.clone(),
        None => cluster::image(place.client, first).await?,
    };
    note(&format!("starting pods of {image} on {}", names.join(", ")));
    let services = place.make(&names, &image).await?;
    place.wait_for_pods().await?;
    place.wait_for_agents(agents, &names, &services).await?;
    let nodes = cluster::nodes(place.client, &names).await?;
    let (cases, skipped) = Setting { nodes, services, from_here: args.from_here }.cases(tests);
    note(&format!("sending {} probes", cases.len()));
    let replies = ask(place, &cases).await;
    let verdict = |test: &Test| {
        if let Some((_, reason)) = skipped.iter().find(|(skipped, _)| skipped == test) {
            return (*test, Finding::skip(*reason));
        }
        let found = cases.iter().zip(&replies).filter(|(case, _)| case.test == *test);
        (*test, verdict::judge(&found.map(|(case, replies)| (case, replies.as_slice())).collect::<Vec<_>>()))
    };
    Ok(tests.iter().map(verdict).collect())
}

/// Lets all clients ask at once. Returns the replies to each case.
async fn ask(place: &Place<'_>, cases: &[Case]) -> Vec<Vec<Reply>> {
    let mut clients: BTreeMap<&Client, Vec<usize>> = BTreeMap::new();
    for (index, case) in cases.iter().enumerate() {
        clients.entry(&case.client).or_default().push(index);
    }
    let asked = clients.into_iter().map(|(client, indices)| async move {
        let probes: Vec<Probe> = indices.iter().filter_map(|index| Some(cases.get(*index)?.probe)).collect();
        let found = match client.pod() {
            Some(pod) => {
                let (found, complaint) = place.ask(&pod, &probes).await;
                if let Some(why) = complaint {
                    note(&format!("{pod}: {why}"));
                }
                found
            }
            None => echo::ask_all(&probes, PATIENCE).await,
        };
        indices.into_iter().zip(found)
    });
    let found: BTreeMap<usize, Vec<Reply>> = join_all(asked).await.into_iter().flatten().collect();
    (0..cases.len()).map(|index| found.get(&index).cloned().unwrap_or_default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parsed;

    fn ids(line: &str) -> Result<Vec<&'static str>, String> {
        let args: TestArgs = parsed(line);
        let chosen = args.chosen().map_err(|error| error.to_string())?;
        Ok(chosen.into_iter().map(|test| test.id).collect())
    }

    #[tokio::test]
    async fn a_signal_that_comes_between_two_works_ends_the_second() {
        let mut signals = Signals::new().unwrap();
        nix::sys::signal::raise(nix::sys::signal::Signal::SIGHUP).unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let ended = signals.until(std::future::pending::<Result<(), KubectlError>>()).await;
        assert!(matches!(ended, Err(KubectlError::Interrupted)));
    }

    #[test]
    fn tests_are_chosen_by_name() {
        assert_eq!(ids("").unwrap().len(), plan::ALL.len());
        assert_eq!(ids("nodeport.local clusterip.pod").unwrap(), ["clusterip.pod", "nodeport.local"]);
        let refused = ids("nodeports").unwrap_err();
        assert!(
            refused.starts_with("TEST: \"nodeports\" is not accepted; takes clusterip.pod, "),
            "{refused}"
        );
    }
}
