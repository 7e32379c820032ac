//! Any order of changes, with any operation failing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::access::assert_access;
use super::kernel::{CAPACITIES, FakeKernel};
use super::vips;
use super::world::{assert_serves, closed, desired, dsr, key, local_policy, port, range, reached_at};
use crate::dataplane::ebpf::plan::Plan;
use crate::model::{Desired, Dirty, Family, PortKey, ServicePort};

/// The changes between two syncs.
#[derive(Clone, Debug)]
struct Step {
    /// Service number and its new state; `None` removes it.
    changes: Vec<(u8, Option<ServicePort>)>,
    /// Two services that swap their addresses if these have the same family.
    swap: Option<(u8, u8)>,
    /// New numbers of the ranges inside the cluster.
    cluster_sources: Option<BTreeSet<u8>>,
    seconds: u64,
    /// Operations that fail.
    refuse: Vec<usize>,
    /// Whether another agent replaces the agent before the sync.
    restart: bool,
    /// Whether the collector removes the entries of removed services after the sync.
    reclaim: bool,
}

const SERVICES: u8 = 5;

fn family(n: u8) -> Family {
    if n.is_multiple_of(3) { Family::V6 } else { Family::V4 }
}

fn service(n: u8) -> impl Strategy<Value = Option<ServicePort>> {
    let endpoints = proptest::collection::btree_map(0_u8..7, (0_u8..3, prop::bool::weighted(0.8)), 0..5);
    let ranges = prop::option::of(proptest::collection::btree_set(0_u8..4, 0..4));
    let flags = [any::<bool>(), any::<bool>(), any::<bool>()];
    (endpoints, flags, ranges, prop::bool::weighted(0.8)).prop_map(
        move |(endpoints, [is_dsr, is_local, has_affinity], ranges, exists)| {
            let endpoints: Vec<_> =
                endpoints.into_iter().map(|(e, (node, ready))| (e, node, ready)).collect();
            let port = ServicePort {
                affinity_seconds: if has_affinity { 60 } else { 0 },
                ..port(n, family(n), &endpoints)
            };
            let port = if is_dsr { dsr(port) } else { port };
            let port = match ranges {
                Some(ranges) => {
                    closed(port, ranges.into_iter().map(|range| super::world::range(range, family(n))))
                }
                None => port,
            };
            exists.then(|| if is_local { local_policy(port) } else { port })
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let change = (0..SERVICES).prop_flat_map(|n| service(n).prop_map(move |port| (n, port)));
    (
        proptest::collection::vec(change, 0..4),
        prop::option::weighted(0.3, (0..SERVICES, 0..SERVICES)),
        prop::option::weighted(0.2, proptest::collection::btree_set(0_u8..8, 0..4)),
        0_u64..8,
        proptest::collection::vec(0_usize..30, 0..4),
        prop::bool::weighted(0.1),
        any::<bool>(),
    )
        .prop_map(|(changes, swap, cluster_sources, seconds, refuse, restart, reclaim)| Step {
            changes,
            swap,
            cluster_sources,
            seconds,
            refuse,
            restart,
            reclaim,
        })
}

/// Does a round of the collector that finds no flow entry.
fn walk(plan: &mut Plan, kernel: &mut FakeKernel, now: Duration) {
    let established = Duration::from_secs(5);
    if let Some(mut round) = plan.begin_round(now) {
        while plan.settle_next(&mut round, established, now, kernel).is_some() {}
    }
}

/// The number of each service's address.
type Vips = [u8; SERVICES as usize];

const VIPS: Vips = [0, 1, 2, 3, 4];

fn change(state: &mut Desired, vips: &mut Vips, step: &Step) -> Dirty {
    let mut changes: BTreeMap<u8, Option<ServicePort>> = step.changes.iter().cloned().collect();
    if let Some((a, b)) = step.swap.filter(|(a, b)| family(*a) == family(*b)) {
        vips.swap(a.into(), b.into());
        for n in [a, b] {
            changes.entry(n).or_insert_with(|| state.ports.get(&key(n, family(n))).cloned());
        }
    }
    let mut dirty = BTreeSet::new();
    for (n, port) in changes {
        let key: PortKey = key(n, family(n));
        match port {
            Some(port) => state.ports.insert(key.clone(), reached_at(vips[usize::from(n)], port)),
            None => state.ports.remove(&key),
        };
        dirty.insert(key);
    }
    if let Some(sources) = &step.cluster_sources {
        let net = |n: &u8| range(*n, if *n < 4 { Family::V4 } else { Family::V6 });
        state.cluster_sources = sources.iter().map(net).collect();
        state.own_sources = sources.iter().skip(1).map(net).collect();
    }
    Dirty { ports: dirty, nodes: step.cluster_sources.is_some(), ..Dirty::default() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]
    /// The kernel's own checks run at every operation, and the plan always knows the content of the
    /// maps.
    ///
    /// Without further failures the kernel serves the desired state in the end. Another sync and a
    /// restart change nothing.
    #[test]
    fn the_kernel_comes_to_serve_what_is_desired(steps in proptest::collection::vec(step(), 1..24)) {
        let mut kernel = FakeKernel::default();
        let mut now = Duration::from_secs(1000);
        let mut plan = adopt(&mut kernel, now);
        let (mut state, mut vips) = (desired([]), VIPS);
        for step in steps {
            now += Duration::from_secs(step.seconds);
            if step.restart {
                plan = adopt(&mut kernel, now);
            }
            let dirty = change(&mut state, &mut vips, &step);
            let is_whole = step.refuse.is_empty();
            kernel.begin_guarded(now, step.refuse, &state);
            plan.sync(&state, &dirty, now, &mut kernel);
            if is_whole {
                assert_access(&kernel, &state);
            }
            kernel.use_all();
            if step.reclaim {
                kernel.reclaim_ids(&mut plan);
            }
            prop_assert_eq!(plan.drift(&kernel.found()), Vec::<&str>::new());
            prop_assert_eq!(plan.backends_in_maps(), kernel.living_backends());
        }
        // Resting room is free again within two rests.
        for _ in 0..4 {
            now += Duration::from_secs(11);
            kernel.begin_guarded(now, Vec::new(), &state);
            kernel.reclaim_ids(&mut plan);
            // An empty table that has settled goes with the next change of its port.
            let dirty = Dirty { ports: state.ports.keys().cloned().collect(), ..Dirty::default() };
            plan.sync(&state, &dirty, now, &mut kernel);
            walk(&mut plan, &mut kernel, now);
        }
        assert_serves(&kernel, &state);
        prop_assert_eq!(&kernel.vips, &vips::wanted(&state, &[vips::own()]));
        assert_quiet(&mut plan, &mut kernel, &state, now);
        let mut restarted = adopt(&mut kernel, now);
        assert_quiet(&mut restarted, &mut kernel, &state, now);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]
    /// The agent is killed after any number of operations of any sync. The next agent can go on,
    /// and the kernel's own checks hold at each of its operations.
    #[test]
    fn an_agent_killed_anywhere_leaves_what_the_next_one_can_go_on_with(
        steps in proptest::collection::vec((step(), prop::option::of(0_usize..40)), 1..24),
    ) {
        let mut kernel = FakeKernel::default();
        let mut now = Duration::from_secs(1000);
        let mut plan = adopt(&mut kernel, now);
        let (mut state, mut vips) = (desired([]), VIPS);
        for (step, killed_at) in steps {
            now += Duration::from_secs(step.seconds);
            let dirty = change(&mut state, &mut vips, &step);
            if let Some(operation) = killed_at {
                kernel.begin_guarded(now, (operation..NEVER_REACHED).collect(), &state);
                plan.sync(&state, &dirty, now, &mut kernel);
                plan = adopt(&mut kernel, now);
            }
            kernel.begin_guarded(now, Vec::new(), &state);
            plan.sync(&state, &dirty, now, &mut kernel);
            assert_access(&kernel, &state);
            kernel.use_all();
            if step.reclaim {
                kernel.reclaim_ids(&mut plan);
            }
            prop_assert_eq!(plan.drift(&kernel.found()), Vec::<&str>::new());
            prop_assert_eq!(plan.backends_in_maps(), kernel.living_backends());
        }
        for _ in 0..4 {
            now += Duration::from_secs(11);
            kernel.begin_guarded(now, Vec::new(), &state);
            kernel.reclaim_ids(&mut plan);
            // An empty table that has settled goes with the next change of its port.
            let dirty = Dirty { ports: state.ports.keys().cloned().collect(), ..Dirty::default() };
            plan.sync(&state, &dirty, now, &mut kernel);
            walk(&mut plan, &mut kernel, now);
        }
        assert_serves(&kernel, &state);
        prop_assert_eq!(&kernel.vips, &vips::wanted(&state, &[vips::own()]));
        assert_quiet(&mut plan, &mut kernel, &state, now);
    }
}

/// Returns another agent that knows its node's addresses from the start.
fn adopt(kernel: &mut FakeKernel, now: Duration) -> Plan {
    let mut plan = Plan::adopt(CAPACITIES, kernel.found(), now);
    kernel.begin(now, Vec::new());
    plan.set_topology(&vips::topology(&[vips::own()]), &BTreeSet::new(), now, kernel);
    plan
}

/// More operations than a sync of these tests.
const NEVER_REACHED: usize = 2000;

fn assert_quiet(plan: &mut Plan, kernel: &mut FakeKernel, state: &Desired, now: Duration) {
    let ports = state.ports.keys().cloned().collect();
    let all = Dirty { ports, nodes: true, ..Dirty::default() };
    for _ in 0..2 {
        kernel.begin(now, Vec::new());
        let report = plan.sync(state, &all, now, kernel);
        assert!(report.is_complete(), "{report:?}");
        assert_eq!((report.writes, &kernel.log), (0, &Vec::new()));
    }
}
