//! The command line: one subcommand a file.
//!
//! All but `agent` and `cleanup` only read: the pinned maps, and the state of IPVS. All but `agent` work
//! while no agent runs.
#![forbid(unsafe_code)]

mod backends;
mod cleanup;
mod error;
mod exit;
mod flows;
mod ipvs;
mod ready;
mod service_ports;
mod services;
mod shown;
mod status;
mod table;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use serde::Serialize;
use tracing_subscriber::EnvFilter;

use crate::agent;
use crate::config::{AgentArgs, Settings, Task};
use crate::dataplane::ebpf::read::{PinnedMaps, ReadError};
use crate::health::{self, AgentView};
use error::{CliError, one_line};
use table::Table;

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
    /// Show the agent, its devices, the routes to other nodes, packets by reason and the fill of the maps
    Status(Show),
    /// Ask the agent whether this node is ready; status 4 and the failing conditions if it is not
    Ready(ready::ReadyArgs),
    /// Show Service ports: addresses, lists, backends and packets
    Services(services::ServicesArgs),
    /// Show endpoints, and the route to each
    Backends(Show),
    /// Show connections
    Flows(flows::FlowsArgs),
    /// Detach and remove everything of Millrace from this node; refused while an agent runs
    Cleanup(cleanup::CleanupArgs),
}

/// The BPF file system to show, and the form of the output.
#[derive(Args, Clone, Debug)]
struct Show {
    /// BPF file system with the pinned maps, or the directory in it
    #[arg(long, value_name = "PATH", default_value = "/sys/fs/bpf")]
    bpffs_path: PathBuf,
    /// Format: a table for people, or JSON for programs
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

/// Returns the whole command line, for the reference page.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Parses the arguments of this process and runs the subcommand.
#[must_use]
pub fn run() -> ExitStatus {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // If standard error is closed, the exit status tells.
            let _ = write!(io::stderr(), "{error}");
            return ExitStatus::Usage;
        }
        Err(error) if error.use_stderr() => {
            let _ = writeln!(io::stderr(), "millrace: {}", one_line(&error));
            return ExitStatus::Usage;
        }
        Err(help) => return status(print_help(&help)),
    };
    status(execute(cli.command))
}

fn status(result: Result<(), CliError>) -> ExitStatus {
    match result {
        Ok(()) => ExitStatus::Done,
        // The reader of the output has closed it, as `head` does.
        Err(CliError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitStatus::Done,
        Err(error) => {
            let _ = writeln!(io::stderr(), "millrace: {error}");
            error.status()
        }
    }
}

fn print_help(help: &clap::Error) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    write!(out, "{help}")?;
    Ok(out.flush()?)
}

fn execute(command: Command) -> Result<(), CliError> {
    match command {
        Command::Agent(args) => {
            let settings = Settings::resolve(&args)?;
            log_to_stderr();
            let result = match settings.task {
                Task::Serve => runtime()?.block_on(agent::run(settings)),
                Task::Init => runtime()?.block_on(agent::init(&settings)),
            };
            Ok(result?)
        }
        Command::Status(show) => status::run(&show),
        Command::Ready(args) => ready::run(&args),
        Command::Services(args) => services::run(&args),
        Command::Backends(show) => backends::run(&show),
        Command::Flows(args) => flows::run(&args),
        Command::Cleanup(args) => runtime()?.block_on(cleanup::run(&args)),
    }
}

impl Show {
    /// Returns the running agent, if one answers.
    fn agent(&self) -> Option<AgentView> {
        health::ask(&self.bpffs_path)
    }

    fn maps(&self) -> Result<PinnedMaps, ReadError> {
        PinnedMaps::open(&self.bpffs_path)
    }

    fn print<T: Serialize + ?Sized>(
        &self,
        value: &T,
        tables: impl Fn(&T) -> Vec<Table>,
    ) -> Result<(), CliError> {
        let mut out = io::stdout().lock();
        match self.output {
            Output::Json => {
                serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from)?;
                writeln!(out)?;
            }
            Output::Table => {
                for (index, table) in tables(value).iter().enumerate() {
                    let separator = if index == 0 { "" } else { "\n" };
                    write!(out, "{separator}{table}")?;
                }
            }
        }
        out.flush()?;
        Ok(())
    }
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
}

/// RUST_LOG as everywhere; without it, what a person cares about. The netlink crate warns of overruns, which
/// the monitor handles; kube calls each failed attempt an error without saying whose, which the source does
/// once.
fn log_to_stderr() {
    let default = || EnvFilter::new("info,netlink_proto=error,kube_client=off");
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_from_default_env().unwrap_or_else(|_| default()))
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .init();
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
            ("status -o xml", "--output: \"xml\" is not accepted; takes table or json"),
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
            ("explode", "there is no command 'explode'; see `millrace --help`"),
        ] {
            let words = ["millrace"].into_iter().chain(arguments.split(' '));
            let found = one_line(&Cli::try_parse_from(words).unwrap_err());
            assert!(found.starts_with(line) && !found.contains('\n'), "{found}");
        }
    }
}
