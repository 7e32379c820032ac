//! Parses what NetworkPolicies depend on, without the parts that they ignore.
//!
//! A cluster has many pods, and each changes often: ended probes, restarts, usage. Of a pod, only what
//! `policy` reads is kept, and a change of any other part is none.

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;

use super::decode::{WireMeta, hash, read};
use super::resource::{Decoded, Undecodable};
use crate::policy::{Kind, Object};
use crate::source::feed::Feed;
use crate::source::pods::{WirePodSpec, WirePodStatus, keep, pod};
use crate::source::policies::{Policies, stand_in};

/// Parses one object.
pub(super) fn decode_policy_kind(
    kind: Kind,
    json: &str,
) -> Result<Decoded<Policies>, Box<Undecodable<Policies>>> {
    match kind {
        Kind::Namespace => read(kind, json, |wire: WireNamespace| {
            let metadata = wire.metadata.names_and_labels();
            let version = hash(&metadata.labels);
            (metadata, version, |metadata| {
                Object::Namespace(Box::new(Namespace { metadata, ..Namespace::default() }))
            })
        }),
        Kind::Pod => read(kind, json, |wire: WirePod| {
            let metadata = wire.metadata.names_and_labels();
            let kept = keep(wire.spec, wire.status);
            let version = hash(&(&metadata.labels, &kept));
            (metadata, version, move |metadata| Object::Pod(Box::new(pod(metadata, kept))))
        }),
        Kind::NetworkPolicy => {
            let policy = read(kind, json, |wire: WirePolicy| {
                let mut metadata = wire.metadata.names_and_labels();
                metadata.labels = None;
                // An annotation or a status is no change.
                let version = hash(&serde_json::to_string(&wire.spec).unwrap_or_default());
                (metadata, version, move |metadata| {
                    Object::NetworkPolicy(Box::new(NetworkPolicy { metadata, spec: wire.spec }))
                })
            });
            policy.map_err(|undecodable| with_stand_in(undecodable, json))
        }
    }
}

fn with_stand_in(mut undecodable: Box<Undecodable<Policies>>, json: &str) -> Box<Undecodable<Policies>> {
    if let Some(identity) = &undecodable.identity {
        let (namespace, name) = Policies::names(&identity.key);
        let metadata = ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        };
        let whole: Value = serde_json::from_str(json).unwrap_or_default();
        undecodable.stand_in = Some(stand_in(metadata, whole.get("spec").unwrap_or_default()));
    }
    undecodable
}

#[derive(Deserialize)]
struct WireNamespace {
    metadata: WireMeta,
}

#[derive(Deserialize)]
struct WirePolicy {
    metadata: WireMeta,
    spec: Option<NetworkPolicySpec>,
}

#[derive(Deserialize)]
struct WirePod {
    metadata: WireMeta,
    spec: Option<WirePodSpec>,
    status: Option<WirePodStatus>,
}
