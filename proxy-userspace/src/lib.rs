//! Millrace's agent and command line, as a library for the program, its tests and the benches.
//!
//! Uses: `model` <- `source`, `dataplane` <- `reconcile` <- `agent` <- `cli` <- `kubectl`. `model`, `policy` and
//! each data plane's plan are pure. Only `dataplane` touches maps and programs, only `source` reads the API
//! or manifests, only `node` uses rtnetlink.

pub mod agent;
pub mod announce;
pub mod check;
pub mod cli;
pub mod config;
pub mod controller;
pub mod dataplane;
pub mod echo;
pub mod events;
pub mod explain;
pub mod faces;
pub mod firewall;
pub mod health;
mod heap;
pub mod http;
pub mod kubectl;
pub mod metrics;
pub mod model;
pub mod node;
pub mod policy;
pub mod reconcile;
pub mod routes;
pub mod source;
