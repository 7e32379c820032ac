//! The state and the counters of the pod firewall, read at each scrape. Nothing is shown where it is off.

use std::fmt;
use std::path::PathBuf;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::catalogue::{self, Definition};
use crate::dataplane::ebpf::firewall::Judged;
use crate::firewall::{FirewallStatus, Statuses};

/// The collector of the firewall.
#[derive(Debug)]
pub struct FirewallMetrics {
    bpffs: PathBuf,
    statuses: Statuses,
}

impl FirewallMetrics {
    /// Returns the collector for the firewall below a BPF file system.
    #[must_use]
    pub const fn new(bpffs: PathBuf, statuses: Statuses) -> Self {
        Self { bpffs, statuses }
    }
}

impl Collector for FirewallMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(status) = self.statuses.last() else { return Ok(()) };
        encode_status(&status, &mut encoder)?;
        Statuses::judged(&self.bpffs).map_or(Ok(()), |judged| encode_judged(&judged, &mut encoder))
    }
}

fn encode_status(status: &FirewallStatus, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut gauge = |definition: &Definition, value: usize| {
        ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(definition.encode(encoder)?)
    };
    gauge(&catalogue::POLICY_PODS, status.pods)?;
    gauge(&catalogue::POLICY_UNKNOWN_DEVICES, status.unknown_devices)?;
    gauge(&catalogue::POLICY_PROBLEMS, status.problems)?;
    gauge(&catalogue::POLICY_FAILURES, status.failures.len())?;
    let mut metric = catalogue::POLICY_ENTRIES.encode(encoder)?;
    for (table, entries) in [("peers", status.peers), ("rules", status.rules)] {
        let entries = i64::try_from(entries).unwrap_or(i64::MAX);
        ConstGauge::new(entries).encode(metric.encode_family(&[("table", table)])?)?;
    }
    Ok(())
}

fn encode_judged(judged: &Judged, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut metric = catalogue::POLICY_ALLOWED.encode(encoder)?;
    for (direction, counter) in &judged.allowed {
        let labels = [("direction", direction.name())];
        ConstCounter::new(counter.packets).encode(metric.encode_family(&labels)?)?;
    }
    let mut metric = catalogue::POLICY_DROPPED_PACKETS.encode(encoder)?;
    for ((direction, reason), counter) in &judged.dropped {
        let labels = [("direction", direction.name()), ("reason", reason.name())];
        ConstCounter::new(counter.packets).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use proxy_common::policy::{PolicyDirection, PolicyDrop};
    use proxy_common::verdict::Counter;

    use super::*;

    #[derive(Debug)]
    struct Sample;

    impl Collector for Sample {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            encode_status(&FirewallStatus::default(), &mut encoder)?;
            let counter = Counter { packets: 1, bytes: 60 };
            let judged = Judged {
                allowed: [(PolicyDirection::Ingress, counter)].into(),
                dropped: [((PolicyDirection::Egress, PolicyDrop::Denied), counter)].into(),
            };
            encode_judged(&judged, &mut encoder)
        }
    }

    /// Returns a collector with a sample of each metric.
    pub fn collector() -> Box<dyn Collector> {
        Box::new(Sample)
    }
}
