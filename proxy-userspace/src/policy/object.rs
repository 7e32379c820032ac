//! The objects and changes that the index takes.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

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

/// An object of a kind that policies depend on.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// `v1` Namespace.
    Namespace(Box<Namespace>),
    /// `v1` Pod.
    Pod(Box<Pod>),
    /// `networking.k8s.io/v1` NetworkPolicy.
    NetworkPolicy(Box<NetworkPolicy>),
}

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `v1` Namespace.
    Namespace,
    /// `v1` Pod.
    Pod,
    /// `networking.k8s.io/v1` NetworkPolicy.
    NetworkPolicy,
}

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespacedName {
    /// `metadata.namespace`; `default` if a namespaced object has none, empty for a Namespace.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

/// The identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace and name.
    pub name: NamespacedName,
}

impl Object {
    /// Returns the object's identity.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        let (kind, metadata) = match self {
            Self::Namespace(namespace) => (Kind::Namespace, &namespace.metadata),
            Self::Pod(pod) => (Kind::Pod, &pod.metadata),
            Self::NetworkPolicy(policy) => (Kind::NetworkPolicy, &policy.metadata),
        };
        ObjectKey::new(kind, metadata)
    }
}

impl ObjectKey {
    /// Returns the identity of an object of this kind with this metadata.
    #[must_use]
    pub fn new(kind: Kind, metadata: &ObjectMeta) -> Self {
        let namespace = match (kind, metadata.namespace.as_deref()) {
            (Kind::Namespace, _) => "",
            (_, Some(namespace)) if !namespace.is_empty() => namespace,
            _ => "default",
        };
        let name = metadata.name.as_deref().unwrap_or_default();
        Self { kind, name: NamespacedName::new(namespace, name) }
    }
}

impl NamespacedName {
    /// Returns the name of an object in a namespace.
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Namespace => "Namespace",
            Self::Pod => "Pod",
            Self::NetworkPolicy => "NetworkPolicy",
        })
    }
}

impl fmt::Display for NamespacedName {
    /// Writes `shop/web`, or `shop` for a Namespace.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

impl fmt::Display for ObjectKey {
    /// Writes `NetworkPolicy shop/web` or `Namespace shop`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}
