//! What load balancers, the kubelet and `millrace status` ask: health check node ports, /healthz, /livez and /readyz, and a
//! socket of this node's own.

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
pub use told::{ask, tell};

#[cfg(test)]
pub(crate) mod clock_tests;
