mod attached;
mod waiting;

use std::cell::RefCell;
use std::rc::Rc;

use k8s_openapi::api::core::v1::{Node, Service};
use tokio::task::{LocalSet, yield_now};
use tokio::time::advance;

use super::*;
use crate::dataplane::fake::FakeDataplane;
use crate::dataplane::{Check, SyncFailure};
use crate::model::{Change, Desired, ModelSettings, Object, PortKey};
use crate::source::Unread;

const INTERVALS: Intervals = Intervals {
    min: Duration::from_millis(10),
    max: Duration::from_secs(30),
    drain: Duration::from_mins(10),
};

/// A fake data plane that the test can inspect while the task owns it.
#[derive(Clone, Default)]
struct Shared(Rc<RefCell<FakeDataplane>>);

impl Dataplane for Shared {
    fn sync(&mut self, desired: &Desired, dirty: &Dirty) -> SyncReport {
        self.0.borrow_mut().sync(desired, dirty)
    }
    fn set_topology(&mut self, topology: &Topology) -> SyncReport {
        self.0.borrow_mut().set_topology(topology)
    }
    fn housekeep(&mut self, now_monotonic_seconds: u64) -> Option<Duration> {
        self.0.borrow_mut().housekeep(now_monotonic_seconds)
    }
    fn check(&mut self) -> Check {
        self.0.borrow_mut().check()
    }
    fn is_attached(&self) -> bool {
        self.0.borrow().is_attached()
    }
}

/// The other ends of a running task's channels.
struct Bench {
    dataplane: Shared,
    events: mpsc::Sender<Batch>,
    topology: watch::Sender<Option<Topology>>,
    targets: watch::Receiver<Option<BTreeSet<IpAddr>>>,
    _stop: watch::Sender<()>,
}

impl Bench {
    fn start() -> Self {
        Self::start_observed(Vec::new())
    }

    fn start_observed(mut observers: Vec<Box<dyn Observer>>) -> Self {
        let (event_sender, events) = mpsc::channel(64);
        let (topology_sender, topology) = watch::channel(None);
        let (target_sender, targets) = watch::channel(None);
        let (stop_sender, stop) = watch::channel(());
        let dataplane = Shared::default();
        let mut channels = Channels { events, topology, targets: target_sender, stop };
        let settings = ModelSettings { node_name: "node1".to_owned(), ..ModelSettings::default() };
        let mut model = Model::new(settings);
        let owned = dataplane.clone();
        tokio::task::spawn_local(async move {
            if let Some(listing) = list(&mut model, &mut channels, &mut observers).await {
                let task = Reconciler::new(model, listing, owned, channels, INTERVALS);
                task.observed_by(observers).run().await;
            }
        });
        Self { dataplane, events: event_sender, topology: topology_sender, targets, _stop: stop_sender }
    }

    async fn tell(&self, event: SourceEvent) {
        self.events.send(vec![event]).await.unwrap();
        settle().await;
    }

    /// Lists everything, and makes the node's network known.
    async fn begin(&self) {
        self.tell(SourceEvent::Listed(Listing::Complete)).await;
        self.topology.send_replace(Some(Topology::default()));
        settle().await;
        advance(INTERVALS.min).await;
        settle().await;
    }

    fn syncs(&self) -> usize {
        self.dataplane.0.borrow().syncs.len()
    }

    fn served(&self) -> Vec<String> {
        self.dataplane.0.borrow().served.keys().map(PortKey::to_string).collect()
    }
}

/// Lets the task work until it waits for time to pass.
async fn settle() {
    for _ in 0..20 {
        yield_now().await;
    }
}

fn upsert(object: Object) -> SourceEvent {
    SourceEvent::Change(Change::Upsert { object, file: None })
}

fn service(name: &str, cluster_ip: &str) -> SourceEvent {
    upsert(service_object(name, cluster_ip))
}

fn service_object(name: &str, cluster_ip: &str) -> Object {
    let manifest = format!(
        r#"{{"metadata": {{"name": "{name}", "namespace": "default"}},
            "spec": {{"clusterIP": "{cluster_ip}", "clusterIPs": ["{cluster_ip}"], "ports": [{{"port": 80}}]}}}}"#
    );
    Object::Service(Box::new(serde_json::from_str::<Service>(&manifest).unwrap()))
}

fn node(name: &str, address: &str) -> SourceEvent {
    let manifest = format!(
        r#"{{"metadata": {{"name": "{name}"}},
            "status": {{"addresses": [{{"type": "InternalIP", "address": "{address}"}}]}}}}"#
    );
    upsert(Object::Node(Box::new(serde_json::from_str::<Node>(&manifest).unwrap())))
}

/// Runs on one thread, on which time passes only by the test's call.
fn on_paused_time(test: impl AsyncFnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    LocalSet::new().block_on(&runtime.unwrap(), test());
}

#[test]
fn nothing_happens_before_everything_is_listed_and_the_network_is_known() {
    on_paused_time(async || {
        let bench = Bench::start();
        bench.tell(service("web", "10.96.0.1")).await;
        bench.tell(node("node2", "192.0.2.2")).await;
        bench.topology.send_replace(Some(Topology::default()));
        advance(INTERVALS.max * 3).await;
        settle().await;
        assert_eq!((bench.syncs(), bench.targets.borrow().clone()), (0, None), "not listed");

        let bench = Bench::start();
        bench.tell(service("web", "10.96.0.1")).await;
        bench.tell(node("node2", "192.0.2.2")).await;
        bench.tell(SourceEvent::Listed(Listing::Complete)).await;
        assert_eq!(*bench.targets.borrow(), Some(BTreeSet::from(["192.0.2.2".parse().unwrap()])));
        advance(INTERVALS.max * 3).await;
        settle().await;
        assert_eq!(bench.syncs(), 0, "network unknown");
        bench.topology.send_replace(Some(Topology::default()));
        settle().await;
        advance(INTERVALS.min).await;
        settle().await;
        assert_eq!(bench.served(), ["default/web"]);
        bench.tell(node("node3", "192.0.2.3")).await;
        advance(INTERVALS.min).await;
        settle().await;
        assert_eq!(bench.targets.borrow().as_ref().map(BTreeSet::len), Some(2), "a node came later");
    });
}

#[test]
fn changes_within_the_shortest_interval_are_synced_together() {
    on_paused_time(async || {
        let bench = Bench::start();
        bench.begin().await;
        let before = bench.syncs();
        for (name, address) in [("a", "10.96.0.1"), ("b", "10.96.0.2"), ("c", "10.96.0.3")] {
            bench.tell(service(name, address)).await;
        }
        assert_eq!(bench.syncs(), before, "too early");
        advance(INTERVALS.min).await;
        settle().await;
        assert_eq!(bench.syncs(), before + 1);
        assert_eq!(bench.served(), ["default/a", "default/b", "default/c"]);
    });
}

#[test]
fn what_waits_when_a_sync_is_due_is_part_of_it() {
    on_paused_time(async || {
        let bench = Bench::start();
        bench.begin().await;
        bench.tell(service("a", "10.96.0.1")).await;
        advance(INTERVALS.min * 2).await;
        settle().await;
        let before = bench.syncs();
        advance(INTERVALS.min * 2).await;
        // An object that moves between files: deleted in one batch, created in the next.
        let gone = Change::Delete(service_object("a", "10.96.0.1").key());
        bench.events.send(vec![SourceEvent::Change(gone)]).await.unwrap();
        bench.events.send(vec![service("a", "10.96.0.1")]).await.unwrap();
        settle().await;
        advance(INTERVALS.min).await;
        settle().await;
        let ports: Vec<usize> =
            bench.dataplane.0.borrow().syncs[before..].iter().map(|dirty| dirty.ports.len()).collect();
        assert_eq!(ports, [0], "the data plane saw nothing of it");
    });
}

#[test]
fn what_failed_is_tried_again_until_it_succeeds() {
    on_paused_time(async || {
        let bench = Bench::start();
        bench.begin().await;
        let key = |name: &str| PortKey {
            service: crate::model::ServiceKey { namespace: "default".to_owned(), name: name.to_owned() },
            port: String::new(),
            family: crate::model::Family::V4,
        };
        bench.dataplane.0.borrow_mut().refused.insert(key("a"), "the map is full".to_owned());
        bench.tell(service("a", "10.96.0.1")).await;
        bench.tell(service("b", "10.96.0.2")).await;
        advance(INTERVALS.min).await;
        settle().await;
        assert_eq!(bench.served(), ["default/b"], "the other one is served");

        advance(RETRY_INTERVAL).await;
        settle().await;
        assert_eq!(bench.served(), ["default/b"]);
        bench.dataplane.0.borrow_mut().refused.clear();
        advance(RETRY_INTERVAL).await;
        settle().await;
        assert_eq!(bench.served(), ["default/a", "default/b"]);
        let after = bench.syncs();
        advance(RETRY_INTERVAL * 3).await;
        settle().await;
        assert_eq!(bench.syncs(), after, "nothing left to try again");
    });
}

#[test]
fn everything_is_synced_again_after_the_longest_interval() {
    on_paused_time(async || {
        let bench = Bench::start();
        bench.begin().await;
        bench.tell(service("a", "10.96.0.1")).await;
        advance(INTERVALS.min).await;
        settle().await;
        let before = bench.syncs();
        advance(INTERVALS.max).await;
        settle().await;
        assert_eq!(bench.syncs(), before + 1);
        let dirty = bench.dataplane.0.borrow().syncs.last().cloned().unwrap();
        assert_eq!((dirty.ports.len(), dirty.nodes), (1, true));
    });
}

#[test]
fn a_round_through_many_services_leaves_room_for_a_change_in_between() {
    on_paused_time(async || {
        let bench = Bench::start();
        let services = PART + 10;
        for number in 0..services {
            let address = format!("10.96.{}.{}", number / 250, number % 250 + 1);
            bench.tell(service(&format!("s{number:04}"), &address)).await;
        }
        bench.begin().await;
        assert_eq!(bench.served().len(), services, "the first sync is whole");
        let dirty = || bench.dataplane.0.borrow().syncs.last().map(|dirty| dirty.ports.len());

        advance(INTERVALS.max).await;
        settle().await;
        assert_eq!(dirty(), Some(PART));
        bench.tell(service("changed", "10.96.9.9")).await;
        advance(INTERVALS.min).await;
        settle().await;
        assert!(bench.served().contains(&"default/changed".to_owned()));
        advance(PART_INTERVAL).await;
        settle().await;
        let parts: usize = bench.dataplane.0.borrow().syncs[1..].iter().map(|dirty| dirty.ports.len()).sum();
        assert_eq!(parts, services + 1, "every one once, and the changed one");
    });
}

#[test]
fn the_data_plane_is_told_that_not_everything_was_read_until_it_was() {
    on_paused_time(async || {
        let bench = Bench::start();
        let unread = BTreeSet::from([Unread::File(std::path::Path::new("web.yaml").into())]);
        bench.tell(SourceEvent::Listed(Listing::Without(unread))).await;
        bench.topology.send_replace(Some(Topology::default()));
        let last = async || {
            settle().await;
            advance(INTERVALS.min).await;
            settle().await;
            bench.dataplane.0.borrow().syncs.last().map(|dirty| dirty.incomplete)
        };
        assert_eq!(last().await, Some(true));
        bench.tell(service("a", "10.96.0.1")).await;
        assert_eq!(last().await, Some(true));
        bench.tell(SourceEvent::Listed(Listing::Complete)).await;
        assert_eq!(last().await, Some(false));
    });
}

#[test]
fn a_new_topology_reaches_the_data_plane() {
    on_paused_time(async || {
        let bench = Bench::start();
        bench.begin().await;
        let topology =
            Topology { addresses: BTreeSet::from(["192.0.2.1".parse().unwrap()]), ..Topology::default() };
        bench.topology.send_replace(Some(topology.clone()));
        settle().await;
        advance(INTERVALS.min).await;
        settle().await;
        assert_eq!(bench.dataplane.0.borrow().topology, topology);
    });
}

#[test]
fn devices_are_looked_after_again_where_that_failed_and_not_while_something_else_is_due() {
    on_paused_time(async || {
        let bench = Bench::start();
        bench.begin().await;
        let told = || bench.dataplane.0.borrow().topologies;
        bench.dataplane.0.borrow_mut().due_in = Some(RETRY_INTERVAL);
        let before = bench.syncs();
        bench.tell(service("a", "10.96.0.1")).await;
        for _ in 0..3 {
            advance(RETRY_INTERVAL).await;
            settle().await;
        }
        assert_eq!(bench.syncs(), before + 3, "one for the change, and what is due is done");
        assert_eq!(told(), 1, "at the begin");

        bench.dataplane.0.borrow_mut().due_in = None;
        bench.dataplane.0.borrow_mut().unattached = Some(SyncFailure::Device("no such device".to_owned()));
        bench.topology.send_replace(Some(Topology::default()));
        settle().await;
        advance(INTERVALS.min).await;
        settle().await;
        assert_eq!(told(), 2);
        advance(RETRY_INTERVAL).await;
        settle().await;
        assert_eq!(told(), 3);
        bench.dataplane.0.borrow_mut().unattached = None;
        advance(RETRY_INTERVAL).await;
        settle().await;
        assert_eq!(told(), 4);
        advance(RETRY_INTERVAL * 3).await;
        settle().await;
        assert_eq!(told(), 4, "nothing left to try again");
    });
}

/// Records the order of its calls.
#[derive(Clone, Debug, Default)]
struct Witness(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl Witness {
    fn note(&self, what: &str, batch: &[SourceEvent]) {
        let names = batch.iter().map(|event| match event {
            SourceEvent::Change(Change::Upsert { object, .. }) => object.key().to_string(),
            SourceEvent::Change(Change::Delete(key)) => key.to_string(),
            SourceEvent::Listed(_) => "end".to_owned(),
            SourceEvent::Problem(problem) => problem.to_string(),
        });
        self.0.lock().unwrap().push(format!("{what} {}", names.collect::<Vec<_>>().join(", ")));
    }
}

impl Observer for Witness {
    fn listing(&mut self, batch: &[SourceEvent]) {
        self.note("listing", batch);
    }
    fn received(&mut self, batch: &[SourceEvent]) {
        self.note("received", batch);
    }
    fn problem(&mut self, problem: &Problem) {
        self.0.lock().unwrap().push(format!("problem {problem}"));
    }
    fn checked(&mut self, check: &Check) {
        self.0.lock().unwrap().push(format!("fault {:?}", check.fault));
    }
}

#[test]
fn observers_are_told_of_the_listing_and_of_what_was_wrong_in_it() {
    on_paused_time(async || {
        let witness = Witness::default();
        let bench = Bench::start_observed(vec![Box::new(witness.clone())]);
        bench.tell(service("a", "10.96.0.300")).await;
        bench.begin().await;
        bench.tell(service("b", "10.96.0.2")).await;
        let told = witness.0.lock().unwrap().clone();
        let wrong = "problem Service default/a: spec.clusterIPs[0]: \"10.96.0.300\" is not an IP address; \
                     takes IPv4 or IPv6";
        let expected = ["listing Service default/a", "listing end", wrong, "received Service default/b"];
        assert_eq!(told, expected);
    });
}

#[test]
fn a_data_plane_keeps_house_every_few_seconds_and_earlier_where_it_asks_for_that() {
    on_paused_time(async || {
        let bench = Bench::start();
        bench.begin().await;
        let kept = || std::mem::take(&mut bench.dataplane.0.borrow_mut().housekept);
        assert_eq!(kept(), 1);
        let second = Duration::from_secs(1);
        for (asked, times) in [(None, 2), (Some(second), 10), (Some(HEARTBEAT_INTERVAL * 2), 2), (None, 2)] {
            // The former wish still holds until the next call.
            advance(HEARTBEAT_INTERVAL).await;
            bench.dataplane.0.borrow_mut().housekeep_in = asked;
            settle().await;
            kept();
            for _ in 0..10 {
                advance(second).await;
                settle().await;
            }
            assert_eq!(kept(), times, "{asked:?}");
        }
    });
}
