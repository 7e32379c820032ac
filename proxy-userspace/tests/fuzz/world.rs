//! The Services, backends, ways and peers that the frames meet.

use std::net::{IpAddr, SocketAddr};

use millrace_lab::frame::{Frame, chunk, flag, protocol};
use millrace_lab::program::{Bed, Hook, Service, known_hop, resolved_way};
use proxy_common::config::{TAKES_FOU, TAKES_IPIP};
use proxy_common::timeouts::Timeouts;
use proxy_common::verdict::Reason;
use proxy_common::vip::{VIP_CLUSTER_IP, VIP_EXTERNAL};
use proxy_common::way::{PEER_NODE, PEER_SELF};

/// A frontend, and the fate of its clients' packets.
pub struct Frontend {
    /// The address and the port.
    pub at: SocketAddr,
    /// The IP protocol number.
    pub protocol: u8,
    /// The Service.
    pub service: Service,
    /// Whether it has Direct Server Return. Only then its tunnels concern the programs.
    pub is_dsr: bool,
    /// The reason why every packet of a client outside is dropped, if it is.
    pub drops: Option<Reason>,
}

/// A connection that was opened before the first frame.
pub struct Connection {
    /// The client.
    pub client: SocketAddr,
    /// The frontend.
    pub vip: SocketAddr,
    /// The backend.
    pub pod: SocketAddr,
    /// IP protocol number.
    pub protocol: u8,
}

/// The bed, and the facts about it.
pub struct World {
    /// The programs.
    pub bed: Bed,
    /// All frontends.
    pub frontends: Vec<Frontend>,
    /// All connections.
    pub connections: Vec<Connection>,
    /// Connections of pods with themselves. Their frontends have the address and port that the
    /// backend sees.
    pub own: Vec<Connection>,
}

/// Time-outs so long that nothing expires during a run, even on a slow machine.
const NEVER: Timeouts =
    Timeouts { syn: u32::MAX, established: u32::MAX, closing: u32::MAX, datagram: u32::MAX };

/// MTU of every way.
pub const MTU: usize = 1500;

/// Returns an address of a small, well-known set. `group` names the set.
pub fn address(v6: bool, group: u8, number: u8) -> IpAddr {
    if v6 {
        [0x2001, 0xdb8, group.into(), 0, 0, 0, 0, number.into()].into()
    } else {
        [192, 0, group, number].into()
    }
}

/// Group of clients.
pub const CLIENTS: u8 = 51;
/// Group of frontends.
const VIPS: u8 = 113;
/// Group of pods here.
pub const PODS: u8 = 10;
/// Group of pods elsewhere.
pub const PODS_ELSEWHERE: u8 = 20;
/// Group of the nodes: 1 is this one, 2 to 4 are peers.
pub const NODES: u8 = 2;

impl World {
    /// Loads and fills a bed. Connections are those of clients whose packets, or replies, the
    /// program sees.
    pub fn new(hook: Hook) -> Self {
        let bed = Bed::builder().timeouts(NEVER).takes(TAKES_IPIP | TAKES_FOU).load();
        let mut frontends = Vec::new();
        for v6 in [false, true] {
            bed.peer(address(v6, NODES, 1), PEER_SELF | PEER_NODE);
            (2..=4).for_each(|node| bed.peer(address(v6, NODES, node), PEER_NODE));
            (1..=5).for_each(|number| bed.vip(address(v6, VIPS, number), vip_kind(number)));
        }
        for v6 in [false, true] {
            for protocol in [protocol::TCP, protocol::UDP, protocol::SCTP] {
                frontends.extend(add_frontends(&bed, v6, protocol));
            }
        }
        let (opener, served) = match hook {
            Hook::TcPodIn | Hook::TcPodOut => (Hook::TcPodIn, Reason::ServedPod),
            Hook::XdpIngress | Hook::TcIngress | Hook::TcEgress => (Hook::XdpIngress, Reason::ServedLocal),
        };
        let clients = |frontend: &Frontend| clients(frontend.at.is_ipv6());
        let connections = connect(&bed, &frontends, clients, (opener, served));
        let pods = |frontend: &Frontend| pods(frontend.at.is_ipv6());
        let mut own = Vec::new();
        if hook == Hook::TcPodIn {
            own = connect(&bed, &frontends, pods, (opener, Reason::Hairpin));
        }
        Self { bed, frontends, connections, own }
    }

    /// Returns the frontend at an address.
    pub fn frontend(&self, at: SocketAddr, protocol: u8) -> Option<&Frontend> {
        self.frontends.iter().find(|frontend| (frontend.at, frontend.protocol) == (at, protocol))
    }
}

/// Returns the `VIP_*` bits of an address.
pub fn vip(at: IpAddr) -> u32 {
    let number = (1..=5).find(|number| address(at.is_ipv6(), VIPS, *number) == at);
    number.map_or(0, vip_kind)
}

/// Returns the kind of a Service's address. Some are ClusterIPs, which refuse unknown ports, some
/// are not.
const fn vip_kind(number: u8) -> u32 {
    if number <= 3 { VIP_CLUSTER_IP } else { VIP_EXTERNAL }
}

fn add_frontends(bed: &Bed, v6: bool, protocol: u8) -> Vec<Frontend> {
    let at = |group, number, port| SocketAddr::new(address(v6, group, number), port);
    let way =
        |outer_v6, node| bed.way(resolved_way(address(outer_v6, NODES, 1), address(outer_v6, NODES, node)));
    let service = |number: u8| bed.service().protocol(protocol).external(at(VIPS, number, 80));
    let pod = |number| at(PODS, number, 8080);
    let remote = |number| at(PODS_ELSEWHERE, number, 8080);
    let local = service(1).backend_local(pod(1)).backend_local(pod(2)).install();
    let dsr = service(2)
        .dsr()
        .backend_local(pod(3))
        .backend_local(pod(4))
        .backend_remote(remote(5), way(false, 2))
        .backend_remote(remote(6), way(true, 3))
        .install();
    let none = service(3).install();
    let elsewhere = service(4).policy_local().backend_remote(remote(7), way(false, 2)).install();
    let translated = service(5).backend_remote(remote(8), way(false, 2)).install();
    bed.hop(remote(8), known_hop(address(v6, NODES, 1)));
    [
        (1, local, None),
        (2, dsr, None),
        (3, none, Some(Reason::NoEndpoint)),
        (4, elsewhere, Some(Reason::NoLocalEndpoint)),
        (5, translated, None),
    ]
    .map(|(number, service, drops)| Frontend {
        at: at(VIPS, number, 80),
        protocol,
        service,
        is_dsr: number == 2,
        drops,
    })
    .into()
}

/// Returns clients outside the cluster.
fn clients(v6: bool) -> impl Iterator<Item = SocketAddr> {
    (0..16).map(move |number| SocketAddr::new(address(v6, CLIENTS, number), 40000))
}

/// Returns pods of this node that are backends, as clients.
pub fn pods(v6: bool) -> impl Iterator<Item = SocketAddr> {
    (1..=4).map(move |number| SocketAddr::new(address(v6, PODS, number), 40000))
}

/// Opens connections as clients would, and returns those that are counted under this reason.
fn connect<Clients: Iterator<Item = SocketAddr>>(
    bed: &Bed,
    frontends: &[Frontend],
    clients: impl Fn(&Frontend) -> Clients,
    (opener, served): (Hook, Reason),
) -> Vec<Connection> {
    let open = |frontend: &Frontend, client: SocketAddr| {
        let ip = Frame::ip(client.ip(), frontend.at.ip());
        let frame = match frontend.protocol {
            protocol::TCP => ip.tcp(client.port(), frontend.at.port(), flag::SYN),
            protocol::SCTP => ip.sctp(client.port(), frontend.at.port(), chunk::INIT),
            _ => ip.udp(client.port(), frontend.at.port()),
        };
        let outcome = bed.send(opener, &frame);
        (outcome.counts.of(served).packets == 1).then(|| {
            let given = outcome.frame();
            let vip = if given.source() == client { frontend.at } else { given.source() };
            Connection { client, vip, pod: given.destination(), protocol: frontend.protocol }
        })
    };
    let of_frontend = |frontend| clients(frontend).filter_map(move |client| open(frontend, client));
    frontends.iter().flat_map(of_frontend).collect()
}
