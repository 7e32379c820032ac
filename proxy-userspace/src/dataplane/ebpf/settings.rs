//! What the operator chooses.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use proxy_common::config::{DEFAULT_MARK, DEFAULT_SNAT_PORTS, TAKES_FOU, TAKES_IPIP};
use proxy_common::flow::Timeouts;
use proxy_common::vip::{VIP_CLUSTER_IP, VIP_EXTERNAL};

use super::hooks::HookKind;
use super::room::with_spare_room;
use super::share::Share;
use crate::model::{Algorithm, Desired, Forwarding, ServicePort};

/// Settings of the eBPF data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where a BPF file system is mounted, or a directory inside one (`--bpffs-path`).
    pub bpffs_path: PathBuf,
    /// How `xdp_ingress` is attached (`--xdp`).
    pub xdp: XdpMode,
    /// Flow time-outs (`--timeout-*`).
    pub timeouts: Timeouts,
    /// Ports of this node that connections to backends on other nodes are given (`--snat-ports`).
    pub snat_ports: RangeInclusive<u16>,
    /// Mark of the packets that go up (`--fwmark`).
    pub mark: Mark,
    /// Which unknown ports are refused (`--reject-unknown-ports`).
    pub reject_unknown: RejectUnknown,
    /// How packets to other nodes are encapsulated.
    pub dsr: Dsr,
    /// The calls of sockets.
    pub sockets: Sockets,
    /// Room in the maps.
    pub sizes: Sizes,
    /// Which connections are this data plane's.
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
            sockets: Sockets::default(),
            sizes: Sizes::default(),
            share: Share::default(),
        }
    }
}

/// How `xdp_ingress` is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver where it can, else not at all: `tc_ingress` serves then.
    #[default]
    Auto,
    /// In the driver; a device that can't is a failure, and `tc_ingress` serves it.
    Native,
    /// In the kernel's generic hook, which every device has.
    Generic,
    /// Nowhere: `tc_ingress` serves.
    Off,
}

/// The firewall mark of packets that go up: `mark = mark & !mask | value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Bits to set; inside `mask`.
    pub value: u32,
    /// Bits that are ours; 0 = packets are not marked.
    pub mask: u32,
}

impl Default for Mark {
    fn default() -> Self {
        Self { value: DEFAULT_MARK, mask: DEFAULT_MARK }
    }
}

/// Which addresses of services refuse a port that no Service has. Never one that is on a device of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RejectUnknown {
    /// Cluster IPs.
    #[default]
    ClusterIp,
    /// Cluster IPs, external IPs and load balancer addresses.
    All,
    /// None.
    Off,
}

impl RejectUnknown {
    /// As `VIP_*` bits.
    #[must_use]
    pub const fn kinds(self) -> u32 {
        match self {
            Self::ClusterIp => VIP_CLUSTER_IP,
            Self::All => VIP_CLUSTER_IP | VIP_EXTERNAL,
            Self::Off => 0,
        }
    }

    /// The flag's word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClusterIp => "clusterip",
            Self::All => "all",
            Self::Off => "off",
        }
    }
}

/// How packets to other nodes are encapsulated (Direct Server Return).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dsr {
    /// In what (`--dsr-encap`).
    pub encapsulation: Encapsulation,
    /// What else is taken from other nodes: while nodes go over from one encapsulation to the other.
    pub also_taken: Option<Encapsulation>,
    /// From where (`--dsr-outer-source`).
    pub outer_source: OuterSource,
    /// To whom (`--dsr-dispatch`).
    pub dispatch: Dispatch,
}

impl Dsr {
    /// What is taken from other nodes, what this one sends first.
    pub fn taken(&self) -> impl Iterator<Item = Encapsulation> {
        [Some(self.encapsulation), self.also_taken].into_iter().flatten()
    }

    /// The same as `TAKES_*` bits.
    pub(super) fn takes(&self) -> u32 {
        self.taken().map(Encapsulation::bit).fold(0, |bits, bit| bits | bit)
    }
}

/// To whom what is encapsulated is addressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dispatch {
    /// The backend's node.
    #[default]
    Node,
    /// The backend's pod, where it can take packets as they are; else its node.
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

/// The sources of what is encapsulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OuterSource {
    /// What other nodes send from there is taken.
    pub v4: Option<Ipv4Net>,
    /// The same for IPv6.
    pub v6: Option<Ipv6Net>,
    /// From where this node sends.
    pub own: OwnSource,
}

/// From where this node sends what it encapsulates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OwnSource {
    /// Its own address.
    #[default]
    Node,
    /// For each flow another address of the prefix.
    Spread,
}

impl OuterSource {
    /// As the flag says it.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let node = (self.own == OwnSource::Node).then(|| "node".to_owned());
        node.into_iter().chain(self.prefixes().map(|prefix| prefix.to_string())).collect()
    }

    /// What nobody else may have an address of.
    pub fn prefixes(&self) -> impl Iterator<Item = IpNet> {
        [self.v4.map(IpNet::V4), self.v6.map(IpNet::V6)].into_iter().flatten()
    }
}

/// What a packet is wrapped in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encapsulation {
    /// In an IP packet (protocol 4 or 41).
    #[default]
    Ipip,
    /// In UDP, to port 5555.
    Fou,
}

impl Encapsulation {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ipip, Self::Fou];

    const fn bit(self) -> u32 {
        match self {
            Self::Ipip => TAKES_IPIP,
            Self::Fou => TAKES_FOU,
        }
    }

    /// The flag's word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ipip => "ipip",
            Self::Fou => "fou",
        }
    }
}

/// What becomes of the calls of sockets. By default nothing is attached: a control group is shared by more than one's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sockets {
    /// Whose sockets are turned to backends (`--socket-lb`).
    pub lb: SocketLb,
    /// Whether NodePorts are kept from sockets (`--bind-protection`).
    pub bind_protection: bool,
    /// The control group whose processes are meant (`--cgroup-path`).
    pub cgroup: Option<PathBuf>,
}

/// Whose sockets are turned to backends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SocketLb {
    /// Those of pods and of the node's own processes.
    All,
    /// Those in the agent's network namespace.
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

/// Entries each map has room for. A pinned map keeps the size it was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Service ids: two for each service port and family at most (SERVICES, NAMES, SERVICE_STATS).
    pub services: u32,
    /// Local backends of lists with Direct Server Return, two entries each, and all of lists with affinity (HINTS).
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
    /// Entries of connections whose client has sent but one packet (FLOWS_NEW4/6).
    pub new_flows: u32,
    /// Source ranges of all services, and of the cluster, of one family (SOURCE_RANGES4/6).
    pub source_ranges: u32,
    /// Clients of one family that are remembered for session affinity (AFFINITY4/6).
    pub affinity: u32,
    /// Sockets of one family and protocol that are told of the frontend they asked for (SOCK_REV4/6, SOCK_TCP4/6).
    pub sockets: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            services: 1 << 16,
            hints: 1 << 16,
            frontends: 1 << 16,
            backends: 1 << 18,
            slots: 1 << 20,
            nodes: 1 << 13,
            flows: 1 << 18,
            new_flows: 1 << 16,
            source_ranges: 1 << 14,
            affinity: 1 << 16,
            sockets: 1 << 16,
        }
    }
}

impl Sizes {
    /// Sizes with headroom for what is to be served; never below the defaults.
    #[must_use]
    pub fn for_desired(desired: &Desired) -> Self {
        let least = Self::default();
        let total = |count: fn(&ServicePort) -> usize| desired.ports.values().map(count).sum::<usize>();
        Self {
            services: room(total(|_| 2), least.services),
            hints: room(total(hints), least.hints),
            frontends: room(total(|port| port.frontends.len()), least.frontends),
            backends: room(total(|port| port.endpoints.len()), least.backends),
            slots: room(total(slots), least.slots),
            nodes: room(desired.nodes.values().map(BTreeSet::len).sum(), least.nodes),
            source_ranges: room(
                total(source_ranges) + desired.cluster_sources.len() + desired.near_sources.len(),
                least.source_ranges,
            ),
            ..least
        }
    }
}

/// Source ranges of a port: under both lists, should frontends of both scopes have them.
fn source_ranges(port: &ServicePort) -> usize {
    port.source_ranges.as_ref().map_or(0, |ranges| ranges.len().saturating_mul(2))
}

/// Entries of HINTS for both lists of a port. A local backend may come to be anywhere; it is named by hint and by address.
fn hints(port: &ServicePort) -> usize {
    let hinted = if port.forwarding == Forwarding::Dsr { port.endpoints.len().saturating_mul(2) } else { 0 };
    let members = if port.affinity_seconds > 0 { port.endpoints.len() } else { 0 };
    (hinted + members).saturating_mul(2)
}

/// Slots of both lists of a port.
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

/// Twice what is needed: a cluster grows, and what is released rests before it is used again.
fn room(needed: usize, least: u32) -> u32 {
    const MOST: u32 = 1 << 26;
    let wanted = u32::try_from(needed.saturating_mul(2)).unwrap_or(MOST);
    wanted.clamp(least, MOST).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_leave_headroom_and_never_fall_below_the_defaults() {
        assert_eq!(Sizes::for_desired(&Desired::default()), Sizes::default());
        assert_eq!(room(100_000, 1 << 16), 1 << 18);
        assert_eq!(room(usize::MAX, 1 << 16), 1 << 26);
    }
}
