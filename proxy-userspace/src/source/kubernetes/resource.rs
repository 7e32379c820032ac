//! The names of the kinds.

use crate::source::Kind;

/// Returns the name of a kind's resource in RBAC and kubectl.
pub(super) const fn resource(kind: Kind) -> &'static str {
    match kind {
        Kind::Service => "services",
        Kind::EndpointSlice => "endpointslices.discovery.k8s.io",
        Kind::Node => "nodes",
    }
}
