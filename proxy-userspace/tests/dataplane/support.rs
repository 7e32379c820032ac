//! A directory of the BPF file system for each test, and desired states.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use millrace::dataplane::ebpf::{EbpfDataplane, Settings, Sizes, cleanup};
use millrace::model::{
    Algorithm, Desired, Dirty, Endpoint, Family, Forwarding, Frontend, FrontendKind, List, PortKey, Protocol,
    Scope, ServiceKey, ServicePort,
};
use proxy_common::LAYOUT_VERSION;

/// The pins of one test, removed at its end.
pub struct Scratch {
    pub path: PathBuf,
}

impl Scratch {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = PathBuf::from(format!("/sys/fs/bpf/millrace-test-{}-{number}", std::process::id()));
        Self { path }
    }

    /// Returns the directory of this layout's programs, maps and links.
    pub fn root(&self) -> PathBuf {
        self.path.join(format!("millrace/v{LAYOUT_VERSION}"))
    }

    /// Settings with maps small enough to be made quickly.
    pub fn settings(&self) -> Settings {
        let sizes = Sizes {
            services: 64,
            hints: 64,
            frontends: 64,
            backends: 64,
            slots: 1024,
            nodes: 16,
            flows: 256,
            new_flows: 256,
            source_ranges: 32,
            affinity: 256,
            sockets: 256,
        };
        Settings { bpffs_path: self.path.clone(), sizes, ..Settings::default() }
    }

    pub fn open(&self) -> EbpfDataplane {
        EbpfDataplane::open(self.settings()).expect("the data plane opens")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = cleanup(&self.path) {
            eprintln!("cleanup: {error}");
        }
        let _ = fs::remove_dir(&self.path);
    }
}

pub fn key(name: &str) -> PortKey {
    let service = ServiceKey { namespace: "default".to_owned(), name: name.to_owned() };
    PortKey { service, port: "http".to_owned(), family: Family::V4 }
}

/// A LoadBalancer at 192.0.2.`n`:80 with endpoints 10.0.`n`.1 and so on, the first on this node.
pub fn port(n: u8, endpoints: u8) -> ServicePort {
    let vip = SocketAddr::from(([192, 0, 2, n], 80));
    let frontend =
        |scope| Frontend { address: vip, scope, kind: FrontendKind::LoadBalancer, list: List::Cluster };
    let endpoints: BTreeMap<_, _> = (1..=endpoints)
        .map(|i| {
            let endpoint = Endpoint {
                node: Some(if i == 1 { "here" } else { "there" }.into()),
                local: i == 1,
                ready: true,
                serving: true,
                terminating: false,
            };
            (SocketAddr::from(([10, 0, n, i], 8080)), endpoint)
        })
        .collect();
    ServicePort {
        protocol: Protocol::Tcp,
        frontends: BTreeSet::from([frontend(Scope::Internal), frontend(Scope::External)]),
        forwarding: Forwarding::Snat,
        algorithm: Algorithm::Random,
        scheduler: None,
        affinity_seconds: 0,
        source_ranges: None,
        cluster: Some(endpoints.keys().copied().collect()),
        local: None,
        has_any: !endpoints.is_empty(),
        endpoints,
    }
}

/// Returns the same Service port for these source ranges only.
pub fn closed(port: ServicePort, ranges: &[&str]) -> ServicePort {
    let ranges = ranges.iter().map(|range| range.parse().expect("a prefix")).collect();
    ServicePort { source_ranges: Some(ranges), ..port }
}

/// Returns the same with Direct Server Return.
pub fn dsr(n: u8, endpoints: u8) -> ServicePort {
    ServicePort { forwarding: Forwarding::Dsr, algorithm: Algorithm::Maglev(251), ..port(n, endpoints) }
}

pub fn desired(ports: impl IntoIterator<Item = (PortKey, ServicePort)>) -> Desired {
    let node = |name: &str, last: u8| (name.to_owned(), BTreeSet::from([IpAddr::from([172, 16, 0, last])]));
    Desired {
        ports: ports.into_iter().collect(),
        nodes: BTreeMap::from([node("here", 1), node("there", 2)]),
        node_name: "here".to_owned(),
        ..Desired::default()
    }
}

/// Returns the whole state as dirty.
pub fn all(desired: &Desired) -> Dirty {
    Dirty { ports: desired.ports.keys().cloned().collect(), nodes: true, ..Dirty::default() }
}
