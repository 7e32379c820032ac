//! The settings of the eBPF data plane.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use proxy_common::config::{DEFAULT_SNAT_PORTS, TAKES_FOU, TAKES_IPIP, TAKES_POD_PACKETS};
use proxy_common::timeouts::Timeouts;
use proxy_common::vip::{VIP_CLUSTER_IP, VIP_EXTERNAL};

use super::hooks::HookKind;
use super::room::with_spare_room;
use super::share::Share;
use crate::dataplane::{Encapsulation, Mark, RejectUnknown};
use crate::model::{Algorithm, Desired, Forwarding, ServicePort};

/// Settings of the eBPF data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The mount point of a BPF file system, or a directory inside one (`--bpffs-path`).
    pub bpffs_path: PathBuf,
    /// The attachment of `xdp_ingress` (`--xdp`).
    pub xdp: XdpMode,
    /// Flow time-outs (`--timeout-*`).
    pub timeouts: Timeouts,
    /// Ports of this node for SNAT of connections to backends on other nodes (`--snat-ports`).
    pub snat_ports: RangeInclusive<u16>,
    /// Mark of the packets that go up (`--fwmark`).
    pub mark: Mark,
    /// Which unknown ports are refused (`--reject-unknown-ports`).
    pub reject_unknown: RejectUnknown,
    /// How packets to other nodes are encapsulated.
    pub dsr: Dsr,
    /// Whether kernels of nodes decapsulate packets for pods (`--pod-routes ipip`).
    pub has_pod_tunnels: bool,
    /// The settings of the socket hooks.
    pub sockets: Sockets,
    /// Room in the maps.
    pub sizes: Sizes,
    /// The connections that this data plane owns.
    pub share: Share,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            bpffs_path: PathBuf::from("/sys/fs/bpf"),
            xdp: XdpMode::default(),
            timeouts: Timeouts::default(),
            snat_ports: DEFAULT_SNAT_PORTS,
            mark: Mark::default(),
            reject_unknown: RejectUnknown::default(),
            dsr: Dsr::default(),
            has_pod_tunnels: false,
            sockets: Sockets::default(),
            sizes: Sizes::default(),
            share: Share::default(),
        }
    }
}

impl Settings {
    /// Returns the accepted encapsulations, and whether pods' packets are among them, as `TAKES_*` bits.
    pub(super) fn takes(&self) -> u32 {
        let pods = if self.has_pod_tunnels { TAKES_POD_PACKETS } else { 0 };
        self.dsr.taken().map(bit).fold(pods, |bits, bit| bits | bit)
    }

    /// Returns the `VIP_*` bits of the addresses that refuse unknown ports.
    pub(super) const fn refusing_vips(&self) -> u32 {
        match self.reject_unknown {
            RejectUnknown::ClusterIp => VIP_CLUSTER_IP,
            RejectUnknown::All => VIP_CLUSTER_IP | VIP_EXTERNAL,
            RejectUnknown::Off => 0,
        }
    }
}

/// The attachment of `xdp_ingress`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver if it can, else not at all: `tc_ingress` serves then.
    #[default]
    Auto,
    /// In the driver. A device whose driver can't is a failure, and `tc_ingress` serves it.
    Native,
    /// In the kernel's generic hook, which every device has.
    Generic,
    /// Not at all: `tc_ingress` serves.
    Off,
}

/// How packets to other nodes are encapsulated (Direct Server Return).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dsr {
    /// The encapsulation (`--dsr-encap`).
    pub encapsulation: Encapsulation,
    /// Another encapsulation that the node accepts, for the time of a change from one to the other.
    pub also_taken: Option<Encapsulation>,
    /// The outer sources (`--dsr-outer-source`).
    pub outer_source: OuterSource,
    /// The outer destination (`--dsr-dispatch`).
    pub dispatch: Dispatch,
}

impl Dsr {
    /// Returns the accepted encapsulations; the one that this node sends is first.
    pub fn taken(&self) -> impl Iterator<Item = Encapsulation> {
        [Some(self.encapsulation), self.also_taken].into_iter().flatten()
    }
}

/// Returns the `TAKES_*` bit of an encapsulation.
const fn bit(encapsulation: Encapsulation) -> u32 {
    match encapsulation {
        Encapsulation::Ipip => TAKES_IPIP,
        Encapsulation::Fou => TAKES_FOU,
    }
}

/// The destination of encapsulated packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dispatch {
    /// The backend's node.
    #[default]
    Node,
    /// The backend's pod if the Service port is its target port; else its node.
    Pod,
}

impl Dispatch {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Node, Self::Pod];

    /// The flag's word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Pod => "pod",
        }
    }
}

/// The outer sources of encapsulated packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OuterSource {
    /// The IPv4 prefix. This node accepts packets that other nodes send from it.
    pub v4: Option<Ipv4Net>,
    /// The IPv6 prefix.
    pub v6: Option<Ipv6Net>,
    /// The outer source that this node sends from.
    pub own: OwnSource,
}

/// The outer source of this node's encapsulated packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OwnSource {
    /// Its own address.
    #[default]
    Node,
    /// An address of the prefix for each flow.
    Spread,
}

impl OuterSource {
    /// Returns the words of the flag.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let node = (self.own == OwnSource::Node).then(|| "node".to_owned());
        node.into_iter().chain(self.prefixes().map(|prefix| prefix.to_string())).collect()
    }

    /// Returns the prefixes. No node, pod or Service may have an address in them.
    pub fn prefixes(&self) -> impl Iterator<Item = IpNet> {
        [self.v4.map(IpNet::V4), self.v6.map(IpNet::V6)].into_iter().flatten()
    }
}

/// The settings of the socket hooks.
///
/// Nothing is attached by default, because processes of other software share the control group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sockets {
    /// The sockets whose calls are translated (`--socket-lb`).
    pub lb: SocketLb,
    /// Whether `bind` to a NodePort is refused (`--bind-protection`).
    pub bind_protection: bool,
    /// The control group of these processes (`--cgroup-path`).
    pub cgroup: Option<PathBuf>,
}

/// The sockets whose calls are translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SocketLb {
    /// Sockets of pods and of the node's own processes.
    All,
    /// Sockets in the agent's network namespace.
    Host,
    /// None.
    #[default]
    Off,
}

impl SocketLb {
    /// The flag's word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Host => "host",
            Self::Off => "off",
        }
    }
}

impl Sockets {
    /// Whether any hook is wanted.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.lb != SocketLb::Off || self.bind_protection
    }

    /// Whether hooks of a kind are wanted.
    #[must_use]
    pub(super) fn wants(&self, kind: HookKind) -> bool {
        match kind {
            HookKind::Bind => self.bind_protection,
            HookKind::Call => self.lb != SocketLb::Off,
        }
    }
}

/// The percentage in use from which a map is nearly full.
pub(super) const NEARLY_FULL: u64 = 80;
/// The most entries of a map.
pub(super) const MOST: u32 = 1 << 26;

/// Entries each map has room for. An agent that needs others replaces the pinned maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Service ids: two for each service port and family at most (SERVICES, NAMES, SERVICE_STATS).
    pub services: u32,
    /// Local backends of lists with Direct Server Return, two entries each, and all backends of lists with
    /// affinity (HINTS).
    pub hints: u32,
    /// Frontends of one family (FRONTENDS4/6).
    pub frontends: u32,
    /// Endpoints of one family (BACKENDS4/6).
    pub backends: u32,
    /// Slots of all slices together (SELECTION).
    pub slots: u32,
    /// Ways to, and addresses of, other nodes (WAYS, PEERS).
    pub nodes: u32,
    /// Connections of one family, two entries each (`--flow-table-size`; FLOWS4/6).
    pub flows: u32,
    /// Entries of connections that their client has not confirmed (FLOWS_NEW4/6).
    pub new_flows: u32,
    /// Source ranges of all services, and of the cluster, of one family (SOURCE_RANGES4/6).
    pub source_ranges: u32,
    /// Clients of one family that are remembered for session affinity (AFFINITY4/6).
    pub affinity: u32,
    /// Sockets of one family and protocol whose frontend is remembered (SOCK_REV4/6, SOCK_TCP4/6).
    pub sockets: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            services: 1 << 12,
            hints: 1 << 12,
            frontends: 1 << 14,
            backends: 1 << 13,
            slots: 1 << 19,
            nodes: 1 << 11,
            flows: 1 << 18,
            new_flows: 1 << 16,
            source_ranges: 1 << 14,
            affinity: 1 << 16,
            sockets: 1 << 16,
        }
    }
}

impl Sizes {
    /// Returns sizes with headroom for the Services; never below the defaults.
    #[must_use]
    pub fn for_desired(desired: &Desired) -> Self {
        Self::default().with(&Self::needed(desired), |least, needed| room(needed, least))
    }

    /// Returns the entries that the Services need; 0 for maps that the programs fill.
    #[must_use]
    pub fn needed(desired: &Desired) -> Self {
        let total = |count: fn(&ServicePort) -> usize| entries(desired.ports.values().map(count).sum());
        Self {
            services: total(|_| 2),
            hints: total(hints),
            frontends: total(|port| port.frontends.len()),
            backends: total(|port| port.endpoints.len()),
            slots: total(slots),
            nodes: entries(desired.nodes.values().map(BTreeSet::len).sum()),
            source_ranges: total(source_ranges)
                .saturating_add(entries(desired.cluster_sources.len() + desired.own_sources.len())),
            flows: 0,
            new_flows: 0,
            affinity: 0,
            sockets: 0,
        }
    }

    /// Returns whether the need takes most of the room of a map.
    #[must_use]
    pub fn are_nearly_full(&self, needed: &Self) -> bool {
        let is_full =
            |size: u32, needed: u32| u64::from(needed) * 100 >= u64::from(size) * NEARLY_FULL && size < MOST;
        let grown = self.with(needed, |size, needed| if is_full(size, needed) { MOST } else { size });
        grown != *self
    }

    /// Returns these sizes, and those of `other` where they are larger.
    #[must_use]
    pub fn or_larger(&self, other: &Self) -> Self {
        self.with(other, u32::max)
    }

    /// Returns these sizes with another one for each map that the Services fill, by its size here and in `other`.
    fn with(&self, other: &Self, size: impl Fn(u32, u32) -> u32) -> Self {
        Self {
            services: size(self.services, other.services),
            hints: size(self.hints, other.hints),
            frontends: size(self.frontends, other.frontends),
            backends: size(self.backends, other.backends),
            slots: size(self.slots, other.slots),
            nodes: size(self.nodes, other.nodes),
            source_ranges: size(self.source_ranges, other.source_ranges),
            ..*self
        }
    }

    /// Returns these sizes with small tables of sockets if no hook writes them.
    #[must_use]
    pub const fn for_sockets(self, lb: SocketLb) -> Self {
        match lb {
            SocketLb::Off => Self { sockets: 1 << 10, ..self },
            SocketLb::All | SocketLb::Host => self,
        }
    }
}

/// Returns the entries for source ranges of a port: for both lists, because frontends of both scopes may
/// have them.
fn source_ranges(port: &ServicePort) -> usize {
    port.source_ranges.as_ref().map_or(0, |ranges| ranges.len().saturating_mul(2))
}

/// Returns the entries of HINTS for both lists of a port. Any backend may become a local one. HINTS names
/// it by hint and by address.
fn hints(port: &ServicePort) -> usize {
    let hinted = if port.forwarding == Forwarding::Dsr { port.endpoints.len().saturating_mul(2) } else { 0 };
    let members = if port.affinity_seconds > 0 { port.endpoints.len() } else { 0 };
    (hinted + members).saturating_mul(2)
}

/// Returns the slots of both lists of a port.
fn slots(port: &ServicePort) -> usize {
    let lists = [&port.cluster, &port.local].into_iter().flatten();
    lists
        .map(|list| match port.algorithm {
            Algorithm::Random => {
                let length = u32::try_from(list.len()).unwrap_or(u32::MAX);
                usize::try_from(with_spare_room(length)).unwrap_or(usize::MAX)
            }
            Algorithm::Maglev(length) => usize::try_from(length).unwrap_or(usize::MAX),
        })
        .fold(0, usize::saturating_add)
}

/// Returns twice the need: a cluster grows, and released entries rest before they are used again.
fn room(needed: u32, least: u32) -> u32 {
    needed.saturating_mul(2).clamp(least, MOST).next_power_of_two()
}

fn entries(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_leave_headroom_and_never_fall_below_the_defaults() {
        assert_eq!(Sizes::for_desired(&Desired::default()), Sizes::default());
        assert_eq!(room(100_000, 1 << 16), 1 << 18);
        assert_eq!(room(u32::MAX, 1 << 16), 1 << 26);
    }

    #[test]
    fn a_map_is_nearly_full_from_four_fifths_on_unless_it_can_not_be_larger() {
        let needs = |backends| Sizes { backends, ..Sizes::needed(&Desired::default()) };
        let sizes = Sizes { backends: 1000, ..Sizes::default() };
        assert!(!sizes.are_nearly_full(&needs(799)));
        assert!(sizes.are_nearly_full(&needs(800)));
        let largest = Sizes { backends: MOST, ..sizes };
        assert!(!largest.are_nearly_full(&needs(MOST)));
    }
}
