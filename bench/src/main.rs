//! Millrace's benchmarks.

mod packets;

use clap::{Parser, Subcommand};

/// Millrace's benchmarks. Run as root.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    /// What each program costs for a packet, in nanoseconds above an empty program.
    Packets(packets::Arguments),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().benchmark {
        Benchmark::Packets(arguments) => packets::run(&arguments),
    }
}
