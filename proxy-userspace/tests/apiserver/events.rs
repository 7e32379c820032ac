//! Events, written with the rights of manifests/base and judged by the API server.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde_json::{Value, json};

use crate::fixture::{SERVED, shared};
use crate::scene::Scene;

/// With so many Services, the agents of two of the three nodes are elected for some of them.
const SERVICES: usize = 12;

#[test]
fn one_node_writes_the_event_about_a_wrong_annotation() -> Result<()> {
    let cluster = shared();
    let scene = Scene::new(&cluster, "events")?;
    for index in 0..SERVICES {
        let spec = json!({"clusterIP": format!("10.96.7.{}", index + 1), "ports": [{"port": 80}]});
        let annotations = json!({"millrace.dev/forwarding": "both"});
        scene.service(&format!("web{index}"), spec, json!({"metadata": {"annotations": annotations}}))?;
    }
    let written = || -> Result<Vec<Value>> {
        let events = scene.kube().list("events.k8s.io/v1", "Event", "events")?;
        Ok(events.into_iter().filter(|event| event["reason"] == "InvalidAnnotation").collect())
    };
    cluster.proxy(1)?.wait_until("an Event is written", || Ok(!written()?.is_empty()))?;

    let services = scene.kube().list("v1", "Service", "events")?;
    let uids: BTreeMap<&str, &Value> = services
        .iter()
        .filter_map(|service| Some((service["metadata"]["name"].as_str()?, &service["metadata"]["uid"])))
        .collect();
    let nodes = SERVED.map(|node| json!(format!("node{node}")));
    let events = written()?;
    let mut told = BTreeSet::new();
    for event in &events {
        let regarding = &event["regarding"];
        let name = regarding["name"].as_str().unwrap_or_default();
        assert_eq!((&regarding["kind"], regarding.get("uid")), (&json!("Service"), uids.get(name).copied()));
        assert_eq!(event["type"], "Warning");
        assert_eq!(event["reportingController"], "millrace");
        assert!(nodes.contains(&event["reportingInstance"]), "{event}");
        assert_eq!(
            event["note"],
            "metadata.annotations[millrace.dev/forwarding]: \"both\" is not accepted; takes dsr or snat; the default is used"
        );
        assert!(told.insert(name), "by one node, once: {events:?}");
    }
    Ok(())
}
