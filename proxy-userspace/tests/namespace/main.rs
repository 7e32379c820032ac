//! Layer 4: namespaces, real devices, real sockets, real agents. It needs root.
//!
//! `MILLRACE_XDP` is the agents' `--xdp`, with `native` as default. With `off`, TC serves
//! everything.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that can't go on must fail"
)]

mod announced;
mod attack;
mod bad_input;
mod bare;
mod changes;
mod check;
mod cluster_ips;
mod command_line;
mod datagrams;
mod demonstration;
mod direct_return;
mod errors;
mod faces;
mod firewall;
mod fixture;
mod flooded;
mod forged;
mod fou;
mod fragments;
mod host;
mod incidents;
mod inside;
mod lasting;
mod local;
mod matrix;
mod monitor;
mod node;
mod outer_source;
mod own_connections;
mod path_mtu;
mod pool;
mod priority;
mod programs;
mod refusals;
mod resize;
mod rights;
mod routed;
mod service_change;
mod shared_ports;
mod snat_ports;
mod survival;
mod top;
mod translated;
mod two_uplinks;
mod views;
