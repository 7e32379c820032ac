//! The kinds as resources of the API server.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Resource;

use super::KubernetesSettings;
use super::decode::decode_service_kind;
use super::decode_policy::decode_policy_kind;
use super::resource::{Decoded, Resources, Undecodable};
use crate::policy;
use crate::source::feed::Services;
use crate::source::policies::Policies;
use crate::source::{Kind, Listing, ObjectKey, PolicyEvent, SourceEvent, Unread};

impl Resources for Services {
    type Settings = KubernetesSettings;

    const KINDS: &'static [Kind] = &[Kind::Node, Kind::Service, Kind::EndpointSlice];
    const NAME: &'static str = "services";

    fn resource(kind: Kind) -> &'static str {
        match kind {
            Kind::Service => "services",
            Kind::EndpointSlice => "endpointslices.discovery.k8s.io",
            Kind::Node => "nodes",
        }
    }

    fn path(kind: Kind) -> String {
        match kind {
            Kind::Service => Service::url_path(&(), None),
            Kind::EndpointSlice => EndpointSlice::url_path(&(), None),
            Kind::Node => Node::url_path(&(), None),
        }
    }

    /// Selects the Services and EndpointSlices of this proxy by label: the endpointslice controller
    /// copies a Service's labels to its slices.
    ///
    /// With a proxy's name, slices without that label are selected, too: the API server's own slice
    /// has none, and its addresses must be known, so that no Service takes them.
    fn selector(kind: Kind, settings: &KubernetesSettings) -> Option<String> {
        const NOT_HEADLESS: &str = "!service.kubernetes.io/headless";
        let name = settings.service_proxy_name.as_deref();
        let proxy = name.map_or_else(
            || "!service.kubernetes.io/service-proxy-name".to_owned(),
            |name| format!("service.kubernetes.io/service-proxy-name={name}"),
        );
        match kind {
            Kind::Node => None,
            Kind::EndpointSlice if name.is_some() => Some(NOT_HEADLESS.to_owned()),
            Kind::EndpointSlice => Some(format!("{proxy},{NOT_HEADLESS}")),
            // A Service may have the label and a cluster IP. Only its slices tell whether it is
            // headless.
            Kind::Service => Some(proxy),
        }
    }

    fn keeps_uid(kind: Kind) -> bool {
        // Events need the uid of a Service, and of no other kind.
        kind == Kind::Service
    }

    fn decode(
        kind: Kind,
        json: &str,
        settings: &KubernetesSettings,
    ) -> Result<Decoded<Self>, Box<Undecodable<Self>>> {
        decode_service_kind(kind, json, &settings.nodes)
    }

    fn listed(unread: BTreeSet<ObjectKey>) -> SourceEvent {
        SourceEvent::Listed(if unread.is_empty() {
            Listing::Complete
        } else {
            Listing::Without(unread.into_iter().map(Unread::Object).collect())
        })
    }

    fn listed_again(unread: BTreeSet<ObjectKey>) -> Option<SourceEvent> {
        Some(Self::listed(unread))
    }
}

impl Resources for Policies {
    type Settings = ();

    const KINDS: &'static [policy::Kind] =
        &[policy::Kind::Namespace, policy::Kind::NetworkPolicy, policy::Kind::Pod];
    const NAME: &'static str = "policies";

    fn resource(kind: policy::Kind) -> &'static str {
        match kind {
            policy::Kind::Namespace => "namespaces",
            policy::Kind::Pod => "pods",
            policy::Kind::NetworkPolicy => "networkpolicies.networking.k8s.io",
        }
    }

    fn path(kind: policy::Kind) -> String {
        match kind {
            policy::Kind::Namespace => Namespace::url_path(&(), None),
            policy::Kind::Pod => Pod::url_path(&(), None),
            policy::Kind::NetworkPolicy => NetworkPolicy::url_path(&(), None),
        }
    }

    /// Pods of all nodes are needed: each may be the peer of a pod on this node.
    fn selector(_: policy::Kind, (): &()) -> Option<String> {
        None
    }

    fn keeps_uid(kind: policy::Kind) -> bool {
        // Events need the uid of a policy. A pod that was made anew has another one.
        matches!(kind, policy::Kind::Pod | policy::Kind::NetworkPolicy)
    }

    fn decode(kind: policy::Kind, json: &str, (): &()) -> Result<Decoded<Self>, Box<Undecodable<Self>>> {
        decode_policy_kind(kind, json)
    }

    fn listed(_: BTreeSet<policy::ObjectKey>) -> PolicyEvent {
        PolicyEvent::Listed
    }

    fn listed_again(_: BTreeSet<policy::ObjectKey>) -> Option<PolicyEvent> {
        None
    }
}
