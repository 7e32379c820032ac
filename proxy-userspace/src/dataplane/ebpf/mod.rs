//! The eBPF data plane: XDP and TC programs, and the maps they read.

mod adopt;
mod announced;
mod attach;
mod bpffs;
mod capability;
pub mod cgroup;
mod chains;
mod cleanup;
mod clsact;
mod collect;
mod conntrack;
mod convert;
mod device_macs;
mod diag;
pub mod dry_run;
mod error;
mod expire;
mod fill;
pub mod firewall;
mod flow_count;
mod flow_pressure;
mod frontend_index;
mod grace_period;
mod held_pins;
mod held_ports;
mod hooks;
mod inventory;
pub mod kernel_drops;
mod layout;
mod link;
mod load;
mod lock_owner;
mod map;
mod mapped;
mod maps;
mod migrate;
mod mode_change;
mod mount;
mod netlink;
mod node_flows;
mod node_programs;
mod object;
mod open;
mod other_dataplanes;
mod parts;
mod pins;
pub mod plan;
mod program;
mod raw_map;
pub mod read;
#[cfg(test)]
mod read_back_tests;
mod reply_ports;
mod resize;
mod room;
#[cfg(test)]
pub(super) mod scratch;
mod self_test;
mod settings;
mod shape;
mod share;
mod snat_usage;
mod sockets;
mod sys;
mod terminate_sockets;
mod trie;
mod write;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use proxy_common::config::{
    AGENT_BACKENDS, AGENT_DEGRADED, AGENT_FAILURES, AGENT_FLOWS, AGENT_HEARTBEAT, COUNTED,
};
use tracing::{debug, warn};

pub use announced::Announced;
pub use capability::missing_capabilities;
pub use chains::{Chain, Side, chains};
pub use cleanup::{Cleaned, check_unused, cleanup};
pub use conntrack::load as load_connection_tracking;
pub use error::OpenError;
pub use node_flows::Frontends;
pub use node_programs::NodeConstants;
pub use settings::{Dispatch, Dsr, OuterSource, OwnSource, Settings, Sizes, SocketLb, Sockets, XdpMode};

pub use mode_change::{is_attached, recorded};
pub use mount::{Mount, Mounted, sees_host};
pub use other_dataplanes::{OtherView, others, owner, warn_of_others};
pub use share::Share;

/// The UDP port of encapsulated packets with `--dsr-encap fou`.
pub use proxy_common::way::FOU_PORT;

use self::attach::Attachments;
use self::bpffs::Lock;
use self::collect::{Collector, Counts};
use self::expire::Clock;
use self::fill::Fill;
use self::held_pins::HeldPins;
use self::layout::Layout;
use self::load::{Extra, Programs};
use self::maps::Maps;
use self::plan::Plan;
use self::snat_usage::PortUsage;
use self::sockets::SocketHooks;
use self::terminate_sockets::SocketTerminator;
use crate::dataplane::{Check, Crowded, Dataplane, FlowCount, SnatPorts, SyncFailure, SyncReport};
use crate::heap;
use crate::model::{Desired, Dirty};
use crate::node::{Hook, Topology};

/// The interval of the comparison of the maps with the plan. Reading all maps is slow, and changes
/// by other processes are rare.
const READ_BACK_INTERVAL: Duration = Duration::from_mins(10);

/// The interval of housekeeping while service ids wait for the deletion of their entries. New
/// Services may wait for these ids.
const RECLAIM_INTERVAL: Duration = Duration::from_secs(1);

/// The programs, maps and links on this node. All of them stay and go on serving when this value is
/// dropped.
#[derive(Debug)]
pub struct EbpfDataplane {
    settings: Settings,
    programs: Programs,
    attachments: Attachments,
    sockets: SocketHooks,
    /// The thread that terminates sockets; none with `--socket-lb off`.
    socket_terminator: Option<SocketTerminator>,
    /// The failures of the last `set_topology`.
    unattached: Vec<SyncFailure>,
    /// The roots of other layouts. Their programs serve until our maps are filled. The topology is
    /// attached after that.
    others: Vec<PathBuf>,
    topology: Option<Topology>,
    maps: Maps,
    plan: Plan,
    collector: Collector,
    expired_flows: u64,
    /// The flow entries that the last walk counted; none before the first walk.
    flows: Vec<FlowCount>,
    /// The time the other mode began to serve only its part.
    shared_since: Option<Duration>,
    /// The connections that the last walk through the flows counted; none before the first walk.
    connections: Option<u64>,
    /// The use of ports by connections to backends on other nodes.
    snat: PortUsage,
    /// Maps that are nearly full.
    fill: Fill,
    /// The time of the next comparison of the maps with the plan.
    read_back_at: Duration,
    /// All pins since the last attachment.
    pins: HeldPins,
    lock: Lock,
}

/// Finds or mounts a BPF file system before the rest of the start. Fails without the capabilities,
/// too.
pub fn prepare(bpffs_path: &Path) -> Result<Mounted, OpenError> {
    capability::check()?;
    Mounted::at(bpffs_path)
}

/// Returns the directory for notes on changed sysctls of the host.
#[must_use]
pub fn notes(bpffs_path: &Path) -> PathBuf {
    Layout::new(bpffs_path).notes()
}

impl EbpfDataplane {
    fn attach(&mut self, topology: &Topology) -> SyncReport {
        self.restore_pins();
        let prepared = self.prepare(topology);
        let mut attached = self.attachments.sync(topology, &self.programs, self.settings.xdp);
        attached.writes += prepared + self.maps.write_device_macs(topology);
        let hooked = self.sockets.sync(&self.programs);
        attached.writes += hooked.writes;
        attached.failures.extend(hooked.failures);
        let native = self.attachments.native_devices();
        let mut report = self.plan.set_topology(topology, &native, now(), &mut self.maps);
        report.writes += attached.writes;
        if attached.failures.is_empty()
            && let Err(error) = self.programs.remove_former()
        {
            warn!(%error, "removing the programs of an earlier build failed; they take memory until the next sync");
        }
        self.hold_pins();
        self.unattached.clone_from(&attached.failures);
        report.failures.extend(attached.failures);
        report
    }

    /// Loads the extra programs of some devices and returns the number of changes.
    ///
    /// The verifier takes seconds for them. TC serves the devices with Ethernet frames meanwhile.
    fn prepare(&mut self, topology: &Topology) -> usize {
        let mode = self.settings.xdp;
        let wants = |extra: Extra| {
            let mut hooks = topology.devices.values().flat_map(|target| &target.hooks);
            hooks.any(|hook| extra.has(*hook, mode))
        };
        let missing: Vec<Extra> =
            Extra::ALL.into_iter().filter(|extra| !self.programs.have(*extra) && wants(*extra)).collect();
        if missing.is_empty() {
            return 0;
        }
        let can_be_attached = |hook: &Hook| !missing.iter().any(|extra| extra.has(*hook, mode));
        let mut meanwhile = topology.clone();
        for target in meanwhile.devices.values_mut() {
            target.hooks.retain(can_be_attached);
        }
        // The next sync repeats and reports failures.
        let report = self.attachments.sync(&meanwhile, &self.programs, mode);
        let layout = Layout::new(&self.settings.bpffs_path);
        for extra in missing {
            if let Err(error) = self.programs.need(extra, &self.settings, &layout) {
                warn!(%error, consequence = extra.without(), "loading programs for some devices failed");
            }
        }
        report.writes
    }

    /// Stores the counts of a sync's failures in AGENT for `millrace status`.
    fn store_counts(&self, report: &SyncReport) {
        let failures: BTreeSet<&SyncFailure> = report.failures.iter().chain(&self.unattached).collect();
        let of = |concern| failures.iter().filter(|failure| failure.concern() == concern).count();
        let counts = SyncFailure::CONCERNS.map(of);
        let words = AGENT_FAILURES.into_iter().zip(counts).chain([(AGENT_DEGRADED, report.pending.len())]);
        let backends = counted(self.plan.backends_in_maps().map(u64::from));
        let words = words.map(|(index, count)| (index, count as u64));
        for (index, word) in words.chain([(AGENT_BACKENDS, backends)]) {
            // An AGENT map without room for the counts has no room for the heartbeat either, and
            // that is logged.
            let _ = self.maps.agent.store(index, word);
        }
    }

    /// Replaces other layouts, now that our maps are filled.
    fn replace_others(&mut self) -> SyncReport {
        let Some(topology) = self.topology.take() else { return SyncReport::default() };
        let mut report = self.attach(&topology);
        if self.attachments.has_inherited() {
            self.topology = Some(topology);
            return report;
        }
        for root in std::mem::take(&mut self.others) {
            let gone = self.attachments.discard(&root);
            report.failures.extend(gone.err().map(|error| SyncFailure::Map(error.to_string())));
        }
        report
    }

    /// Copies new and changed frontends into the index.
    fn fill_frontend_index(&mut self) {
        if !std::mem::take(&mut self.maps.is_index_behind) {
            return;
        }
        if let Err(error) = self.maps.fill_frontend_index() {
            warn!(%error, "filling the index of frontends failed; packets cost a little more until it succeeds");
            self.maps.is_index_behind = true;
        }
    }

    /// Takes over the counts of the walk through the flows. Warns of backends with most ports in
    /// use.
    fn count_ports(&mut self) {
        let Some(Counts { usage, flows }) = self.collector.take_counts() else { return };
        // Without room for the word there is none for the heartbeat either, and that is logged.
        let _ = self.maps.agent.store(AGENT_FLOWS, counted(flow_count::in_flows(&flows)));
        self.flows = flows;
        self.connections = Some(usage.connections);
        let size = self.snat_range();
        let before = std::mem::take(&mut self.snat);
        self.snat = before.after(&usage, size);
        for (destination, used) in &self.snat.crowded {
            if !before.crowded.contains_key(destination)
                && let Some((backend, _)) =
                    self.plan.backend_and_services(destination.family, destination.backend())
            {
                warn!(%backend, used, size, "most ports of --snat-ports are in use towards a backend");
            }
        }
    }

    fn snat_ports(&self) -> SnatPorts {
        let mut crowded: Vec<Crowded> = Vec::new();
        for (destination, used) in &self.snat.crowded {
            let known = self.plan.backend_and_services(destination.family, destination.backend());
            crowded.extend(known.map(|(backend, services)| Crowded { backend, services, used: *used }));
        }
        crowded.sort_unstable();
        // The TCP and UDP counts of one backend become one entry with the higher count.
        crowded.dedup_by(|later, first| {
            let is_same = later.backend == first.backend;
            if is_same {
                first.used = later.used.max(first.used);
            }
            is_same
        });
        SnatPorts { size: self.snat_range(), most_used: self.snat.most, crowded }
    }

    fn snat_range(&self) -> u32 {
        u32::try_from(self.settings.snat_ports.len()).unwrap_or(u32::MAX)
    }

    /// Compares the maps with the plan. The next sync restores the differences.
    fn read_back(&mut self) -> Result<(), OpenError> {
        let found = self.maps.found()?;
        // After the look at VIPS, whose entries without bits count as drift. These have no other sign.
        self.maps.mark_found()?;
        self.maps.is_index_behind = true;
        let drift = self.plan.drift(&found);
        if !drift.is_empty() {
            warn!(maps = drift.join(", "), "map contents were changed by another process; restored");
            self.plan.readopt(found, now());
        }
        Ok(())
    }
}

impl Dataplane for EbpfDataplane {
    fn sync(&mut self, desired: &Desired, dirty: &Dirty) -> SyncReport {
        let mut report = self.plan.sync(desired, dirty, now(), &mut self.maps);
        // An object that was not read may be served by another layout.
        if !self.others.is_empty() && !dirty.incomplete {
            let replaced = self.replace_others();
            report.writes += replaced.writes;
            report.failures.extend(replaced.failures);
        }
        // The slots of a lost backend have other owners by now, so a reconnecting client finds one
        // of them.
        if std::mem::take(&mut self.maps.lost_backend)
            && let Some(socket_terminator) = &self.socket_terminator
        {
            socket_terminator.wake();
        }
        self.store_counts(&report);
        let may_grow = self.room().is_some();
        self.fill.warn_of_full_maps(&self.plan.map_usage(), may_grow);
        report
    }

    fn set_topology(&mut self, topology: &Topology) -> SyncReport {
        // The map has room for all words of the filter, or the agent has not started.
        let _ = self.maps.mark_own(topology.addresses.iter().copied());
        self.topology = (!self.others.is_empty()).then(|| topology.clone());
        // Without links of another layout the attachment need not wait.
        if !self.attachments.has_inherited() {
            return self.attach(topology);
        }
        let native = self.attachments.native_devices();
        self.plan.set_topology(topology, &native, now(), &mut self.maps)
    }

    fn housekeep(&mut self, now_monotonic_seconds: u64) -> Option<Duration> {
        if !self.maps.agent.store(AGENT_HEARTBEAT, now_monotonic_seconds) {
            warn!("storing the heartbeat failed: map AGENT has no room");
        }
        // The programs keep the low 32 bits of the same clock.
        let now = u32::try_from(now_monotonic_seconds & u64::from(u32::MAX)).unwrap_or(0);
        let clock = Clock { seconds: now, time: self::now() };
        let (mut is_reclaiming, mut again_in) = (false, None);
        match self.collector.collect(&mut self.maps, &mut self.plan, &self.settings.timeouts, clock) {
            Ok(removed) => {
                self.expired_flows += removed.flows as u64;
                (is_reclaiming, again_in) = (removed.is_reclaiming, removed.again_in);
                debug!(
                    flows = removed.flows,
                    affinities = removed.affinities,
                    slots = removed.slots,
                    "entries deleted, slots settled"
                );
            }
            Err(error) => warn!(%error, "removing expired flow and affinity entries failed; tried again"),
        }
        self.count_ports();
        self.fill_frontend_index();
        if self::now() >= self.read_back_at {
            self.read_back_at = self::now() + READ_BACK_INTERVAL;
            if let Err(error) = self.read_back() {
                warn!(%error, "reading the maps back failed; tried again");
            }
            // A copy of all maps is free again.
            heap::give_back();
        }
        again_in.into_iter().chain(is_reclaiming.then_some(RECLAIM_INTERVAL)).min()
    }

    fn check(&mut self) -> Check {
        self.restore_pins();
        let fault = self_test::run(&self.attachments, &self.programs).err();
        let fault = fault.or_else(|| self.sockets.fault(&self.programs));
        let flows = self.flows.clone();
        Check { fault, expired_flows: self.expired_flows, flows, snat: self.snat_ports() }
    }

    fn is_attached(&self) -> bool {
        self_test::of_uplinks(&self.attachments, &self.programs).is_ok()
    }

    fn room(&self) -> Option<Sizes> {
        // While two modes share the node, the maps of the other one stay as they are.
        (self.settings.share == Share::Alone).then(|| self.maps.room(self.settings.sizes))
    }
}

/// Returns the word of AGENT for counts of IPv4 and IPv6.
const fn counted([v4, v6]: [u64; 2]) -> u64 {
    COUNTED | v6 << 32 | v4
}

/// Returns the monotonic time: a change of the wall clock must not shorten the rest of an id.
fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}
