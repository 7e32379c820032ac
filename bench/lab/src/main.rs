//! `millrace-lab`: the test bed by hand.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use millrace_lab::drill::Form;
use millrace_lab::kubernetes::e2e::{self, FOCUS, Run, SKIP};
use millrace_lab::kubernetes::{self, Assets, Cluster, Mode, Proxy, Settings};
use millrace_lab::{demo, drill, net, soak};
use tokio::signal::unix::{SignalKind, signal};

/// A cluster of network namespaces with an agent on each node.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Brings the bed up with example Services, sends real traffic, prints what each backend saw,
    /// and stays up until Ctrl-C
    Run {
        /// End after the table; the exit status is not 0 if there are problems
        #[arg(long)]
        once: bool,
        /// How the agents attach: native, generic, auto, or off for the TC path
        #[arg(long, value_name = "MODE", default_value = "native",
              value_parser = ["native", "generic", "auto", "off"])]
        xdp: String,
        /// Print the steps of each packet; takes an agent with programs that log them, as
        /// `cargo xtask run --trace` builds it
        #[arg(long)]
        trace: bool,
    },
    /// Plays faults on running traffic, and prints a table of the losses; the exit status is 1 if a
    /// fault cost more than it may
    Drill {
        /// Each fault in a longer form, and pairs of faults
        #[arg(long)]
        long: bool,
        /// Pairs of faults, too
        #[arg(long)]
        pairs: bool,
        /// The only fault to play, or several at once: FAULT+FAULT
        #[arg(long, value_name = "FAULT")]
        only: Option<String>,
        /// The upgrade of a cluster with agents of a former version instead of faults;
        /// MILLRACE_FORMER_BIN is the path of such an agent, as `cargo xtask drill --upgrade` builds it
        #[arg(long, conflicts_with_all = ["pairs", "only"])]
        upgrade: bool,
        /// Replace the table in docs/drill.md
        #[arg(long, conflicts_with = "only")]
        write: bool,
        /// How the agents attach: native, generic, auto, or off for the TC path
        #[arg(long, value_name = "MODE", default_value = "native",
              value_parser = ["native", "generic", "auto", "off"])]
        xdp: String,
    },
    /// Runs traffic while Services, endpoints, nodes, settings and agents change, and prints what the
    /// agents hold after five minutes and at the end; the exit status is 1 if something grew or failed
    Soak {
        /// Length; less than 9 minutes can't be compared
        #[arg(long, default_value = "60", value_parser = clap::value_parser!(u64).range(1..=1440))]
        minutes: u64,
        /// File for the record of all samples
        #[arg(long, value_name = "FILE")]
        record: PathBuf,
        /// Replace the table in docs/soak.md
        #[arg(long)]
        write: bool,
        /// How the agents attach: native, generic, auto, or off for the TC path
        #[arg(long, value_name = "MODE", default_value = "native",
              value_parser = ["native", "generic", "auto", "off"])]
        xdp: String,
    },
    /// A real Kubernetes cluster on this machine
    Cluster {
        /// Name; several clusters can be up
        #[arg(long, global = true, default_value = "cluster")]
        name: String,
        #[command(subcommand)]
        command: ClusterCommand,
    },
}

#[derive(Subcommand)]
enum ClusterCommand {
    /// Starts the cluster and waits until nodes and proxy are ready
    Up {
        /// Number of nodes, 1 to 9
        #[arg(long, default_value = "3", value_parser = clap::value_parser!(u8).range(1..=9))]
        nodes: u8,
        /// Proxy of the nodes
        #[arg(long, value_enum, default_value = "millrace")]
        proxy: Proxy,
        /// Data plane of Millrace
        #[arg(long, value_enum, default_value = "ebpf")]
        mode: Mode,
        /// A value of Millrace's chart, as `helm --set` takes it; repeatable
        #[arg(long = "set", value_name = "KEY=VALUE")]
        values: Vec<String>,
    },
    /// Runs Kubernetes' own specs against the cluster that is up
    E2e {
        /// Regular expression of the specs to run [default: those about Services and node networking]
        #[arg(long, default_value = FOCUS, hide_default_value = true)]
        focus: String,
        /// Regular expression of the specs not to run [default: those that need a cloud, ssh or SCTP]
        #[arg(long, default_value = SKIP, hide_default_value = true)]
        skip: String,
        /// Number of processes
        #[arg(long, default_value = "4")]
        processes: u8,
        /// File for ginkgo's report
        #[arg(long, value_name = "FILE")]
        report: PathBuf,
    },
    /// Prints a table of reports, a column for each file name
    E2eTable {
        /// Reports of `e2e`
        #[arg(required = true)]
        reports: Vec<PathBuf>,
    },
    /// Ends the cluster and removes everything of it
    Down,
    /// Prints nodes, pods, Services, proxies and the kubeconfig
    Status,
    /// Runs a command as a process of a machine: node-1, node-2 and so on, or control
    Exec {
        /// The machine
        machine: String,
        /// The command and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Becomes the first process of a machine of the cluster
    #[command(hide = true)]
    Machine {
        /// The file that describes it
        description: PathBuf,
    },
}

/// The time for work under way when a signal comes. After it, everything is torn down.
const PATIENCE: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run { once, xdp, trace } => demonstrate(once, demo::Options { xdp, trace }),
        Command::Drill { long, pairs, only, upgrade, write, xdp } => {
            let form = if long { Form::Long } else { Form::Short };
            let pairs = (pairs || long) && !upgrade;
            let options = drill::Options { xdp, form, pairs, only, upgrade, write };
            judge(move || drill::run(&options))
        }
        Command::Soak { minutes, record, write, xdp } => {
            let options = soak::Options { minutes, xdp, record, write };
            judge(move || soak::run(&options))
        }
        Command::Cluster { name, command } => cluster(&name, command).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        eprintln!("millrace-lab: {error:#}");
        ExitCode::FAILURE
    })
}

fn cluster(name: &str, command: ClusterCommand) -> Result<()> {
    match command {
        ClusterCommand::Up { nodes, proxy, mode, values } => {
            let settings = Settings { name: name.to_owned(), nodes, proxy, mode, values };
            let start = Instant::now();
            let cluster = Cluster::up(settings, &Assets::from_environment(std::env::current_exe()?)?)?;
            eprintln!("{:>6.1} s  up", start.elapsed().as_secs_f64());
            cluster.print_status()
        }
        ClusterCommand::E2e { focus, skip, processes, report } => {
            let run = Run { focus: &focus, skip: &skip, processes, report: &report };
            let assets = Assets::from_environment(std::env::current_exe()?)?;
            let results = running(name)?.run_specs(&run, &assets)?;
            for (spec, reason) in results.failures() {
                println!("FAILED {spec}\n  {reason}");
            }
            println!("{}", results.summary());
            Ok(())
        }
        ClusterCommand::E2eTable { reports } => {
            println!("{}", e2e::table(&reports)?);
            Ok(())
        }
        ClusterCommand::Down => Cluster::down(&Assets::state()?, name),
        ClusterCommand::Status => running(name)?.print_status(),
        ClusterCommand::Exec { machine, words } => {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            Err(running(name)?.command(&machine, &words)?.exec()).context("can't run the command")
        }
        ClusterCommand::Machine { description } => kubernetes::run_machine(&description),
    }
}

fn running(name: &str) -> Result<Cluster> {
    let cluster = Cluster::open(&Assets::state()?, name)?;
    cluster.context("no cluster is up; `cargo xtask cluster up` starts one")
}

#[tokio::main(flavor = "current_thread")]
async fn demonstrate(once: bool, options: demo::Options) -> Result<ExitCode> {
    let (end, stay) = mpsc::channel::<()>();
    let demo = move || {
        demo::run(&options, |hints| {
            if !once {
                println!("\n{hints}\nCtrl-C ends it.");
                // Ends when the other side is dropped, too.
                let _ = stay.recv();
            }
        })
    };
    let problems = run_until_signal(demo, end).await?;
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[tokio::main(flavor = "current_thread")]
async fn judge(work: impl FnOnce() -> Result<bool> + Send + 'static) -> Result<ExitCode> {
    let is_right = run_until_signal(work, ()).await?;
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs work on a thread of its own, so that signals are handled all the time. A signal drops `end`.
async fn run_until_signal<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
    end: impl Send,
) -> Result<T> {
    let mut work = tokio::task::spawn_blocking(work);
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        outcome = &mut work => return outcome.context("the test bed panicked")?,
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    drop(end);
    if let Ok(outcome) = tokio::time::timeout(PATIENCE, work).await {
        return outcome.context("the test bed panicked")?;
    }
    // Agents end with this process, but names and pins have to be removed.
    net::remove_own();
    std::process::exit(130)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_taken(words: &[&str]) -> bool {
        Cli::try_parse_from([&["millrace-lab", "drill"], words].concat()).is_ok()
    }

    #[test]
    fn an_upgrade_is_played_without_faults() {
        assert!(is_taken(&["--upgrade"]) && is_taken(&["--upgrade", "--long", "--write", "--xdp", "off"]));
        assert!(!is_taken(&["--upgrade", "--pairs"]));
        assert!(!is_taken(&["--upgrade", "--only", "agent-killed"]));
    }
}
