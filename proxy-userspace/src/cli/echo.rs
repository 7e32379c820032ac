//! `millrace echo` and `millrace probe`, which run in the pods of `kubectl millrace test`.

use std::future;
use std::time::Duration;

use clap::Args;

use super::error::CliError;
use super::output::{duration, write_out};
use crate::echo::{Probe, Server, ask_all};

/// Arguments of `millrace echo`.
#[derive(Args, Clone, Debug)]
pub struct EchoArgs {
    /// Name that the answers have
    name: String,
    /// Port for TCP and UDP [default: wait, and serve nothing]
    #[arg(long)]
    port: Option<u16>,
}

/// Arguments of `millrace probe`.
#[derive(Args, Clone, Debug)]
pub struct ProbeArgs {
    /// Requests: PROTOCOL,ADDRESS:PORT,REQUESTS,BYTES
    #[arg(required = true)]
    probes: Vec<Probe>,
    /// Longest time for an answer
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = duration)]
    timeout: Duration,
}

/// Serves for ever.
pub async fn serve(args: &EchoArgs) -> Result<(), CliError> {
    match args.port {
        Some(port) => Server::open(&args.name, port).await?.run().await,
        None => future::pending().await,
    }
    Ok(())
}

/// Sends the requests, and prints the replies as JSON: a list for each probe.
pub async fn probe(args: &ProbeArgs) -> Result<(), CliError> {
    let replies = ask_all(&args.probes, args.timeout).await;
    Ok(write_out(&(serde_json::to_string(&replies)? + "\n"))?)
}
