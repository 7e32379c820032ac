//! The counters of the programs, read from the pinned maps at each scrape.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use proxy_common::verdict::{Program, Reason};
use tracing::warn;

use super::catalogue::{self, Definition};
use crate::dataplane::ebpf::read::{
    ConnectionsView, CounterView, PinnedMaps, ReadError, StatusView, TrafficView, WayView,
};

/// Packets, bytes, fill of the maps, attached programs.
#[derive(Debug)]
pub struct KernelMetrics {
    bpffs_path: PathBuf,
}

#[derive(Debug)]
struct Reading {
    counters: Vec<CounterView>,
    traffic: Vec<TrafficView>,
    status: StatusView,
    ways: Vec<WayView>,
}

impl KernelMetrics {
    /// Returns the collector for the maps below a BPF file system.
    #[must_use]
    pub fn new(bpffs_path: PathBuf) -> Self {
        Self { bpffs_path }
    }

    fn read(&self) -> Result<Reading, ReadError> {
        let maps = PinnedMaps::open(&self.bpffs_path)?;
        Ok(Reading {
            counters: maps.counters()?,
            traffic: maps.traffic()?,
            status: maps.status()?,
            ways: maps.ways()?,
        })
    }
}

impl Collector for KernelMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        match self.read() {
            Ok(reading) => reading.encode(encoder),
            // The agent has not opened its data plane yet.
            Err(ReadError::Absent { .. }) => Ok(()),
            Err(error) => {
                warn!("metrics of the data plane: {error}");
                Ok(())
            }
        }
    }
}

impl Reading {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_counters(&mut encoder)?;
        self.encode_traffic(&mut encoder)?;
        self.encode_maps(&mut encoder)?;
        self.encode_ways(&mut encoder)?;
        self.encode_uplinks(&mut encoder)?;
        self.encode_attached(&mut encoder)
    }

    fn encode_attached(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut metric = catalogue::PROGRAMS_ATTACHED.encode(encoder)?;
        let mut modes: Vec<_> = self
            .status
            .attached
            .iter()
            .map(|attached| (attached.hook.as_ref(), attached.mode.as_ref()))
            .collect();
        modes.sort_unstable();
        for same in modes.chunk_by(|a, b| a == b) {
            let Some((hook, mode)) = same.first() else { continue };
            let labels = [("hook", *hook), ("mode", *mode)];
            ConstGauge::new(i64::try_from(same.len()).unwrap_or(i64::MAX))
                .encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn encode_ways(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut encode = |definition: &Definition, value: fn(&WayView) -> i64| {
            let mut metric = definition.encode(encoder)?;
            self.ways.iter().try_for_each(|way| {
                let labels = [("peer", way.target.to_string())];
                ConstGauge::new(value(way)).encode(metric.encode_family(&labels)?)
            })
        };
        encode(&catalogue::WAY_UP, |way| way.resolved.into())?;
        encode(&catalogue::WAY_MTU, |way| way.mtu.into())
    }

    /// An uplink without XDP has `tc_ingress` alone.
    fn encode_uplinks(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut uplinks: BTreeMap<&str, &str> = BTreeMap::new();
        for attached in &self.status.attached {
            match attached.hook.as_ref() {
                "xdp" => {
                    uplinks.insert(&attached.device, &attached.mode);
                }
                "tc_ingress" => {
                    uplinks.entry(&attached.device).or_insert("none");
                }
                _ => {}
            }
        }
        let mut metric = catalogue::UPLINK_INFO.encode(encoder)?;
        for (device, xdp) in uplinks {
            let labels = [("device", device), ("xdp", xdp)];
            ConstGauge::new(1i64).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn encode_counters(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut encode = |definition: &Definition, drop, value: fn(&CounterView) -> u64| {
            let mut metric = definition.encode(encoder)?;
            let shown = |counter: &&CounterView| counter.drop == drop && is_shown(counter);
            self.counters.iter().filter(shown).try_for_each(|counter| {
                let labels = [("program", counter.program.as_ref()), ("reason", counter.reason.as_ref())];
                ConstCounter::new(value(counter)).encode(metric.encode_family(&labels)?)
            })
        };
        encode(&catalogue::PACKETS, false, |c| c.packets)?;
        encode(&catalogue::BYTES, false, |c| c.bytes)?;
        encode(&catalogue::DROPPED_PACKETS, true, |c| c.packets)?;
        encode(&catalogue::DROPPED_BYTES, true, |c| c.bytes)
    }

    fn encode_traffic(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut encode = |definition: &Definition, value: fn(&TrafficView) -> u64| {
            let mut metric = definition.encode(encoder)?;
            self.traffic.iter().try_for_each(|traffic| {
                let labels = [
                    ("namespace", traffic.namespace.as_str()),
                    ("service", &traffic.name),
                    ("port", &traffic.port),
                    ("ip_family", &traffic.family),
                ];
                ConstCounter::new(value(traffic)).encode(metric.encode_family(&labels)?)
            })
        };
        encode(&catalogue::SERVICE_PACKETS, |traffic| traffic.packets)?;
        encode(&catalogue::SERVICE_BYTES, |traffic| traffic.bytes)?;
        let mut metric = catalogue::SERVICE_CONNECTIONS.encode(encoder)?;
        // Four series for each Service would be too many where most have no traffic here.
        for traffic in self.traffic.iter().filter(|traffic| traffic.connections.opened > 0) {
            for (event, count) in events(&traffic.connections) {
                ConstCounter::new(count)
                    .encode(metric.encode_family(&of_port(traffic, ("event", event)))?)?;
            }
        }
        let mut metric = catalogue::SERVICE_DROPPED_PACKETS.encode(encoder)?;
        for traffic in &self.traffic {
            for (reason, packets) in &traffic.dropped {
                ConstCounter::new(*packets)
                    .encode(metric.encode_family(&of_port(traffic, ("reason", reason)))?)?;
            }
        }
        Ok(())
    }

    /// Maps whose entries are not counted have a limit only.
    fn encode_maps(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut metric = catalogue::MAP_ENTRIES_MAX.encode(encoder)?;
        for map in &self.status.maps {
            ConstGauge::new(i64::from(map.entries))
                .encode(metric.encode_family(&[("map", map.name.as_str())])?)?;
        }
        let mut metric = catalogue::MAP_MEMORY.encode(encoder)?;
        for map in &self.status.maps {
            let Some(bytes) = map.memory_bytes else { continue };
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            ConstGauge::new(bytes).encode(metric.encode_family(&[("map", map.name.as_str())])?)?;
        }
        let mut metric = catalogue::MAP_ENTRIES.encode(encoder)?;
        for map in &self.status.maps {
            let Some(used) = map.used else { continue };
            ConstGauge::new(i64::from(used)).encode(metric.encode_family(&[("map", map.name.as_str())])?)?;
        }
        Ok(())
    }
}

/// The events of connections that are counted, with their names.
const fn events(connections: &ConnectionsView) -> [(&'static str, u64); 4] {
    let ConnectionsView { opened, established, refused, reset, .. } = *connections;
    [("opened", opened), ("established", established), ("refused", refused), ("reset", reset)]
}

/// The labels of a Service port, and one more.
fn of_port<'a>(traffic: &'a TrafficView, more: (&'static str, &'a str)) -> [(&'static str, &'a str); 5] {
    [
        ("namespace", traffic.namespace.as_str()),
        ("service", &traffic.name),
        ("port", &traffic.port),
        ("ip_family", &traffic.family),
        more,
    ]
}

/// Whether a counter is shown. A zero that can't rise is left out. A zero that can rise is there from the
/// beginning, so that its first rise is visible.
fn is_shown(counter: &CounterView) -> bool {
    let program = Program::ALL.iter().find(|program| program.name() == counter.program);
    let reason = Reason::ALL.iter().find(|reason| reason.name() == counter.reason);
    counter.packets > 0 || program.zip(reason).is_some_and(|(program, reason)| program.can(*reason))
}

#[cfg(test)]
#[path = "kernel_tests.rs"]
pub(super) mod tests;
