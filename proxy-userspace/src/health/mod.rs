//! Health of the agent and its node, for load balancers, the kubelet and `millrace status`.
//!
//! Health check node ports, the paths /healthz, /livez and /readyz, and a local socket.

mod announce;
mod observer;
mod ports;
mod probes;
mod ready;
mod state;
mod told;

pub use announce::{ConditionGauges, announce};
pub use observer::HealthObserver;
pub use ports::{Failure, Targets, serve_ports};
pub use probes::{ProbeCounters, readyz_router, router};
pub use ready::{Condition, FailingView, ReadyView};
pub use state::{Clock, Health, Moment, SystemClock, Verdict};
pub use told::{AgentView, ask, serve_status};

#[cfg(test)]
pub(crate) mod clock_tests;
