//! Walks through tables in memory.

use std::net::Ipv6Addr;

use proxy_common::affinity::{Affinity, AffinityKey};
use proxy_common::config::{SHARE_ALONE, SHARE_NEWER, SHARE_OLDER, global};
use proxy_common::flow::{FLOW_ESTABLISHED, FLOW_REWRITE_DESTINATION, Flow, FlowKey};
use proxy_common::frontend::{
    FRONTEND_AFFINITY, FRONTEND_DSR, FRONTEND_DSR_ENDS, FRONTEND_KIND_NODE_PORT, FRONTEND_KIND_SHIFT,
    FRONTEND_LOCAL, FRONTEND_SOURCE_RANGES, Frontend, FrontendKey, SCOPE_EXTERNAL,
};
use proxy_common::hash::flow_hash;
use proxy_common::hop::{HOP_NEIGHBOUR, HOP_XDP, Hop};
use proxy_common::selection::{SERVICE_ELSEWHERE, Slot};
use proxy_common::verdict::{Program, Reason};
use proxy_common::vip::VIP_EXTERNAL;
use proxy_common::way::WAY_IPV4;
use proxy_common::{Addr4, Addr6, Address};

use super::fixture::{BALANCER, DEVICE, Fixture, HERE, HTTP, NOW, Shop, WELL, socket, tcp, v4};
use super::packet::flag::{ACK, FIN, SYN};
use super::step::{End, Verdict, Walk};
use super::walk::walk_family;
use super::walker::Past;

fn verdict(walk: &Walk) -> &Verdict {
    match &walk.end {
        End::Verdict(verdict) => verdict,
        End::NotWalked(kind) => panic!("not walked: {kind}"),
    }
}

fn ends(walk: &Walk) -> (Reason, &str) {
    let verdict = verdict(walk);
    (verdict.reason, &verdict.why)
}

fn step<'a>(walk: &'a Walk, name: &str) -> &'a str {
    walk.steps.iter().find(|step| step.step == name).map_or("", |step| step.found.as_str())
}

fn key(from: &str, to: &str) -> FlowKey<Addr4> {
    let (from, to) = (socket(from), socket(to));
    FlowKey {
        source: Addr4::from_ip(from.ip()).unwrap(),
        destination: Addr4::from_ip(to.ip()).unwrap(),
        source_port: from.port().to_be(),
        destination_port: to.port().to_be(),
        protocol: 6,
        ..FlowKey::default()
    }
}

#[test]
fn a_backend_on_this_node_serves() {
    let mut shop = Shop::new();
    let pod = shop.backend("10.1.0.1", HERE, 0);
    let list = shop.list(&[pod]);
    let walk = shop.frontend(list, 0).at_tc("198.51.100.7:40000");
    assert_eq!(ends(&walk), (Reason::ServedLocal, ""));
    assert_eq!(verdict(&walk).backend, Some(socket("10.1.0.1:8080")));
    let names: Vec<_> = walk.steps.iter().map(|step| step.step).collect();
    assert_eq!(
        names,
        ["vip", "frontend", "client", "source", "flow", "affinity", "list", "backend", "path", "reply"]
    );
    assert_eq!(walk.steps[1].maps, "FRONTENDS4");
    // The programs will ask for the connection, and for its replies.
    assert_eq!(
        walk.concern.v4.flows,
        [key("198.51.100.7:40000", "192.0.2.1:80"), key("10.1.0.1:8080", "198.51.100.7:40000")]
    );
}

#[test]
fn a_list_without_endpoints_refuses_or_names_the_policy() {
    let mut shop = Shop::new();
    let list = shop.0.add_list(&[], 0);
    let why = format!("shop/web-{list}:http has no usable endpoint");
    assert_eq!(ends(&shop.frontend(list, 0).at_tc("198.51.100.7:40000")), (Reason::NoEndpoint, &*why));

    let mut shop = Shop::new();
    let list = shop.0.add_list(&[], SERVICE_ELSEWHERE);
    let why = format!(
        "externalTrafficPolicy is Local, and all endpoints of shop/web-{list}:http are on other nodes"
    );
    let walk = shop.frontend(list, FRONTEND_LOCAL).at_tc("198.51.100.7:40000");
    assert_eq!(ends(&walk), (Reason::NoLocalEndpoint, &*why));
    assert_eq!(
        step(&walk, "list"),
        "list: no endpoint here, some on other nodes; externalTrafficPolicy Local"
    );
}

#[test]
fn source_ranges_refuse_and_admit() {
    let mut shop = Shop::new();
    let pod = shop.backend("10.1.0.1", HERE, 0);
    let list = shop.list(&[pod]);
    shop.0.ranges.push((list, "203.0.113.0/24".parse().unwrap()));
    let shop = shop.frontend(list, FRONTEND_SOURCE_RANGES);
    assert_eq!(
        ends(&shop.at_tc("198.51.100.7:40000")),
        (Reason::SourceRefused, "198.51.100.7 is in none of loadBalancerSourceRanges (203.0.113.0/24)")
    );
    assert_eq!(ends(&shop.at_tc("203.0.113.7:40000")).0, Reason::ServedLocal);
    // They hold for pods, too.
    let walk = shop.walk(Program::TcPodIn, "10.1.0.2:40000", "192.0.2.1:80", SYN);
    assert_eq!(ends(&walk).0, Reason::SourceRefused);
}

#[test]
fn a_port_without_a_frontend_names_the_nearest() {
    let walk_of = |constants: &[(&'static str, u32)], to: &str| {
        let mut shop = Shop::of(constants);
        let list = shop.list(&[]);
        shop.frontend(list, 0).walk(Program::TcIngress, "198.51.100.7:40000", to, SYN)
    };
    let why = "192.0.2.1 has 80/TCP (shop/web-1:http)";
    assert_eq!(ends(&walk_of(&[], "192.0.2.1:81")), (Reason::NotOurs, why));
    let refuses = [(global::REJECT_UNKNOWN, VIP_EXTERNAL)];
    assert_eq!(ends(&walk_of(&refuses, "192.0.2.1:81")), (Reason::UnknownPort, why));
    let why = "192.0.2.9 is neither a Service's address nor this node's";
    assert_eq!(ends(&walk_of(&refuses, "192.0.2.9:80")), (Reason::NotOurs, why));
    let why = "10.0.0.1 is this node's, and no Service has the port there";
    assert_eq!(ends(&walk_of(&refuses, "10.0.0.1:80")), (Reason::NotOurs, why));
}

#[test]
fn a_known_connection_keeps_its_backend_until_its_entry_expires() {
    let mut shop = Shop::new();
    let (old, new) = (shop.backend("10.1.0.1", HERE, 0), shop.backend("10.1.0.2", HERE, 0));
    let list = shop.list(&[new]);
    let connection = key("198.51.100.7:40000", "192.0.2.1:80");
    let mut flow = Flow {
        source: connection.source,
        destination: v4("10.1.0.1"),
        source_port: connection.source_port,
        destination_port: 8080_u16.to_be(),
        backend: old.0,
        service: list,
        last_seen: NOW - 7000,
        state: FLOW_ESTABLISHED,
        flags: FLOW_REWRITE_DESTINATION,
        check: 0,
    };
    shop.0.flows.push((connection, flow));
    let mut shop = shop.frontend(list, 0);
    let data = |shop: &Shop| shop.walk(Program::TcIngress, "198.51.100.7:40000", "192.0.2.1:80", ACK);
    let walk = data(&shop);
    assert_eq!(verdict(&walk).backend, Some(socket("10.1.0.1:8080")));
    assert_eq!(step(&walk, "flow"), "established to 10.1.0.1:8080 (this node), silent for 1h");
    let frame = tcp(socket("198.51.100.7:40000"), socket("192.0.2.1:80"), ACK);
    let anew = walk_family(&shop.0, Program::TcIngress, DEVICE, &frame, Past::Ignored);
    assert_eq!(verdict(&anew).backend, Some(socket("10.1.0.2:8080")));

    flow.last_seen = NOW - 9000;
    shop.0.flows = vec![(connection, flow)];
    assert_eq!(verdict(&data(&shop)).backend, Some(socket("10.1.0.2:8080")));

    // The port is used again after the client's FIN.
    flow.flags |= proxy_common::flow::FLOW_FIN_CLIENT;
    flow.last_seen = NOW;
    shop.0.flows = vec![(connection, flow)];
    assert_eq!(verdict(&data(&shop)).backend, Some(socket("10.1.0.1:8080")));
    assert_eq!(verdict(&shop.at_tc("198.51.100.7:40000")).backend, Some(socket("10.1.0.2:8080")));
}

#[test]
fn a_client_with_affinity_keeps_its_backend_for_its_time() {
    let mut shop = Shop::new();
    let pods = [shop.backend("10.1.0.1", HERE, 0), shop.backend("10.1.0.2", HERE, 0)];
    let list = shop.list(&pods);
    let mut shop = shop.frontend(list, FRONTEND_AFFINITY);
    let by_slot = verdict(&shop.at_tc("198.51.100.7:40000")).backend;
    let other = pods.iter().find(|pod| {
        let pod = shop.0.backends[pod.id() as usize];
        Some(super::text::socket(pod.address, pod.port)) != by_slot
    });
    let other = other.copied().unwrap();
    let client = AffinityKey { client: v4("198.51.100.7"), service: list, kind: 0 };
    shop.0.affinities.push((client, Affinity { backend: other.0, service: list, last_used: NOW - 60 }));
    let walk = shop.at_tc("198.51.100.7:40000");
    assert_ne!(verdict(&walk).backend, by_slot);
    assert!(
        step(&walk, "affinity").ends_with("(this node), last used 1m ago"),
        "{}",
        step(&walk, "affinity")
    );
    assert!(step(&walk, "backend").contains("the client's affinity"));
    assert_eq!(walk.concern.v4.affinities, [client]);

    shop.0.affinities[0].1.last_used = NOW - 601;
    let walk = shop.at_tc("198.51.100.7:40000");
    assert!(step(&walk, "backend").contains("a new slot after an affinity that has ended"));
}

#[test]
fn all_candidates_are_named_with_their_share() {
    let mut shop = Shop::new();
    let pods = [shop.backend("10.1.0.1", HERE, 0), shop.backend("10.1.0.2", WELL, 0)];
    let list = shop.list(&[pods[0], pods[1], pods[1], pods[1]]);
    let walk = shop.frontend(list, 0).at_tc("198.51.100.7:40000");
    assert_eq!(step(&walk, "list"), "list: 2 endpoints, random, 4 slots");
    assert_eq!(step(&walk, "candidates"), "10.1.0.1:8080 p=0.25, 10.1.0.2:8080 p=0.75");
}

#[test]
fn snat_leaves_by_its_hop_or_asks_the_kernel() {
    let mut shop = Shop::new();
    let pod = shop.backend("10.1.0.1", WELL, 0);
    let list = shop.list(&[pod]);
    let mut shop = shop.frontend(list, 0);
    let walk = shop.at_tc("198.51.100.7:40000");
    let asked = verdict(&walk);
    assert_eq!(asked.reason, Reason::SentSnat);
    assert!(asked.allows(Reason::NoWay) && !asked.allows(Reason::ServedLocal));

    let hop = Hop {
        source: v4("10.0.0.1"),
        backend: pod.0,
        asked: NOW,
        device: DEVICE,
        mtu: 1500,
        flags: HOP_NEIGHBOUR | HOP_XDP,
        ..Hop::default()
    };
    shop.0.hops[pod.id() as usize] = hop;
    let walk = shop.at_tc("198.51.100.7:40000");
    assert_eq!(ends(&walk), (Reason::SentSnat, ""));
    assert!(verdict(&walk).or.is_empty());
    let path = step(&walk, "path");
    assert!(path.starts_with("snat: from 10.0.0.1:6") && path.ends_with("device 2, MTU 1500"), "{path}");

    // A device without XDP is TC's.
    shop.0.hops[pod.id() as usize] = Hop { flags: HOP_NEIGHBOUR, device: 3, ..hop };
    let at_xdp = shop.walk(Program::XdpIngress, "198.51.100.7:40000", "192.0.2.1:80", SYN);
    assert_eq!(ends(&at_xdp).0, Reason::HandedToTc);
    assert_eq!(ends(&shop.at_tc("198.51.100.7:40000")).0, Reason::SentSnat);
}

#[test]
fn a_port_of_a_connection_of_the_kernel_is_its_own_during_a_mode_change() {
    let own = v4("10.0.0.1");
    let key = FlowKey {
        source: v4("10.1.0.1"),
        source_port: 8080_u16.to_be(),
        destination: own,
        destination_port: 61000_u16.to_be(),
        protocol: 6,
        ..FlowKey::default()
    };
    for (share, expected, looked_at) in
        [(SHARE_ALONE, Reason::SentSnat, vec![]), (SHARE_NEWER, Reason::SnatPorts, vec![key])]
    {
        let mut shop = Shop::of(&[(global::SNAT_PORT_COUNT, 1), (global::SHARE, share)]);
        let pod = shop.backend("10.1.0.1", WELL, 0);
        shop.0.hops[pod.id() as usize] =
            Hop { source: own, backend: pod.0, asked: NOW, device: DEVICE, mtu: 1500, ..Hop::default() };
        shop.0.node_flows.push((key, NOW));
        let list = shop.list(&[pod]);
        let mut walk = shop.frontend(list, 0).at_tc("198.51.100.7:40000");
        walk.concern.v4.node_flows.dedup();
        assert_eq!((ends(&walk).0, walk.concern.v4.node_flows), (expected, looked_at));
    }
}

#[test]
fn a_node_without_a_port_has_looked_at_each_whenever_the_programs_searched_last() {
    const FIRST: u16 = 61000;
    let mut shop = Shop::of(&[(global::SNAT_PORT_COUNT, 64)]);
    let pod = shop.backend("10.1.0.1", WELL, 0);
    let own = v4("10.0.0.1");
    shop.0.hops[pod.id() as usize] =
        Hop { source: own, backend: pod.0, asked: NOW, device: DEVICE, mtu: 1500, ..Hop::default() };
    let key = |port: u16| FlowKey {
        source: v4("10.1.0.1"),
        source_port: 8080_u16.to_be(),
        destination: own,
        destination_port: port.to_be(),
        protocol: 6,
        ..FlowKey::default()
    };
    let flow = Flow {
        source: v4("192.0.2.1"),
        source_port: HTTP,
        destination: v4("198.51.100.9"),
        destination_port: 40000_u16.to_be(),
        last_seen: NOW,
        state: FLOW_ESTABLISHED,
        ..Flow::default()
    };
    shop.0.flows = (0..64).map(|port| (key(FIRST + port), flow)).collect();
    let list = shop.list(&[pod]);
    let mut shop = shop.frontend(list, 0);
    let searched = |at: u32| u64::from(flow_hash(&key(0))) << 32 | u64::from(at);
    for at in [NOW * 1000, NOW * 1000 - 99, NOW * 1000 - 100, 0] {
        shop.0.snat_full = searched(at);
        let walk = shop.at_tc("198.51.100.7:40000");
        assert_eq!(ends(&walk).0, Reason::SnatPorts, "searched at {at}");
        // A dry run finds free what the walk did not look at.
        for port in 0..64 {
            assert!(walk.concern.v4.flows.contains(&key(FIRST + port)), "port {port}, searched at {at}");
        }
    }
    shop.0.flows.pop();
    assert_eq!(ends(&shop.at_tc("198.51.100.7:40000")).0, Reason::SentSnat);
}

#[test]
fn dsr_sends_by_the_slot_and_tells_what_does_not_fit() {
    let mut shop = Shop::new();
    let (way, narrow) =
        (shop.0.add_way("10.0.0.2", 1500, WAY_IPV4), shop.0.add_way("10.0.0.3", 50, WAY_IPV4));
    let pods = [shop.backend("10.1.0.1", WELL, way), shop.backend("10.1.0.2", WELL, narrow)];
    let near = shop.list(&pods[..1]);
    let far = shop.list(&pods[1..]);
    let nowhere = shop.backend("10.1.0.3", WELL, 0);
    let nowhere = shop.list(&[nowhere]);
    let walk = |service| {
        let mut tables = Shop(Fixture::new(&[]));
        std::mem::swap(&mut tables.0, &mut shop.0);
        let mut tables = tables.frontend(service, FRONTEND_DSR);
        let walk = tables.walk(Program::XdpIngress, "198.51.100.7:40000", "192.0.2.1:80", ACK);
        tables.0.frontends.clear();
        std::mem::swap(&mut tables.0, &mut shop.0);
        walk
    };
    let [near, far, nowhere] = [near, far, nowhere].map(walk);
    assert_eq!(ends(&near), (Reason::SentDsr, ""));
    assert_eq!(step(&near, "path"), "dsr: encapsulated (IPIP) for node 10.0.0.2, 20 bytes more");
    assert!(step(&near, "flow").starts_with("not asked") && near.concern.v4.flows.is_empty());
    assert_eq!(ends(&far), (Reason::TooBig, "60 bytes with the outer header do not fit the MTU of 50"));
    assert_eq!(ends(&nowhere), (Reason::NoWay, "there is no route to the node of 10.1.0.3:8080"));
}

#[test]
fn an_older_connection_goes_by_the_table_before() {
    for (flags, forwarding) in
        [(FRONTEND_DSR, "dsr"), (FRONTEND_DSR_ENDS, "snat (dsr for older connections)")]
    {
        let mut shop = Shop::new();
        let way = shop.0.add_way("10.0.0.2", 1500, WAY_IPV4);
        let [old, new] = ["10.1.0.1", "10.1.0.2"].map(|address| shop.backend(address, WELL, way));
        let list = shop.list_after(old, new);
        let shop = shop.frontend(list, flags);
        let walk = |flags| shop.walk(Program::XdpIngress, "198.51.100.7:40000", "192.0.2.1:80", flags);
        let older = walk(ACK);
        assert_eq!(ends(&older), (Reason::SentDsr, ""));
        let backend = step(&older, "backend");
        assert!(
            backend.starts_with("10.1.0.1:8080")
                && backend.contains("its slot of the table that the list had before")
        );
        assert!(step(&older, "frontend").ends_with(forwarding), "{}", step(&older, "frontend"));
        assert!(step(&walk(SYN), "backend").starts_with("10.1.0.2:8080"));
    }
}

#[test]
fn a_pod_reaches_itself_by_a_hairpin_and_others_by_the_stack() {
    let mut shop = Shop::new();
    let pod = shop.backend("10.1.0.1", HERE, 0);
    let list = shop.list(&[pod]);
    let shop = shop.frontend(list, 0);
    let from = |source: &str| shop.walk(Program::TcPodIn, source, "192.0.2.1:80", SYN);
    assert_eq!(ends(&from("10.1.0.1:40000")).0, Reason::Hairpin);
    assert_eq!(ends(&from("10.1.0.2:40000")).0, Reason::ServedPod);
    assert!(step(&from("10.1.0.2:40000"), "frontend").ends_with("LoadBalancer, internal, snat"));
}

#[test]
fn replies_that_another_connection_expects_get_another_port() {
    let mut shop = Shop::new();
    let pod = shop.backend("10.1.0.1", HERE, 0);
    let list = shop.list(&[pod]);
    let reply = key("10.1.0.1:8080", "198.51.100.7:40000");
    let other = Flow {
        source: v4("192.0.2.2"),
        source_port: HTTP,
        last_seen: NOW,
        state: FLOW_ESTABLISHED,
        ..Flow::default()
    };
    shop.0.flows.push((reply, other));
    let walk = shop.frontend(list, 0).at_tc("198.51.100.7:40000");
    assert_eq!(ends(&walk).0, Reason::ServedLocal);
    let port = step(&walk, "port");
    assert!(port.ends_with("its own belongs to a connection to 192.0.2.2:80"), "{port}");
}

#[test]
fn a_mode_change_leaves_connections_to_their_mode() {
    let ends_of = |share: u32, flags: u8| {
        let mut shop = Shop::of(&[(global::SHARE, share)]);
        let pod = shop.backend("10.1.0.1", HERE, 0);
        let list = shop.list(&[pod]);
        let walk =
            shop.frontend(list, 0).walk(Program::TcIngress, "198.51.100.7:40000", "192.0.2.1:80", flags);
        ends(&walk).0
    };
    assert_eq!(ends_of(SHARE_NEWER, SYN), Reason::ServedLocal);
    assert_eq!(ends_of(SHARE_NEWER, ACK), Reason::NotOurs);
    assert_eq!(ends_of(SHARE_OLDER, SYN), Reason::NotOurs);
}

#[test]
fn a_node_port_leaves_the_nodes_own_connections_alone() {
    let mut shop = Shop::new();
    let pod = shop.backend("10.1.0.1", HERE, 0);
    let list = shop.list(&[pod]);
    let port = 30080_u16.to_be();
    shop.0.add_node_port(port);
    let key = FrontendKey { address: v4("10.0.0.1"), port, protocol: 6, scope: SCOPE_EXTERNAL };
    let flags = FRONTEND_KIND_NODE_PORT << FRONTEND_KIND_SHIFT;
    shop.0
        .frontends
        .push((key, Frontend { service: list, cluster_service: list, flags, ..Frontend::default() }));
    let ends_of = |flags| ends(&shop.walk(Program::TcIngress, "198.51.100.7:443", "10.0.0.1:30080", flags)).0;
    assert_eq!(ends_of(SYN), Reason::ServedLocal);
    assert_eq!(ends_of(SYN | ACK), Reason::NotOurs, "the answer to a connection from the node's port 30080");
    assert_eq!(ends_of(FIN | ACK), Reason::ServedLocal);
}

#[test]
fn ipv6_walks_the_same_way() {
    let v6 = |text: &str| Addr6::from(text.parse::<Ipv6Addr>().unwrap());
    let mut tables = Fixture::<Addr6>::new(&[]);
    tables.add_vip(v6("2001:db8::1"));
    let pod = tables.add_backend((v6("fd00::1"), 8080_u16.to_be()), HERE, 0);
    let service = tables.add_list(&[Slot::settled_on(pod)], 0);
    let key = FrontendKey { address: v6("2001:db8::1"), port: HTTP, protocol: 6, scope: SCOPE_EXTERNAL };
    tables
        .frontends
        .push((key, Frontend { service, cluster_service: service, flags: BALANCER, ..Frontend::default() }));
    let frame = tcp(socket("[2001:db8:9::7]:40000"), socket("[2001:db8::1]:80"), SYN);
    let walk = walk_family(&tables, Program::XdpIngress, DEVICE, &frame, Past::Known);
    assert_eq!(verdict(&walk).backend, Some(socket("[fd00::1]:8080")));
    assert_eq!(walk.steps[1].maps, "FRONTENDS6");
}

#[test]
fn frames_that_the_walk_does_not_follow_are_named() {
    let shop = Shop::new();
    let end = |change: fn(&mut Vec<u8>)| {
        let mut frame = tcp(socket("198.51.100.7:1"), socket("192.0.2.1:80"), SYN);
        change(&mut frame);
        walk_family(&shop.0, Program::TcIngress, DEVICE, &frame, Past::Known).end
    };
    assert_eq!(end(|frame| frame[23] = 1), End::NotWalked("ICMP"));
    assert_eq!(end(|frame| frame[20] = 0x20), End::NotWalked("a fragment"));
    let short = end(|frame| frame.truncate(30));
    assert!(
        matches!(&short, End::Verdict(verdict) if verdict.why == "it has no whole IP header"),
        "{short:?}"
    );
    let cut = end(|frame| frame.truncate(40));
    assert!(
        matches!(&cut, End::Verdict(verdict) if verdict.why == "its headers don't fit the frame"),
        "{cut:?}"
    );
}
