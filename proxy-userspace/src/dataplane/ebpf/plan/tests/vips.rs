//! Addresses of services follow the frontends and this node's devices.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use proxy_common::vip::{VIP_CLUSTER_IP, VIP_EXTERNAL, VIP_INSIDE_ONLY, VIP_ON_NODE};

use super::kernel::{CAPACITIES, FakeKernel};
use super::world::{desired, key, port};
use crate::dataplane::ebpf::plan::{Change, Found, Plan};
use crate::model::{Desired, Dirty, Family, Frontend, FrontendKind, Scope, ServicePort};
use crate::node::Topology;

const NOW: Duration = Duration::from_secs(1000);

/// A node with these addresses on its devices.
pub fn topology(addresses: &[IpAddr]) -> Topology {
    Topology { addresses: addresses.iter().copied().collect(), ..Topology::default() }
}

/// This node's own address.
pub fn own() -> IpAddr {
    IpAddr::from([172, 16, 0, 1])
}

/// Returns the expected content of VIPS for `desired` on a node with these addresses: addresses of nodes
/// are marked, and there is no NodePort.
pub fn wanted(desired: &Desired, own: &[IpAddr]) -> BTreeMap<IpAddr, u32> {
    let nodes: BTreeSet<IpAddr> = desired.nodes.values().flatten().chain(own).copied().collect();
    let mut wanted = BTreeMap::new();
    for frontend in desired.ports.values().flat_map(|port| &port.frontends) {
        let bit = match frontend.kind {
            FrontendKind::ClusterIp => VIP_CLUSTER_IP,
            FrontendKind::ExternalIp | FrontendKind::LoadBalancer => VIP_EXTERNAL,
            FrontendKind::NodePort => continue,
        };
        if nodes.contains(&frontend.address.ip()) {
            wanted.insert(frontend.address.ip(), VIP_ON_NODE);
        } else {
            let bits = wanted.entry(frontend.address.ip()).or_insert(VIP_INSIDE_ONLY);
            *bits |= bit;
            if frontend.scope == Scope::External {
                *bits &= !VIP_INSIDE_ONLY;
            }
        }
    }
    wanted
}

fn of_kind(n: u8, family: Family, kind: FrontendKind) -> ServicePort {
    let port = port(n, family, &[(1, 0, true)]);
    let frontends = port.frontends.iter().map(|frontend| Frontend { kind, ..*frontend }).collect();
    ServicePort { frontends, ..port }
}

/// One service of each kind of address, of both families.
fn state() -> Desired {
    let kinds = [
        FrontendKind::ClusterIp,
        FrontendKind::ExternalIp,
        FrontendKind::LoadBalancer,
        FrontendKind::NodePort,
    ];
    let services = (0..).zip(kinds).flat_map(|(n, kind)| {
        [Family::V4, Family::V6].map(|family| (key(n, family), of_kind(n, family, kind)))
    });
    desired(services)
}

struct Scene {
    plan: Plan,
    kernel: FakeKernel,
    state: Desired,
}

impl Scene {
    /// A node that serves the state, and knows its own address.
    fn new() -> Self {
        let plan = Plan::adopt(CAPACITIES, Found::default(), NOW);
        let mut scene = Self { plan, kernel: FakeKernel::default(), state: state() };
        scene.has_addresses(&[own()]);
        scene.sync(&Dirty::default(), Vec::new());
        scene
    }
    fn has_addresses(&mut self, addresses: &[IpAddr]) {
        self.kernel.begin(NOW, Vec::new());
        let devices = BTreeSet::new();
        let report = self.plan.set_topology(&topology(addresses), &devices, NOW, &mut self.kernel);
        assert!(report.is_complete(), "{report:?}");
    }
    fn sync(&mut self, dirty: &Dirty, refuse: Vec<usize>) -> bool {
        self.kernel.begin(NOW, refuse);
        self.plan.sync(&self.state, dirty, NOW, &mut self.kernel).is_complete()
    }
    fn drop_service(&mut self, n: u8) -> Dirty {
        let keys = [Family::V4, Family::V6].map(|family| key(n, family));
        for key in &keys {
            self.state.ports.remove(key);
        }
        Dirty { ports: keys.into(), ..Dirty::default() }
    }
    #[track_caller]
    fn holds(&self, own: &[IpAddr]) {
        assert_eq!(self.kernel.vips, wanted(&self.state, own));
    }
}

#[test]
fn every_service_address_but_a_node_port_s_is_known_by_its_kind() {
    let scene = Scene::new();
    scene.holds(&[own()]);
    assert_eq!(scene.kernel.vips.len(), 6);
    let written = |change: &Change| matches!(change, Change::Vip(..));
    let first = scene.kernel.log.iter().position(written).unwrap();
    assert!(scene.kernel.log[first..].iter().all(written), "last of all: {:?}", scene.kernel.log);
}

#[test]
fn nothing_is_a_service_address_while_this_node_s_own_are_not_known() {
    let plan = Plan::adopt(CAPACITIES, Found::default(), NOW);
    let mut scene = Scene { plan, kernel: FakeKernel::default(), state: state() };
    scene.sync(&Dirty::default(), Vec::new());
    assert_eq!(scene.kernel.vips, BTreeMap::new());
    scene.has_addresses(&[own()]);
    scene.holds(&[own()]);
}

#[test]
fn an_address_on_a_device_belongs_to_this_node_at_once_until_it_leaves() {
    let mut scene = Scene::new();
    let address = IpAddr::from([192, 0, 2, 2]);
    assert_ne!(scene.kernel.vips[&address], VIP_ON_NODE);
    scene.has_addresses(&[own(), address]);
    assert_eq!(scene.kernel.vips[&address], VIP_ON_NODE);
    scene.holds(&[own(), address]);
    scene.has_addresses(&[own()]);
    scene.holds(&[own()]);
}

#[test]
fn an_address_of_another_node_is_no_service_s() {
    let mut scene = Scene::new();
    let address = IpAddr::from([192, 0, 2, 2]);
    scene.state.nodes.entry("node2".to_owned()).or_default().insert(address);
    scene.sync(&Dirty { nodes: true, ..Dirty::default() }, Vec::new());
    assert_eq!(scene.kernel.vips[&address], VIP_ON_NODE);
    scene.holds(&[own()]);
}

#[test]
fn an_address_is_known_as_long_as_any_frontend_has_it() {
    let mut scene = Scene::new();
    let shared = IpAddr::from([192, 0, 2, 1]);
    let other = scene.state.ports[&key(0, Family::V4)].clone();
    let move_to = |frontend: &Frontend| Frontend { address: (shared, 81).into(), ..*frontend };
    let frontends = other.frontends.iter().map(move_to).collect();
    scene.state.ports.insert(key(0, Family::V4), ServicePort { frontends, ..other });
    scene.sync(&Dirty { ports: [key(0, Family::V4)].into(), ..Dirty::default() }, Vec::new());
    assert_eq!(scene.kernel.vips.get(&shared), Some(&(VIP_CLUSTER_IP | VIP_EXTERNAL)));
    scene.holds(&[own()]);
    let dirty = scene.drop_service(1);
    scene.sync(&dirty, Vec::new());
    assert_eq!(scene.kernel.vips.get(&shared), Some(&VIP_CLUSTER_IP));
    scene.holds(&[own()]);
    let dirty = scene.drop_service(0);
    scene.sync(&dirty, Vec::new());
    assert_eq!(scene.kernel.vips.get(&shared), None);
    scene.holds(&[own()]);
}

#[test]
fn an_address_is_closed_to_the_outside_as_long_as_all_its_frontends_are() {
    let mut scene = Scene::new();
    let (address, key) = (IpAddr::from([192, 0, 2, 0]), key(0, Family::V4));
    let open = scene.state.ports[&key].clone();
    let frontend = open.frontends.first().unwrap().clone();
    let mut set = |scopes: &[Scope]| {
        let at = |(port, scope): (u16, &Scope)| Frontend {
            address: (address, port).into(),
            scope: *scope,
            ..frontend
        };
        let frontends = (80..).zip(scopes).map(at).collect();
        scene.state.ports.insert(key.clone(), ServicePort { frontends, ..open.clone() });
        scene.sync(&Dirty { ports: [key.clone()].into(), ..Dirty::default() }, Vec::new());
        scene.holds(&[own()]);
        scene.kernel.vips[&address]
    };
    let (inside, all) = (Scope::ExternalInside, Scope::External);
    assert_eq!(set(&[inside, inside]), VIP_CLUSTER_IP | VIP_INSIDE_ONLY);
    assert_eq!(set(&[inside, all]), VIP_CLUSTER_IP);
    assert_eq!(set(&[all, all]), VIP_CLUSTER_IP);
    assert_eq!(set(&[inside]), VIP_CLUSTER_IP | VIP_INSIDE_ONLY);
}

#[test]
fn a_failed_write_is_reported_and_repeated_by_the_next_sync() {
    let mut scene = Scene::new();
    let dirty = scene.drop_service(2);
    // Some of these operations are the last two: the removals from VIPS.
    assert!(!scene.sync(&dirty, (4..100).collect()));
    assert_ne!(scene.kernel.vips, wanted(&scene.state, &[own()]));
    assert!(scene.sync(&Dirty::default(), Vec::new()));
    scene.holds(&[own()]);
}

#[test]
fn found_addresses_are_kept_or_removed_and_a_restart_writes_nothing() {
    let mut scene = Scene::new();
    let stale = IpAddr::from([192, 0, 2, 77]);
    scene.kernel.vips.insert(stale, VIP_EXTERNAL);
    assert_eq!(scene.plan.drift(&scene.kernel.found()), ["VIPS"]);
    scene.plan = Plan::adopt(CAPACITIES, scene.kernel.found(), NOW);
    scene.sync(&Dirty::default(), Vec::new());
    assert!(scene.kernel.vips.contains_key(&stale), "its own addresses are not known yet");
    scene.has_addresses(&[own()]);
    scene.holds(&[own()]);
    assert_eq!(scene.kernel.log, [Change::RemoveVip(stale)]);
}
