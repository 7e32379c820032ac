//! Millrace's agent and command line, as a library so that tests and benches use the very same code.
//!
//! Arrows between the modules: model <- source, dataplane <- reconcile <- agent <- cli. `model` and each
//! data plane's plan are pure; only `dataplane` touches maps and programs, only `source` the API or the
//! manifests, only `node` rtnetlink.

pub mod agent;
pub mod cli;
pub mod config;
pub mod dataplane;
pub mod events;
pub mod faces;
pub mod health;
pub mod http;
pub mod metrics;
pub mod model;
pub mod node;
pub mod reconcile;
pub mod source;
