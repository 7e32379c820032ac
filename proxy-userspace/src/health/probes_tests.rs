use std::time::Duration;

use tokio::sync::watch;

use super::*;
use crate::dataplane::{Check, SyncFailure, SyncReport};
use crate::firewall::{FirewallStatus, Statuses};
use crate::health::clock_tests::HandClock;
use crate::health::ready::Condition;
use crate::health::{HealthObserver, SystemClock, Targets};
use crate::http::tests::{ask, get, start};
use crate::model::{Change, Desired, Dirty, Eligibility, Kind, ObjectKey, PortKey};
use crate::reconcile::{Observer, Synced};
use crate::source::{Listing, SourceEvent};

const SYNC_INTERVAL: Duration = Duration::from_secs(45);

/// A running server, and the state that it answers from.
struct Bench {
    clock: HandClock,
    health: Arc<Health>,
    observer: HealthObserver,
    targets: watch::Receiver<Targets>,
    counters: ProbeCounters,
    address: std::net::SocketAddr,
    _stop: watch::Sender<()>,
}

impl Bench {
    async fn new() -> Self {
        let clock = HandClock::new();
        let health = Arc::new(Health::new(clock.clone(), SYNC_INTERVAL));
        let (sender, targets) = watch::channel(Targets::default());
        let counters = ProbeCounters::default();
        let (address, stop) = start(router(health.clone(), counters.clone())).await;
        let observer = HealthObserver::new(health.clone(), sender);
        Self { clock, health, observer, targets, counters, address, _stop: stop }
    }

    fn receive(&mut self) {
        let key = ObjectKey { kind: Kind::Service, namespace: "default".into(), name: "web".into() };
        self.observer.received(&[SourceEvent::Change(Change::Delete(key))]);
    }

    fn sync(&mut self, desired: &Desired, failure: Option<SyncFailure>) {
        let report = SyncReport { failures: failure.into_iter().collect(), ..SyncReport::default() };
        let dirty = Dirty { health: true, ..Dirty::default() };
        self.observer.synced(&Synced { desired, dirty: &dirty, report: &report, took: Duration::ZERO });
    }

    /// Reports a sync in which one service port found its map full.
    fn sync_degraded(&mut self) {
        let service = crate::model::ServiceKey { namespace: "default".into(), name: "web".into() };
        let port = PortKey { service, port: String::new(), family: crate::model::Family::V4 };
        let report =
            SyncReport { pending: vec![(port, "FRONTENDS4 is full".into())], ..SyncReport::default() };
        let (desired, dirty) = (Desired::default(), Dirty::default());
        self.observer.synced(&Synced {
            desired: &desired,
            dirty: &dirty,
            report: &report,
            took: Duration::ZERO,
        });
    }

    /// Lets time pass in which the task checks its data plane and finds no fault.
    fn pass(&mut self, time: Duration) {
        self.clock.advance(time);
        self.observer.checked(&Check::default());
    }

    async fn code(&self, path: &str) -> u16 {
        get(self.address, path).await[9..12].parse().unwrap()
    }

    /// Returns the status codes of /healthz and /livez.
    async fn codes(&self) -> (u16, u16) {
        (self.code("/healthz").await, self.code("/livez").await)
    }

    /// Returns the status code of /readyz and the conditions that it names.
    async fn ready(&self) -> (u16, Vec<String>) {
        let answer = get(self.address, "/readyz").await;
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        let failing: Vec<serde_json::Value> = serde_json::from_str(body).unwrap();
        let names = failing.iter().map(|failing| failing["condition"].as_str().unwrap().to_owned());
        (answer[9..12].parse().unwrap(), names.collect())
    }
}

#[tokio::test]
async fn probes_answer_byte_for_byte() {
    let mut bench = Bench::new().await;
    bench.sync(&Desired::default(), None);
    bench.clock.advance(Duration::from_secs(2));
    let expected = |status: &str, body: &str| {
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
    };
    let family = r#"{"lastUpdated":"2026-11-21T12:00:00.5Z","healthy":true}"#;
    let status = format!(r#""status":{{"IPv4":{family},"IPv6":{family}}}"#);
    let times = r#""lastUpdated":"2026-11-21T12:00:02.5Z","currentTime":"2026-11-21T12:00:02.5Z""#;
    let body = &format!(r#"{{{times},"nodeEligible":true,"healthy":true,{status}}}"#);
    assert_eq!(get(bench.address, "/healthz").await, expected("200 OK", body));
    let head = ask(bench.address, "HEAD /healthz", "").await;
    assert_eq!(head, expected("200 OK", body).replace(body, ""));
    let body = &format!(r#"{{{times},"healthy":true,{status}}}"#);
    assert_eq!(get(bench.address, "/livez").await, expected("200 OK", body));

    bench.sync(&Desired { eligibility: Eligibility::Tainted, ..Desired::default() }, None);
    bench.clock.advance(SYNC_INTERVAL * 2 + Duration::from_millis(500));
    // The Node's own state is no fault of the proxy, but the time is that of the last change.
    let family = r#"{"lastUpdated":"2026-11-21T12:00:02.5Z","healthy":true}"#;
    let status = format!(r#""status":{{"IPv4":{family},"IPv6":{family}}}"#);
    let times = r#""lastUpdated":"2026-11-21T12:00:02.5Z","currentTime":"2026-11-21T12:01:33Z""#;
    let body = &format!(r#"{{{times},"nodeEligible":false,"healthy":true,{status}}}"#);
    assert_eq!(get(bench.address, "/healthz").await, expected("503 Service Unavailable", body));
    bench.receive();
    bench.observer.checked(&Check { fault: Some("detached".to_owned()), ..Check::default() });
    let body = body.replace("true", "false");
    assert_eq!(get(bench.address, "/healthz").await, expected("503 Service Unavailable", &body));
    assert!(get(bench.address, "/metrics").await.starts_with("HTTP/1.1 404 "));
}

#[tokio::test]
async fn a_change_that_waits_for_too_long_is_unhealthy_until_it_is_applied() {
    let mut bench = Bench::new().await;
    // The probe of manifests/base.
    let lives = async |bench: &Bench| bench.code("/livez?exclude=first-sync").await == 200;
    bench.observer.listing(&[]);
    bench.clock.advance(SYNC_INTERVAL * 9);
    assert_eq!(bench.codes().await, (503, 503), "nothing was synced");
    assert!(lives(&bench).await, "a listing may take long");
    assert_eq!(bench.code("/livez?exclude=data-plane").await, 503);
    bench.observer.listing(&[SourceEvent::Listed(Listing::Complete)]);
    assert!(lives(&bench).await, "the first sync may take its time");
    bench.clock.advance(SYNC_INTERVAL * 2);
    assert!(!lives(&bench).await, "but not for ever");
    let body =
        r#"{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"2026-11-21T12:08:15.5Z","healthy":false}"#;
    assert!(get(bench.address, "/livez").await.ends_with(&format!("\r\n\r\n{body}")));
    bench.sync(&Desired::default(), None);
    assert_eq!(bench.codes().await, (200, 200));
    bench.pass(Duration::from_hours(24));
    assert_eq!(bench.codes().await, (200, 200), "nothing has changed for a day");

    bench.receive();
    bench.pass(SYNC_INTERVAL);
    bench.receive();
    bench.pass(SYNC_INTERVAL.checked_sub(Duration::from_millis(1)).unwrap());
    assert_eq!(bench.codes().await, (200, 200));
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.codes().await, (503, 503), "the oldest one counts");
    bench.sync_degraded();
    assert_eq!(bench.codes().await, (200, 200), "one service port is no reason to drain a node");
}

#[tokio::test]
async fn a_task_that_hangs_is_found_though_it_receives_no_change() {
    let mut bench = Bench::new().await;
    bench.sync(&Desired::default(), None);
    bench.pass(SYNC_INTERVAL);
    bench.clock.advance((SYNC_INTERVAL * 2).checked_sub(Duration::from_millis(1)).unwrap());
    assert_eq!(bench.codes().await, (200, 200));
    bench.clock.advance(Duration::from_millis(1));
    assert_eq!(bench.codes().await, (503, 503));
    bench.pass(Duration::ZERO);
    assert_eq!(bench.codes().await, (200, 200));
}

#[tokio::test]
async fn a_limit_that_every_node_meets_and_one_device_of_several_drain_no_node() {
    let mut bench = Bench::new().await;
    for failure in [
        SyncFailure::Map("no room for a way to 192.0.2.9: WAYS has 4096 entries".to_owned()),
        SyncFailure::Device("no XDP on eth0: the driver has no XDP; tc_ingress serves it".to_owned()),
    ] {
        bench.receive();
        for _ in 0..3 {
            bench.sync(&Desired::default(), Some(failure.clone()));
            bench.clock.advance(SYNC_INTERVAL * 2);
            assert_eq!(bench.codes().await, (200, 200), "{failure}");
        }
    }
}

#[tokio::test]
async fn a_node_that_serves_nobody_fails_healthz_at_once_and_never_livez() {
    let mut bench = Bench::new().await;
    bench.sync(&Desired::default(), None);
    for _ in 0..3 {
        bench.sync(&Desired::default(), Some(SyncFailure::Node("attached nowhere".to_owned())));
        assert_eq!(bench.codes().await, (503, 200), "a new agent would not help");
        bench.clock.advance(SYNC_INTERVAL * 2);
    }
    assert!(get(bench.address, "/healthz").await.contains(r#"{"lastUpdated":"2026-11-21T12:00:00.5Z""#));
    bench.sync(&Desired::default(), None);
    assert_eq!(bench.codes().await, (200, 200));
}

#[tokio::test]
async fn a_short_sync_interval_leaves_a_minute() {
    let clock = HandClock::new();
    let health = Health::new(clock.clone(), Duration::from_secs(1));
    health.sync(&[]);
    health.queue();
    clock.advance(Duration::from_secs(59));
    assert!(health.verdict().healthy);
    clock.advance(Duration::from_secs(1));
    assert!(!health.verdict().healthy);
}

#[tokio::test]
async fn a_node_that_goes_away_fails_healthz_and_not_livez() {
    let mut bench = Bench::new().await;
    for eligibility in [Eligibility::Missing, Eligibility::Deleted, Eligibility::Tainted] {
        bench.sync(&Desired { eligibility, ..Desired::default() }, None);
        assert_eq!(bench.codes().await, (503, 200), "{eligibility:?}");
    }
    bench.sync(&Desired::default(), None);
    assert_eq!(bench.codes().await, (200, 200));
    let count = |code: &str, family: &Family<[(&'static str, String); 1], Counter>| {
        family.get_or_create(&[("code", code.to_owned())]).get()
    };
    let counters = &bench.counters;
    assert_eq!((count("200", &counters.healthz), count("503", &counters.healthz)), (1, 3));
    assert_eq!((count("200", &counters.livez), count("503", &counters.livez)), (4, 0));
}

#[tokio::test]
async fn a_failed_self_test_is_unhealthy_at_once() {
    let mut bench = Bench::new().await;
    bench.sync(&Desired::default(), None);
    bench.observer.checked(&Check { fault: Some("tc_ingress-2 is detached".to_owned()), ..Check::default() });
    assert_eq!(bench.codes().await, (503, 503));
    bench.observer.checked(&Check::default());
    assert_eq!(bench.codes().await, (200, 200));
}

#[tokio::test]
async fn ports_to_open_are_told_when_they_change_only() {
    let mut bench = Bench::new().await;
    let desired =
        Desired { health_check_addresses: ["127.0.0.1".parse().unwrap()].into(), ..Desired::default() };
    bench.sync(&desired, None);
    assert!(bench.targets.has_changed().unwrap());
    assert_eq!(bench.targets.borrow_and_update().addresses, desired.health_check_addresses);
    bench.sync(&desired, None);
    assert!(!bench.targets.has_changed().unwrap());
}

#[tokio::test]
async fn a_node_is_ready_when_all_conditions_hold_and_each_that_fails_is_named() {
    let mut bench = Bench::new().await;
    let all = ["source-listed", "node-found", "data-plane"].map(str::to_owned).to_vec();
    assert_eq!(bench.ready().await, (503, all.clone()));
    bench.observer.listing(&[SourceEvent::Listed(Listing::Complete)]);
    assert_eq!(bench.ready().await, (503, all[1..].to_vec()));
    bench.clock.advance(SYNC_INTERVAL * 2);
    assert_eq!(bench.ready().await.1.last().unwrap(), "changes-applied");
    let nowhere =
        Desired { eligibility: Eligibility::Missing, node_name: "node-9".to_owned(), ..Desired::default() };
    bench.sync(&nowhere, None);
    assert_eq!(bench.ready().await, (503, all[1..2].to_vec()));
    assert!(get(bench.address, "/readyz").await.contains("there is no Node node-9"));
    bench.sync(&Desired::default(), Some(SyncFailure::Node("no device is an uplink".to_owned())));
    assert_eq!(bench.ready().await, (503, all[2..].to_vec()));
    let verbose = get(bench.address, "/readyz?verbose").await;
    assert!(
        verbose.starts_with("HTTP/1.1 503 ")
            && verbose.contains("\r\nContent-Type: text/plain; charset=utf-8\r\n")
            && verbose.ends_with(
                "[+]source-listed ok\n[+]node-found ok\n[-]data-plane failed: no device is an uplink\n\
                 [+]changes-applied ok\n[+]self-test ok\n[+]node-checks ok\n[+]network-policies ok\nreadyz check failed\n"
            ),
        "{verbose}"
    );
    let device = SyncFailure::Device("--uplinks: there is no device eth9".to_owned());
    bench.sync(&Desired { eligibility: Eligibility::Tainted, ..Desired::default() }, Some(device));
    assert_eq!(bench.ready().await, (200, Vec::new()), "it is another one's turn to drain it");
    bench.observer.checked(&Check { fault: Some("tc_ingress-2 is detached".to_owned()), ..Check::default() });
    assert_eq!(bench.ready().await, (503, vec!["self-test".to_owned()]));
    bench.observer.checked(&Check::default());
    assert!(get(bench.address, "/readyz").await.ends_with("\r\n\r\n[]"));
    bench.health.set_node_checks(Some("eth0 is down".to_owned()));
    assert_eq!(bench.ready().await, (503, vec!["node-checks".to_owned()]));
    bench.health.set_node_checks(None);
    let verbose = get(bench.address, "/readyz?verbose").await;
    assert!(
        verbose
            .ends_with("[+]self-test ok\n[+]node-checks ok\n[+]network-policies ok\nreadyz check passed\n"),
        "{verbose}"
    );
}

#[test]
fn a_node_whose_firewall_is_not_in_force_is_not_ready() {
    let statuses = Statuses::default();
    let health = Health::new(SystemClock, Duration::from_secs(30)).with_firewall(Some(statuses.clone()));
    let wrong = || health.readiness().message(Condition::NetworkPolicies).map(str::to_owned);
    assert!(wrong().is_some_and(|why| why.contains("not listed")));
    statuses.publish(FirewallStatus {
        failures: vec!["POLICY_RULES is full".to_owned()],
        ..FirewallStatus::default()
    });
    assert_eq!(wrong().as_deref(), Some("POLICY_RULES is full"));
    statuses.publish(FirewallStatus::default());
    assert_eq!(wrong(), None);
    assert_eq!(
        Health::new(SystemClock, Duration::from_secs(30)).readiness().message(Condition::NetworkPolicies),
        None
    );
}

#[tokio::test]
async fn what_the_source_met_is_for_this_node_only() {
    let signs = crate::source::Signs::default();
    let health = Arc::new(Health::new(HandClock::new(), SYNC_INTERVAL).with_signs(signs.clone()));
    let (address, _stop) = start(router(health.clone(), ProbeCounters::default())).await;
    signs.set_trouble(Some("the API server at https://192.0.2.1 says: user m may not".to_owned()));
    assert!(!get(address, "/readyz").await.contains("192.0.2.1"));
    assert!(health.readiness().view().failing[0].cause.as_ref().unwrap().ends_with("user m may not"));
}
