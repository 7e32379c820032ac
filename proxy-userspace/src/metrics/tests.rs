#![allow(clippy::float_cmp, reason = "the values are exact in binary")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use prometheus_client::registry::Registry;

use super::text::Format;
use super::*;
use crate::config::{AgentArgs, Settings, Source};
use crate::dataplane::{Check, Crowded, FlowCount, SnatPorts, SyncFailure, SyncReport};
use crate::health::clock_tests::HandClock;
use crate::http::tests::{ask, get, start};
use crate::model::{
    Algorithm, Change, Desired, Dirty, Family as AddressFamily, Forwarding, Frontend, FrontendKind, Kind,
    List, Object, ObjectKey, PortKey, Problem, Protocol, Scope, ServiceKey, ServicePort, Severity, Topic,
};
use crate::reconcile::{Observer, Synced};
use crate::source::{Listing, SourceEvent, Unread};

mod catalogue;

/// An agent's metrics, and what fills them.
struct Bench {
    clock: HandClock,
    registry: Registry,
    metrics: Metrics,
    observer: MetricsObserver,
}

impl Bench {
    fn new() -> Self {
        let (clock, metrics) = (HandClock::new(), Metrics::new());
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let observer = MetricsObserver::new(metrics.clone(), clock.clone());
        Self { clock, registry, metrics, observer }
    }

    fn sync(&mut self, desired: &Desired, dirty: &[&PortKey], report: &SyncReport) {
        let ports = dirty.iter().map(|key| (*key).clone()).collect();
        let dirty = Dirty { ports, ..Dirty::default() };
        self.observer.synced(&Synced { desired, dirty: &dirty, report, took: Duration::from_millis(3) });
    }

    fn sync_all_well(&mut self) {
        self.sync(&Desired::default(), &[], &SyncReport::default());
    }

    fn samples(&self) -> BTreeMap<String, f64> {
        parse(&Format::Prometheus.write(&self.registry).unwrap())
    }
}

/// Reads Prometheus' text strictly: each family is declared once, right before its samples, and each series is there
/// once; a histogram's buckets add up to its count.
fn parse(text: &str) -> BTreeMap<String, f64> {
    assert!(text.ends_with('\n'));
    let mut kinds: BTreeMap<String, String> = BTreeMap::new();
    let mut samples = BTreeMap::new();
    let (mut help, mut family) = (String::new(), String::new());
    for line in text.lines() {
        if let Some(line) = line.strip_prefix("# HELP ") {
            let (name, text) = line.split_once(' ').expect("a help text");
            assert!(!text.is_empty());
            name.clone_into(&mut help);
        } else if let Some(line) = line.strip_prefix("# TYPE ") {
            let (name, kind) = line.split_once(' ').expect("a type");
            assert_eq!(name, help, "HELP and TYPE come together");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kinds.insert(name.to_owned(), kind.to_owned()), None, "{name} is declared twice");
            name.clone_into(&mut family);
        } else {
            assert!(!line.starts_with('#'), "{line}");
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let name = series.split('{').next().unwrap_or_default();
            let suffixes: &[&str] = match kinds[&family].as_str() {
                "histogram" => &["_sum", "_count", "_bucket"],
                _ => &[""],
            };
            assert!(suffixes.iter().any(|suffix| name == format!("{family}{suffix}")), "{line} in {family}");
            assert!(kinds[&family] != "counter" || name.ends_with("_total") && !name.contains("_total_"));
            check_labels(series);
            let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
            assert_eq!(samples.insert(series.to_owned(), value), None, "{series} is there twice");
        }
    }
    for (name, _) in kinds.iter().filter(|(_, kind)| *kind == "histogram") {
        let counts = samples.iter().filter(|(series, _)| series.starts_with(&format!("{name}_count")));
        for (series, count) in counts {
            let labels = series.split_once('{').map_or("", |(_, labels)| labels.trim_end_matches('}'));
            let bucket = format!("{name}_bucket{{le=\"+Inf\",{labels}}}");
            assert_eq!(samples[&bucket], *count);
        }
    }
    samples
}

fn check_labels(series: &str) {
    let Some((name, labels)) = series.split_once('{') else { return };
    let is_name =
        |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    assert!(is_name(name), "{series}");
    for label in labels.strip_suffix('}').expect("a closing brace").split(',') {
        let (name, value) = label.split_once('=').expect("a label's value");
        assert!(
            is_name(name) && value.len() >= 2 && value.starts_with('"') && value.ends_with('"'),
            "{series}"
        );
    }
}

fn key(name: &str) -> PortKey {
    let service = ServiceKey { namespace: "default".to_owned(), name: name.to_owned() };
    PortKey { service, port: "http".to_owned(), family: AddressFamily::V4 }
}

/// A port with a Local list that is empty, asked for by a frontend of this kind.
fn without_local(kind: FrontendKind, scope: Scope) -> ServicePort {
    let address = SocketAddr::from(([10, 96, 0, 1], 80));
    ServicePort {
        protocol: Protocol::Tcp,
        frontends: [Frontend { address, scope, kind, list: List::Local }].into(),
        forwarding: Forwarding::Snat,
        algorithm: Algorithm::Random,
        scheduler: None,
        affinity_seconds: 0,
        source_ranges: None,
        endpoints: BTreeMap::new(),
        cluster: None,
        local: Some([].into()),
        has_any: true,
    }
}

fn slice(name: &str, service: &str, trigger: &str) -> SourceEvent {
    let manifest = format!(
        r#"{{"metadata": {{"name": "{name}", "namespace": "default",
            "labels": {{"kubernetes.io/service-name": "{service}"}},
            "annotations": {{"endpoints.kubernetes.io/last-change-trigger-time": "{trigger}"}}}},
            "addressType": "IPv4", "endpoints": []}}"#
    );
    let object = Object::EndpointSlice(serde_json::from_str(&manifest).unwrap());
    SourceEvent::Change(Change::Upsert { object, file: None })
}

fn gone(kind: Kind, name: &str) -> SourceEvent {
    let key = ObjectKey { kind, namespace: "default".to_owned(), name: name.to_owned() };
    SourceEvent::Change(Change::Delete(key))
}

#[test]
fn names_are_kube_proxys_and_each_comes_once() {
    let mut bench = Bench::new();
    bench.sync_all_well();
    bench.metrics.probes.healthz.get_or_create(&[("code", "200".to_owned())]).inc();
    bench.metrics.probes.livez.get_or_create(&[("code", "503".to_owned())]).inc();
    let samples = bench.samples();
    for name in [
        "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}",
        "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv6\"}",
        "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"}",
        "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv6\"}",
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}",
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=\"IPv6\"}",
        "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
        "kubeproxy_sync_proxy_rules_endpoint_changes_total",
        "kubeproxy_sync_proxy_rules_service_changes_pending",
        "kubeproxy_sync_proxy_rules_service_changes_total",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy=\"internal\",ip_family=\"IPv4\"}",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy=\"external\",ip_family=\"IPv6\"}",
        "kubeproxy_proxy_healthz_total{code=\"200\"}",
        "kubeproxy_proxy_livez_total{code=\"503\"}",
        "millrace_degraded_service_ports",
        "millrace_sync_failures{concern=\"node\"}",
        "millrace_sync_failures{concern=\"device\"}",
        "millrace_sync_failures{concern=\"map\"}",
        "millrace_self_test_failed",
        "millrace_flows_expired_total",
    ] {
        assert!(samples.contains_key(name), "{name} in {samples:#?}");
    }
    let buckets = |name: &str| samples.keys().filter(|series| series.starts_with(name)).count();
    assert_eq!(buckets("kubeproxy_sync_proxy_rules_duration_seconds_bucket"), 2 * 16);
    assert_eq!(buckets("kubeproxy_network_programming_duration_seconds_bucket"), 2 * 82);
}

#[test]
fn a_sync_counts_as_the_last_one_though_a_device_is_missing() {
    let mut bench = Bench::new();
    let of_v4 = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}";
    let failing = |failure| SyncReport { failures: vec![failure], ..SyncReport::default() };
    bench.sync(&Desired::default(), &[], &failing(SyncFailure::Node("no device is an uplink".to_owned())));
    assert_eq!(bench.samples()[of_v4], 0.0);
    bench.sync(&Desired::default(), &[], &failing(SyncFailure::Device("there is no device eth9".to_owned())));
    assert!(bench.samples()[of_v4] > 1e9);
}

#[test]
fn changes_are_pending_until_a_sync_takes_them_though_a_port_stays_degraded() {
    let mut bench = Bench::new();
    bench.observer.received(&[
        gone(Kind::Service, "a"),
        gone(Kind::EndpointSlice, "a-1"),
        gone(Kind::Node, "n"),
    ]);
    bench.observer.received(&[gone(Kind::Service, "b")]);
    let read = |bench: &Bench| {
        let samples = bench.samples();
        [
            "service_changes_pending",
            "service_changes_total",
            "endpoint_changes_pending",
            "endpoint_changes_total",
        ]
        .map(|name| samples[&format!("kubeproxy_sync_proxy_rules_{name}")])
    };
    assert_eq!(read(&bench), [2.0, 2.0, 1.0, 1.0]);
    let failed =
        SyncReport { pending: vec![(key("a"), "SELECTION is full".to_owned())], ..SyncReport::default() };
    bench.clock.advance(Duration::from_secs(1));
    bench.sync(&Desired::default(), &[], &failed);
    assert_eq!(read(&bench), [0.0, 2.0, 0.0, 1.0]);
    bench.observer.received(&[gone(Kind::Service, "c")]);
    assert_eq!(read(&bench), [1.0, 3.0, 0.0, 1.0], "not those of the sync before");
    bench.sync(&Desired::default(), &[], &failed);
    let of_v6 = |samples: &BTreeMap<String, f64>, name: &str| {
        samples[&format!("kubeproxy_sync_proxy_rules_{name}{{ip_family=\"IPv6\"}}")]
    };
    let samples = bench.samples();
    assert_eq!(samples["millrace_degraded_service_ports"], 1.0);
    assert_eq!(of_v6(&samples, "last_timestamp_seconds"), 0.0);
    bench.sync_all_well();
    assert_eq!(read(&bench), [0.0, 3.0, 0.0, 1.0]);
    let samples = bench.samples();
    // 2026-11-21 12:00:01.5 UTC.
    assert_eq!(of_v6(&samples, "last_queued_timestamp_seconds"), 1_795_262_401.5);
    assert_eq!(of_v6(&samples, "last_timestamp_seconds"), 1_795_262_401.5);
    assert_eq!(of_v6(&samples, "duration_seconds_count"), 3.0);
    let up_to = |le: &str| {
        let labels = format!("{{le=\"{le}\",ip_family=\"IPv4\"}}");
        samples[&format!("kubeproxy_sync_proxy_rules_duration_seconds_bucket{labels}")]
    };
    assert_eq!((up_to("0.002"), up_to("0.004")), (0.0, 3.0));
}

#[test]
fn programming_takes_from_the_trigger_to_the_sync_that_applied_it() {
    let mut bench = Bench::new();
    let read = |bench: &Bench| {
        let samples = bench.samples();
        ["count", "sum"].map(|name| samples[&of_programming(name, "IPv4")])
    };
    bench.observer.listing(&[slice("listed", "a", "2026-11-21T12:00:01Z")]);
    bench.observer.received(&[
        slice("old", "a", "2026-11-21T11:59:59Z"),
        slice("bad", "a", "yesterday"),
        slice("a-1", "a", "2026-11-21T12:00:01Z"),
        slice("b-1", "b", "2026-11-21T12:00:02.25Z"),
    ]);
    assert_eq!(read(&bench), [0.0, 0.0]);
    bench.clock.advance(Duration::from_secs(3));
    let failed = SyncReport { pending: vec![(key("b"), "full".to_owned())], ..SyncReport::default() };
    bench.sync(&Desired::default(), &[], &failed);
    assert_eq!(read(&bench), [1.0, 2.5], "b is not applied, and what was before the start does not count");
    bench.sync_all_well();
    assert_eq!(read(&bench), [2.0, 3.75]);

    bench.observer.received(&[slice("a-1", "a", "2026-11-21T12:00:01Z")]);
    bench.sync_all_well();
    assert_eq!(read(&bench), [2.0, 3.75], "told again after a new listing");
    bench.observer.received(&[gone(Kind::EndpointSlice, "a-1"), slice("a-1", "a", "2026-11-21T12:00:03Z")]);
    bench.sync_all_well();
    assert_eq!(read(&bench), [3.0, 4.25]);
    assert_eq!(bench.samples()[&of_programming("count", "IPv6")], 0.0);
}

#[test]
fn what_the_source_shows_of_itself_and_what_was_asked_of_a_server_are_figures() {
    let mut bench = Bench::new();
    let signs = bench.metrics.signs.clone();
    let unread = [Unread::File(Path::new("a.yaml").into())].into();
    bench.observer.listing(&[SourceEvent::Problem(problem(Topic::Field))]);
    assert_eq!(
        bench.samples()["millrace_source_last_event_timestamp_seconds"],
        0.0,
        "the source said nothing"
    );
    bench.observer.listing(&[SourceEvent::Listed(Listing::Without(unread))]);
    assert_eq!(bench.samples()["millrace_source_synced"], 0.0, "a file was never read");
    bench.observer.received(&[SourceEvent::Listed(Listing::Complete)]);
    assert_eq!(bench.samples()["millrace_source_synced"], 1.0);
    signs.set_trouble(Some("away".to_owned()));
    signs.count_error("nodes");
    signs.count_request("<error>".to_owned(), "GET".to_owned(), "192.0.2.1:6443".to_owned());
    bench.metrics.conditions.get_or_create(&[("condition", "node-found")]).set(1);
    let samples = bench.samples();
    assert_eq!(samples["millrace_source_synced"], 0.0);
    assert_eq!(samples["millrace_source_watch_errors_total{resource=\"nodes\"}"], 1.0);
    assert!(samples["millrace_source_last_event_timestamp_seconds"] > 1e9);
    let request = "rest_client_requests_total{code=\"<error>\",method=\"GET\",host=\"192.0.2.1:6443\"}";
    assert_eq!(samples[request], 1.0);
    assert_eq!(samples["millrace_ready{condition=\"node-found\"}"], 1.0);
    assert!(samples.keys().any(|series| series.starts_with("millrace_build_info{version=\"")));
}

#[test]
fn service_ports_without_local_endpoints_are_counted_by_policy_while_they_lack_them() {
    let mut bench = Bench::new();
    let (a, b, c, d) = (key("a"), key("b"), key("c"), key("d"));
    let mut desired = Desired::default();
    desired.ports.insert(a.clone(), without_local(FrontendKind::LoadBalancer, Scope::External));
    desired.ports.insert(b.clone(), without_local(FrontendKind::NodePort, Scope::External));
    // A cluster IP that is asked for over an uplink follows the internal policy.
    desired.ports.insert(c.clone(), without_local(FrontendKind::ClusterIp, Scope::External));
    let nowhere = ServicePort { has_any: false, ..without_local(FrontendKind::NodePort, Scope::External) };
    desired.ports.insert(d.clone(), nowhere);
    let read = |bench: &Bench| {
        let samples = bench.samples();
        ["internal", "external"].map(|policy| {
            samples[&format!(
                "kubeproxy_sync_proxy_rules_no_local_endpoints_total{{traffic_policy=\"{policy}\",ip_family=\"IPv4\"}}"
            )]
        })
    };
    bench.sync(&desired, &[&a, &b, &c, &d], &SyncReport::default());
    assert_eq!(read(&bench), [1.0, 2.0]);
    let endpoint = SocketAddr::from(([10, 0, 0, 1], 80));
    desired.ports.get_mut(&a).unwrap().local = Some([endpoint].into());
    desired.ports.remove(&c);
    bench.sync(&desired, &[&a, &c], &SyncReport::default());
    assert_eq!(read(&bench), [0.0, 1.0]);
}

fn problem(topic: Topic) -> Problem {
    let object = Some(ObjectKey { kind: Kind::Service, namespace: "default".into(), name: "web".into() });
    let (field, message) = (String::new(), String::new());
    Problem { file: None, object, field, message, severity: Severity::Warning, topic, service: None }
}

#[test]
fn problems_faults_and_expired_flows_are_counted() {
    let mut bench = Bench::new();
    let problem = problem(Topic::ConflictHere);
    bench.observer.problem(&problem);
    bench.observer.checked(&Check {
        fault: Some("detached".to_owned()),
        expired_flows: 5,
        flows: [("established", 7), ("closing", 0)].map(|(state, entries)| flows(state, entries)).into(),
        snat: SnatPorts { size: 4536, most_used: 4000, crowded: vec![crowded("10.244.2.7:8080")] },
    });
    let samples = bench.samples();
    assert_eq!(
        samples["millrace_problems_total{kind=\"Service\",topic=\"conflict\",severity=\"warning\"}"],
        1.0
    );
    assert_eq!(samples["millrace_self_test_failed"], 1.0);
    let ports = ["ports_limit", "ports_used", "crowded_backends"]
        .map(|name| samples[&format!("millrace_snat_{name}")]);
    assert_eq!(ports, [4536.0, 4000.0, 1.0]);
    let of_flows =
        |state: &str| format!("millrace_flows{{table=\"established\",ip_family=\"IPv6\",state=\"{state}\"}}");
    assert_eq!(samples[&of_flows("established")], 7.0);
    assert!(!samples.contains_key(&of_flows("closing")), "there was none yet");
    let gone = vec![flows("established", 0)];
    bench.observer.checked(&Check { expired_flows: 7, flows: gone, ..Check::default() });
    let samples = bench.samples();
    assert_eq!(samples[&of_flows("established")], 0.0);
    assert_eq!((samples["millrace_self_test_failed"], samples["millrace_flows_expired_total"]), (0.0, 7.0));
}

#[test]
fn the_mode_is_set_once_and_says_why() {
    for (wanted, mode, reason) in [
        (ProxyMode::Auto, Mode::Ebpf, "auto"),
        (ProxyMode::Auto, Mode::Ipvs, "fallback"),
        (ProxyMode::Ipvs, Mode::Ipvs, "requested"),
        (ProxyMode::None, Mode::None, "requested"),
    ] {
        let bench = Bench::new();
        bench.metrics.set_mode(mode, wanted);
        bench.metrics.set_mode(Mode::None, ProxyMode::Auto);
        let samples = bench.samples();
        let info: Vec<&String> =
            samples.keys().filter(|name| name.starts_with("millrace_node_info")).collect();
        let name = mode.name();
        assert_eq!(info, [&format!("millrace_node_info{{mode=\"{name}\",mode_reason=\"{reason}\"}}")]);
    }
}

fn of_programming(name: &str, family: &str) -> String {
    format!("kubeproxy_network_programming_duration_seconds_{name}{{ip_family=\"{family}\"}}")
}

fn flows(state: &'static str, entries: u64) -> FlowCount {
    FlowCount { table: "established", family: AddressFamily::V6, state, entries }
}

fn crowded(backend: &str) -> Crowded {
    Crowded { backend: backend.parse().unwrap(), services: BTreeSet::new(), used: 4000 }
}

fn settings() -> Settings {
    let args = AgentArgs {
        source: Some(Source::Directory("/manifests".into())),
        cluster_cidr: ["10.244.0.0/16", "fd00::/64"].map(|range| range.parse().unwrap()).into(),
        ..AgentArgs::default()
    };
    let settings = Settings::resolve_on(&args, Some("node-1".to_owned())).unwrap();
    Settings { bpffs: PathBuf::from("/nonexistent"), ..settings }
}

#[tokio::test]
async fn the_pages_answer_byte_for_byte() {
    let (address, _stop) = start(router(Pages::new(&settings(), &Metrics::new()))).await;
    let text = |body: &str| {
        format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
    };
    assert_eq!(get(address, "/proxyMode").await, text("ebpf"));
    assert_eq!(ask(address, "HEAD /proxyMode", "").await, text("ebpf").replace("\r\n\r\nebpf", "\r\n\r\n"));
    assert_eq!(get(address, "/healthz").await, text("ok"));
    assert!(get(address, "/livez").await.starts_with("HTTP/1.1 404 Not Found\r\n"));
}

#[tokio::test]
async fn metrics_come_in_the_format_that_is_asked_for() {
    let metrics = Metrics::new();
    metrics.expired_flows.inc_by(3);
    let (address, _stop) = start(router(Pages::new(&settings(), &metrics))).await;
    let answer = get(address, "/metrics").await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{head}");
    assert_eq!(parse(body)["millrace_flows_expired_total"], 3.0);
    assert!(body.contains("# TYPE millrace_flows_expired_total counter\n"));
    assert!(body.contains("# HELP millrace_flows_expired_total Flow entries removed"));

    let accept =
        "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2\r\n";
    let answer = ask(address, "GET /metrics", accept).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        head.contains("\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n")
    );
    assert!(body.contains("# TYPE millrace_flows_expired counter\nmillrace_flows_expired_total 3\n"));
    assert!(body.ends_with("# EOF\n"));
}

#[tokio::test]
async fn configz_shows_what_is_in_effect() {
    let (address, _stop) = start(router(Pages::new(&settings(), &Metrics::new()))).await;
    let answer = get(address, "/configz").await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("\r\nContent-Type: application/json\r\n"), "{head}");
    let json: serde_json::Value = serde_json::from_str(body).unwrap();
    let ours = &json["kubeproxy.config.k8s.io"];
    for (field, value) in [
        ("apiVersion", "kubeproxy.config.k8s.io/v1alpha1"),
        ("kind", "KubeProxyConfiguration"),
        ("hostnameOverride", "node-1"),
        ("healthzBindAddress", "0.0.0.0:10256"),
        ("metricsBindAddress", "127.0.0.1:10249"),
        ("clusterCIDR", "10.244.0.0/16,fd00::/64"),
        ("mode", "ebpf"),
        ("syncPeriod", "30s"),
    ] {
        assert_eq!(ours[field], value, "{field}");
    }
    assert_eq!(ours["nodePortAddresses"], serde_json::json!(["primary"]));
    assert_eq!(ours["conntrack"]["udpTimeout"], "1m0s");
    assert_eq!(json["millrace"]["source"], "directory:/manifests");
}
