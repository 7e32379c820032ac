//! Tests of short waits for states that mostly pass by themselves.

use std::sync::{Arc, Mutex};

use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::*;
use crate::reconcile::patience::PATIENCE;

/// Shorter than the whole wait by the shortest interval.
const ALMOST: Duration = MOVE_INTERVAL.checked_sub(INTERVALS.min).unwrap();

fn slice(name: &str, port: &str, endpoints: &[&str]) -> SourceEvent {
    let endpoints: Vec<_> =
        endpoints.iter().map(|address| format!(r#"{{"addresses": ["{address}"]}}"#)).collect();
    let manifest = format!(
        r#"{{"metadata": {{"name": "{name}", "labels": {{"kubernetes.io/service-name": "web"}}}},
            "addressType": "IPv4", "ports": [{{"name": "{port}", "port": 8080}}], "endpoints": [{}]}}"#,
        endpoints.join(",")
    );
    upsert(Object::EndpointSlice(Box::new(serde_json::from_str::<EndpointSlice>(&manifest).unwrap())))
}

/// Starts with a Service that has two slices and is served.
async fn two_slices() -> Bench {
    let bench = Bench::start();
    bench.tell(service("web", "10.96.0.1")).await;
    bench.tell(slice("a", "", &["10.244.1.1"])).await;
    bench.tell(slice("b", "", &["10.244.1.2"])).await;
    bench.begin().await;
    assert_eq!(endpoints(&bench), 2);
    bench
}

fn endpoints(bench: &Bench) -> usize {
    bench.dataplane.0.borrow().served.values().map(|port| port.endpoints.len()).sum()
}

#[test]
fn an_endpoint_that_moves_between_slices_is_never_gone() {
    on_paused_time(async || {
        let bench = two_slices().await;
        let before = bench.syncs();
        bench.tell(slice("a", "", &[])).await;
        advance(ALMOST).await;
        settle().await;
        bench.tell(slice("b", "", &["10.244.1.1", "10.244.1.2"])).await;
        assert_eq!((bench.syncs(), endpoints(&bench)), (before + 1, 2), "at once, as it has come");
        let ports = bench.dataplane.0.borrow().syncs[before].ports.len();
        assert_eq!(ports, 0, "the data plane saw nothing of it");
    });
}

#[test]
fn an_endpoint_that_does_not_come_back_is_gone_after_a_moment_however_many_others_go() {
    on_paused_time(async || {
        let bench = two_slices().await;
        bench.tell(slice("c", "", &["10.244.1.3"])).await;
        advance(INTERVALS.min).await;
        settle().await;
        let before = bench.syncs();
        bench.tell(slice("a", "", &[])).await;
        advance(ALMOST).await;
        settle().await;
        bench.tell(slice("b", "", &[])).await;
        assert_eq!(bench.syncs(), before, "it is waited for");
        advance(INTERVALS.min).await;
        settle().await;
        assert_eq!((bench.syncs(), endpoints(&bench)), (before + 1, 1), "not longer for the second");
    });
}

/// Records the reported problems.
#[derive(Clone, Debug, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Observer for Told {
    fn problem(&mut self, problem: &Problem) {
        self.0.lock().unwrap().push(problem.to_string());
    }
}

#[test]
fn objects_that_come_one_by_one_are_given_time_to_agree() {
    on_paused_time(async || {
        let told = Told::default();
        let bench = Bench::start_observed(vec![Box::new(told.clone())]);
        let count = || told.0.lock().unwrap().len();
        let pass = async |duration| {
            advance(duration).await;
            settle().await;
        };
        bench.tell(service("old", "10.96.0.9")).await;
        bench.begin().await;
        assert_eq!(count(), 1, "wrong when everything was listed: {told:?}");

        bench.tell(service("web", "10.96.0.1")).await;
        pass(INTERVALS.min).await;
        assert_eq!(count(), 1, "its slice may be on its way");
        bench.tell(slice("a", "", &["10.244.1.1"])).await;
        pass(PATIENCE).await;
        assert_eq!(count(), 1, "{told:?}");

        bench.tell(slice("a", "other", &["10.244.1.1"])).await;
        pass(INTERVALS.min).await;
        assert_eq!(count(), 1, "its Service may be on its way");
        pass(PATIENCE).await;
        assert_eq!(count(), 2, "it has lasted");
        let last = told.0.lock().unwrap().last().cloned().unwrap();
        assert!(last.contains("matches no port of Service default/web"), "{last}");
        pass(2 * PATIENCE).await;
        assert_eq!(count(), 2, "told once");

        for port in ["third", "", "third"] {
            bench.tell(slice("a", port, &["10.244.1.1"])).await;
            pass(PATIENCE * 2 / 5).await;
        }
        assert_eq!(count(), 2, "it was right in between");
        pass(PATIENCE).await;
        assert_eq!(count(), 3, "it has lasted again");
    });
}
