//! Tests of the watch of what NetworkPolicies depend on, on real directories.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::tests::Directory;
use super::*;
use crate::policy::{Change, Object};
use crate::source::{PolicyEvent, SourceEvent};

const BOUND: Duration = Duration::from_secs(20);
const RESCAN: Duration = Duration::from_secs(1);

const POD: &str = "apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, uid: '1', labels: {app: web}, annotations: {a: b}}
spec: {nodeName: n1, containers: [{name: web, image: x, ports: [{name: http, containerPort: 80}]}]}
status: {phase: Running, podIP: 10.0.0.1}
";
const POLICY: &str = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec: {podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {}}]}]}
";
const OTHERS: &str = "apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: a}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
";

impl Directory {
    /// Writes as an editor does: into a new file that is then renamed.
    fn put(&self, file: &str, text: &str) {
        fs::write(self.0.join(".new"), text).unwrap();
        fs::rename(self.0.join(".new"), self.0.join(file)).unwrap();
    }
}

/// The state that an observer of the events has built.
struct Observer {
    events: mpsc::Receiver<PolicyBatch>,
    objects: BTreeMap<String, Value>,
    problems: Vec<String>,
    listed: usize,
    upserts: usize,
}

impl Observer {
    /// Begins to watch, and waits for the listing.
    async fn of(directory: &Directory) -> Self {
        let (sender, events) = mpsc::channel(4);
        tokio::spawn(watch_every::<Policies>(RESCAN, open(directory.0.clone()).unwrap(), sender));
        let (objects, problems) = (BTreeMap::new(), Vec::new());
        let mut observer = Self { events, objects, problems, listed: 0, upserts: 0 };
        observer.until(|observer| observer.listed == 1).await;
        observer
    }

    async fn until(&mut self, is_so: impl Fn(&Self) -> bool) {
        while !is_so(self) {
            let batch = timeout(BOUND, self.events.recv()).await.expect("an event in time");
            for event in batch.expect("a watch that goes on") {
                self.take(event);
            }
        }
    }

    fn take(&mut self, event: PolicyEvent) {
        match event {
            PolicyEvent::Change(Change::Upsert { object, file }) => {
                assert!(file.is_some_and(|file| file.is_absolute()));
                let value = match &object {
                    Object::Namespace(one) => serde_json::to_value(one),
                    Object::Pod(one) => serde_json::to_value(one),
                    Object::NetworkPolicy(one) => serde_json::to_value(one),
                };
                self.upserts += 1;
                self.objects.insert(object.key().to_string(), value.unwrap());
            }
            PolicyEvent::Change(Change::Delete(key)) => {
                self.objects.remove(&key.to_string()).expect("a known object");
            }
            PolicyEvent::Listed => self.listed += 1,
            PolicyEvent::Problem(problem) => self.problems.push(problem.to_string()),
        }
    }

    fn keys(&self) -> Vec<&str> {
        self.objects.keys().map(String::as_str).collect()
    }
}

#[tokio::test]
async fn the_three_kinds_are_listed_and_followed_and_others_are_ignored() {
    let directory = Directory::new("policies");
    directory.put("a.yaml", POD);
    directory.put("b.yaml", &format!("{POLICY}---\n{OTHERS}"));
    let mut observer = Observer::of(&directory).await;
    assert_eq!(observer.keys(), ["Namespace shop", "NetworkPolicy shop/db", "Pod shop/web"]);
    assert_eq!(
        observer.objects["Pod shop/web"],
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "web", "namespace": "shop", "uid": "1", "labels": { "app": "web" } },
            "spec": {
                "nodeName": "n1",
                "containers": [{ "name": "web", "ports": [{ "name": "http", "containerPort": 80 }] }],
            },
            "status": { "podIPs": [{ "ip": "10.0.0.1" }] },
        })
    );

    // A change that policies do not depend on is none.
    directory.put("a.yaml", &POD.replace("image: x", "image: y").replace("a: b", "a: c"));
    directory.put("c.yaml", &POD.replace("web", "api"));
    observer.until(|observer| observer.objects.contains_key("Pod shop/api")).await;
    assert_eq!(observer.upserts, 4);
    directory.put("a.yaml", &POD.replace("10.0.0.1", "10.0.0.2"));
    let moved = json!([{ "ip": "10.0.0.2" }]);
    observer.until(|observer| observer.objects["Pod shop/web"]["status"]["podIPs"] == moved).await;

    fs::remove_file(directory.0.join("b.yaml")).unwrap();
    observer.until(|observer| observer.objects.len() == 2).await;
    assert_eq!(observer.keys(), ["Pod shop/api", "Pod shop/web"]);
    assert_eq!((observer.listed, observer.problems), (1, Vec::new()));
}

#[tokio::test]
async fn a_broken_file_and_a_broken_object_keep_their_last_good_state() {
    let directory = Directory::new("policies-broken");
    directory.put("a.yaml", POD);
    directory.put("b.yaml", POLICY);
    let mut observer = Observer::of(&directory).await;
    let before = observer.objects.clone();
    directory.put("a.yaml", "kind: [");
    directory.put("b.yaml", &POLICY.replace("from:", "form:"));
    observer.until(|observer| observer.problems.len() == 2).await;
    let mut problems = observer.problems.clone();
    problems.sort();
    assert!(problems[0].contains("a.yaml: is not YAML: "), "{problems:?}");
    let end = "b.yaml: NetworkPolicy shop/db: spec.ingress[0].form: is not a field of a NetworkPolicy";
    assert!(problems[1].ends_with(end), "{problems:?}");
    directory.put("c.yaml", OTHERS);
    observer.until(|observer| observer.objects.len() == 3).await;
    observer.objects.remove("Namespace shop");
    assert_eq!(observer.objects, before);
}

#[tokio::test]
async fn a_policy_that_was_never_readable_isolates_its_pods_until_it_is() {
    let directory = Directory::new("policies-never");
    directory.put("a.yaml", &POLICY.replace("from:", "form:"));
    directory
        .put("b.yaml", &POLICY.replace("networking.k8s.io/v1", "extensions/v1beta1").replace("db", "old"));
    let mut observer = Observer::of(&directory).await;
    let spec = |app: &str, types: Value| json!({ "podSelector": { "matchLabels": { "app": app } }, "policyTypes": types });
    assert_eq!(observer.objects["NetworkPolicy shop/db"]["spec"], spec("db", json!(["Ingress"])));
    assert_eq!(observer.objects["NetworkPolicy shop/old"]["spec"], spec("old", json!(["Ingress"])));
    let said = "NetworkPolicy shop/old: apiVersion: \"extensions/v1beta1\" is not the version of a NetworkPolicy; \
                takes networking.k8s.io/v1";
    assert!(observer.problems.iter().any(|problem| problem.ends_with(said)), "{:?}", observer.problems);
    let said =
        "NetworkPolicy shop/db: no version of it could be read, so it isolates its pods and allows nothing";
    assert!(observer.problems.iter().any(|problem| problem.ends_with(said)), "{:?}", observer.problems);

    // Another fault, and other directions.
    directory.put("a.yaml", &POLICY.replace("from:", "form:").replace("ingress:", "egress:"));
    let both = spec("db", json!(["Ingress", "Egress"]));
    observer.until(|observer| observer.objects["NetworkPolicy shop/db"]["spec"] == both).await;
    directory.put("a.yaml", POLICY);
    observer.until(|observer| !observer.objects["NetworkPolicy shop/db"]["spec"]["ingress"].is_null()).await;
    fs::remove_file(directory.0.join("b.yaml")).unwrap();
    observer.until(|observer| observer.objects.len() == 1).await;
}

#[tokio::test]
async fn the_source_of_services_reports_their_kinds_unless_it_is_beside_this_one() {
    let directory = Directory::new("policies-beside");
    directory.put("a.yaml", &format!("{POD}---\n{POLICY}---\n{OTHERS}"));
    for (directory, expected) in [
        (open(directory.0.clone()).unwrap().beside_policies(), &["Deployment"][..]),
        (open(directory.0.clone()).unwrap(), &["Deployment", "NetworkPolicy", "Namespace", "Pod"][..]),
    ] {
        let (sender, mut events) = mpsc::channel(4);
        tokio::spawn(watch(directory, sender));
        let batch = timeout(BOUND, events.recv()).await.unwrap().unwrap();
        let problems: Vec<String> = batch
            .iter()
            .filter_map(|event| match event {
                SourceEvent::Problem(problem) => Some(problem.message.clone()),
                _ => None,
            })
            .collect();
        assert_eq!(problems.len(), expected.len(), "{problems:?}");
        for (problem, kind) in problems.iter().zip(expected) {
            assert!(problem.contains(&format!(" {kind} ")), "{problem}");
        }
    }
}
