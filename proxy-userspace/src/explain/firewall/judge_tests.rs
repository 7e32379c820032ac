//! Judgements by tables in memory.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proxy_common::policy::PolicyDirection::{Egress, Ingress};
use proxy_common::policy::{
    LENIENT_SECONDS, OPENED_BY_PEER, PEER_NODE, PEER_OWN_NODE, PolicyDirection, PolicyFlow, PolicyFlowKey,
    PolicyName, PolicyPod, PolicyRule,
};
use proxy_common::verdict::Program;
use proxy_common::{Addr4, Addr6, Address};

use super::judge::{Place, judge, judge_node, key};
use super::judged::{Judged, Ruling};
use crate::dataplane::ebpf::firewall::{PodNames, PolicyTables};
use crate::explain::Past;
use crate::explain::fixture::{NOW, socket, tcp};
use crate::explain::packet::flag::{ACK, SYN};
use crate::explain::packet::{Packet, Parsed, parse};

const WEB: u32 = 7;
const API: u32 = 8;
const UPLINK: u32 = 2;
/// The joined profiles of shop/web, and those of its policies alone.
const INGRESS: u32 = 10;
const EGRESS: u32 = 20;
const FROM_API: u32 = 11;
const FROM_ALL: u32 = 12;
const APIS: u32 = 5;

/// Tables with the pods shop/web (isolated in both directions) and shop/api (open), in both families.
struct Tables {
    generation: u32,
    is_open_to_unknown: bool,
    pods: BTreeMap<u32, PolicyPod>,
    names: BTreeMap<u32, &'static str>,
    peers: BTreeMap<IpAddr, u32>,
    rules: Vec<(u32, u32, u16)>,
    flow: Option<PolicyFlow>,
}

impl Tables {
    fn new() -> Self {
        let pod = |last: u8, ingress: u32, egress: u32| PolicyPod {
            address4: Addr4::from(Ipv4Addr::new(10, 1, 0, last)).0,
            address6: Addr6::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into())).0,
            ingress,
            egress,
            epoch: last.into(),
            lenient_until: 0,
        };
        let names = "shop/web\ni11 from-api\ni12 from-all\ni13e20 closed";
        let peers = [
            ("10.1.0.2", APIS),
            ("fd00::2", APIS),
            ("10.1.0.1", PEER_OWN_NODE | PEER_NODE),
            ("192.0.2.2", PEER_NODE),
        ];
        Self {
            generation: 3,
            is_open_to_unknown: false,
            pods: [(WEB, pod(9, INGRESS, EGRESS)), (API, pod(2, 0, 0))].into(),
            names: [(WEB, names), (API, "shop/api")].into(),
            peers: peers.map(|(address, value)| (address.parse().unwrap(), value)).into(),
            rules: vec![
                (INGRESS, APIS, 80),
                (FROM_API, APIS, 80),
                (INGRESS, 0, 81),
                (INGRESS, APIS, 81),
                (FROM_ALL, 0, 81),
                (FROM_ALL, APIS, 81),
            ],
            flow: None,
        }
    }

    fn judge_with(
        &self,
        (direction, device, came_in_by): (PolicyDirection, u32, u32),
        from: &str,
        to: &str,
        flags: u8,
        past: Past,
    ) -> Judged {
        let (from, to): (SocketAddr, SocketAddr) = (socket(from), socket(to));
        let place = Place { direction, device, name: "veth", came_in_by };
        if from.is_ipv4() {
            judge(self, place, &packet::<Addr4>(from, to, flags), past)
        } else {
            judge(self, place, &packet::<Addr6>(from, to, flags), past)
        }
    }

    fn to_web(&self, from: &str, port: u16, flags: u8) -> Judged {
        let to = if from.starts_with('[') { format!("[fd00::9]:{port}") } else { format!("10.1.0.9:{port}") };
        self.judge_with((Ingress, WEB, UPLINK), from, &to, flags, Past::Known)
    }

    fn of_web(&self, from: &str, to: &str, flags: u8) -> Judged {
        self.judge_with((Egress, WEB, WEB), from, to, flags, Past::Known)
    }
}

impl<A: Address> PolicyTables<A> for Tables {
    fn now(&self) -> u32 {
        NOW
    }
    fn generation(&self) -> u32 {
        self.generation
    }
    fn is_open_to_unknown(&self) -> bool {
        self.is_open_to_unknown
    }
    fn pod(&self, device: u32) -> Option<PolicyPod> {
        self.pods.get(&device).copied()
    }
    fn peer(&self, address: &A) -> u32 {
        self.peers.get(&address.to_ip()).copied().unwrap_or(0)
    }
    fn has_rule(&self, rule: &PolicyRule) -> bool {
        let rule = (u32::from_be(rule.profile), u32::from_be(rule.class), u16::from_be(rule.port));
        self.rules.contains(&rule)
    }
    fn flow(&self, _: &PolicyFlowKey<A>) -> Option<PolicyFlow> {
        self.flow
    }
    fn names(&self, device: u32) -> Option<PodNames> {
        PodNames::decode(&PolicyName::new(self.names.get(&device)?)?)
    }
    fn device_of(&self, address: IpAddr) -> Option<u32> {
        let has = |pod: &PolicyPod| {
            Addr4(pod.address4).to_ip() == address || Addr6(pod.address6).to_ip() == address
        };
        self.pods.iter().find(|(_, pod)| has(pod)).map(|(device, _)| *device)
    }
    fn owner(&self, address: IpAddr) -> Option<String> {
        let owners = [("10.1.0.2", "shop/api"), ("10.2.0.5", "data/job"), ("fd00::2:5", "data/job")];
        let is_meant = |(text, _): &(&str, &str)| address == text.parse::<IpAddr>().unwrap();
        owners.into_iter().find(is_meant).map(|(_, name)| name.to_owned())
    }
}

fn packet<A: Address>(from: SocketAddr, to: SocketAddr, flags: u8) -> Packet<A> {
    match parse::<A>(&tcp(from, to, flags), Program::TcIngress) {
        Parsed::Packet(packet) => packet,
        Parsed::Untouched(why) => panic!("{why}"),
        Parsed::Fragment => panic!("a fragment"),
    }
}

fn flow(opened: u16, generation: u32, is_allowed: u16) -> PolicyFlow {
    PolicyFlow { generation, seen: NOW - 1000, opened, is_allowed, epoch: 9 }
}

fn step<'a>(judged: &'a Judged, name: &str) -> &'a str {
    judged.steps.iter().find(|step| step.step == name).map_or("", |step| step.found.as_str())
}

fn allowed(policies: &[&str]) -> Ruling {
    Ruling::Allowed(policies.iter().map(|policy| format!("shop/{policy}")).collect())
}

#[test]
fn each_policy_with_a_rule_for_the_connection_is_named() {
    let tables = Tables::new();
    for client in ["10.1.0.2:40000", "[fd00::2]:40000"] {
        let judged = tables.to_web(client, 80, SYN);
        assert_eq!(judged.ruling, allowed(&["from-api"]));
        assert_eq!(judged.isolated_by, ["shop/from-api", "shop/from-all", "shop/closed"]);
        assert_eq!(step(&judged, "rule"), "shop/from-api allows TCP port 80");
        assert_eq!(tables.to_web(client, 81, SYN).ruling, allowed(&["from-all"]));
    }
    assert_eq!(tables.to_web("198.51.100.7:40000", 81, SYN).ruling, allowed(&["from-all"]));
    // Names that had no room: nothing is said that is not known.
    let names = [(WEB, "shop/web\ni13 closed\n+2")].into();
    let judged = Tables { names, ..Tables::new() }.to_web("10.1.0.2:40000", 80, SYN);
    assert_eq!(judged.ruling, allowed(&[]));
    assert_eq!(
        step(&judged, "rule"),
        "a rule of a policy allows TCP port 80; shop/closed and up to 2 more isolate the pod"
    );
}

#[test]
fn a_denied_connection_names_the_policies_that_isolate_the_pod() {
    let judged = Tables::new().to_web("198.51.100.7:40000", 80, SYN);
    assert_eq!((&judged.ruling, judged.pod.as_deref()), (&Ruling::Denied, Some("shop/web")));
    assert_eq!(
        judged.why,
        "shop/from-api, shop/from-all, shop/closed isolate shop/web for ingress, without a rule for TCP port 80 from \
         198.51.100.7"
    );
    let judged = Tables::new().of_web("10.1.0.9:40000", "10.1.0.2:443", SYN);
    assert_eq!(
        judged.why,
        "shop/closed isolates shop/web for egress, without a rule for TCP port 443 to 10.1.0.2 (shop/api)"
    );
    assert_eq!(step(&judged, "peer"), "10.1.0.2 is shop/api of this node: rules name it, as class 5");
}

#[test]
fn a_pod_of_another_node_is_named() {
    for (client, address) in [("10.2.0.5:40000", "10.2.0.5"), ("[fd00::2:5]:40000", "fd00::2:5")] {
        let judged = Tables::new().to_web(client, 80, SYN);
        assert_eq!(judged.steps.iter().filter(|step| step.maps.contains("POLICY_OWNERS")).count(), 1);
        let found = format!("{address} is data/job: no rule for a pod of this node names it");
        assert_eq!(step(&judged, "peer"), found);
        assert!(judged.why.ends_with(&format!(" from {address} (data/job)")), "{}", judged.why);
    }
}

#[test]
fn a_pod_without_policies_is_open_but_sends_under_its_own_name_alone() {
    let tables = Tables::new();
    let from_api =
        |from: &str, to: &str| tables.judge_with((Egress, API, API), from, to, SYN, Past::Known).ruling;
    assert_eq!(from_api("10.1.0.2:40000", "10.1.0.9:80"), Ruling::NotIsolated);
    assert_eq!(from_api("10.1.0.3:40000", "10.1.0.9:80"), Ruling::ForeignSource);
    assert_eq!(from_api("[fd00::3]:40000", "[fd00::9]:80"), Ruling::ForeignSource);
    assert_eq!(from_api("[fe80::3]:40000", "[fd00::9]:80"), Ruling::NotIsolated);
    let to_api = tables.judge_with((Ingress, API, UPLINK), "192.0.2.9:1", "10.1.0.2:80", SYN, Past::Known);
    assert_eq!(to_api.ruling, Ruling::NotIsolated);
}

#[test]
fn a_pod_that_is_not_known_is_closed_while_the_cluster_has_policies() {
    let unknown = (Ingress, 99, UPLINK);
    let mut tables = Tables::new();
    let judge =
        |tables: &Tables, place| tables.judge_with(place, "10.1.0.2:40000", "10.1.0.77:80", SYN, Past::Known);
    let judged = judge(&tables, unknown);
    assert_eq!((&judged.ruling, &judged.pod), (&Ruling::UnknownPod, &None));
    assert_eq!(judged.steps.len(), 1, "no rule has the pod's profile: {:?}", judged.steps);
    assert_eq!(judged.why, "the pod behind veth is not known (yet), and the cluster has policies (ingress)");
    assert_eq!(judge(&tables, (Egress, 99, 99)).ruling, Ruling::UnknownPod);
    tables.is_open_to_unknown = true;
    assert_eq!(judge(&tables, unknown).ruling, Ruling::NoPolicies);
}

#[test]
fn the_own_node_reaches_its_pods_by_packets_that_it_makes_itself() {
    let tables = Tables::new();
    let from_node = |came_in_by| {
        let place = (Ingress, WEB, came_in_by);
        tables.judge_with(place, "10.1.0.1:40000", "10.1.0.9:80", SYN, Past::Known).ruling
    };
    assert_eq!((from_node(0), from_node(UPLINK)), (Ruling::OwnNode, Ruling::Denied));
    let place = Place { direction: Ingress, device: WEB, name: "veth", came_in_by: 0 };
    assert_eq!(judge_node::<Addr4, _>(&tables, place).ruling, Ruling::OwnNode);
}

#[test]
fn a_pod_always_reaches_itself() {
    let tables = Tables::new();
    assert_eq!(tables.of_web("10.1.0.9:40000", "10.1.0.9:80", SYN).ruling, Ruling::Itself);
    let back = tables.judge_with((Ingress, WEB, WEB), "192.0.2.1:80", "10.1.0.9:80", SYN, Past::Known);
    assert_eq!(back.ruling, Ruling::Itself);
}

#[test]
fn a_packet_in_the_midst_of_a_connection_is_judged_by_its_entry() {
    let reply = |tables: &Tables, past| {
        let place = (Egress, WEB, WEB);
        tables.judge_with(place, "10.1.0.9:80", "10.1.0.2:40000", ACK, past).ruling
    };
    let mut tables = Tables::new();
    assert_eq!(reply(&tables, Past::Known), Ruling::Denied);
    // Of older tables, or of the present ones: the rules for its first packet count.
    for generation in [1, 3] {
        tables.flow = Some(flow(OPENED_BY_PEER, generation, 1));
        assert_eq!(reply(&tables, Past::Known), allowed(&["from-api"]));
        assert_eq!(reply(&tables, Past::Ignored), Ruling::Denied);
    }
    tables.flow = Some(flow(OPENED_BY_PEER, 3, 0));
    assert_eq!(reply(&tables, Past::Known), Ruling::Denied);
    // A packet that opens a connection is judged whatever is known.
    assert_eq!(tables.to_web("10.1.0.2:40000", 80, SYN).ruling, allowed(&["from-api"]));
    // The entry of another pod at this device counts as none.
    tables.flow = Some(PolicyFlow { epoch: 8, ..flow(OPENED_BY_PEER, 3, 1) });
    assert_eq!(reply(&tables, Past::Known), Ruling::Denied);
    // No rule is there any more that would explain the entry.
    tables.flow = Some(flow(OPENED_BY_PEER, 3, 1));
    tables.rules.clear();
    assert_eq!(reply(&tables, Past::Known), Ruling::Connection);
}

#[test]
fn soon_after_the_first_policy_a_packet_without_an_entry_may_be_a_reply() {
    let mut tables = Tables::new();
    let reply = |tables: &Tables| tables.of_web("10.1.0.9:80", "10.1.0.2:40000", ACK).ruling;
    for (until, expected) in [(NOW + LENIENT_SECONDS, allowed(&["from-api"])), (NOW, Ruling::Denied)] {
        if let Some(pod) = tables.pods.get_mut(&WEB) {
            pod.lenient_until = until;
        }
        assert_eq!(reply(&tables), expected);
    }
}

#[test]
fn a_tunnel_without_keys_to_a_node_is_in_the_name_of_others() {
    let tables = Tables::new();
    let datagram = |to: &str| {
        let (from, to) = (socket("10.1.0.2:40000"), socket(to));
        let mut packet = packet::<Addr4>(from, to, 0);
        packet.key.protocol = 17;
        let place = Place { direction: Egress, device: API, name: "veth", came_in_by: API };
        assert_eq!(key(place, &packet).peer_port, to.port().to_be());
        judge(&tables, place, &packet, Past::Known).ruling
    };
    assert_eq!(datagram("192.0.2.2:8472"), Ruling::ForeignSource);
    assert_eq!(datagram("192.0.2.2:53"), Ruling::NotIsolated);
    assert_eq!(datagram("192.0.2.3:8472"), Ruling::NotIsolated);
}
