//! A node where nothing is wrong, for tests.

use std::collections::{BTreeMap, BTreeSet};

use super::Facts;
use super::conflict::Others;
use super::finding::Finding;
use super::firewall::Firewall;
use super::kernel::Kernel;
use super::mounts::Mounts;
use super::network::Network;
use super::running::{Agent, Pins};
use super::sysctl;
use crate::config::{AgentArgs, Settings};
use crate::dataplane::ebpf::read::{
    AttachedView, BackendView, ConnectionsView, FailuresView, FrontendView, HandshakesView, MapView,
    ServiceView, StatusView, WayView,
};
use crate::dataplane::ebpf::{Chain, Mount, Side};
use crate::model::Family;
use crate::node::{self, DefaultRoute, Device, DeviceKind, LinkState, Look, NodeState};
use crate::source::kubernetes::Probe;

/// The first finding of a check after a change of the facts.
pub fn judged(change: impl FnOnce(&mut Facts), judge: fn(&Facts) -> Vec<Finding>) -> Finding {
    let mut facts = facts();
    change(&mut facts);
    judge(&facts).remove(0)
}

pub fn facts() -> Facts {
    let settings = Settings::resolve_on(&AgentArgs::default(), Some("node-a".to_owned())).unwrap();
    let mut sysctls = sysctl::Settings::default();
    for (key, value) in [
        ("ipv4/ip_forward", "1"),
        ("ipv6/conf/all/forwarding", "1"),
        ("ipv4/ip_local_port_range", "32768\t60999"),
        ("ipv4/ip_local_reserved_ports", "61000-65535"),
    ] {
        sysctls.set(key, value);
    }
    for device in ["all", "eth0", "veth1"] {
        sysctls.set(&format!("ipv4/conf/{device}/rp_filter"), "0");
    }
    Facts {
        agent: Some(Agent { process: 714, failing: Vec::new() }),
        kernel: Kernel { release: "6.18.0".to_owned(), has_ipvs: true, ..Kernel::default() },
        api: Ok(Probe {
            server: "https://10.0.0.1:6443".to_owned(),
            is_pod: false,
            version: Ok("v1.36.1".to_owned()),
            missing: Ok(Vec::new()),
            node: Ok(Some(vec!["10.1.0.11".parse().unwrap()])),
            service: Ok(vec!["10.96.0.1".parse().unwrap()]),
        }),
        mounts: Mounts {
            bpffs: Mount::Host,
            others: Vec::new(),
            cgroup: Some("/sys/fs/cgroup".into()),
            is_below: false,
        },
        network: Ok(network(&settings)),
        sysctls,
        pins: Ok(pins()),
        firewall: Ok(Firewall::default()),
        others: Others::default(),
        probed: None,
        settings,
    }
}

/// eth0 is the uplink, and veth1 leads to a pod.
fn network(settings: &Settings) -> Network {
    let device = |name: &str, kind| Device {
        name: name.to_owned(),
        kind,
        up: true,
        mtu: 1500,
        mac: Some([2; 6]),
        is_port: false,
    };
    let mut state = NodeState::default();
    state.devices.insert(1, Device { mac: None, ..device("lo", DeviceKind::Loopback) });
    state.devices.insert(2, device("eth0", DeviceKind::Other));
    state.devices.insert(3, device("veth1", DeviceKind::Veth));
    state.addresses.insert((2, "10.1.0.11".parse().unwrap()));
    state.default_routes.insert(DefaultRoute { device: 2, family: Family::V4, table: 254, metric: 0 });
    let link = LinkState { has_carrier: true, xdp: None };
    let links = BTreeMap::from([(2, LinkState { xdp: Some(7), ..link }), (3, link)]);
    let chain = |side, id, name: &str| Chain {
        device: "eth0".to_owned(),
        side,
        programs: vec![(id, name.to_owned())],
    };
    Network {
        topology: node::topology(&state, &settings.node(), &BTreeSet::new()),
        look: Look { state, links, rules: Vec::new() },
        overlooked: BTreeSet::new(),
        drivers: BTreeMap::from([("eth0".to_owned(), "virtio_net".to_owned())]),
        merging: BTreeSet::new(),
        chains: vec![chain(Side::Ingress, 8, "tc_ingress"), chain(Side::Egress, 9, "tc_egress")],
    }
}

fn pins() -> Pins {
    let attached =
        |device: &str, device_index, hook: &'static str, mode: &'static str, program_id| AttachedView {
            device: device.to_owned(),
            device_index,
            hook: hook.into(),
            mode: mode.into(),
            program_id,
        };
    let way = |target: &str| WayView {
        id: 1,
        target: target.parse().unwrap(),
        source: None,
        device: 2,
        mtu: 1500,
        resolved: true,
        xdp: true,
        destination_mac: String::new(),
        source_mac: String::new(),
    };
    Pins {
        status: StatusView {
            layout_version: 6,
            heartbeat_age_seconds: Some(2),
            failures: FailuresView::default(),
            serves: "all connections".into(),
            shared_seconds: None,
            attached: vec![
                attached("eth0", 2, "xdp", "native", 7),
                attached("eth0", 2, "tc_ingress", "tcx", 8),
                attached("eth0", 2, "tc_egress", "tcx", 9),
                attached("veth1", 3, "tc_pod_in", "tcx", 10),
                attached("veth1", 3, "tc_pod_out", "tcx", 11),
            ],
            cluster_sources: Vec::new(),
            maps: vec![MapView {
                name: "SERVICES".to_owned(),
                entries: 100,
                used: Some(10),
                memory_bytes: Some(4096),
            }],
        },
        ways: vec![way("10.1.0.12"), way("fd00::2")],
        backends: vec![backend("10.244.1.2:8080", true), backend("10.244.2.2:8080", false)],
        services: vec![service("Cluster"), service("Local")],
    }
}

fn backend(address: &str, local: bool) -> BackendView {
    BackendView {
        address: address.parse().unwrap(),
        id: 1,
        generation: 1,
        exists: true,
        local,
        pod: false,
        ready: true,
        serving: true,
        node: None,
        hint: 0,
        services: Vec::new(),
        connections: ConnectionsView::default(),
    }
}

fn service(list: &str) -> ServiceView {
    let frontend = FrontendView {
        address: "192.0.2.10:80".parse().unwrap(),
        protocol: "TCP".into(),
        scope: "external".into(),
        kind: "LoadBalancer".into(),
        forwarding: "snat".into(),
        affinity_seconds: 0,
        source_ranges: None,
        inside_only: false,
    };
    ServiceView {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        port: "http".to_owned(),
        family: "IPv4".to_owned(),
        list: list.to_owned(),
        id: 1,
        algorithm: "random".into(),
        slots: 2,
        elsewhere: false,
        frontends: vec![frontend],
        backends: ["10.244.1.2:8080", "10.244.2.2:8080"].map(|one| one.parse().unwrap()).to_vec(),
        here: 1,
        packets: 0,
        bytes: 0,
        dropped: BTreeMap::new(),
        connections: ConnectionsView::default(),
        handshakes: HandshakesView::default(),
    }
}
