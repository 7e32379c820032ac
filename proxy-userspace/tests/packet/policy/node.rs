//! A node whose firewall is the agent's own: pinned programs and maps, on devices that exist.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::net::IpAddr;
use std::path::PathBuf;

use aya::programs::{SchedClassifier, TestRun, TestRunOptions};
use millrace::dataplane::ebpf::firewall::{Firewall, Wanted, judged, remove};
use millrace::node::FarEnd;
use millrace::policy::{Compiled, Index, LocalPod, NamespacedName, Site};
use millrace_lab::net::Netlink;
use millrace_lab::program::{Hook, Ingress, TestContext, monotonic_seconds};
use nix::net::if_::if_nametoindex;
use proxy_common::policy::{LENIENT_SECONDS, POLICY_LAYOUT_VERSION, PolicyDirection, PolicyDrop};

use crate::clusters::world;

const TC_ACT_UNSPEC: i32 = -1;
const TC_ACT_SHOT: i32 = 2;
/// The most pods of a node.
const PODS: usize = 4;

/// A node of the random clusters.
pub struct Node {
    site: Site,
    bpffs: PathBuf,
    /// `None` between two agents.
    firewall: Option<Firewall>,
    /// The tables in the maps, as far as this agent knows.
    compiled: Compiled,
    from_pod: SchedClassifier,
    to_pod: SchedClassifier,
    /// Devices of pods to come.
    free: Vec<u32>,
    devices: BTreeMap<NamespacedName, u32>,
    dropped: Cell<u64>,
}

impl Node {
    /// Returns both nodes. Their devices are in the thread's network namespace.
    pub fn both() -> [Self; 2] {
        let mut devices = add_devices();
        world::nodes().map(|(name, addresses)| {
            let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
            let site = Site { node: name.to_owned(), addresses };
            Self::new(site, devices.split_off(devices.len() - PODS))
        })
    }

    fn new(site: Site, free: Vec<u32>) -> Self {
        let bpffs = PathBuf::from(format!("/sys/fs/bpf/millrace-test-{}-{}", std::process::id(), site.node));
        let firewall = Firewall::open(&bpffs, &[]).unwrap();
        let programs = bpffs.join(format!("millrace-firewall/v{POLICY_LAYOUT_VERSION}/programs"));
        let build = fs::read_dir(programs).unwrap().next().unwrap().unwrap().path();
        let program = |name: &str| SchedClassifier::from_pin(build.join(name)).unwrap();
        Self {
            site,
            firewall: Some(firewall),
            compiled: Compiled::default(),
            from_pod: program("policy_from_pod"),
            to_pod: program("policy_to_pod"),
            free,
            devices: BTreeMap::new(),
            dropped: Cell::new(0),
            bpffs,
        }
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.site.node
    }

    /// Returns its addresses.
    pub fn addresses(&self) -> &BTreeSet<IpAddr> {
        &self.site.addresses
    }

    /// Returns the device of a pod.
    pub fn device_of(&self, pod: &NamespacedName) -> u32 {
        self.devices[pod]
    }

    /// Ends the agent. Another one takes over its maps, and knows no tables.
    pub fn restart(&mut self) {
        self.firewall = None;
        self.firewall = Some(Firewall::open(&self.bpffs, &[]).unwrap());
        self.compiled = Compiled::default();
    }

    /// Brings the maps to the tables of a cluster, as the agent does.
    pub fn write(&mut self, index: &Index) {
        let next = index.compile_after(&self.site, &self.compiled);
        let between = index.compile_between(&self.site, &self.compiled, &next);
        let pods: Vec<LocalPod<'_>> =
            index.local_pods(&self.site.node).filter(|pod| !pod.addresses.is_empty()).collect();
        for pod in &pods {
            self.devices.entry(pod.name.clone()).or_insert_with(|| self.free.pop().unwrap());
        }
        let ends = pods.iter().map(|pod| {
            let device = self.devices[pod.name];
            (device, FarEnd { namespace: device.cast_signed(), addresses: pod.addresses.clone() })
        });
        let nodes = world::nodes().iter().flat_map(|(_, all)| all).map(|one| one.parse().unwrap()).collect();
        let applied = self.firewall.as_mut().unwrap().apply(&Wanted {
            tables: &next,
            between: between.as_ref(),
            step: None,
            has_policies: index.has_policies(),
            now: long_ago(),
            devices: &ends.collect(),
            others: &BTreeSet::new(),
            pods: &pods,
            nodes: &nodes,
            views: &index.pods_of_node(&self.site.node).map(|pod| (pod.name, pod)).collect(),
            index,
        });
        assert!(applied.failures.is_empty(), "{:?}", applied.failures);
        assert_eq!(applied.holders.pods.len(), pods.len());
        self.compiled = next;
    }

    /// Returns whether a frame passes the device of a pod. It came in by another device, or was made on the node (0).
    pub fn passes(&self, direction: PolicyDirection, by: u32, device: u32, frame: &[u8]) -> bool {
        let mut context =
            TestContext::new(Hook::TcIngress, Ingress { device, ..Ingress::default() }, frame.len());
        context.came_in_by(by);
        let options = TestRunOptions {
            data_in: Some(frame),
            ctx_in: Some(context.bytes()),
            ..TestRunOptions::default()
        };
        let program = match direction {
            PolicyDirection::Ingress => &self.to_pod,
            PolicyDirection::Egress => &self.from_pod,
        };
        match program.test_run(options).unwrap().return_value.cast_signed() {
            TC_ACT_UNSPEC => true,
            TC_ACT_SHOT => {
                self.dropped.set(self.dropped.get() + 1);
                false
            }
            other => panic!("{direction:?} returns {other}"),
        }
    }

    /// Checks that policies alone have dropped packets, up to the cluster of this seed.
    pub fn check_drops(&self, seed: u64) {
        let judged = judged(&self.bpffs).unwrap().unwrap();
        let dropped = |is_denied: bool| {
            let reasons =
                judged.dropped.iter().filter(|((_, reason), _)| (*reason == PolicyDrop::Denied) == is_denied);
            reasons.map(|(_, counter)| counter.packets).sum::<u64>()
        };
        assert_eq!((dropped(true), dropped(false)), (self.dropped.get(), 0), "seed {seed}: {judged:?}");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.firewall = None;
        if let Err(error) = remove(&self.bpffs) {
            eprintln!("{}: {error}", self.bpffs.display());
        }
        let _ = fs::remove_dir(&self.bpffs);
    }
}

/// Returns a second after which no pod's first policies are new any more.
fn long_ago() -> u32 {
    let now = u32::try_from(monotonic_seconds()).unwrap();
    now.wrapping_sub(LENIENT_SECONDS + 5)
}

/// Adds the devices of the pods of two nodes.
fn add_devices() -> Vec<u32> {
    let names: Vec<[String; 2]> =
        (0..PODS).map(|number| [format!("pod{number}"), format!("peer{number}")]).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let netlink = Netlink::open().unwrap();
        let namespace = File::open("/proc/thread-self/ns/net").unwrap();
        for [one, other] in &names {
            netlink.add_veth(one, other, &namespace).await.unwrap();
        }
    });
    names.iter().flatten().map(|name| if_nametoindex(name.as_str()).unwrap()).collect()
}
