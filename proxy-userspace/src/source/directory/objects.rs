//! The objects in manifests, by their kinds.

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_norway::Value;

use super::kinds::{Broken, Manifests};
use super::policies::unknown_field;
use crate::policy;
use crate::source::feed::Services;
use crate::source::pods::{WirePodSpec, WirePodStatus, keep, pod};
use crate::source::policies::{Policies, stand_in};
use crate::source::{Kind, Listing, Object, PolicyEvent, SourceEvent};

impl Manifests for Services {
    const REPORTS_OTHERS: bool = true;
    const TAKES: &'static str =
        "takes v1 Service, discovery.k8s.io/v1 EndpointSlice, v1 Node and lists of them";

    fn kind(version: &str, name: &str) -> Option<Kind> {
        match (version, name) {
            ("v1", "Service") => Some(Kind::Service),
            ("v1", "Node") => Some(Kind::Node),
            ("discovery.k8s.io/v1", "EndpointSlice") => Some(Kind::EndpointSlice),
            _ => None,
        }
    }

    fn decode(kind: Kind, _: &str, value: Value) -> Result<Object, Broken<Object>> {
        match kind {
            Kind::Service => read_object(value, |one| Object::Service(Box::new(one))),
            Kind::Node => read_object(value, |one| Object::Node(Box::new(one))),
            Kind::EndpointSlice => read_object(value, |one| Object::EndpointSlice(Box::new(one))),
        }
    }

    fn listed(former: Option<&Listing>, listing: &Listing) -> Option<SourceEvent> {
        let is_news = former.is_none_or(|former| *former != Listing::Complete && former != listing);
        is_news.then(|| SourceEvent::Listed(listing.clone()))
    }
}

impl Manifests for Policies {
    /// A manifest for a node also has Services.
    const REPORTS_OTHERS: bool = false;
    const TAKES: &'static str = "takes the kind of the object";

    fn kind(version: &str, name: &str) -> Option<policy::Kind> {
        match (version, name) {
            ("v1", "Namespace") => Some(policy::Kind::Namespace),
            ("v1", "Pod") => Some(policy::Kind::Pod),
            // One of another version is unreadable.
            (_, "NetworkPolicy") => Some(policy::Kind::NetworkPolicy),
            _ => None,
        }
    }

    fn decode(
        kind: policy::Kind,
        version: &str,
        value: Value,
    ) -> Result<policy::Object, Broken<policy::Object>> {
        match kind {
            policy::Kind::Namespace => read_object(value, |one: Namespace| {
                let metadata = ObjectMeta { namespace: None, uid: None, ..kept(one.metadata) };
                policy::Object::Namespace(Box::new(Namespace { metadata, ..Namespace::default() }))
            }),
            policy::Kind::Pod => read_object(value, |one: WirePod| {
                let parts = keep(one.spec, one.status);
                policy::Object::Pod(Box::new(pod(kept(one.metadata), parts)))
            }),
            policy::Kind::NetworkPolicy => read_policy(version, value),
        }
    }

    fn listed(former: Option<&Listing>, _: &Listing) -> Option<PolicyEvent> {
        former.is_none().then_some(PolicyEvent::Listed)
    }
}

/// A pod without the parts that are ignored.
#[derive(Deserialize)]
struct WirePod {
    metadata: ObjectMeta,
    spec: Option<WirePodSpec>,
    status: Option<WirePodStatus>,
}

/// Returns the metadata that policies may depend on.
fn kept(metadata: ObjectMeta) -> ObjectMeta {
    let ObjectMeta { name, namespace, uid, labels, .. } = metadata;
    ObjectMeta { name, namespace, uid, labels, ..ObjectMeta::default() }
}

/// Parses a NetworkPolicy. A field that the API does not have is a fault: it may be a `from` that is spelled
/// wrong, without which the rule allows everyone.
fn read_policy(version: &str, value: Value) -> Result<policy::Object, Broken<policy::Object>> {
    let given = value.get("spec").cloned().unwrap_or_default();
    let metadata = value.get("metadata").cloned().unwrap_or_default();
    let read = if version == "networking.k8s.io/v1" {
        read_object(value, |one: NetworkPolicy| {
            let metadata = ObjectMeta { labels: None, uid: None, ..kept(one.metadata) };
            policy::Object::NetworkPolicy(Box::new(NetworkPolicy { metadata, ..one }))
        })
    } else {
        let message =
            format!("{version:?} is not the version of a NetworkPolicy; takes networking.k8s.io/v1");
        Err(Broken { field: "apiVersion".to_owned(), message, stand_in: None })
    };
    let read = read.and_then(|object| {
        let policy::Object::NetworkPolicy(policy) = &object else { return Ok(object) };
        let kept = serde_norway::to_value(&policy.spec).unwrap_or_default();
        match unknown_field(&given, &kept, "spec") {
            None => Ok(object),
            Some(field) => {
                let message = "is not a field of a NetworkPolicy".to_owned();
                Err(Broken { field, message, stand_in: None })
            }
        }
    });
    read.map_err(|broken| {
        let text = |field: &str| metadata.get(field).and_then(Value::as_str).map(str::to_owned);
        let (name, namespace) = (text("name"), text("namespace"));
        let metadata = ObjectMeta { name, namespace, ..ObjectMeta::default() };
        let spec = serde_json::to_value(&given).unwrap_or_default();
        Broken { stand_in: Some(stand_in(metadata, &spec)), ..broken }
    })
}

/// Parses an object.
fn read_object<T: DeserializeOwned, O>(value: Value, wrap: impl Fn(T) -> O) -> Result<O, Broken<O>> {
    let broken = |error: serde_path_to_error::Error<serde_norway::Error>| {
        let field = error.path().to_string();
        Broken { field, message: error.into_inner().to_string(), stand_in: None }
    };
    serde_path_to_error::deserialize::<_, T>(value).map(wrap).map_err(broken)
}
