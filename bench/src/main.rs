//! Millrace's benchmarks.

mod change;
mod connections;
mod control;
mod memory;
mod others;
mod packets;
mod peers;
mod policies;
mod programs;
mod rate;
mod report;
mod simulate;

use clap::{Parser, Subcommand};

/// Millrace's benchmarks. Run as root.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    /// The cost of a packet for each program, in nanoseconds above an empty program.
    Packets(packets::Arguments),
    /// Instructions, machine code and load time of each program.
    Programs(programs::Arguments),
    /// The cost of the control plane, from the API server's text to the maps.
    Control(control::Arguments),
    /// A ClusterIP by socket hooks, beside the pod itself and nftables; and per packet, beside
    /// plain forwarding.
    Connections(connections::Arguments),
    /// One page with pictures of the figures of all benchmarks, and their JSON.
    Report(report::command::Arguments),
    /// Packets a second through whole nodes, beside a bare loop and kube-proxy.
    Rate(rate::Arguments),
    /// From an EndpointSlice at the API server to the first packet that the new endpoint gets, beside
    /// kube-proxy.
    Change(change::Arguments),
    /// The memory of the agent and of the maps, for each Service, endpoint and connection.
    Memory(memory::Arguments),
    /// From a change of a pod or a NetworkPolicy to the maps of the pod firewall, in a large cluster.
    Policies(policies::Arguments),
    /// The connections that are cut while endpoints, nodes and directors come and go, beside other
    /// rules. Needs no root.
    Simulate(simulate::Arguments),
    /// The process whose memory `control` and `memory` measure.
    #[command(hide = true)]
    ControlMemory(control::memory::Arguments),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().benchmark {
        Benchmark::Packets(arguments) => packets::run(&arguments),
        Benchmark::Programs(arguments) => programs::run(&arguments),
        Benchmark::Control(arguments) => control::run(&arguments),
        Benchmark::Connections(arguments) => connections::run(&arguments),
        Benchmark::Report(arguments) => report::command::run(&arguments),
        Benchmark::Rate(arguments) => rate::run(&arguments),
        Benchmark::Change(arguments) => change::run(&arguments),
        Benchmark::Memory(arguments) => memory::run(&arguments),
        Benchmark::Policies(arguments) => policies::run(&arguments),
        Benchmark::Simulate(arguments) => simulate::run(&arguments),
        Benchmark::ControlMemory(arguments) => control::memory::hold(&arguments),
    }
}
