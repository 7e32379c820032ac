//! The objects and changes that a source reports to the model.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::ServiceKey;

/// A change of one object.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The object is new or has changed. A repetition changes nothing.
    Upsert {
        /// The object as it is now.
        object: Object,
        /// The manifest that contains it, for messages.
        file: Option<Arc<Path>>,
    },
    /// The object is gone.
    Delete(ObjectKey),
}

/// An object of a kind that the proxy reads.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// `v1` Service.
    Service(Box<Service>),
    /// `discovery.k8s.io/v1` EndpointSlice.
    EndpointSlice(Box<EndpointSlice>),
    /// `v1` Node.
    Node(Box<Node>),
}

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `v1` Node.
    Node,
    /// `v1` Service.
    Service,
    /// `discovery.k8s.io/v1` EndpointSlice.
    EndpointSlice,
}

/// The identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Its kind.
    pub kind: Kind,
    /// `metadata.namespace`; `default` if a namespaced object has none, empty for a Node.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

impl Object {
    /// Returns the object's identity.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        let (kind, metadata) = match self {
            Self::Service(service) => (Kind::Service, &service.metadata),
            Self::EndpointSlice(slice) => (Kind::EndpointSlice, &slice.metadata),
            Self::Node(node) => (Kind::Node, &node.metadata),
        };
        ObjectKey::new(kind, metadata)
    }
}

impl ObjectKey {
    /// Returns the identity of an object of this kind with this metadata.
    #[must_use]
    pub fn new(kind: Kind, metadata: &ObjectMeta) -> Self {
        let namespace = match (kind, &metadata.namespace) {
            (Kind::Node, _) => String::new(),
            (_, Some(namespace)) if !namespace.is_empty() => namespace.clone(),
            _ => "default".to_owned(),
        };
        Self { kind, namespace, name: metadata.name.clone().unwrap_or_default() }
    }

    /// Returns the key of the Service with this namespace and name.
    #[must_use]
    pub fn service(&self) -> ServiceKey {
        ServiceKey { namespace: self.namespace.clone(), name: self.name.clone() }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "Node",
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
        })
    }
}

impl fmt::Display for ObjectKey {
    /// Writes `Service default/web` or `Node node-1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.namespace.is_empty() { "" } else { "/" };
        write!(f, "{} {}{separator}{}", self.kind, self.namespace, self.name)
    }
}
