//! The objects that NetworkPolicies depend on, as a source sends them.

use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde_json::Value;

use super::feed::{Fault, Feed};
use crate::policy::{Change, Kind, NamespacedName, Object, ObjectKey, Problem};

/// The events of one change, in their order.
///
/// A reader that acts only after a whole batch never misses an object that moved from one file to
/// another.
pub type PolicyBatch = Vec<PolicyEvent>;

/// An event about Namespaces, pods and NetworkPolicies.
#[derive(Clone, Debug, PartialEq)]
pub enum PolicyEvent {
    /// An object was added, changed or removed.
    Change(Change),
    /// All objects of the three kinds were sent. It comes once; before it no object may count as
    /// deleted.
    Listed,
    /// An object, a file or the source is unreadable. Its last state stays in force.
    Problem(Problem),
}

/// Namespaces, pods and NetworkPolicies.
#[derive(Debug)]
pub struct Policies;

impl Feed for Policies {
    type Event = PolicyEvent;
    type Key = ObjectKey;
    type Kind = Kind;
    type Object = Object;
    type Problem = Problem;

    fn key(kind: Kind, metadata: &ObjectMeta) -> ObjectKey {
        ObjectKey::new(kind, metadata)
    }
    fn named(kind: Kind, namespace: &str, name: &str) -> ObjectKey {
        ObjectKey { kind, name: NamespacedName::new(namespace, name) }
    }
    fn names(key: &ObjectKey) -> (&str, &str) {
        (&key.name.namespace, &key.name.name)
    }
    fn key_of(object: &Object) -> ObjectKey {
        object.key()
    }
    fn upsert(object: Object, file: Option<Arc<Path>>) -> PolicyEvent {
        PolicyEvent::Change(Change::Upsert { object, file })
    }
    fn delete(key: ObjectKey) -> PolicyEvent {
        PolicyEvent::Change(Change::Delete(key))
    }
    fn is_upsert(event: &PolicyEvent) -> bool {
        matches!(event, PolicyEvent::Change(Change::Upsert { .. }))
    }
    fn problem(fault: Fault<ObjectKey>) -> Problem {
        let Fault { file, object, field, message, severity } = fault;
        Problem { file, object, field, message, severity }
    }
    fn report(problem: Problem) -> PolicyEvent {
        PolicyEvent::Problem(problem)
    }
}

/// The consequence of an unreadable policy with a stand-in.
pub(super) const STANDS_IN: &str =
    "no version of it could be read, so it isolates its pods and allows nothing";

/// Returns a policy in the place of one that was never readable, so that none of its pods is open.
///
/// It isolates the same pods in the same directions, as far as they can be read, and allows nothing. With
/// an unreadable selector it isolates all pods of its namespace; with unreadable directions, both.
pub(super) fn stand_in(metadata: ObjectMeta, spec: &Value) -> Object {
    let field = |name: &str| spec.get(name).filter(|value| !value.is_null());
    let selector = field("podSelector").map(|selector| serde_json::from_value(selector.clone()));
    let selector: Option<LabelSelector> = selector.and_then(Result::ok);
    let given = field("policyTypes").map(|types| serde_json::from_value::<Vec<String>>(types.clone()));
    let types = match given {
        Some(Ok(types)) if !types.is_empty() => types,
        // The API's default. A field that is spelled wrong may be egress or policyTypes.
        None if has_known_fields(spec) && field("egress").is_none() => vec!["Ingress".to_owned()],
        _ => vec!["Ingress".to_owned(), "Egress".to_owned()],
    };
    let spec = NetworkPolicySpec {
        pod_selector: Some(selector.unwrap_or_default()),
        policy_types: Some(types),
        ..NetworkPolicySpec::default()
    };
    Object::NetworkPolicy(Box::new(NetworkPolicy { metadata, spec: Some(spec) }))
}

fn has_known_fields(spec: &Value) -> bool {
    const KNOWN: [&str; 4] = ["podSelector", "policyTypes", "ingress", "egress"];
    spec.as_object().is_some_and(|spec| spec.keys().all(|name| KNOWN.contains(&name.as_str())))
}
