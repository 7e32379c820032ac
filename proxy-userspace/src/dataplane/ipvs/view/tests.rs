use std::collections::BTreeSet;
use std::net::IpAddr;

use super::*;
use crate::dataplane::ipvs::plan::{PERSISTENT, TUNNEL};
use crate::model::{Family, Protocol};

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn tcp(text: &str) -> Virtual {
    Virtual::Address { protocol: Protocol::Tcp, address: socket(text) }
}

fn marked() -> Virtual {
    Virtual::Mark { family: Family::V4, mark: Protocol::Tcp.mark() | 1 }
}

fn port(text: &str) -> Element {
    Element::Port(Protocol::Tcp, socket(text))
}

/// A ClusterIP, a load balancer's address with a mark for clients outside, and a NodePort for all clients.
pub(super) fn seen() -> Seen {
    let scheduling = |flags| Scheduling { scheduler: "rr".to_owned(), flags, timeout: 90, netmask: u32::MAX };
    let server = |address, weight, method, active| {
        (socket(address), Server { weight, method }, Connections { active, inactive: 1 })
    };
    let (cluster, balancer, node) = (tcp("10.96.0.10:80"), tcp("203.0.113.9:80"), tcp("192.0.2.1:30080"));
    let mark = Some(Protocol::Tcp.mark() | 1);
    let range = |range: &str| {
        (Set::Allowed(Protocol::Tcp), Element::Range(socket("203.0.113.9:80"), range.parse().unwrap()))
    };
    let members = [
        ((Set::Services, port("10.96.0.10:80")), None),
        ((Set::Services, port("203.0.113.9:80")), None),
        ((Set::Services, port("192.0.2.1:30080")), None),
        ((Set::Marks, port("203.0.113.9:80")), mark),
        ((Set::Restricted, port("203.0.113.9:80")), None),
        (range("10.0.0.0/8"), None),
        (range("172.16.0.0/12"), None),
        ((Set::DroppedOutside, port("192.0.2.1:30080")), None),
        ((Set::Local, port("10.1.0.5:8080")), None),
    ];
    let both = vec![server("10.1.1.6:8080", 1, 0, 2), server("10.1.0.5:8080", 1, 0, 5)];
    Seen {
        state: State { members: members.into(), ..State::default() },
        services: [
            (cluster, (scheduling(PERSISTENT), Traffic { packets: 3, bytes: 300 })),
            (balancer, (scheduling(0), Traffic::default())),
            (marked(), (scheduling(0), Traffic { packets: 9, bytes: 900 })),
            (node, (scheduling(0), Traffic::default())),
        ]
        .into(),
        servers: [
            (cluster, both.clone()),
            (balancer, both),
            (marked(), vec![server("10.1.1.6:8080", 1, TUNNEL, 7), server("10.1.0.5:8080", 0, 0, 4)]),
            (node, Vec::new()),
        ]
        .into(),
    }
}

#[test]
fn a_virtual_service_is_shown_with_its_clients_and_its_forwarding() {
    let views = services::of(&seen());
    let frontends: Vec<_> = views
        .iter()
        .flat_map(|view| {
            view.frontends.iter().map(|one| (view.mark, one.address.to_string(), one.scope, one.forwarding))
        })
        .collect();
    let mark = Some(0x4d00_0001);
    assert_eq!(
        frontends,
        [
            (None, "10.96.0.10:80".to_owned(), "all", "snat"),
            (None, "192.0.2.1:30080".to_owned(), "all", "snat"),
            (None, "203.0.113.9:80".to_owned(), "internal", "snat"),
            (mark, "203.0.113.9:80".to_owned(), "external", "dsr"),
        ]
    );
    let [cluster, node, _, outside] = views.as_slice() else { panic!("{views:?}") };
    assert_eq!((cluster.frontends[0].affinity_seconds, outside.frontends[0].affinity_seconds), (90, 0));
    assert_eq!(cluster.backends, [socket("10.1.0.5:8080"), socket("10.1.1.6:8080")]);
    assert_eq!(outside.backends, [socket("10.1.1.6:8080")]);
    assert_eq!(outside.draining, [socket("10.1.0.5:8080")]);
    assert_eq!((outside.packets, outside.bytes, outside.family.as_str()), (9, 900, "IPv4"));
    assert_eq!((node.elsewhere, node.backends.len(), cluster.elsewhere), (true, 0, false));
    let ranges: Vec<_> =
        outside.frontends[0].source_ranges.iter().flatten().map(ToString::to_string).collect();
    assert_eq!(ranges, ["10.0.0.0/8", "172.16.0.0/12"]);
    assert_eq!(cluster.frontends[0].source_ranges, None);
}

#[test]
fn a_marked_service_without_an_address_is_shown_without_frontends() {
    let mut seen = seen();
    seen.services.retain(|service, _| *service == marked());
    let views = services::of(&seen);
    assert_eq!((views.len(), views[0].mark, views[0].frontends.len()), (1, Some(0x4d00_0001), 0));
}

#[test]
fn a_mark_without_its_virtual_service_does_not_separate_clients() {
    let mut seen = seen();
    seen.services.remove(&marked());
    let scopes: BTreeSet<_> =
        services::of(&seen).iter().flat_map(|view| view.frontends.iter().map(|one| one.scope)).collect();
    assert_eq!(scopes, BTreeSet::from(["all"]));
}

#[test]
fn a_server_is_shown_once_for_each_method_and_weight() {
    let views = backends::of(&seen());
    let rows: Vec<_> = views
        .iter()
        .map(|view| {
            (view.address.to_string(), view.local, view.method, view.weight, view.active, view.inactive)
        })
        .collect();
    assert_eq!(
        rows,
        [
            ("10.1.0.5:8080".to_owned(), true, "masq", 0, 4, 1),
            ("10.1.0.5:8080".to_owned(), true, "masq", 1, 10, 2),
            ("10.1.1.6:8080".to_owned(), false, "masq", 1, 4, 2),
            ("10.1.1.6:8080".to_owned(), false, "tunnel", 1, 7, 1),
        ]
    );
    assert_eq!(views[1].frontends, [socket("10.96.0.10:80"), socket("203.0.113.9:80")]);
    assert_eq!(views[3].frontends, [socket("203.0.113.9:80")]);
}

/// The list in the kernel's format.
const CONNECTIONS: &str = "\
Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP C6336407 1267 0A60000A 0050 0A010005 1F90 ESTABLISHED     899
UDP C6336407 1268 C0000201 7565 0A010006 14E9 UDP             299
TCP C6336407 0000 0A60000A 0050 0A010005 1F90 ASSURED          42
IP  C6336407 0000 4D000001 0000 0A010005 0000 NONE             42
UDP C6336409 13C4 0A60000A 13C4 0A010005 13C4 UDP               1 sip ab-cd@x
SCTP 2001:0db8:0051:0000:0000:0000:0000:0007 1267 fd00:0096:0000:0000:0000:0000:0000:000a 0050 fd00:0001:0000:0000:0000:0000:0000:0005 1F90 ESTABLISHED     899
TCP 2001:0db8:0051:0000:0000:0000:0000:0007 1267 fd00:0096:0000:0000:0000:0000:0000:000a 0050 0A010005 1F90 FIN_WAIT          7
IP  2001:0db8:0051:0000:0000:0000:0000:0007 0000 4d20:0002:0000:0000:0000:0000:0000:0000 0000 fd00:0001:0000:0000:0000:0000:0000:0005 0000 NONE              7
";

fn ours() -> State {
    let addresses: [IpAddr; 2] = ["10.96.0.10".parse().unwrap(), "fd00:96::a".parse().unwrap()];
    let node_port = (Set::Services, Element::Port(Protocol::Udp, socket("192.0.2.1:30053")));
    State { addresses: addresses.into(), members: [(node_port, None)].into(), ..State::default() }
}

fn read(list: &str, state: &State, limit: usize) -> Flows {
    connections::read(list.as_bytes(), state, limit, |_| true).unwrap()
}

#[test]
fn every_line_of_the_kernels_list_is_read() {
    let found = read(CONNECTIONS, &ours(), 100);
    assert_eq!((found.flows.len(), found.unread), (8, 0));
    let told: Vec<String> = found
        .flows
        .iter()
        .map(|flow| {
            let to =
                flow.destination.map_or_else(|| format!("{:#x}", flow.mark.unwrap()), |to| to.to_string());
            let FlowView { protocol, kind, source, backend, state, remaining_seconds, .. } = flow;
            format!("{protocol} {kind} {source} {to} {backend} {state} {remaining_seconds}")
        })
        .collect();
    assert_eq!(
        told,
        [
            "TCP connection 198.51.100.7:4711 10.96.0.10:80 10.1.0.5:8080 established 899",
            "UDP connection 198.51.100.7:4712 192.0.2.1:30053 10.1.0.6:5353 udp 299",
            "TCP template 198.51.100.7:0 10.96.0.10:80 10.1.0.5:8080 assured 42",
            "TCP template 198.51.100.7:0 0x4d000001 10.1.0.5:0 none 42",
            "UDP connection 198.51.100.9:5060 10.96.0.10:5060 10.1.0.5:5060 udp 1",
            "SCTP connection [2001:db8:51::7]:4711 [fd00:96::a]:80 [fd00:1::5]:8080 established 899",
            "TCP connection [2001:db8:51::7]:4711 [fd00:96::a]:80 10.1.0.5:8080 fin_wait 7",
            "SCTP template [2001:db8:51::7]:0 0x4d200002 [fd00:1::5]:0 none 7",
        ]
    );
}

#[test]
fn connections_of_other_software_are_left_out() {
    let others = "\
Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP C6336407 1267 0A60000B 0050 0A010005 1F90 ESTABLISHED     899
TCP C6336407 1268 C0000201 7565 0A010006 14E9 ESTABLISHED     299
IP  C6336407 0000 00000007 0000 0A010005 0000 NONE             42
IP  2001:0db8:0051:0000:0000:0000:0000:0007 0000 0000:0007:0000:0000:0000:0000:0000:0000 0000 fd00:0001:0000:0000:0000:0000:0000:0005 0000 NONE              7
ICMP C6336407 0000 0A60000A 0000 0A010005 0000 ERR!             42
";
    assert_eq!(read(others, &ours(), 100), Flows::default());
}

#[test]
fn an_unreadable_line_is_counted_and_skipped() {
    let list = "\
Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP C6336407 1267 0A60000A 0050 0A010005 1F90 ESTABLISHED

TCP C633640 1267 0A60000A 0050 0A010005 1F90 ESTABLISHED     899
TCP +6336407 1267 0A60000A 0050 0A010005 1F90 ESTABLISHED     899
TCP C6336407 11267 0A60000A 0050 0A010005 1F90 ESTABLISHED     899
TCP [fd00::1] 1267 0A60000A 0050 0A010005 1F90 ESTABLISHED     899
TCP C6336407 1267 0A60000A 0050 0A010005 1F90 ESTABLISHED     soon
TCP C6336407 1267 0A60000A 0050 0A010005 1F90 ESTABLISHED     899
Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
";
    let found = read(list, &ours(), 100);
    assert_eq!((found.flows.len(), found.unread), (1, 8));
    assert_eq!(read("", &ours(), 100), Flows::default());
}

#[test]
fn at_most_the_limit_is_read() {
    assert_eq!(read(CONNECTIONS, &ours(), 3).flows.len(), 3);
    let chosen = |limit| {
        let of_v6 = |flow: &FlowView| flow.source.is_ipv6();
        connections::read(CONNECTIONS.as_bytes(), &ours(), limit, of_v6).unwrap().flows.len()
    };
    assert_eq!((chosen(2), chosen(100)), (2, 3), "what is not chosen does not count");
}
