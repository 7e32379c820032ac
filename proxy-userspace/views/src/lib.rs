//! The JSON of the command line, for the agent that prints it and the test bed that reads it.
//!
//! Field names and words are an interface for users.
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// One of a few words: constant where it is printed, owned where it is read.
pub type Word = Cow<'static, str>;

/// Returns `namespace/name:port`, as kube-proxy writes it; without the colon for an unnamed port.
#[must_use]
pub fn service_port_label(namespace: &str, name: &str, port: &str) -> String {
    let separator = if port.is_empty() { "" } else { ":" };
    format!("{namespace}/{name}{separator}{port}")
}

/// One list of a service port in one family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceView {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// Name of the port, empty for an unnamed one.
    pub port: String,
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// `Cluster` or `Local`.
    pub list: String,
    /// Service id.
    pub id: u32,
    /// `random` or `maglev`.
    pub algorithm: Word,
    /// Length of the slice.
    pub slots: u32,
    /// The list is empty, but usable endpoints exist outside it.
    pub elsewhere: bool,
    /// Frontends of the list, sorted.
    pub frontends: Vec<FrontendView>,
    /// Current owners of the slice's slots, sorted.
    pub backends: Vec<SocketAddr>,
    /// The number of owners on this node.
    pub here: usize,
    /// Packets from clients.
    pub packets: u64,
    /// Bytes from clients.
    pub bytes: u64,
    /// Packets that were dropped, by reason. Fragments and packets with options count for no Service.
    pub dropped: BTreeMap<Word, u64>,
    /// Connections, and exchanges of datagrams, that this node translated.
    pub connections: ConnectionsView,
    /// Times to the first answer.
    pub handshakes: HandshakesView,
}

/// Connections, and exchanges of datagrams, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionsView {
    /// Their first packet was seen.
    pub opened: u64,
    /// The client showed that it had seen an answer.
    pub established: u64,
    /// The backend answered the first packet with a RST.
    pub refused: u64,
    /// The backend ended them with a RST after they were established.
    pub reset: u64,
    /// They are in the table of established connections now.
    pub active: u64,
    /// They are in the table of new connections now.
    pub pending: u64,
}

impl ConnectionsView {
    /// Returns those that were neither established nor refused in time. Only TCP and SCTP tell.
    #[must_use]
    pub const fn unanswered(&self) -> u64 {
        self.opened.saturating_sub(self.established).saturating_sub(self.refused).saturating_sub(self.pending)
    }
}

impl std::ops::AddAssign for ConnectionsView {
    fn add_assign(&mut self, other: Self) {
        self.opened += other.opened;
        self.established += other.established;
        self.refused += other.refused;
        self.reset += other.reset;
        self.active += other.active;
        self.pending += other.pending;
    }
}

/// Times from a client's SYN to its backend's answer, of one connection in eight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandshakesView {
    /// Timed connections.
    pub count: u64,
    /// Half of them took at most so many microseconds; none without any. It is the end of a bucket.
    pub p50_microseconds: Option<u64>,
    /// 99 of 100 took at most so many microseconds.
    pub p99_microseconds: Option<u64>,
    /// Counts by bucket: bucket `n` ends at `64 << n` microseconds, and the last one has no end.
    pub buckets: Vec<u64>,
}

impl HandshakesView {
    /// Returns the figures of these counts.
    #[must_use]
    pub fn of(buckets: Vec<u64>) -> Self {
        let count: u64 = buckets.iter().sum();
        let quantile = |percent: u64| {
            let wanted = (count * percent).div_ceil(100).max(1);
            let mut seen = 0;
            let bucket = buckets.iter().position(|bucket| {
                seen += bucket;
                seen >= wanted
            });
            bucket.map(|bucket| 64 << bucket)
        };
        Self { count, p50_microseconds: quantile(50), p99_microseconds: quantile(99), buckets }
    }
}

impl std::ops::AddAssign<&Self> for HandshakesView {
    fn add_assign(&mut self, other: &Self) {
        let length = self.buckets.len().max(other.buckets.len());
        let at = |buckets: &[u64], index: usize| buckets.get(index).copied().unwrap_or(0);
        let sums = (0..length).map(|index| at(&self.buckets, index) + at(&other.buckets, index));
        *self = Self::of(sums.collect());
    }
}

/// The traffic of clients to one service port in one family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficView {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// Name of the port, empty for an unnamed one.
    pub port: String,
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// Packets.
    pub packets: u64,
    /// Bytes of the frames.
    pub bytes: u64,
    /// Packets that were dropped, by reason.
    pub dropped: BTreeMap<Word, u64>,
    /// What became of the connections. Those that live are not counted.
    pub connections: ConnectionsView,
}

/// A frontend of a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FrontendView {
    /// Address and port that a client sends to.
    pub address: SocketAddr,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: Word,
    /// `internal` or `external`.
    pub scope: Word,
    /// `ClusterIP`, `NodePort`, `ExternalIP` or `LoadBalancer`.
    pub kind: Word,
    /// `snat` or `dsr`.
    pub forwarding: Word,
    /// Session affinity time-out, 0 = none.
    pub affinity_seconds: u32,
    /// Allowed source ranges, sorted; none = all clients.
    pub source_ranges: Option<Vec<IpNet>>,
    /// Only clients inside the cluster are allowed: `--cluster-ip-clients inside`.
    pub inside_only: bool,
}

/// An endpoint.
#[allow(clippy::struct_excessive_bools, reason = "each is a condition of its own, and a field of the JSON")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendView {
    /// Address and port.
    pub address: SocketAddr,
    /// Backend id, unique in its family.
    pub id: u32,
    /// Incarnation of the id.
    pub generation: u8,
    /// In some EndpointSlice; false while the id rests.
    pub exists: bool,
    /// On this node.
    pub local: bool,
    /// Its pod removes the outer header of Direct Server Return.
    pub pod: bool,
    /// Ready.
    pub ready: bool,
    /// Serving.
    pub serving: bool,
    /// Address of its node, if that is another node and known.
    pub node: Option<IpAddr>,
    /// Its hint towards its node, 0 = none.
    pub hint: u32,
    /// Services with a slot of this backend, as `namespace/name:port`, sorted.
    pub services: Vec<String>,
    /// Connections, and exchanges of datagrams, that this node translated.
    pub connections: ConnectionsView,
}

/// One direction of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowView {
    /// `new` or `established`: which of the two tables it is in.
    pub table: Word,
    /// `TCP`, `UDP`, `SCTP`, or the protocol's number.
    pub protocol: String,
    /// Source of the packet before our program.
    pub source: SocketAddr,
    /// Destination of the packet before our program.
    pub destination: SocketAddr,
    /// Source after translation, if it is changed.
    pub new_source: Option<SocketAddr>,
    /// Destination after translation, if it is changed.
    pub new_destination: Option<SocketAddr>,
    /// `syn`, `established`, `closing`, `datagram`, or the state's number.
    pub state: String,
    /// `request` or `reply`.
    pub direction: Word,
    /// The node encapsulates the packet.
    pub encapsulated: bool,
    /// The packet came in encapsulated.
    pub decapsulated: bool,
    /// The backend sees an address and port of this node as the client (SNAT).
    pub translated: bool,
    /// The service, as `namespace/name:port`, or its id without a name.
    pub service: String,
    /// The backend, unless its id belongs to another one now.
    pub backend: Option<SocketAddr>,
    /// Seconds since the time in the entry. The last packet may be younger by 8 seconds.
    pub idle_seconds: u32,
}

/// Packets and bytes with one reason in one program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterView {
    /// Name of the program. A packet that XDP passes up is counted by XDP and again by TC.
    pub program: Word,
    /// Name of the reason.
    pub reason: Word,
    /// Whether these packets were dropped.
    pub drop: bool,
    /// Packets.
    pub packets: u64,
    /// Bytes of the frames.
    pub bytes: u64,
}

/// The way to another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayView {
    /// Way id.
    pub id: u32,
    /// Address of the node.
    pub target: IpAddr,
    /// Our address towards it; none while there is no route.
    pub source: Option<IpAddr>,
    /// Index of the device.
    pub device: u32,
    /// Largest IP packet, in bytes.
    pub mtu: u16,
    /// Next hop and device are known: no FIB lookup is needed.
    pub resolved: bool,
    /// The device has native XDP.
    pub xdp: bool,
    /// MAC address of the next hop.
    pub destination_mac: String,
    /// MAC address of the device.
    pub source_mac: String,
}

/// The state of the data plane as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusView {
    /// Version of the map layout.
    pub layout_version: u32,
    /// Seconds since the agent's last heartbeat; none if there was none.
    pub heartbeat_age_seconds: Option<u64>,
    /// Failures of the agent's last sync, which it retries.
    pub failures: FailuresView,
    /// The connections of this mode: all, or new or existing ones during a mode change.
    pub serves: Word,
    /// Seconds since the mode change began.
    pub shared_seconds: Option<u64>,
    /// Attached programs, sorted.
    pub attached: Vec<AttachedView>,
    /// Sources inside the cluster whose packets come in over an uplink, sorted.
    pub cluster_sources: Vec<IpNet>,
    /// The maps, sorted by name.
    pub maps: Vec<MapView>,
}

/// Failures of a sync, counted by concern. The agent's log has the details.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailuresView {
    /// Service ports of one family that are degraded.
    pub service_ports: u64,
    /// 1 while this node serves no Service.
    pub node: u64,
    /// Devices without programs, or without the requested kind of attachment.
    pub device: u64,
    /// Entries without room in a map: ways, addresses of nodes, ranges of the cluster.
    pub map: u64,
}

/// A program attached to a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedView {
    /// Name of the device, or its index without a name in this network namespace.
    pub device: String,
    /// Index of the device.
    pub device_index: u32,
    /// `xdp`, `tc_ingress`, `tc_egress`, `tc_pod_in`, `tc_pod_out`, or the name of a hook of sockets.
    pub hook: Word,
    /// `native` or `generic` for XDP, `tcx` or `clsact` for TC.
    pub mode: Word,
    /// The kernel's id of the program.
    pub program_id: u32,
}

/// The size and the use of a map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapView {
    /// Name.
    pub name: String,
    /// Entries of the map.
    pub entries: u32,
    /// Entries in use; none for maps that would have to be counted one by one.
    pub used: Option<u32>,
    /// Its memory; none if the kernel does not say. Linux below 6.4 says that of a full map.
    pub memory_bytes: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_the_ends_of_buckets() {
        let view = HandshakesView::of(vec![0, 98, 0, 1, 1]);
        assert_eq!((view.count, view.p50_microseconds, view.p99_microseconds), (100, Some(128), Some(512)));
        let none = HandshakesView::of(vec![0; 16]);
        assert_eq!((none.count, none.p50_microseconds), (0, None));
        let mut sum = HandshakesView::default();
        sum += &view;
        sum += &none;
        assert_eq!((sum.count, sum.p99_microseconds, sum.buckets.len()), (100, Some(512), 16));
    }

    #[test]
    fn a_connection_that_is_still_new_is_not_unanswered() {
        let view =
            ConnectionsView { opened: 10, established: 6, refused: 2, pending: 1, ..Default::default() };
        assert_eq!(view.unanswered(), 1);
        assert_eq!(
            ConnectionsView { established: 20, ..view }.unanswered(),
            0,
            "the counts are read in turn"
        );
    }
}
