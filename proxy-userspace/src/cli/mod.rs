//! The command line: one subcommand a file.
//!
//! All but `agent`, `cleanup` and `check --fix` only read: the pinned maps, and the state of IPVS. `monitor` writes
//! what it wants recorded. All but `agent` work while no agent runs.
#![forbid(unsafe_code)]

mod announced;
mod argument;
mod backends;
pub(crate) mod bugtool;
mod check;
mod cleanup;
mod complete;
mod controller;
mod counters;
mod echo;
mod error;
mod exit;
mod explain;
mod flows;
mod ipvs;
mod log;
mod man;
mod maps;
mod monitor;
mod output;
mod place;
mod pod_devices;
mod policies;
mod programs;
mod ready;
mod select;
mod service_port;
mod services;
mod shown;
mod status;
mod top;
mod version;
mod ways;

use std::io::{self, Write};

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use crate::agent;
use crate::config::{AgentArgs, ControllerArgs, Settings, Task};
#[cfg(test)]
pub(crate) use argument::parsed;
pub(crate) use check::summary as check_summary;
pub(crate) use error::{CliError, one_line};
pub(crate) use output::{
    API_VERSION, Format, Group, Table, columns_table, duration, lines, note, parse_format, terminal_width,
    write_out,
};

pub use exit::ExitStatus;

/// A service proxy for Kubernetes on XDP and TC.
#[derive(Debug, Parser)]
#[command(name = "millrace", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent: watch Services, EndpointSlices and Nodes, and keep the data path in sync with them
    Agent(Box<AgentArgs>),
    /// Run the controller: give Services of type LoadBalancer the addresses of nodes
    ///
    /// It needs no rights on its node, and runs once or a few times in a cluster. One of them writes, by a Lease.
    Controller(Box<ControllerArgs>),
    /// Show whether the node is ready, what serves on it, what it drops, and its problems
    Status(status::StatusArgs),
    /// Ask the agent whether this node is ready; status 4 and the failing conditions if it is not
    Ready(ready::ReadyArgs),
    /// Show Service ports: addresses, policies, endpoints, packets and problems
    Services(Box<services::ServicesArgs>),
    /// Show endpoints: node, state and Services
    Backends(backends::BackendsArgs),
    /// Show connections
    Flows(Box<flows::FlowsArgs>),
    /// Explain why a packet goes where it goes: each step, the backend, or the reason for its drop
    ///
    /// A walk through the maps gives the steps. The node's programs then run on the same packet, on copies of the maps that
    /// they write: no flow, counter or port of the node changes. Both must agree, else the status is 1.
    ///
    /// With the pod firewall, it also says what the firewall does at the devices of this node's pods, and which NetworkPolicies
    /// allow the connection or isolate the pod.
    Explain(Box<explain::ExplainArgs>),
    /// Show drops and other events as they happen
    Monitor(Box<monitor::MonitorArgs>),
    /// Show rates, as they change: connections, packets, refusals and drops of Services, or the cost of programs
    Top(Box<top::TopArgs>),
    /// Show the routes to other nodes
    Ways(ways::WaysArgs),
    /// Show the addresses of Services that this node answers for on its links
    Announced(announced::AnnouncedArgs),
    /// Show which NetworkPolicies are in force on this node's pods; or those of manifests, and whether they allow a connection
    ///
    /// Without --manifests it shows what the pod firewall of this node carries out: each pod's device, and the policies that
    /// isolate the pod. The agents need --network-policy on for that.
    ///
    /// With --manifests it judges manifests alone, and asks neither a cluster nor a node. A directory may have the output of
    /// `kubectl get namespaces,nodes,pods,networkpolicies -A -o yaml`. With --from, --to and --port it says whether the
    /// policies allow a connection, and which rule does or which policies isolate the pod.
    Policies(Box<policies::PoliciesArgs>),
    /// Show packets by program and reason
    Counters(counters::CountersArgs),
    /// Show the fill of the maps
    Maps(maps::MapsArgs),
    /// Show the attached programs
    Programs(programs::ProgramsArgs),
    /// Check this node before an installation, or a running one: a line for each check, with what to do
    ///
    /// The settings are those of the agent that runs here. Every flag of `millrace agent` is taken, too, and with one
    /// of them the flags alone count.
    Check(Box<check::CheckArgs>),
    /// Write what the commands and the node's own tools show into an archive for a report
    ///
    /// Millrace's commands: version, status, ready, check, services, backends, flows (the first 10000 entries), ways, announced,
    /// policies, counters, maps, programs, top (Services and endpoints, for one second) and monitor (the last 10000 events). The
    /// node's: uname, ip, nft, bpftool, and the sysctls that packets depend on. It has addresses of clients and names of
    /// Services, and neither secrets nor the content of packets.
    Bugtool(bugtool::BugtoolArgs),
    /// Detach and remove everything of Millrace from this node; refused while an agent runs
    Cleanup(cleanup::CleanupArgs),
    /// Show the versions of this program, of the map layout and of the agent that runs here
    Version(version::VersionArgs),
    /// Print the completion script of a shell, which completes names of Services, too
    Completion(complete::CompletionArgs),
    /// Write a manual page for each command
    Man(man::ManArgs),
    /// Answer requests by TCP and UDP with a name, for `kubectl millrace test`
    #[command(hide = true)]
    Echo(echo::EchoArgs),
    /// Send requests to echo servers, for `kubectl millrace test`
    #[command(hide = true)]
    Probe(echo::ProbeArgs),
}

/// Returns the whole command line, for the reference page.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Parses the arguments of this process and runs the subcommand.
#[must_use]
pub fn run() -> ExitStatus {
    if complete::answer(command) {
        return ExitStatus::Done;
    }
    match parse::<Cli>() {
        Ok(cli) => status(execute(cli.command)),
        Err(NoCommand::Wrong) => ExitStatus::Usage,
        Err(NoCommand::Help(text)) => status(write_out(&text).map_err(CliError::from)),
    }
}

/// Arguments without a command to run.
pub(crate) enum NoCommand {
    /// They are wrong, and the user was told.
    Wrong,
    /// They ask for this help.
    Help(String),
}

/// Parses the arguments of this process.
pub(crate) fn parse<C: Parser>() -> Result<C, NoCommand> {
    C::try_parse().map_err(|error| match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // If standard error is closed, the exit status tells.
            let _ = write!(io::stderr(), "{error}");
            NoCommand::Wrong
        }
        _ if error.use_stderr() => {
            note(&one_line(&error));
            NoCommand::Wrong
        }
        _ => NoCommand::Help(error.to_string()),
    })
}

fn status(result: Result<(), CliError>) -> ExitStatus {
    match result {
        Ok(()) => ExitStatus::Done,
        // The reader of the output has closed it, as `head` does.
        Err(CliError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitStatus::Done,
        Err(error) => {
            note(&error.to_string());
            error.status()
        }
    }
}

fn execute(command: Command) -> Result<(), CliError> {
    match command {
        Command::Agent(args) => {
            let settings = Settings::resolve(&args)?;
            let level = log::to_stderr(settings.log_format);
            let runtime = runtime()?;
            runtime.spawn(level.follow_signal());
            let result = match settings.task {
                Task::Serve => runtime.block_on(agent::run(settings)),
                Task::Init => runtime.block_on(agent::init(&settings)),
            };
            Ok(result?)
        }
        Command::Controller(args) => controller::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Ready(args) => ready::run(&args),
        Command::Services(args) => services::run(&args),
        Command::Backends(args) => backends::run(&args),
        Command::Flows(args) => flows::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Monitor(args) => monitor::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Ways(args) => ways::run(&args),
        Command::Announced(args) => announced::run(&args),
        Command::Policies(args) => policies::run(&args),
        Command::Counters(args) => counters::run(&args),
        Command::Maps(args) => maps::run(&args),
        Command::Programs(args) => programs::run(&args),
        Command::Check(args) => runtime()?.block_on(check::run(&args)),
        Command::Bugtool(args) => bugtool::run(&args),
        Command::Cleanup(args) => runtime()?.block_on(cleanup::run(&args)),
        Command::Version(args) => version::run(&args),
        Command::Completion(args) => complete::run(&args),
        Command::Man(args) => man::run(&args, Cli::command()),
        Command::Echo(args) => runtime()?.block_on(echo::serve(&args)),
        Command::Probe(args) => runtime()?.block_on(echo::probe(&args)),
    }
}

/// Returns the rows of a list in JSON that another node wrote.
pub(crate) fn rows(list: &serde_json::Value, is_wide: bool) -> Result<Group, serde_json::Error> {
    match list.get("kind").and_then(serde_json::Value::as_str) {
        Some("EventList") => monitor::read(list, is_wide),
        Some("CheckList") => check::read(list, is_wide),
        _ => top::read(list, is_wide),
    }
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_wrong_value_is_answered_by_one_line_that_names_the_flag_and_what_it_takes() {
        for (arguments, line) in [
            (
                "status -o xml",
                "--output: \"xml\" is not accepted; takes table, wide, json, jsonl, yaml, name, jsonpath=",
            ),
            ("services -o jsonpath=.a[", "--output: \".a[\" is not accepted; takes a path of RFC 9535"),
            (
                "services --type ingress",
                "--type: \"ingress\" is not accepted; takes LoadBalancer, NodePort, ClusterIP or",
            ),
            ("services a/b/c", "SERVICE: \"a/b/c\" is not accepted; takes NAME, NAMESPACE/NAME,"),
            (
                "services -w --watch-interval 0",
                "--watch-interval: \"0\" is not accepted; takes a duration such as",
            ),
            ("flows --limit 0", "--limit: \"0\" is not accepted; takes a number from 1 on"),
            ("flows --limit=-1", "--limit: \"-1\" is not accepted; takes a number from 1 on"),
            (
                "agent --drain 5 --snat-ports 5",
                "--snat-ports: \"5\" is not accepted; takes FIRST-LAST such as 61000-65535, at least 64 ports above \
                 1023",
            ),
            ("agent --masquerade-all=1", "--masquerade-all: \"1\" is not accepted; takes true or false"),
            ("status -o", "a value is required for '--output <FORMAT>' but none was supplied"),
            ("agent --drain", "a value is required for '--drain <SECONDS>' but none was supplied"),
            ("agent --snat-port 5", "unexpected argument '--snat-port' found"),
            ("sattus", "there is no command 'sattus'; did you mean 'status'?"),
            ("waltz", "there is no command 'waltz'; see `millrace --help`"),
        ] {
            let words = ["millrace"].into_iter().chain(arguments.split(' '));
            let found = one_line(&Cli::try_parse_from(words).unwrap_err());
            assert!(found.starts_with(line) && !found.contains('\n'), "{found}");
        }
    }
}
