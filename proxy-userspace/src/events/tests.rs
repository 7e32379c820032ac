//! Tests from the reconcile task's results to the requests at an API server.

use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use k8s_openapi::api::core::v1::{Node, Service};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::dataplane::{Check, Crowded, SnatPorts, SyncReport};
use crate::model::{Change, Desired, Dirty, Kind, Object, ObjectKey, Problem, Severity, Topic};
use crate::reconcile::Synced;
use crate::source::SourceEvent;
use crate::source::kubernetes::explain_refusal;

/// Much longer than any step takes.
const BOUND: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Request {
    method: Method,
    path: String,
    body: Value,
}

#[derive(Clone)]
struct Script {
    requests: mpsc::Sender<Request>,
    status: StatusCode,
}

/// An API server that accepts Events, and an observer whose task writes to it.
struct Bench {
    observer: Box<dyn Observer>,
    requests: mpsc::Receiver<Request>,
    failures: mpsc::Sender<Failure>,
    of_node: mpsc::Sender<NodeProblem>,
    of_policies: mpsc::Sender<PolicyProblem>,
    server: JoinHandle<()>,
    uri: String,
}

impl Bench {
    async fn start(status: StatusCode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap());
        let (request_sender, requests) = mpsc::channel(64);
        let script = Script { requests: request_sender, status };
        let router = Router::new().fallback(answer).with_state(script);
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let mut config = kube::Config::new(uri.parse().unwrap());
        config.default_retry = false;
        let client = Client::try_from(config).unwrap();
        let (failures, failed) = mpsc::channel(8);
        let (of_node, problems) = mpsc::channel(8);
        let (of_policies, problems_of_policies) = mpsc::channel(8);
        let others = Others { failures: failed, of_node: problems, of_policies: problems_of_policies };
        let mut observer = start(client, "node1", others);
        observer.listing(&[service("web", "uid-1"), service("api", "uid-2")]);
        Self { observer, requests, failures, of_node, of_policies, server, uri }
    }

    /// Reports a sync with these problems.
    fn sync(&mut self, problems: &[Problem]) {
        for problem in problems {
            self.observer.problem(problem);
        }
        synced(&mut *self.observer);
    }

    async fn next(&mut self) -> Request {
        timeout(BOUND, self.requests.recv()).await.expect("nothing was written").unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn answer(State(script): State<Script>, method: Method, uri: Uri, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let status = script.status;
    let path = uri.path().to_owned();
    script.requests.send(Request { method, path, body: body.clone() }).await.unwrap();
    if status.is_success() {
        return (status, body.to_string()).into_response();
    }
    let refusal = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": status.as_u16(),
        "reason": "Forbidden", "message": "events.events.k8s.io is forbidden",
    });
    (status, refusal.to_string()).into_response()
}

fn synced(observer: &mut dyn Observer) {
    let (desired, dirty, report) = (Desired::default(), Dirty::default(), SyncReport::default());
    let synced = Synced { desired: &desired, dirty: &dirty, report: &report, took: Duration::ZERO };
    observer.synced(&synced);
}

fn service(name: &str, uid: &str) -> SourceEvent {
    let value = json!({ "metadata": { "name": name, "namespace": "shop", "uid": uid } });
    upsert(Object::Service(Box::new(serde_json::from_value::<Service>(value).unwrap())))
}

fn node(name: &str) -> SourceEvent {
    let value = json!({ "metadata": { "name": name } });
    upsert(Object::Node(Box::new(serde_json::from_value::<Node>(value).unwrap())))
}

fn upsert(object: Object) -> SourceEvent {
    SourceEvent::Change(Change::Upsert { object, file: None })
}

fn key(kind: Kind, name: &str) -> ObjectKey {
    ObjectKey { kind, namespace: "shop".to_owned(), name: name.to_owned() }
}

fn service_key(name: &str) -> ServiceKey {
    ServiceKey { namespace: "shop".to_owned(), name: name.to_owned() }
}

fn problem(topic: Topic, service: &str, field: &str, message: &str) -> Problem {
    Problem {
        file: None,
        object: Some(key(Kind::Service, service)),
        field: field.to_owned(),
        message: message.to_owned(),
        severity: Severity::Warning,
        topic,
        service: None,
    }
}

#[tokio::test]
async fn a_problem_becomes_a_warning_event_on_its_service() {
    let mut bench = Bench::start(StatusCode::CREATED).await;
    let found =
        problem(Topic::Conflict, "web", "spec.externalIPs", "192.0.2.1:80 TCP is Service shop/api's too");
    bench.sync(&[found]);
    let mut request = bench.next().await;
    assert_eq!(
        (request.method, &*request.path),
        (Method::POST, "/apis/events.k8s.io/v1/namespaces/shop/events")
    );
    let body = request.body.as_object_mut().unwrap();
    let metadata = body.remove("metadata").unwrap();
    assert_eq!(metadata["namespace"], "shop");
    assert!(metadata["name"].as_str().unwrap().starts_with("web."), "{metadata}");
    assert!(body.remove("eventTime").unwrap().is_string());
    let expected = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "type": "Warning",
        "reason": "AddressConflict",
        "action": "Serve",
        "note": "spec.externalIPs: 192.0.2.1:80 TCP is Service shop/api's too",
        "regarding": {
            "apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web", "uid": "uid-1",
        },
        "reportingController": "millrace",
        "reportingInstance": "node1",
    });
    assert_eq!(request.body, expected);
}

#[tokio::test]
async fn a_shortage_of_ports_is_told_once_by_the_node_that_has_it() {
    let mut bench = Bench::start(StatusCode::CREATED).await;
    let crowded = |backend: &str, services: &[&str], used| Crowded {
        backend: backend.parse().unwrap(),
        services: services.iter().map(|name| service_key(name)).collect(),
        used,
    };
    let check = |crowded: &[Crowded]| Check {
        snat: SnatPorts { size: 100, most_used: 90, crowded: crowded.to_vec() },
        ..Check::default()
    };
    let note = |used: &str| {
        format!(
            "node node1: most of the 100 ports for connections to backends on other nodes (--snat-ports) are in use: {used}; \
             new connections begin to fail"
        )
    };
    let (first, second) = ("10.244.2.7:80", "10.244.3.7:80");
    let both = [crowded(first, &["web"], 81), crowded(second, &["web"], 90)];
    bench.observer.checked(&check(&both));
    let told = bench.next().await.body;
    assert_eq!(
        (&told["reason"], &told["regarding"]["uid"]),
        (&json!("SnatPortsRunningOut"), &json!("uid-1"))
    );
    assert_eq!(told["note"], note("81 to 10.244.2.7:80, 90 to 10.244.3.7:80"));

    // New figures of the same backends are not reported; another Service is, and a shortage that
    // returns.
    bench.observer.checked(&check(&[crowded(first, &["web", "api"], 95), crowded(second, &["web"], 85)]));
    let told = bench.next().await.body;
    assert_eq!(
        (&told["regarding"]["uid"], &told["note"]),
        (&json!("uid-2"), &json!(note("95 to 10.244.2.7:80")))
    );
    bench.observer.checked(&check(&[]));
    bench.observer.checked(&check(&[crowded(first, &["web", "gone"], 82)]));
    let told = bench.next().await.body;
    assert_eq!(
        (&told["regarding"]["uid"], &told["note"]),
        (&json!("uid-1"), &json!(note("82 to 10.244.2.7:80")))
    );
}

#[tokio::test]
async fn what_comes_again_is_counted_and_what_has_changed_is_told_anew() {
    let mut bench = Bench::start(StatusCode::OK).await;
    let first = problem(Topic::Annotation, "web", "metadata.annotations[a]", "\"x\" is not accepted");
    let other = problem(Topic::Annotation, "web", "metadata.annotations[a]", "\"y\" is not accepted");
    bench.sync(std::slice::from_ref(&first));
    let written = bench.next().await;
    bench.sync(&[first]);
    let counted = bench.next().await;
    let name = written.body["metadata"]["name"].as_str().unwrap();
    assert_eq!(counted.method, Method::PATCH);
    assert!(counted.path.ends_with(&format!("/events/{name}")), "{}", counted.path);
    assert_eq!(counted.body["series"]["count"], 2);
    bench.sync(&[other]);
    let anew = bench.next().await;
    assert_eq!(anew.method, Method::POST);
    assert_eq!(anew.body["note"], "metadata.annotations[a]: \"y\" is not accepted");
}

#[tokio::test]
async fn what_is_told_at_once_of_one_service_for_one_reason_is_one_event() {
    let mut bench = Bench::start(StatusCode::CREATED).await;
    let refused = |index: usize| {
        problem(Topic::RefusedAddress, "web", &format!("spec.externalIPs[{index}]"), "is refused")
    };
    let slice = Problem {
        object: Some(key(Kind::EndpointSlice, "web-abc")),
        service: Some(service_key("web")),
        ..problem(Topic::Field, "web", "endpoints[0].addresses[0]", "2001:db8::1 is not an IPv4 address")
    };
    bench.sync(&[refused(0), slice, refused(1), refused(1)]);
    let (first, second) = (bench.next().await.body, bench.next().await.body);
    assert_eq!(first["reason"], "InvalidField");
    assert_eq!(
        first["note"],
        "EndpointSlice shop/web-abc: endpoints[0].addresses[0]: 2001:db8::1 is not an IPv4 address"
    );
    assert_eq!(second["reason"], "RefusedAddress");
    assert_eq!(second["note"], "spec.externalIPs[0]: is refused; spec.externalIPs[1]: is refused");
}

#[tokio::test]
async fn a_note_is_cut_at_what_the_api_takes() {
    let mut bench = Bench::start(StatusCode::CREATED).await;
    bench.sync(&[problem(Topic::Field, "web", "", &"\u{e9}".repeat(1000))]);
    assert_eq!(bench.next().await.body["note"], "\u{e9}".repeat(512));
}

#[tokio::test]
async fn a_health_check_port_that_can_not_be_opened_is_told_in_kube_proxys_words() {
    let mut bench = Bench::start(StatusCode::CREATED).await;
    let failure = |name: &str| Failure {
        service: service_key(name),
        port: 30_000,
        error: "listen on 10.0.0.1:30000: Address already in use".to_owned(),
    };
    // The first one is unknown.
    bench.failures.send(failure("other")).await.unwrap();
    bench.failures.send(failure("api")).await.unwrap();
    let body = bench.next().await.body;
    assert_eq!(body["reason"], "FailedToStartServiceHealthcheck");
    assert_eq!(body["action"], "Listen");
    assert_eq!(body["regarding"]["uid"], "uid-2");
    assert_eq!(
        body["note"],
        "node node1 failed to start healthcheck \"shop/api\" on port 30000: listen on 10.0.0.1:30000: Address \
         already in use"
    );
}

#[tokio::test]
async fn a_problem_of_this_node_is_an_event_on_its_node_once_that_is_known() {
    let mut bench = Bench::start(StatusCode::CREATED).await;
    let problem = |note: &str| NodeProblem { reason: "FirewallConflict", note: note.to_owned() };
    // The Node's uid is not known yet.
    bench.of_node.send(problem("too early")).await.unwrap();
    timeout(BOUND, async {
        while bench.of_node.capacity() < bench.of_node.max_capacity() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the task takes it");
    let node = |name: &str, uid: &str| {
        let mut node = Node::default();
        (node.metadata.name, node.metadata.uid) = (Some(name.to_owned()), Some(uid.to_owned()));
        upsert(Object::Node(Box::new(node)))
    };
    bench.observer.received(&[node("node1", "uid-n"), node("node2", "uid-m")]);
    bench.of_node.send(problem("inet fw/f drops")).await.unwrap();
    let request = bench.next().await;
    assert_eq!(request.path, "/apis/events.k8s.io/v1/namespaces/default/events");
    assert_eq!(request.body["note"], "inet fw/f drops");
    assert_eq!(
        request.body["regarding"],
        json!({"apiVersion": "v1", "kind": "Node", "name": "node1", "uid": "uid-n"})
    );
}

#[tokio::test]
async fn one_node_writes_the_problem_of_a_policy() {
    let mut bench = Bench::start(StatusCode::CREATED).await;
    let problem = |uid: &str, note: &str| PolicyProblem {
        policy: NamespacedName::new("shop", "closed"),
        uid: uid.to_owned(),
        reason: "InvalidField",
        note: note.to_owned(),
    };
    bench.observer.received(&[node("node2")]);
    let uids: Vec<String> = (0..20).map(|number| format!("uid-{number}")).collect();
    let electorate = super::election::Electorate::new("node1");
    electorate.add("node2");
    let elected = |uid: &&String| electorate.elects_this_node(uid);
    let (own, foreign) = (uids.iter().find(elected).unwrap(), uids.iter().find(|uid| !elected(uid)).unwrap());
    bench.of_policies.send(problem(foreign, "of node2")).await.unwrap();
    bench.of_policies.send(problem(own, "spec.ingress[0]: is wrong")).await.unwrap();
    let request = bench.next().await;
    assert_eq!(request.path, "/apis/events.k8s.io/v1/namespaces/shop/events");
    let body = &request.body;
    assert_eq!((&body["note"], &body["action"]), (&json!("spec.ingress[0]: is wrong"), &json!("Enforce")));
    let regarding = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "namespace": "shop",
        "name": "closed", "uid": own});
    assert_eq!(body["regarding"], regarding);
}

#[tokio::test]
async fn an_event_that_can_not_be_written_is_not_tried_again() {
    let mut bench = Bench::start(StatusCode::FORBIDDEN).await;
    bench.sync(&[problem(Topic::Field, "web", "a", "is wrong")]);
    bench.sync(&[problem(Topic::Field, "api", "b", "is wrong")]);
    let (first, second) = (bench.next().await, bench.next().await);
    assert_eq!((first.method, second.method), (Method::POST, Method::POST));
    assert_eq!((&first.body["note"], &second.body["note"]), (&json!("a: is wrong"), &json!("b: is wrong")));
    // A report of the first one would come before this.
    bench.sync(&[problem(Topic::Field, "api", "c", "is wrong")]);
    assert_eq!(bench.next().await.body["note"], "c: is wrong");
}

/// Returns the notes for these problems, on a node that knows other nodes.
fn handed_over(nodes: &[&str], problems: &[Problem]) -> Vec<String> {
    let (sender, mut reports) = mpsc::channel(8);
    let mut observer = EventObserver::new("node1", sender);
    observer.listing(&[service("web", "uid-1")]);
    let nodes: Vec<_> = nodes.iter().map(|name| node(name)).collect();
    observer.received(&nodes);
    for problem in problems {
        observer.problem(problem);
    }
    synced(&mut observer);
    std::iter::from_fn(|| reports.try_recv().ok().map(|report| report.note)).collect()
}

#[test]
fn what_all_nodes_see_is_told_by_the_elected_one_and_what_one_sees_by_itself() {
    let elected = |nodes: &[&str]| handed_over(nodes, &[problem(Topic::Field, "web", "a", "is wrong")]);
    let others: Vec<String> = (2..40).map(|index| format!("node{index}")).collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    assert_eq!(elected(&[]), ["a: is wrong"]);
    assert_eq!(elected(&others), Vec::<String>::new());
    for topic in [Topic::RefusedHere, Topic::ConflictHere] {
        let told = handed_over(&others, &[problem(topic, "web", "a", "is wrong")]);
        assert_eq!(told, ["node node1: a: is wrong"]);
    }
}

#[test]
fn a_node_without_an_agent_is_not_waited_for() {
    let told = |metadata: &Value| {
        let (sender, mut reports) = mpsc::channel(8);
        let mut observer = EventObserver::new("node1", sender);
        let others = (2..40).map(|index| {
            let mut value = json!({ "metadata": { "name": format!("node{index}") } });
            value["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
            upsert(Object::Node(Box::new(serde_json::from_value::<Node>(value).unwrap())))
        });
        let known: Vec<_> = [service("web", "uid-1")].into_iter().chain(others).collect();
        observer.listing(&known);
        observer.problem(&problem(Topic::Field, "web", "a", "is wrong"));
        synced(&mut observer);
        reports.try_recv().is_ok()
    };
    assert!(!told(&json!({})), "one of the others tells");
    assert!(!told(&json!({ "labels": { "kubernetes.io/os": "linux" } })));
    assert!(told(&json!({ "labels": { "kubernetes.io/os": "windows" } })));
    assert!(told(&json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" })));
}

#[test]
fn what_passes_by_itself_or_belongs_to_no_known_service_is_no_event() {
    let info = Problem { severity: Severity::Info, ..problem(Topic::Field, "web", "", "is new") };
    let mismatch = problem(Topic::Mismatch, "web", "", "does not fit");
    let unknown = problem(Topic::Field, "other", "", "is wrong");
    let of_node =
        Problem { object: Some(key(Kind::Node, "web")), ..problem(Topic::Field, "web", "", "is wrong") };
    assert_eq!(handed_over(&[], &[info, mismatch, unknown, of_node]), Vec::<String>::new());
}

#[test]
fn a_service_that_is_gone_or_new_under_its_old_name_is_not_taken_for_the_old_one() {
    let (sender, mut reports) = mpsc::channel(8);
    let mut observer = EventObserver::new("node1", sender);
    let found = problem(Topic::Field, "web", "", "is wrong");
    observer.received(&[service("web", "old"), service("web", "new")]);
    observer.problem(&found);
    synced(&mut observer);
    assert_eq!(&*reports.try_recv().unwrap().uid, "new");
    observer.received(&[SourceEvent::Change(Change::Delete(key(Kind::Service, "web")))]);
    observer.problem(&found);
    synced(&mut observer);
    assert!(reports.try_recv().is_err());
}

#[test]
fn a_channel_without_room_does_not_hold_the_reconcile_task_up() {
    let (sender, mut reports) = mpsc::channel(1);
    let mut observer = EventObserver::new("node1", sender);
    observer.listing(&[service("web", "uid-1"), service("api", "uid-2")]);
    for _ in 0..3 {
        observer.problem(&problem(Topic::Field, "web", "", "is wrong"));
        observer.problem(&problem(Topic::Field, "api", "", "is wrong"));
        synced(&mut observer);
    }
    assert_eq!(reports.try_recv().unwrap().subject, Subject::Service(service_key("web")));
    assert!(reports.try_recv().is_err());
}

#[tokio::test]
async fn a_refused_write_is_told_without_words_of_the_library() {
    let refused = async |uri: &str| {
        let mut config = kube::Config::new(uri.parse().unwrap());
        config.default_retry = false;
        let request = http::Request::post("/apis/events.k8s.io/v1/namespaces/shop/events");
        let client = Client::try_from(config).unwrap();
        client.request::<Value>(request.body(b"{}".to_vec()).unwrap()).await.unwrap_err()
    };
    let bench = Bench::start(StatusCode::FORBIDDEN).await;
    assert_eq!(
        explain_refusal(&refused(&bench.uri).await),
        "the API server answers 403 Forbidden: events.events.k8s.io is forbidden"
    );
    assert_eq!(
        explain_refusal(&refused("http://127.0.0.1:1").await),
        "the API server can't be reached: Connection refused (os error 111)"
    );
}
