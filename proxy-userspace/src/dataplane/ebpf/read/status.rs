//! Counters, ways and attached programs.

use std::net::IpAddr;
use std::os::fd::AsFd;

use proxy_common::LAYOUT_VERSION;
use proxy_common::addr::unmapped;
use proxy_common::config::{AGENT_DEGRADED, AGENT_FAILURES, AGENT_HEARTBEAT, AGENT_SHARE, AGENT_SHARE_SINCE};
use proxy_common::source_range::CLUSTER;
use proxy_common::verdict::{Program, Reason};
use proxy_common::way::{WAY_RESOLVED, WAY_VALID, WAY_XDP, Way};

use super::{PinnedMaps, ReadError, monotonic_seconds, total};
use crate::dataplane::ebpf::Share;
use crate::dataplane::ebpf::bpffs::entries;
use crate::dataplane::ebpf::hooks::SocketHook;
use crate::dataplane::ebpf::link::{LinkKey, LinkKind};
use crate::dataplane::ebpf::sys;
use crate::node::{device_name, mac_text};
use millrace_views::{AttachedView, CounterView, FailuresView, StatusView, WayView};

impl PinnedMaps {
    /// Returns the counters, one for each program and reason.
    pub fn counters(&self) -> Result<Vec<CounterView>, ReadError> {
        let pairs =
            Program::ALL.iter().flat_map(|program| Reason::ALL.iter().map(move |reason| (program, reason)));
        pairs
            .map(|(program, reason)| {
                let counter = total(&self.counters, program.counter(*reason))?;
                Ok(CounterView {
                    program: program.name().into(),
                    reason: reason.name().into(),
                    drop: reason.is_drop(),
                    packets: counter.packets,
                    bytes: counter.bytes,
                })
            })
            .collect()
    }

    /// Returns the ways to other nodes, sorted by target.
    pub fn ways(&self) -> Result<Vec<WayView>, ReadError> {
        let ways = self.maps.ways.all()?.into_iter().filter(|(_, way)| way.flags & WAY_VALID != 0);
        let mut views: Vec<WayView> = ways.map(|(id, way)| way_view(id, &way)).collect();
        views.sort_by_key(|view| view.target);
        Ok(views)
    }

    /// Returns the heartbeat, the attached programs and the use of the maps.
    pub fn status(&self) -> Result<StatusView, ReadError> {
        let heartbeat = self.maps.agent.load(AGENT_HEARTBEAT);
        let now = u64::from(monotonic_seconds());
        let share = Share::of_word(self.maps.agent.load(AGENT_SHARE));
        Ok(StatusView {
            layout_version: LAYOUT_VERSION,
            heartbeat_age_seconds: (heartbeat != 0).then(|| now.saturating_sub(heartbeat)),
            failures: self.failures(),
            serves: share.name().into(),
            shared_seconds: (share != Share::Alone)
                .then(|| now.saturating_sub(self.maps.agent.load(AGENT_SHARE_SINCE))),
            attached: self.attached()?,
            cluster_sources: self.source_ranges()?.remove(&CLUSTER).unwrap_or_default(),
            maps: self.fill()?,
        })
    }

    fn failures(&self) -> FailuresView {
        let [node, device, map] = AGENT_FAILURES.map(|index| self.maps.agent.load(index));
        FailuresView { service_ports: self.maps.agent.load(AGENT_DEGRADED), node, device, map }
    }

    fn attached(&self) -> Result<Vec<AttachedView>, ReadError> {
        let mut attached = Vec::new();
        for path in entries(&self.layout.links())? {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let failed = |error| ReadError::Link { link: name.to_owned(), error };
            if let Some(hook) = SocketHook::of_pin(&path) {
                let link = sys::obj_get(&path).map_err(failed)?;
                let info = sys::cgroup_link_info(link.as_fd()).map_err(failed)?;
                attached.extend((info.cgroup != 0).then(|| hooked_view(hook, info.program_id)));
                continue;
            }
            let Some(key) = LinkKey::parse(name) else { continue };
            let (program_id, mode) = if path.is_dir() {
                if device_name(key.device).is_none() {
                    continue;
                }
                (0, "clsact")
            } else {
                let link = sys::obj_get(&path).map_err(failed)?;
                let info = sys::link_info(link.as_fd()).map_err(failed)?;
                if info.device == 0 {
                    continue;
                }
                (info.program_id, mode(key.kind))
            };
            attached.push(attached_view(key, program_id, mode));
        }
        attached.sort_by(|a, b| (a.device_index, &a.hook).cmp(&(b.device_index, &b.hook)));
        Ok(attached)
    }
}

const fn mode(kind: LinkKind) -> &'static str {
    match kind {
        LinkKind::XdpNative => "native",
        LinkKind::XdpGeneric => "generic",
        LinkKind::TcIngress
        | LinkKind::TcEgress
        | LinkKind::TcPodIn
        | LinkKind::TcPodOut
        | LinkKind::TcIngressL3
        | LinkKind::TcEgressL3 => "tcx",
    }
}

fn attached_view(key: LinkKey, program_id: u32, mode: &'static str) -> AttachedView {
    AttachedView {
        device: device_name(key.device).unwrap_or_else(|| key.device.to_string()),
        device_index: key.device,
        hook: match key.kind {
            LinkKind::XdpNative | LinkKind::XdpGeneric => "xdp",
            LinkKind::TcIngressL3 => LinkKind::TcIngress.name(),
            LinkKind::TcEgressL3 => LinkKind::TcEgress.name(),
            kind => kind.name(),
        }
        .into(),
        mode: mode.into(),
        program_id,
    }
}

fn hooked_view(hook: SocketHook, program_id: u32) -> AttachedView {
    let device = "cgroup".to_owned();
    AttachedView { device, device_index: 0, hook: hook.name.into(), mode: "cgroup".into(), program_id }
}

fn way_view(id: u32, way: &Way) -> WayView {
    let source: IpAddr = unmapped(way.source);
    WayView {
        id,
        target: unmapped(way.target),
        source: (!source.is_unspecified()).then_some(source),
        device: way.device,
        mtu: way.mtu,
        resolved: way.flags & WAY_RESOLVED != 0,
        xdp: way.flags & WAY_XDP != 0,
        destination_mac: mac_text(way.destination_mac),
        source_mac: mac_text(way.source_mac),
    }
}
