//! Tests of unreadable objects, and of the parts of readable ones that are kept.

use super::*;
use crate::source::Object;

fn broken(name: &str, version: u32) -> Value {
    let mut service = service(name, version);
    service["spec"]["ports"][0]["port"] = json!("http");
    service
}

#[tokio::test]
async fn an_object_that_can_not_be_read_is_skipped_and_taken_when_it_can() {
    let (mut bench, mut watches) = Bench::listed(TIMING, &[]).await;
    watches.services.tell("ADDED", &broken("web", 11)).await;
    watches.services.tell("ADDED", &service("dns", 12)).await;
    let mut told = bench.next().await;
    if !told.contains('\n') {
        told = format!("{told}\n{}", bench.next().await);
    }
    assert_eq!(
        told,
        "Warning: Service default/web: spec.ports[0].port: invalid type: string \"http\", expected i32; this version \
         is skipped\n+ Service default/dns"
    );
    // The object is wrong as before, so there is no second report.
    watches.services.tell("MODIFIED", &broken("web", 13)).await;
    watches.services.tell("MODIFIED", &service("web", 14)).await;
    assert_eq!(bench.next().await, "+ Service default/web");
}

#[tokio::test]
async fn one_object_of_a_page_that_can_not_be_read_does_not_keep_the_others_away() {
    let mut bench = Bench::start(TIMING).await;
    bench.server.asked(Kind::Service).await.answer("400 Bad Request", "", "{}").await;
    let items = [service("a", 1), broken("b", 2), json!({ "metadata": { "name": 5 } }), service("c", 3)];
    let page = json!({ "metadata": { "resourceVersion": "10" }, "items": items });
    bench.server.asked(Kind::Service).await.answer("200 OK", "", &page.to_string()).await;
    assert_eq!(
        bench.next().await,
        "+ Service default/a\n\
         Warning: Service default/b: spec.ports[0].port: invalid type: string \"http\", expected i32; this version \
         is skipped\n\
         Warning: metadata.name: invalid type: integer `5`, expected a string; this version is skipped\n\
         + Service default/c"
    );
    assert_eq!(bench.server.asked(Kind::Service).await.says("resourceVersion"), "10");
}

#[tokio::test]
async fn an_object_that_becomes_unreadable_stays_as_it_was() {
    let (mut bench, mut watches) = Bench::listed(TIMING, &[service("web", 1), service("dns", 2)]).await;
    watches.services.tell("MODIFIED", &broken("web", 11)).await;
    assert!(bench.next().await.starts_with("Warning: Service default/web: spec.ports[0].port"));
    // A new listing contains the object, still unreadable.
    watches.services.tell("ERROR", &json!({ "code": 410 })).await;
    let listed = [broken("web", 11), service("new", 12)];
    let mut services = bench.server.asked(Kind::Service).await.list(&listed, "40").await;
    assert_eq!(bench.next().await, "+ Service default/new\n- Service default/dns");
    // Deleted and created again under the same name, it is a different object.
    let mut another = broken("web", 41);
    another["metadata"]["uid"] = json!("another");
    services.tell("MODIFIED", &another).await;
    assert_eq!(bench.next().await, "- Service default/web");
}

#[tokio::test]
async fn a_listing_says_what_it_could_not_tell_of_until_that_is_readable_or_gone() {
    let mut bench = Bench::start(TIMING).await;
    let initial = [broken("web", 1), broken("dns", 2)];
    let nodes = bench.server.asked(Kind::Node).await.list(&[], "3").await;
    let mut services = bench.server.asked(Kind::Service).await.list(&initial, "3").await;
    let slices = bench.server.asked(Kind::EndpointSlice).await.list(&[], "3").await;
    let mut told = String::new();
    while !told.contains("listed") {
        told = bench.next().await;
    }
    assert_eq!(told, "listed without Service default/dns, Service default/web");
    services.tell("MODIFIED", &service("web", 4)).await;
    assert_eq!(bench.next().await, "+ Service default/web\nlisted without Service default/dns");
    services.tell("DELETED", &broken("dns", 5)).await;
    assert_eq!(bench.next().await, "listed");
    // An object that becomes unreadable later is known from before.
    services.tell("MODIFIED", &broken("web", 6)).await;
    assert!(bench.next().await.starts_with("Warning"));
    services.tell("MODIFIED", &service("web", 7)).await;
    assert_eq!(bench.next().await, "+ Service default/web");
    nodes.end().await;
    slices.end().await;
}

#[tokio::test]
async fn the_version_of_an_unreadable_object_is_gone_on_from() {
    let (mut bench, mut watches) = Bench::listed(TIMING, &[]).await;
    watches.services.tell("ADDED", &broken("web", 33)).await;
    assert!(bench.next().await.starts_with("Warning"));
    watches.services.end().await;
    assert_eq!(bench.server.asked(Kind::Service).await.says("resourceVersion"), "33");
}

#[tokio::test]
async fn of_other_nodes_nothing_is_told_but_their_addresses_and_why_no_agent_may_be_there() {
    let mut bench = Bench::start(TIMING).await;
    let node = |name: &str, version: u32, kubelet: &str| {
        json!({
            "metadata": {
                "name": name, "resourceVersion": version.to_string(), "managedFields": [{ "manager": kubelet }],
                "labels": { "topology.kubernetes.io/zone": "a", "kubernetes.io/os": "linux" },
                "deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": { "millrace.dev/x": "y" },
            },
            "spec": { "taints": [{ "key": "full", "effect": "NoSchedule" }] },
            "status": {
                "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" }],
                "conditions": [{ "type": "Ready", "status": "True", "reason": kubelet }],
            },
        })
    };
    let initial = [node("node1", 1, "ok"), node("node2", 2, "ok")];
    let mut nodes = bench.server.asked(Kind::Node).await.list(&initial, "10").await;
    let mut told = Vec::new();
    while told.len() < 2 {
        told.extend(bench.events.recv().await.unwrap().into_iter().map(|event| match event {
            SourceEvent::Change(Change::Upsert { object: Object::Node(node), .. }) => *node,
            other => panic!("{other:?}"),
        }));
    }
    for (node, is_own) in told.iter().zip([true, false]) {
        let status = node.status.as_ref().unwrap();
        assert_eq!(status.addresses.as_ref().unwrap()[0].address, "192.0.2.1");
        assert!(status.conditions.is_none() && node.metadata.managed_fields.is_none());
        assert_eq!(node.metadata.labels.is_some(), is_own);
        assert_eq!(node.metadata.annotations.is_some(), is_own);
        assert!(node.metadata.deletion_timestamp.is_some());
        assert_eq!(node.spec.as_ref().unwrap().taints.is_some(), is_own);
    }
    // The kubelet's reports are no change.
    nodes.tell("MODIFIED", &node("node1", 11, "still")).await;
    nodes.tell("MODIFIED", &node("node2", 12, "still")).await;
    let mut tainted = node("node1", 13, "still");
    tainted["spec"]["taints"][0]["key"] = json!("ToBeDeletedByClusterAutoscaler");
    nodes.tell("MODIFIED", &tainted).await;
    assert_eq!(bench.next().await, "+ Node node1");
    let mut moved = node("node2", 14, "still");
    moved["status"]["addresses"][0]["address"] = json!("192.0.2.2");
    nodes.tell("MODIFIED", &moved).await;
    assert_eq!(bench.next().await, "+ Node node2");
    // Other nodes take over the addresses of one that is not ready or about to go.
    moved["status"]["conditions"][0]["status"] = json!("Unknown");
    nodes.tell("MODIFIED", &moved).await;
    assert_eq!(bench.next().await, "+ Node node2");
    moved["spec"]["taints"][0]["key"] = json!("ToBeDeletedByClusterAutoscaler");
    nodes.tell("MODIFIED", &moved).await;
    assert_eq!(bench.next().await, "+ Node node2");
    let mut windows = node("node2", 15, "still");
    windows["status"]["addresses"][0]["address"] = json!("192.0.2.2");
    windows["metadata"]["labels"]["kubernetes.io/os"] = json!("windows");
    nodes.tell("MODIFIED", &windows).await;
    let told = bench.events.recv().await.unwrap();
    let [SourceEvent::Change(Change::Upsert { object: Object::Node(node), .. })] = &told[..] else {
        panic!("{told:?}")
    };
    let labels: Vec<_> = node.metadata.labels.iter().flatten().collect();
    assert_eq!(labels, [(&"kubernetes.io/os".to_owned(), &"windows".to_owned())]);
}
