//! Tests of the watch of what NetworkPolicies depend on.

use super::*;
use crate::policy::{Change, Kind, Object};
use crate::source::PolicyEvent;

/// A running source of policies and its server.
struct PolicyBench {
    server: Server,
    events: Receiver<PolicyBatch>,
    signs: Signs,
    task: JoinHandle<()>,
}

impl PolicyBench {
    async fn start() -> Self {
        let server = Server::start().await;
        let (connection, signs) = connection(&server);
        let (sender, events) = channel(64);
        let task =
            tokio::spawn(async move { follow_all::<Policies>(&connection, &(), &sender, TIMING).await });
        Self { server, events, signs, task }
    }

    /// Starts a bench that has listed these objects of one kind, and returns the watch of that kind first.
    async fn listed(kind: Kind, objects: &[Value]) -> (Self, Stream, Vec<Stream>) {
        let mut bench = Self::start().await;
        let mut others = Vec::new();
        for other in [Kind::Namespace, Kind::Pod, Kind::NetworkPolicy].into_iter().filter(|one| *one != kind)
        {
            others.push(bench.server.asked(other).await.list(&[], "10").await);
        }
        let watch = bench.server.asked(kind).await.list(objects, "10").await;
        while bench.next().await != "listed" {}
        (bench, watch, others)
    }

    async fn batch(&mut self) -> PolicyBatch {
        timeout(BOUND, self.events.recv()).await.expect("nothing was told").unwrap()
    }

    /// Returns the next batch as text, one event a line.
    async fn next(&mut self) -> String {
        let words: Vec<String> = self.batch().await.iter().map(words).collect();
        words.join("\n")
    }

    /// Returns the object in the next batch, which has no other event.
    async fn object(&mut self) -> Object {
        match self.batch().await.as_slice() {
            [PolicyEvent::Change(Change::Upsert { object, file: None })] => object.clone(),
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for PolicyBench {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn words(event: &PolicyEvent) -> String {
    match event {
        PolicyEvent::Change(Change::Upsert { object, .. }) => format!("+ {}", object.key()),
        PolicyEvent::Change(Change::Delete(key)) => format!("- {key}"),
        PolicyEvent::Listed => "listed".to_owned(),
        PolicyEvent::Problem(problem) => format!("{:?}: {problem}", problem.severity),
    }
}

fn pod(name: &str, version: u32) -> Value {
    let container = json!({
        "name": "web", "image": "web:1", "env": [{ "name": "A", "value": "b" }],
        "ports": [{ "name": "http", "containerPort": 8080 }, { "containerPort": 9090 }],
    });
    json!({
        "metadata": {
            "name": name, "namespace": "shop", "uid": format!("uid of {name}"),
            "resourceVersion": version.to_string(), "labels": { "app": name },
            "annotations": { "millrace.dev/x": "y" }, "creationTimestamp": "2026-01-01T00:00:00Z",
            "managedFields": [{ "manager": "kubelet" }],
        },
        "spec": {
            "nodeName": "node1", "serviceAccountName": "web", "containers": [container, { "name": "log" }],
            "initContainers": [
                { "name": "first", "ports": [{ "name": "once", "containerPort": 1 }] },
                { "name": "side", "restartPolicy": "Always", "ports": [{ "name": "side", "containerPort": 2 }] },
            ],
        },
        "status": {
            "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{ "ip": "10.0.0.1" }, { "ip": "fd00::1" }],
            "conditions": [{ "type": "Ready", "status": "True" }], "hostIP": "192.0.2.1",
        },
    })
}

fn policy(name: &str, version: u32) -> Value {
    let peer = json!({ "podSelector": { "matchLabels": { "app": "web" } } });
    json!({
        "metadata": {
            "name": name, "namespace": "shop", "uid": format!("uid of {name}"),
            "resourceVersion": version.to_string(),
        },
        "spec": {
            "podSelector": { "matchLabels": { "app": "db" } }, "policyTypes": ["Ingress"],
            "ingress": [{ "from": [peer], "ports": [{ "port": 5432 }] }],
        },
    })
}

/// Returns a policy with a port that can't be read.
fn broken(name: &str, version: u32) -> Value {
    let mut policy = policy(name, version);
    policy["spec"]["ingress"][0]["ports"][0]["port"] = json!([]);
    policy
}

fn namespace(name: &str, version: u32) -> Value {
    let labels = json!({ "team": name });
    json!({ "metadata": { "name": name, "resourceVersion": version.to_string(), "labels": labels } })
}

#[tokio::test]
async fn all_three_kinds_are_told_and_then_counted_as_listed_once() {
    let mut bench = PolicyBench::start().await;
    let mut policies = bench.server.asked(Kind::NetworkPolicy).await.list(&[policy("db", 3)], "10").await;
    assert_eq!(bench.next().await, "+ NetworkPolicy shop/db");
    let _pods = bench.server.asked(Kind::Pod).await.list(&[pod("web", 4)], "10").await;
    assert_eq!(bench.next().await, "+ Pod shop/web");
    let asked = bench.server.asked(Kind::Namespace).await;
    assert_eq!(asked.says("labelSelector"), "");
    let mut namespaces = asked.stream().await;
    namespaces.tell("ADDED", &namespace("shop", 5)).await;
    assert_eq!(bench.next().await, "+ Namespace shop", "nothing is listed before all are");
    namespaces.end_listing("10").await;
    assert_eq!(bench.next().await, "listed");
    policies.tell("DELETED", &policy("db", 11)).await;
    assert_eq!(bench.next().await, "- NetworkPolicy shop/db");
    policies.tell("ADDED", &policy("api", 12)).await;
    assert_eq!(bench.next().await, "+ NetworkPolicy shop/api");
}

#[tokio::test]
async fn pods_are_listed_in_pages_if_the_server_can_not_begin_a_watch_with_a_listing() {
    let mut bench = PolicyBench::start().await;
    bench.server.asked(Kind::Pod).await.answer("422 Unprocessable Entity", "", "{}").await;
    for (token, name, next) in [("", "a", "more"), ("more", "b", "")] {
        let page = bench.server.asked(Kind::Pod).await;
        assert_eq!((page.says("limit"), page.says("continue")), ("500", token));
        let body =
            json!({ "metadata": { "resourceVersion": "10", "continue": next }, "items": [pod(name, 1)] });
        page.answer("200 OK", "", &body.to_string()).await;
        assert_eq!(bench.next().await, format!("+ Pod shop/{name}"));
    }
    let watch = bench.server.asked(Kind::Pod).await;
    assert_eq!((watch.says("watch"), watch.says("resourceVersion")), ("true", "10"));
    watch.stream().await.tell("DELETED", &pod("a", 11)).await;
    assert_eq!(bench.next().await, "- Pod shop/a");
}

#[tokio::test]
async fn only_the_parts_of_a_pod_that_policies_depend_on_are_kept_and_their_changes_told() {
    let (mut bench, mut pods, _others) = PolicyBench::listed(Kind::Pod, &[]).await;
    pods.tell("ADDED", &pod("web", 11)).await;
    let Object::Pod(kept) = bench.object().await else { panic!("another kind") };
    let container = |name: &str, port: (&str, i32)| json!({ "name": name, "ports": [{ "name": port.0, "containerPort": port.1 }] });
    let mut side = container("side", ("side", 2));
    side["restartPolicy"] = json!("Always");
    assert_eq!(
        serde_json::to_value(&*kept).unwrap(),
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "web", "namespace": "shop", "uid": "uid of web", "labels": { "app": "web" },
            },
            "spec": {
                "nodeName": "node1", "containers": [container("web", ("http", 8080))], "initContainers": [side],
            },
            "status": { "podIPs": [{ "ip": "10.0.0.1" }, { "ip": "fd00::1" }] },
        })
    );

    // Other changes are none.
    let mut same = pod("web", 12);
    same["metadata"]["annotations"]["millrace.dev/x"] = json!("z");
    same["metadata"]["deletionTimestamp"] = json!("2026-01-02T00:00:00Z");
    same["spec"]["containers"][0]["image"] = json!("web:2");
    same["spec"]["containers"][0]["ports"][1]["containerPort"] = json!(9091);
    same["spec"]["initContainers"][0]["ports"][0]["containerPort"] = json!(3);
    same["status"]["conditions"][0]["status"] = json!("False");
    same["status"]["phase"] = json!("Pending");
    pods.tell("MODIFIED", &same).await;

    let change = |path: &str, value: Value| {
        let mut changed = pod("web", 13);
        *changed.pointer_mut(path).unwrap() = value;
        changed
    };
    for changed in [
        change("/metadata/labels/app", json!("api")),
        change("/metadata/uid", json!("another")),
        change("/spec/nodeName", json!("node2")),
        change("/spec/containers/0/ports/0/containerPort", json!(8081)),
        change("/spec/initContainers/1/ports/0/name", json!("other")),
        change("/status/podIPs/0/ip", json!("10.0.0.2")),
        change("/status/phase", json!("Succeeded")),
        pod("web", 14),
    ] {
        pods.tell("MODIFIED", &changed).await;
        assert_eq!(bench.next().await, "+ Pod shop/web", "{changed}");
    }
    let mut host = pod("web", 15);
    host["spec"]["hostNetwork"] = json!(true);
    pods.tell("MODIFIED", &host).await;
    assert_eq!(bench.next().await, "+ Pod shop/web");
    pods.tell("DELETED", &host).await;
    assert_eq!(bench.next().await, "- Pod shop/web");
}

#[tokio::test]
async fn only_labels_of_a_namespace_and_the_spec_of_a_policy_count() {
    let (mut bench, mut namespaces, mut others) =
        PolicyBench::listed(Kind::Namespace, &[namespace("shop", 1)]).await;
    let mut same = namespace("shop", 11);
    same["metadata"]["annotations"] = json!({ "millrace.dev/x": "y" });
    same["status"] = json!({ "phase": "Terminating" });
    namespaces.tell("MODIFIED", &same).await;
    let mut other = namespace("shop", 12);
    other["metadata"]["labels"]["team"] = json!("sales");
    namespaces.tell("MODIFIED", &other).await;
    let Object::Namespace(told) = bench.object().await else { panic!("another kind") };
    let metadata = json!({ "name": "shop", "labels": { "team": "sales" } });
    assert_eq!(serde_json::to_value(&told.metadata).unwrap(), metadata);

    let policies = others.last_mut().unwrap();
    policies.tell("ADDED", &policy("db", 13)).await;
    assert_eq!(bench.next().await, "+ NetworkPolicy shop/db");
    let mut same = policy("db", 14);
    same["metadata"]["annotations"] = json!({ "millrace.dev/x": "y" });
    policies.tell("MODIFIED", &same).await;
    let mut other = policy("db", 15);
    other["spec"]["ingress"] = json!([]);
    policies.tell("MODIFIED", &other).await;
    let Object::NetworkPolicy(told) = bench.object().await else { panic!("another kind") };
    assert_eq!(told.spec.unwrap().ingress, Some(Vec::new()), "the first change was silent");
}

#[tokio::test]
async fn a_new_listing_of_pods_tells_only_the_differences() {
    let before = [pod("changed", 1), pod("gone", 2), pod("same", 3)];
    let (mut bench, mut pods, _others) = PolicyBench::listed(Kind::Pod, &before).await;
    pods.tell("ERROR", &json!({ "code": 410 })).await;
    let mut changed = pod("changed", 31);
    changed["status"]["podIPs"] = json!([{ "ip": "10.0.0.9" }]);
    // The version of the same one is another, its contents are not.
    let listed = [changed, pod("same", 32), pod("new", 33)];
    let _pods = bench.server.asked(Kind::Pod).await.list(&listed, "40").await;
    assert_eq!(bench.next().await, "+ Pod shop/changed\n+ Pod shop/new\n- Pod shop/gone");
}

#[tokio::test]
async fn a_pod_that_becomes_unreadable_stays_as_it_was() {
    let (mut bench, mut pods, _others) = PolicyBench::listed(Kind::Pod, &[pod("web", 1)]).await;
    let mut broken = pod("web", 11);
    broken["status"]["podIPs"] = json!("10.0.0.1");
    pods.tell("MODIFIED", &broken).await;
    assert_eq!(
        bench.next().await,
        "Warning: Pod shop/web: status.podIPs: invalid type: string \"10.0.0.1\", expected a sequence; this \
         version is skipped"
    );
    pods.tell("ERROR", &json!({ "code": 410 })).await;
    let mut pods = bench.server.asked(Kind::Pod).await.list(&[broken, pod("api", 12)], "40").await;
    assert_eq!(bench.next().await, "+ Pod shop/api");
    pods.tell("DELETED", &pod("web", 41)).await;
    assert_eq!(bench.next().await, "- Pod shop/web");
}

#[tokio::test]
async fn a_policy_that_was_never_readable_isolates_its_pods_until_it_is() {
    let mut bench = PolicyBench::start().await;
    let _pods = bench.server.asked(Kind::Pod).await.list(&[], "10").await;
    let _namespaces = bench.server.asked(Kind::Namespace).await.list(&[], "10").await;
    let mut policies = bench.server.asked(Kind::NetworkPolicy).await.list(&[broken("db", 3)], "10").await;
    let mut told = Vec::new();
    while !told.contains(&PolicyEvent::Listed) {
        told.extend(bench.batch().await);
    }
    let [
        PolicyEvent::Change(Change::Upsert { object, .. }),
        PolicyEvent::Problem(problem),
        PolicyEvent::Listed,
    ] = &told[..]
    else {
        panic!("{told:?}")
    };
    let end = "; no version of it could be read, so it isolates its pods and allows nothing";
    let problem = problem.to_string();
    assert!(problem.starts_with("NetworkPolicy shop/db: spec.ingress[0].ports[0].port: "), "{problem}");
    assert!(problem.ends_with(end), "{problem}");
    let selector = json!({ "matchLabels": { "app": "db" } });
    let isolating = |object: &Object, types: Value| {
        let Object::NetworkPolicy(policy) = object else { panic!("{object:?}") };
        assert_eq!(policy.metadata.namespace.as_deref(), Some("shop"));
        let spec = serde_json::to_value(&policy.spec).unwrap();
        assert_eq!(spec, json!({ "podSelector": selector, "policyTypes": types }));
    };
    isolating(object, json!(["Ingress"]));

    // The same fault is not told again; a change of the directions is.
    policies.tell("MODIFIED", &broken("db", 3)).await;
    let mut egress = broken("db", 12);
    egress["spec"]["policyTypes"] = json!(["Egress"]);
    policies.tell("MODIFIED", &egress).await;
    isolating(&bench.object().await, json!(["Egress"]));

    policies.tell("MODIFIED", &policy("db", 13)).await;
    let Object::NetworkPolicy(read) = bench.object().await else { panic!("another kind") };
    assert!(read.spec.unwrap().ingress.is_some());
    // From now on, the last readable version stays.
    policies.tell("MODIFIED", &broken("db", 14)).await;
    assert!(bench.next().await.ends_with("; this version is skipped"));
    // Another policy of this name takes its place.
    let mut another = broken("db", 15);
    another["metadata"]["uid"] = json!("another");
    policies.tell("MODIFIED", &another).await;
    let told = bench.next().await;
    assert!(told.starts_with("+ NetworkPolicy shop/db\nWarning: ") && told.ends_with(end), "{told}");
    policies.tell("DELETED", &another).await;
    assert_eq!(bench.next().await, "- NetworkPolicy shop/db");
}

#[tokio::test]
async fn a_right_that_is_missing_is_named_and_does_not_end_the_trouble_of_services() {
    let mut bench = PolicyBench::start().await;
    bench.signs.set_trouble(Some("away".to_owned()));
    let status = json!({ "kind": "Status", "code": 403, "message": "no" }).to_string();
    bench.server.asked(Kind::Pod).await.answer("403 Forbidden", "", &status).await;
    let told = bench.next().await;
    assert!(told.contains(" forbids to watch pods: give the verbs list and watch on it in RBAC"), "{told}");
    let _pods = bench.server.asked(Kind::Pod).await.list(&[], "10").await;
    assert!(bench.next().await.ends_with(" works again"));
    assert_eq!(bench.signs.trouble().as_deref(), Some("away"));
}

#[tokio::test]
async fn a_server_with_an_older_state_is_listed_again() {
    let (mut bench, pods, others) = PolicyBench::listed(Kind::Pod, &[pod("web", 9), pod("gone", 10)]).await;
    bench.server.versions.set_newest(7);
    pods.end().await;
    for other in others {
        other.end().await;
    }
    let mut watches = Vec::new();
    for kind in [Kind::Namespace, Kind::NetworkPolicy] {
        watches.push(bench.server.asked(kind).await.list(&[], "7").await);
    }
    watches.push(bench.server.asked(Kind::Pod).await.list(&[pod("web", 4)], "7").await);
    let mut told = Vec::new();
    while told.last().is_none_or(|last: &String| !last.ends_with(" works again")) {
        told.extend(bench.next().await.lines().map(str::to_owned));
    }
    told.retain(|line| line.starts_with(['+', '-']));
    assert_eq!(told, ["+ Pod shop/web", "- Pod shop/gone"]);
}

#[test]
fn an_unreadable_policy_isolates_at_least_the_pods_that_it_would() {
    let isolated = |spec: Value| {
        let metadata = json!({ "name": "p", "namespace": "shop" });
        let text = json!({ "metadata": metadata, "spec": spec }).to_string();
        let read = <Policies as Resources>::decode(Kind::NetworkPolicy, &text, &());
        let Some(Object::NetworkPolicy(policy)) = read.unwrap_err().stand_in else { panic!("{text}") };
        let spec = policy.spec.unwrap();
        let types = spec.policy_types.unwrap().join(",");
        (spec.pod_selector.unwrap_or_default().match_labels.is_some(), types)
    };
    let selector = json!({ "matchLabels": { "app": "db" } });
    let both = "Ingress,Egress".to_owned();
    for (spec, expected) in [
        (json!({ "podSelector": selector, "ingress": 1 }), (true, "Ingress".to_owned())),
        (json!({ "podSelector": selector, "ingress": 1, "egress": null }), (true, "Ingress".to_owned())),
        (json!({ "podSelector": selector, "egress": 1 }), (true, both.clone())),
        (json!({ "podSelector": selector, "ingress": 1, "egres": [] }), (true, both.clone())),
        (json!({ "podSelector": selector, "policyTypes": 1 }), (true, both.clone())),
        (json!({ "podSelector": 1, "policyTypes": ["Egress"] }), (false, "Egress".to_owned())),
        (json!([]), (false, both)),
    ] {
        assert_eq!(isolated(spec.clone()), expected, "{spec}");
    }
}
