//! Source ranges of frontends and of the cluster.

use std::collections::BTreeSet;

use proxy_common::frontend::{
    FRONTEND_DSR, FRONTEND_KIND_CLUSTER_IP, FRONTEND_KIND_EXTERNAL_IP, FRONTEND_KIND_NODE_PORT,
    FRONTEND_SOURCE_RANGES,
};
use proxy_common::source_range::{CLUSTER, NEAR};

use super::access::{Access, assert_access};
use super::cases::Bed;
use super::kernel::CAPACITIES;
use super::world::{assert_serves, closed, desired, dsr, key, local_policy, port, range};
use crate::dataplane::SyncFailure;
use crate::dataplane::ebpf::plan::{Change, Plan, RangeAt};
use crate::model::{Algorithm, Desired, Dirty, Family, Frontend, FrontendKind, List, Scope, ServicePort};

const V4: Family = Family::V4;

/// Returns the access to the first frontend.
fn ranges_of(bed: &Bed) -> Access {
    let at = *bed.kernel.frontends.keys().next().unwrap();
    bed.kernel.access(&at)
}

fn closed_to(ranges: &[u8]) -> Desired {
    let nets = ranges.iter().map(|n| range(*n, V4));
    desired([(key(0, V4), closed(port(0, V4, &[(1, 0, true)]), nets))])
}

#[test]
fn an_empty_set_of_source_ranges_keeps_everybody_out() {
    let mut bed = Bed::new();
    assert!(bed.sync(&closed_to(&[]), &[]).is_complete());
    assert_eq!(ranges_of(&bed), Access::Only(BTreeSet::new()));
    assert_serves(&bed.kernel, &closed_to(&[]));
}

#[test]
fn only_load_balancer_frontends_have_source_ranges_and_no_cluster_ip_has_direct_server_return() {
    let mut port = dsr(closed(port(0, V4, &[(1, 0, true)]), [range(1, V4)]));
    let kinds = [FrontendKind::ClusterIp, FrontendKind::NodePort, FrontendKind::ExternalIp];
    port.frontends.extend((0_u16..).zip(kinds).map(|(n, kind)| Frontend {
        address: ([192, 0, 2, 9], n).into(),
        scope: Scope::External,
        kind,
        list: List::Cluster,
    }));
    let mut bed = Bed::new();
    let state = desired([(key(0, V4), port)]);
    assert!(bed.sync(&state, &[]).is_complete());
    assert_serves(&bed.kernel, &state);
    let of_kind = |kind| {
        let mut values = bed.kernel.frontends.values();
        values
            .find(|value| value.kind() == kind)
            .map(|value| value.flags & (FRONTEND_DSR | FRONTEND_SOURCE_RANGES))
    };
    assert_eq!(of_kind(FRONTEND_KIND_CLUSTER_IP), Some(0));
    assert_eq!(of_kind(FRONTEND_KIND_NODE_PORT), Some(FRONTEND_DSR));
    assert_eq!(of_kind(FRONTEND_KIND_EXTERNAL_IP), Some(FRONTEND_DSR));
}

#[test]
fn frontends_of_both_policies_have_the_ranges_under_both_lists() {
    let state = desired([(key(0, V4), local_policy(closed(port(0, V4, &[(1, 0, true)]), [range(1, V4)])))]);
    let mut bed = Bed::new();
    assert!(bed.sync(&state, &[]).is_complete());
    assert_eq!(bed.kernel.ranges.len(), 2);
    assert_serves(&bed.kernel, &state);
}

#[test]
fn a_full_map_closes_a_service_and_leaves_others_and_its_endpoints_alone() {
    let mut bed = Bed::new();
    let open =
        desired([(key(0, V4), port(0, V4, &[(1, 0, true)])), (key(1, V4), port(1, V4, &[(1, 0, true)]))]);
    assert!(bed.sync(&open, &[]).is_complete());
    bed.kernel.range_room = Some(1);

    let mut state = open.clone();
    let nets = [range(1, V4), range(2, V4)];
    state.ports.insert(key(0, V4), closed(port(0, V4, &[(2, 0, true)]), nets));
    let report = bed.sync(&state, &[]);
    let [(pending, why)] = &report.pending[..] else { panic!("{report:?}") };
    assert_eq!((pending, why.as_str()), (&key(0, V4), "SOURCE_RANGES is full"));
    assert_eq!(ranges_of(&bed), Access::Only([nets[0]].into()));
    bed.backend(2);
    let other = bed.kernel.frontends.keys().next_back().unwrap();
    assert_eq!(bed.kernel.access(other), Access::Everybody);

    // A new port without room is not served at all.
    state.ports.insert(key(2, V4), closed(port(2, V4, &[(1, 0, true)]), [nets[1]]));
    assert_eq!(bed.sync(&state, &[]).pending.len(), 2);
    assert_eq!(bed.kernel.frontends.len(), 4);

    bed.kernel.range_room = None;
    assert!(bed.sync(&state, &[]).is_complete());
    assert_access(&bed.kernel, &state);
}

#[test]
fn a_service_is_closed_though_its_new_table_finds_no_room() {
    let mut bed = Bed::new();
    assert!(bed.sync(&desired([(key(0, V4), port(0, V4, &[(1, 0, true)]))]), &[]).is_complete());
    let mut too_large = dsr(closed(port(0, V4, &[(1, 0, true)]), [range(1, V4)]));
    too_large.algorithm = Algorithm::Maglev(1009);
    assert_eq!(bed.sync(&desired([(key(0, V4), too_large)]), &[]).pending.len(), 1);
    assert_eq!(ranges_of(&bed), Access::Only([range(1, V4)].into()));
}

/// Moves the address of service 0 to service 1, which is restricted to source ranges. Returns the
/// states before and after.
fn moved(former: ServicePort) -> (Desired, Desired) {
    let taken = port(0, V4, &[]).frontends;
    let next = ServicePort { frontends: taken, ..closed(port(1, V4, &[(1, 0, true)]), [range(1, V4)]) };
    let left = ServicePort { frontends: BTreeSet::new(), ..former.clone() };
    (desired([(key(0, V4), former)]), desired([(key(0, V4), left), (key(1, V4), next)]))
}

#[test]
fn an_address_that_goes_to_a_restricted_service_is_never_closed_to_those_who_may_use_it() {
    let (before, after) = moved(port(0, V4, &[(1, 0, true)]));
    let mut bed = Bed::new();
    assert!(bed.sync(&before, &[]).is_complete());
    assert!(bed.sync(&after, &[]).is_complete());
    let closes = |change: &Change| matches!(change, Change::Restrict(..) | Change::RemoveFrontend(_));
    assert!(!bed.kernel.log.iter().any(closes), "it changes its owner in one step");
    assert_eq!(ranges_of(&bed), Access::Only([range(1, V4)].into()));
}

#[test]
fn an_address_that_goes_to_a_restricted_service_is_closed_whatever_fails() {
    let formers = [port(0, V4, &[(1, 0, true)]), closed(port(0, V4, &[(1, 0, true)]), [range(0, V4)])];
    for (before, after) in formers.map(moved) {
        let mut bed = Bed::new();
        assert!(bed.sync(&before, &[]).is_complete());
        let served = *bed.kernel.frontends.keys().next().unwrap();
        let operations = {
            let mut whole = Bed { plan: bed.plan.clone(), kernel: bed.kernel.clone(), now: bed.now };
            assert!(whole.sync(&after, &[]).is_complete());
            whole.kernel.log.len()
        };
        assert!(operations > 4);
        for refused in 0..operations {
            let mut bed = Bed { plan: bed.plan.clone(), kernel: bed.kernel.clone(), now: bed.now };
            bed.sync(&after, &[refused]);
            let access = bed.kernel.access(&served);
            let right = Access::Only([range(1, V4)].into());
            assert!(access == right || access == Access::Nobody, "without number {refused}: {access:?}");
            assert!(bed.sync(&after, &[]).is_complete());
            assert_serves(&bed.kernel, &after);
        }

        bed.kernel.range_room = Some(bed.kernel.ranges.len());
        assert_eq!(bed.sync(&after, &[]).pending.len(), 1);
        assert_eq!(bed.kernel.access(&served), Access::Nobody);
        bed.kernel.range_room = None;
        assert!(bed.sync(&after, &[]).is_complete());
        assert_serves(&bed.kernel, &after);
    }
}

#[test]
fn ranges_are_there_before_the_frontend_and_go_after_it_is_open() {
    let mut bed = Bed::new();
    bed.sync(&closed_to(&[1]), &[]);
    let is_range = |change: &Change| matches!(change, Change::SourceRange(_));
    let is_frontend = |change: &Change| matches!(change, Change::Frontend(..));
    let at = |bed: &Bed, is: &dyn Fn(&Change) -> bool| bed.kernel.log.iter().position(is).unwrap();
    assert!(at(&bed, &is_range) < at(&bed, &is_frontend));

    let is_removal = |change: &Change| matches!(change, Change::RemoveSourceRange(_));
    bed.sync(&closed_to(&[2]), &[]);
    assert!(at(&bed, &is_range) < at(&bed, &is_removal));
    assert!(!bed.kernel.log.iter().any(is_frontend), "the frontend stays as it is");

    bed.sync(&desired([(key(0, V4), port(0, V4, &[(1, 0, true)]))]), &[]);
    assert!(at(&bed, &is_frontend) < at(&bed, &is_removal));
    assert!(bed.kernel.ranges.is_empty());
}

#[test]
fn an_id_that_rests_has_no_source_ranges() {
    let mut bed = Bed::new();
    bed.sync(&closed_to(&[1]), &[]);
    bed.sync(&desired([]), &[]);
    assert!(bed.kernel.ranges.is_empty() && bed.kernel.frontends.is_empty());
}

#[test]
fn ranges_that_were_found_without_a_frontend_go() {
    let mut bed = Bed::new();
    bed.sync(&closed_to(&[1]), &[]);
    let lost = RangeAt { service: 20, net: range(2, V4) };
    bed.kernel.ranges.insert(lost);
    bed.plan = Plan::adopt(CAPACITIES, bed.kernel.found(), bed.now);
    bed.sync(&closed_to(&[1]), &[]);
    assert_serves(&bed.kernel, &closed_to(&[1]));
}

#[test]
fn cluster_sources_follow_the_nodes_and_stay_until_everything_is_read() {
    let mut bed = Bed::new();
    let inside = |nets: &[u8]| Desired {
        cluster_sources: nets.iter().map(|n| range(*n, V4)).collect(),
        own_sources: nets.iter().skip(1).map(|n| range(*n, V4)).collect(),
        ..desired([])
    };
    let found = |bed: &Bed| bed.kernel.ranges_of(CLUSTER);
    let near = |bed: &Bed| bed.kernel.ranges_of(NEAR);
    bed.sync(&inside(&[1, 3]), &[]);
    assert_eq!(found(&bed), inside(&[1, 3]).cluster_sources);
    assert_eq!(near(&bed), inside(&[1, 3]).own_sources);
    bed.plan = Plan::adopt(CAPACITIES, bed.kernel.found(), bed.now);
    let incomplete = Dirty { nodes: true, incomplete: true, ..Dirty::default() };
    bed.kernel.begin(bed.now, Vec::new());
    bed.plan.sync(&inside(&[1, 2]), &incomplete, bed.now, &mut bed.kernel);
    assert_eq!(found(&bed), inside(&[1, 2, 3]).cluster_sources);
    assert_eq!(near(&bed), inside(&[1, 2, 3]).own_sources);
    bed.sync(&inside(&[1, 2]), &[]);
    assert_eq!(found(&bed), inside(&[1, 2]).cluster_sources);
    assert_eq!(near(&bed), inside(&[1, 2]).own_sources);
    assert!(matches!(bed.sync(&inside(&[2]), &[0]).failures[..], [SyncFailure::Map(_)]));
    bed.kernel.begin(bed.now, Vec::new());
    bed.plan.sync(&inside(&[2]), &Dirty::default(), bed.now, &mut bed.kernel);
    assert_eq!(found(&bed), inside(&[2]).cluster_sources, "it is tried again though nothing changed");
}
