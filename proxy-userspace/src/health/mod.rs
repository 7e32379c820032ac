//! What load balancers and the kubelet ask: health check node ports, /healthz and /livez.

mod observer;
mod ports;
mod probes;
mod state;

pub use observer::HealthObserver;
pub use ports::{Failure, Targets, serve_ports};
pub use probes::{ProbeCounters, router};
pub use state::{Clock, Health, Moment, SystemClock, Verdict};

#[cfg(test)]
pub(crate) mod clock_tests;
