//! `millrace-lab`: the test bed by hand.

use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use millrace_lab::{demo, net};
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
    },
}

/// The time for work under way when a signal comes. After it, everything is torn down.
const PATIENCE: Duration = Duration::from_secs(2);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Command::Run { once, xdp } = Cli::parse().command;
    match run(once, demo::Options { xdp }).await {
        Ok(problems) if problems.is_empty() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("millrace-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the demonstration on a thread of its own, so that signals are handled all the time.
async fn run(once: bool, options: demo::Options) -> Result<Vec<String>> {
    let (end, stay) = mpsc::channel::<()>();
    let mut demo = tokio::task::spawn_blocking(move || {
        demo::run(&options, |hints| {
            if !once {
                println!("\n{hints}\nCtrl-C ends it.");
                // Ends when the other side is dropped, too.
                let _ = stay.recv();
            }
        })
    });
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        outcome = &mut demo => return outcome.context("the demonstration panicked")?,
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    drop(end);
    if let Ok(outcome) = tokio::time::timeout(PATIENCE, demo).await {
        return outcome.context("the demonstration panicked")?;
    }
    // Agents end with this process, but names and pins have to be removed.
    net::remove_own();
    std::process::exit(130)
}
