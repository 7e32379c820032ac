//! Walks of calls through tables in memory.

use std::net::SocketAddr;

use proxy_common::affinity::{AFFINITY_NAMESPACE, Affinity, AffinityKey};
use proxy_common::config::global;
use proxy_common::frontend::{FRONTEND_AFFINITY, FRONTEND_NODE_ONLY, FRONTEND_SOURCE_RANGES};
use proxy_common::selection::SERVICE_ELSEWHERE;
use proxy_common::verdict::Reason;
use proxy_common::vip::VIP_EXTERNAL;

use super::call::{Call, Caller, walk_call_of};
use super::fixture::{HERE, NOW, Shop, WELL, socket, v4};
use super::step::{End, Walk};

const TCP: u8 = 6;

fn walk(shop: &Shop, caller: Caller, to: &str) -> Walk {
    let call = Call { caller, to: socket(to), protocol: TCP };
    let address = to.split(':').next().map(v4).unwrap();
    walk_call_of(&shop.0, call, address)
}

fn end(walk: &Walk) -> (Reason, Option<SocketAddr>, &str) {
    match &walk.end {
        End::Verdict(verdict) => (verdict.reason, verdict.backend, &verdict.why),
        End::NotWalked(kind) => panic!("not walked: {kind}"),
    }
}

fn step<'a>(walk: &'a Walk, name: &str) -> &'a str {
    walk.steps.iter().find(|step| step.step == name).map_or("", |step| step.found.as_str())
}

#[test]
fn a_call_gets_the_only_backend_or_one_of_the_list() {
    let mut shop = Shop::new();
    let pods = [shop.backend("10.1.0.1", WELL, 0), shop.backend("10.1.0.2", HERE, 0)];
    let one = shop.list(&pods[..1]);
    let shop_of_one = shop.frontend(one, 0);
    let found = walk(&shop_of_one, Caller::Pod, "192.0.2.1:80");
    assert_eq!(end(&found), (Reason::Connected, Some(socket("10.1.0.1:8080")), ""));

    let mut shop = Shop::new();
    let pods = [shop.backend("10.1.0.1", WELL, 0), shop.backend("10.1.0.2", HERE, 0)];
    let both = shop.list(&pods);
    let found = walk(&shop.frontend(both, 0), Caller::Pod, "192.0.2.1:80");
    assert_eq!(end(&found), (Reason::Connected, None, ""));
    assert_eq!(step(&found, "backend"), "one of the list, at random");
    assert_eq!(step(&found, "candidates"), "10.1.0.1:8080 p=0.50, 10.1.0.2:8080 p=0.50");
}

#[test]
fn a_call_without_a_backend_fails_with_its_error() {
    let end_of = |flags: u8| {
        let mut shop = Shop::new();
        let list = shop.0.add_list(&[], flags);
        let found = walk(&shop.frontend(list, 0), Caller::Node, "192.0.2.1:80");
        let (reason, _, why) = end(&found);
        (reason, why.to_owned())
    };
    let why = "shop/web-1:http has no usable endpoint; connect fails with ECONNREFUSED";
    assert_eq!(end_of(0), (Reason::NoEndpoint, why.to_owned()));
    let (reason, why) = end_of(SERVICE_ELSEWHERE);
    assert_eq!(reason, Reason::NoLocalEndpoint);
    assert!(why.ends_with("on other nodes; connect fails with EHOSTUNREACH"), "{why}");
}

#[test]
fn a_port_without_a_frontend_is_refused_if_it_is_to_be() {
    let reason = |constants: &[(&'static str, u32)]| {
        let mut shop = Shop::of(constants);
        let list = shop.list(&[]);
        let found = walk(&shop.frontend(list, 0), Caller::Pod, "192.0.2.1:81");
        assert!(step(&found, "frontend").starts_with("none for 81/TCP: 192.0.2.1 has 80/TCP"));
        end(&found).0
    };
    assert_eq!(reason(&[]), Reason::NotOurs);
    assert_eq!(reason(&[(global::REJECT_UNKNOWN, VIP_EXTERNAL)]), Reason::UnknownPort);
}

#[test]
fn the_caller_decides_where_its_address_does_not() {
    let reason = |constants: &[(&'static str, u32)], flags: u32, caller: Caller| {
        let mut shop = Shop::of(constants);
        let pod = shop.backend("10.1.0.1", WELL, 0);
        let list = shop.list(&[pod]);
        shop.0.ranges.push((list, "192.0.2.0/24".parse().unwrap()));
        end(&walk(&shop.frontend(list, flags), caller, "192.0.2.1:80")).0
    };
    let both = |constants, flags| [Caller::Node, Caller::Pod].map(|caller| reason(constants, flags, caller));
    assert_eq!(both(&[], 0), [Reason::Connected; 2]);
    assert_eq!(both(&[], FRONTEND_NODE_ONLY), [Reason::Connected, Reason::NotOurs]);
    assert_eq!(both(&[], FRONTEND_SOURCE_RANGES), [Reason::Connected, Reason::NotOurs]);
    assert_eq!(both(&[(global::SOCKET_NODE_ONLY, 1)], 0), [Reason::Connected, Reason::NotOurs]);
}

#[test]
fn the_nodes_processes_have_one_affinity() {
    let mut shop = Shop::new();
    shop.0.node_namespace = u64::from_ne_bytes([7, 0, 0, 0, 0, 0, 0, 0]);
    let pods = [shop.backend("10.1.0.1", WELL, 0), shop.backend("10.1.0.2", HERE, 0)];
    let list = shop.list(&pods);
    let mut shop = shop.frontend(list, FRONTEND_AFFINITY);
    let client = AffinityKey { client: v4("7.0.0.0"), service: list, kind: AFFINITY_NAMESPACE };
    for (pod, address) in pods.iter().zip(["10.1.0.1:8080", "10.1.0.2:8080"]) {
        shop.0.affinities = vec![(client, Affinity { backend: pod.0, service: list, last_used: NOW })];
        let found = walk(&shop, Caller::Node, "192.0.2.1:80");
        assert_eq!(end(&found), (Reason::Connected, Some(socket(address)), ""));
    }
    assert_eq!(end(&walk(&shop, Caller::Pod, "192.0.2.1:80")), (Reason::Connected, None, ""));
}
