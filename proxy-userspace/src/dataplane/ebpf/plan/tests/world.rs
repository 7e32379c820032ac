//! Desired states for the tests, and the expected content of the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use proxy_common::backend::{BACKEND_EXISTS, BACKEND_LOCAL, BACKEND_READY};
use proxy_common::frontend::{FRONTEND_DSR, FRONTEND_SOURCE_RANGES};
use proxy_common::selection::{BackendRef, HINT_MEMBER, SERVICE_ELSEWHERE, SERVICE_VACANT};
use proxy_common::source_range::{CLUSTER, NEAR};
use proxy_common::way::WAY_VALID;

use super::kernel::FakeKernel;
use crate::dataplane::ebpf::plan::backends::{hint_losers, hint_of, pod_hint_of};
use crate::dataplane::ebpf::plan::services::name_of;
use crate::dataplane::ebpf::plan::{BackendEntry, BackendId, RangeAt, frontends};
use crate::model::{
    Algorithm, Desired, Endpoint, Family, Forwarding, Frontend, FrontendKind, List, PortKey, Protocol, Scope,
    ServiceKey, ServicePort,
};

/// The key of service number `n`.
pub fn key(n: u8, family: Family) -> PortKey {
    let service = ServiceKey { namespace: "default".to_owned(), name: format!("svc{n}") };
    PortKey { service, port: String::new(), family }
}

/// Endpoint number `n`.
pub fn address(n: u8, family: Family) -> SocketAddr {
    match family {
        Family::V4 => SocketAddr::from(([10, 0, 0, n], 8080)),
        Family::V6 => SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, n.into()], 8080)),
    }
}

/// An endpoint on node `n`; node 0 is this one.
pub fn endpoint(node: u8, ready: bool) -> Endpoint {
    let name = format!("node{node}");
    Endpoint { node: Some(name.into()), local: node == 0, ready, serving: ready, terminating: !ready }
}

/// A port of service `n` with these endpoints: (number, node, ready). Ready ones are in the lists.
pub fn port(n: u8, family: Family, endpoints: &[(u8, u8, bool)]) -> ServicePort {
    let endpoints: BTreeMap<_, _> = endpoints
        .iter()
        .map(|(number, node, ready)| (address(*number, family), endpoint(*node, *ready)))
        .collect();
    let list = |local_only: bool| {
        endpoints.iter().filter(|(_, e)| e.ready && (!local_only || e.local)).map(|(a, _)| *a).collect()
    };
    let (cluster, local): (BTreeSet<_>, BTreeSet<_>) = (list(false), list(true));
    let frontend = |scope| Frontend {
        address: vip(n, family),
        scope,
        kind: FrontendKind::LoadBalancer,
        list: List::Cluster,
    };
    ServicePort {
        protocol: Protocol::Tcp,
        frontends: BTreeSet::from([frontend(Scope::Internal), frontend(Scope::External)]),
        forwarding: Forwarding::Snat,
        algorithm: Algorithm::Random,
        scheduler: None,
        affinity_seconds: 0,
        source_ranges: None,
        has_any: !cluster.is_empty(),
        cluster: Some(cluster),
        local: Some(local),
        endpoints,
    }
}

/// The address of a service, number `n`.
fn vip(n: u8, family: Family) -> SocketAddr {
    match family {
        Family::V4 => SocketAddr::from(([192, 0, 2, n], 80)),
        Family::V6 => SocketAddr::from(([0x2001, 0xdb8, 1, 0, 0, 0, 0, n.into()], 80)),
    }
}

/// Gives the port address number `n`.
pub fn reached_at(n: u8, mut port: ServicePort) -> ServicePort {
    let moved = |frontend: Frontend| {
        let address = vip(n, Family::of(frontend.address.ip()));
        Frontend { address, ..frontend }
    };
    port.frontends = port.frontends.into_iter().map(moved).collect();
    port
}

/// Makes the port's external frontends follow policy Local.
pub fn local_policy(mut port: ServicePort) -> ServicePort {
    let local = |frontend: Frontend| match frontend.scope {
        Scope::External | Scope::ExternalInside | Scope::Encapsulated => {
            Frontend { list: List::Local, ..frontend }
        }
        Scope::Internal => frontend,
    };
    port.frontends = port.frontends.into_iter().map(local).collect();
    port
}

/// Source range number `n` of a family; some are inside others.
pub fn range(n: u8, family: Family) -> IpNet {
    let ranges = match family {
        Family::V4 => ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "192.0.2.7/32"],
        Family::V6 => ["::/0", "fd00::/8", "fd00:1::/32", "2001:db8::7/128"],
    };
    ranges[usize::from(n) % 4].parse().unwrap()
}

/// Closes the port's load balancer frontends to all but these source ranges.
pub fn closed(mut port: ServicePort, ranges: impl IntoIterator<Item = IpNet>) -> ServicePort {
    port.source_ranges = Some(ranges.into_iter().collect());
    port
}

/// Makes the port one with Direct Server Return.
pub fn dsr(mut port: ServicePort) -> ServicePort {
    port.forwarding = Forwarding::Dsr;
    port.algorithm = Algorithm::Maglev(13);
    port
}

/// A desired state of these ports, with nodes 0 to 2 each of both families.
pub fn desired(ports: impl IntoIterator<Item = (PortKey, ServicePort)>) -> Desired {
    let addresses = |n: u8| {
        BTreeSet::from([
            IpAddr::from([172, 16, 0, n + 1]),
            IpAddr::from([0x2001, 0xdb8, 2, 0, 0, 0, 0, u16::from(n) + 1]),
        ])
    };
    let nodes = (0..3).map(|n| (format!("node{n}"), addresses(n))).collect();
    Desired { ports: ports.into_iter().collect(), nodes, node_name: "node0".to_owned(), ..Desired::default() }
}

/// Asserts that the kernel serves exactly `desired`.
pub fn assert_serves(kernel: &FakeKernel, desired: &Desired) {
    let mut frontends = 0;
    let of = |service, nets: &BTreeSet<IpNet>| {
        nets.iter().map(move |net| RangeAt { service, net: *net }).collect()
    };
    let mut ranges: BTreeSet<RangeAt> = of(CLUSTER, &desired.cluster_sources);
    ranges.append(&mut of(NEAR, &desired.own_sources));
    for (key, port) in &desired.ports {
        let id = |list: List| {
            let name = name_of(key, list);
            kernel.names.iter().find(|(_, text)| text.text() == Some(&name)).map(|(id, _)| *id)
        };
        let (cluster, local) = (id(List::Cluster), id(List::Local));
        assert_list(kernel, key, port, List::Cluster, cluster.expect("the Cluster list has an id"));
        assert_list(kernel, key, port, List::Local, local.expect("the Local list has an id"));
        for frontend in &port.frontends {
            let value = kernel.frontends[&frontends::at(port, frontend)];
            let wanted = if frontend.list == List::Local { local } else { cluster };
            assert_eq!((Some(value.service), Some(value.cluster_service)), (wanted, cluster));
            let is_dsr = port.forwarding == Forwarding::Dsr
                && frontend.scope != Scope::Internal
                && frontend.kind != FrontendKind::ClusterIp;
            assert_eq!(value.flags & FRONTEND_DSR != 0, is_dsr);
            let nets = port.source_ranges.iter().flatten();
            let is_closed = port.source_ranges.is_some() && frontend.kind == FrontendKind::LoadBalancer;
            assert_eq!(value.flags & FRONTEND_SOURCE_RANGES != 0, is_closed);
            ranges
                .extend(nets.filter(|_| is_closed).map(|net| RangeAt { service: value.service, net: *net }));
            frontends += 1;
        }
        assert_hints(kernel, key, port, [cluster, local]);
    }
    assert_eq!(kernel.frontends.len(), frontends, "a frontend is left over");
    assert_eq!(kernel.ranges, ranges);
    assert_backends(kernel, desired);
}

fn assert_list(kernel: &FakeKernel, key: &PortKey, port: &ServicePort, list: List, id: u32) {
    let members: Vec<SocketAddr> = port.members(list).copied().collect();
    let slots = kernel.slice(id);
    let owner = |reference: BackendRef| {
        let entry = backend(kernel, key.family, reference).expect("the current owner exists");
        entry.address
    };
    let named = slots.iter().map(|slot| slot.current()).filter(|current| !current.is_none());
    let owners: BTreeSet<_> = named.map(owner).collect();
    assert_eq!(owners, members.iter().copied().collect(), "{key} {list:?}");
    let length = match (members.len(), port.algorithm) {
        (0, _) => 0,
        (_, Algorithm::Maglev(length)) => length as usize,
        (count, Algorithm::Random) => count,
    };
    let flags = kernel.services.get(&id).map_or(0, |entry| entry.flags());
    assert!(slots.len() == length || length == 0 && flags & SERVICE_VACANT != 0);
    let elsewhere = flags & SERVICE_ELSEWHERE != 0;
    assert_eq!(elsewhere, members.is_empty() && port.has_any);
}

fn assert_hints(kernel: &FakeKernel, key: &PortKey, port: &ServicePort, ids: [Option<u32>; 2]) {
    let losers = hint_losers(port.endpoints.keys());
    for (list, id) in [List::Cluster, List::Local].into_iter().zip(ids) {
        let Some(id) = id else { continue };
        let found: BTreeMap<u32, SocketAddr> = kernel
            .hints
            .iter()
            .filter(|((service, _), _)| *service == id)
            .map(|((_, hint), reference)| {
                (*hint, backend(kernel, key.family, *reference).expect("a hinted backend exists").address)
            })
            .collect();
        let is_wanted =
            |(_, endpoint): &(&SocketAddr, &Endpoint)| port.forwarding == Forwarding::Dsr && endpoint.local;
        let local = || port.endpoints.iter().filter(is_wanted).map(|(address, _)| *address);
        let hinted = local().filter(|address| !losers.contains(address));
        let hinted = hinted.map(|address| (hint_of(address), address));
        // The lowest endpoint of a pod wins: it is inserted last here.
        let pods: BTreeMap<u32, SocketAddr> =
            local().rev().map(|address| (pod_hint_of(address.ip()), address)).collect();
        let ids: BTreeMap<SocketAddr, u32> = kernel
            .backends
            .iter()
            .filter(|(id, entry)| id.family == key.family && entry.flags & BACKEND_EXISTS != 0)
            .map(|(id, entry)| (entry.address, id.id))
            .collect();
        let members = port.members(list).filter(|_| port.affinity_seconds > 0);
        let members = members.map(|address| (HINT_MEMBER | ids[address], *address));
        let wanted: BTreeMap<_, _> = hinted.chain(pods).chain(members).collect();
        assert_eq!(found, wanted, "{key}");
    }
}

fn assert_backends(kernel: &FakeKernel, desired: &Desired) {
    let mut wanted: BTreeMap<SocketAddr, Vec<&Endpoint>> = BTreeMap::new();
    for port in desired.ports.values() {
        for (address, endpoint) in &port.endpoints {
            wanted.entry(*address).or_default().push(endpoint);
        }
    }
    let living = kernel.backends.values().filter(|entry| entry.flags & BACKEND_EXISTS != 0);
    // A backend kept for connections with the former destination counts once, as new connections
    // reach it.
    let (leaving, open): (Vec<&BackendEntry>, Vec<_>) =
        living.partition(|entry| entry.flags & BACKEND_READY == 0);
    let living: BTreeMap<SocketAddr, &BackendEntry> =
        leaving.into_iter().chain(open).map(|entry| (entry.address, entry)).collect();
    assert_eq!(living.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
    for (address, views) in wanted {
        let entry = living[&address];
        let is_local = views.iter().any(|view| view.local);
        assert_eq!(entry.flags & BACKEND_LOCAL != 0, is_local);
        assert_eq!(entry.flags & BACKEND_READY != 0, views.iter().any(|view| view.ready));
        if !is_local {
            let node = &desired.nodes[&**views[0].node.as_ref().unwrap()];
            let way = kernel.ways[&entry.way];
            assert_ne!(way.flags & WAY_VALID, 0);
            let target = proxy_common::addr::unmapped(way.target);
            assert!(node.contains(&target));
            assert_eq!(target.is_ipv4(), address.is_ipv4());
        }
    }
}

/// Returns the entry of a reference, unless the id has another generation.
pub fn backend(kernel: &FakeKernel, family: Family, reference: BackendRef) -> Option<&BackendEntry> {
    let entry = kernel.backends.get(&BackendId { family, id: reference.id() })?;
    (entry.generation == reference.generation() && entry.flags & BACKEND_EXISTS != 0).then_some(entry)
}
