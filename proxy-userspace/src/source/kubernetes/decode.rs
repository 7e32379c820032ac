//! Parses objects of the API server without the parts that the agent ignores: managed fields, most
//! annotations, names of pods. Ignored parts are never allocated.

use std::hash::{DefaultHasher, Hash, Hasher};

use k8s_openapi::api::core::v1::{
    Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, Service, ServiceSpec, ServiceStatus, Taint,
};
use k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::NodeParts;
use super::metadata::{Annotations, Labels};
use super::resource::{Decoded, Identity, Resources, Undecodable};
use crate::model::{AUTOSCALER_TAINT, READY};
use crate::source::feed::Services;
use crate::source::{Kind, Object};

/// Parses one object. A Node is reduced to `nodes`.
pub(super) fn decode_service_kind(
    kind: Kind,
    json: &str,
    nodes: &NodeParts,
) -> Result<Decoded<Services>, Box<Undecodable<Services>>> {
    match kind {
        Kind::Service => read(kind, json, |wire: WireService| {
            let version = wire.metadata.version(json);
            (wire.metadata, version, move |metadata| {
                Object::Service(Box::new(Service { metadata, spec: wire.spec, status: wire.status }))
            })
        }),
        Kind::EndpointSlice => read(kind, json, |wire: WireSlice| {
            let version = wire.metadata.version(json);
            let endpoints = wire.endpoints.map(|list| list.into_iter().map(endpoint).collect());
            (wire.metadata, version, move |metadata| {
                Object::EndpointSlice(Box::new(EndpointSlice {
                    metadata,
                    address_type: wire.address_type,
                    endpoints,
                    ports: wire.ports,
                }))
            })
        }),
        Kind::Node => read(kind, json, |wire: WireNode| {
            let (metadata, node) = node(wire, nodes);
            // The kubelet reports a Node's health all the time. That is no new version for the
            // agent.
            let version = hash(&(&metadata.labels, metadata.deletion_timestamp.is_some(), contents(&node)));
            (metadata, version, move |metadata| Object::Node(Box::new(Node { metadata, ..node })))
        }),
    }
}

/// Parses only the identity of an object.
pub(super) fn identify<F: Resources>(kind: F::Kind, json: &str) -> Option<Identity<F::Key>> {
    #[derive(Deserialize)]
    struct Named {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        name: String,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
    }
    let Named { metadata } = serde_json::from_str(json).ok()?;
    let metadata = WireMeta {
        name: Some(metadata.name),
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        ..WireMeta::default()
    };
    let version = metadata.version(json);
    Some(metadata.split::<F>(kind, version).0)
}

/// Parses one object; `take` splits it into its metadata, a number that changes with it, and a function that
/// builds the object from what is kept of the metadata.
pub(super) fn read<F, T, B>(
    kind: F::Kind,
    json: &str,
    take: impl Fn(T) -> (WireMeta, u64, B),
) -> Result<Decoded<F>, Box<Undecodable<F>>>
where
    F: Resources,
    T: DeserializeOwned,
    B: FnOnce(ObjectMeta) -> F::Object,
{
    let Ok(wire) = serde_json::from_str(json) else {
        return Err(Box::new(explain::<F, T>(kind, json)));
    };
    let (metadata, version, build) = take(wire);
    if metadata.name.as_deref().unwrap_or_default().is_empty() {
        let (field, message) = ("metadata.name".to_owned(), format!("not set; a {kind} has a name"));
        return Err(Box::new(Undecodable { identity: None, field, message, stand_in: None }));
    }
    let (identity, metadata) = metadata.split::<F>(kind, version);
    Ok(Decoded { identity, object: build(metadata) })
}

/// Parses the object again with the slower parser that names the field.
fn explain<F: Resources, T: DeserializeOwned>(kind: F::Kind, json: &str) -> Undecodable<F> {
    let mut reader = serde_json::Deserializer::from_str(json);
    let result: Result<T, _> = serde_path_to_error::deserialize(&mut reader);
    let (field, message) = match result {
        Ok(_) => (String::new(), "can't be read".to_owned()),
        Err(error) => (error.path().to_string(), error.into_inner().to_string()),
    };
    // Line and column have no meaning for a reader of the object as YAML.
    let message = message.split(" at line ").next().unwrap_or_default().to_owned();
    Undecodable { identity: identify::<F>(kind, json), field, message, stand_in: None }
}

pub(super) fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WireMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    pub labels: Option<Labels>,
    annotations: Option<Annotations>,
}

impl WireMeta {
    /// Returns a number that changes with the object.
    fn version(&self, json: &str) -> u64 {
        match self.resource_version.as_deref() {
            Some("") | None => hash(&json),
            version => hash(&version),
        }
    }

    /// Returns the names and labels alone.
    pub fn names_and_labels(self) -> Self {
        Self { creation_timestamp: None, deletion_timestamp: None, annotations: None, ..self }
    }

    fn split<F: Resources>(self, kind: F::Kind, version: u64) -> (Identity<F::Key>, ObjectMeta) {
        let metadata = ObjectMeta {
            name: self.name,
            namespace: self.namespace,
            uid: self.uid.clone().filter(|_| F::keeps_uid(kind)),
            creation_timestamp: self.creation_timestamp,
            deletion_timestamp: self.deletion_timestamp,
            labels: self.labels.map(|labels| labels.0),
            annotations: self.annotations.map(|annotations| annotations.0),
            ..ObjectMeta::default()
        };
        let identity = Identity {
            key: F::key(kind, &metadata),
            uid: self.uid.unwrap_or_default(),
            resource_version: self.resource_version.unwrap_or_default(),
            version,
        };
        (identity, metadata)
    }
}

#[derive(Deserialize)]
struct WireService {
    metadata: WireMeta,
    spec: Option<ServiceSpec>,
    status: Option<ServiceStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireSlice {
    metadata: WireMeta,
    address_type: String,
    endpoints: Option<Vec<WireEndpoint>>,
    ports: Option<Vec<EndpointPort>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireEndpoint {
    addresses: Option<Vec<String>>,
    conditions: Option<EndpointConditions>,
    hints: Option<EndpointHints>,
    node_name: Option<String>,
}

fn endpoint(wire: WireEndpoint) -> Endpoint {
    Endpoint {
        addresses: wire.addresses.unwrap_or_default(),
        conditions: wire.conditions,
        hints: wire.hints,
        node_name: wire.node_name,
        ..Endpoint::default()
    }
}

#[derive(Deserialize)]
struct WireNode {
    metadata: WireMeta,
    spec: Option<WireNodeSpec>,
    status: Option<WireNodeStatus>,
}

#[derive(Default, Deserialize)]
struct WireNodeSpec {
    taints: Option<Vec<Taint>>,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Option<Vec<String>>,
}

#[derive(Default, Deserialize)]
struct WireNodeStatus {
    addresses: Option<Vec<NodeAddress>>,
    conditions: Option<Vec<WireCondition>>,
}

#[derive(Deserialize)]
struct WireCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
}

fn node(wire: WireNode, parts: &NodeParts) -> (WireMeta, Node) {
    let status = wire.status.unwrap_or_default();
    let spec = wire.spec.unwrap_or_default();
    let is_whole = match parts {
        NodeParts::OfOne(name) => wire.metadata.name.as_ref() == Some(name),
        NodeParts::OfAll => true,
    };
    let (metadata, taints) = if is_whole {
        (wire.metadata, spec.taints)
    } else {
        let labels = wire.metadata.labels.and_then(Labels::of_another_node);
        let taints = spec.taints.map(of_autoscaler).filter(|taints| !taints.is_empty());
        (WireMeta { labels, annotations: None, ..wire.metadata }, taints)
    };
    // For an agent, all that counts is that a node is not ready.
    let is_told = |one: &WireCondition| *parts == NodeParts::OfAll || one.status != "True";
    let conditions: Vec<_> = status.conditions.into_iter().flatten().filter(is_told).collect();
    let status = NodeStatus {
        addresses: status.addresses,
        conditions: Some(ready(conditions)).filter(|conditions| !conditions.is_empty()),
        ..NodeStatus::default()
    };
    let spec = NodeSpec { taints, pod_cidrs: spec.pod_cidrs, ..NodeSpec::default() };
    (metadata, Node { spec: Some(spec), status: Some(status), ..Node::default() })
}

/// Returns the taint of a node that is about to go. Others come and go with its state.
fn of_autoscaler(taints: Vec<Taint>) -> Vec<Taint> {
    taints.into_iter().filter(|taint| taint.key == AUTOSCALER_TAINT).collect()
}

/// Returns the condition Ready without its times and texts, which change all the time.
fn ready(conditions: Vec<WireCondition>) -> Vec<NodeCondition> {
    let ready = conditions.into_iter().filter(|condition| condition.type_ == READY);
    let kept = |one: WireCondition| NodeCondition {
        type_: one.type_,
        status: one.status,
        ..NodeCondition::default()
    };
    ready.map(kept).collect()
}

/// Returns the parts of a Node that are kept, besides its metadata, in a form that can be hashed.
fn contents(node: &Node) -> (Vec<[&str; 2]>, Vec<[&str; 3]>) {
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let ranges = node.spec.iter().flat_map(|spec| spec.pod_cidrs.iter().flatten());
    let ranges = ranges.map(|range| ["", range.as_str()]);
    let conditions = conditions.map(|condition| [condition.type_.as_str(), &condition.status]);
    (
        addresses
            .map(|address| [address.type_.as_str(), &address.address])
            .chain(conditions)
            .chain(ranges)
            .collect(),
        taints
            .map(|taint| [taint.key.as_str(), taint.value.as_deref().unwrap_or_default(), &taint.effect])
            .collect(),
    )
}
