//! Tests of programs that are detached while the agent runs.

use super::*;

#[test]
fn an_uplink_without_its_program_gets_it_back_within_a_moment() {
    on_paused_time(async || {
        let witness = Witness::default();
        let bench = Bench::start_observed(vec![Box::new(witness.clone())]);
        bench.begin().await;
        witness.0.lock().unwrap().clear();
        let topologies = || bench.dataplane.0.borrow().topologies;
        let before = topologies();
        bench.dataplane.0.borrow_mut().is_detached = true;
        bench.dataplane.0.borrow_mut().fault = Some("detached".to_owned());
        advance(LOOK_INTERVAL).await;
        settle().await;
        bench.dataplane.0.borrow_mut().is_detached = false;
        advance(INTERVALS.min).await;
        settle().await;
        assert_eq!(topologies(), before + 1);
        assert_eq!(*witness.0.lock().unwrap(), [r#"fault Some("detached")"#]);
        bench.dataplane.0.borrow_mut().unattached = Some(SyncFailure::Device("refused".to_owned()));
        bench.dataplane.0.borrow_mut().is_detached = true;
        advance(LOOK_INTERVAL).await;
        settle().await;
        advance(INTERVALS.min).await;
        settle().await;
        let tried = topologies();
        advance(LOOK_INTERVAL).await;
        settle().await;
        assert_eq!(topologies(), tried, "what can't be attached is tried at the pace of failures");
    });
}

#[test]
fn a_data_plane_that_finds_a_fault_is_attached_again_and_observers_are_told() {
    on_paused_time(async || {
        let witness = Witness::default();
        let bench = Bench::start_observed(vec![Box::new(witness.clone())]);
        let told = || std::mem::take(&mut *witness.0.lock().unwrap());
        bench.dataplane.0.borrow_mut().fault = Some("detached".to_owned());
        advance(HEARTBEAT_INTERVAL).await;
        settle().await;
        assert!(told().is_empty(), "what an earlier agent left is not looked at before the first sync");
        bench.begin().await;
        told();

        let wrong = Topology { addresses: ["192.0.2.9".parse().unwrap()].into(), ..Topology::default() };
        bench.dataplane.0.borrow_mut().topology = wrong;
        advance(HEARTBEAT_INTERVAL).await;
        settle().await;
        advance(INTERVALS.min).await;
        settle().await;
        assert_eq!(told(), [r#"fault Some("detached")"#]);
        assert_eq!(bench.dataplane.0.borrow().topology, Topology::default());
        bench.dataplane.0.borrow_mut().fault = None;
        advance(HEARTBEAT_INTERVAL).await;
        settle().await;
        assert_eq!(told(), ["fault None"]);
    });
}
