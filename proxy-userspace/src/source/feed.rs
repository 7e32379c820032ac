//! A group of kinds that a source follows together, and the events about them.

use std::fmt::{Debug, Display};
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{Change, Kind, Object, ObjectKey, Problem, Severity, SourceEvent, Topic};

/// A group of kinds. The sources are generic over it.
pub trait Feed: Sized + Debug + Send + Sync + 'static {
    /// The kinds.
    type Kind: Copy + Ord + Debug + Display + Send + Sync;
    /// The identity of an object.
    type Key: Clone + Ord + Debug + Display + Send + Sync;
    /// An object.
    type Object: Clone + PartialEq + Debug + Send + Sync;
    /// A problem of an object, a file, or the source.
    type Problem: Clone + Ord + Debug + Send + Sync;
    /// What the source sends.
    type Event: Debug + Send;

    /// Returns the identity of an object with this metadata.
    fn key(kind: Self::Kind, metadata: &ObjectMeta) -> Self::Key;
    /// Returns the identity with these parts. An object without a readable name has empty ones.
    fn named(kind: Self::Kind, namespace: &str, name: &str) -> Self::Key;
    /// Returns namespace and name.
    fn names(key: &Self::Key) -> (&str, &str);
    /// Returns the identity of an object.
    fn key_of(object: &Self::Object) -> Self::Key;
    /// Returns the event of a new or changed object. `file` is the manifest that contains it.
    fn upsert(object: Self::Object, file: Option<Arc<Path>>) -> Self::Event;
    /// Returns the event of an object that is gone.
    fn delete(key: Self::Key) -> Self::Event;
    /// Returns whether an event is that of a new or changed object.
    fn is_upsert(event: &Self::Event) -> bool;
    /// Returns a problem.
    fn problem(fault: Fault<Self::Key>) -> Self::Problem;
    /// Returns the event of a problem.
    fn report(problem: Self::Problem) -> Self::Event;
}

/// The parts of a problem.
#[derive(Clone, Debug)]
pub struct Fault<K> {
    /// The manifest.
    pub file: Option<Arc<Path>>,
    /// The object; `None` if it is unknown.
    pub object: Option<K>,
    /// Path of the field; empty for the whole object or file.
    pub field: String,
    /// The fault and its consequence.
    pub message: String,
    /// Its weight.
    pub severity: Severity,
}

impl<K> Fault<K> {
    /// Returns a problem of a whole file or a whole object.
    pub fn of(file: &Arc<Path>, object: Option<K>, message: String) -> Self {
        let severity = Severity::Warning;
        Self { file: Some(file.clone()), object, field: String::new(), message, severity }
    }
}

/// Services, EndpointSlices and Nodes.
#[derive(Debug)]
pub struct Services;

impl Feed for Services {
    type Event = SourceEvent;
    type Key = ObjectKey;
    type Kind = Kind;
    type Object = Object;
    type Problem = Problem;

    fn key(kind: Kind, metadata: &ObjectMeta) -> ObjectKey {
        ObjectKey::new(kind, metadata)
    }
    fn named(kind: Kind, namespace: &str, name: &str) -> ObjectKey {
        ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }
    fn names(key: &ObjectKey) -> (&str, &str) {
        (&key.namespace, &key.name)
    }
    fn key_of(object: &Object) -> ObjectKey {
        object.key()
    }
    fn upsert(object: Object, file: Option<Arc<Path>>) -> SourceEvent {
        SourceEvent::Change(Change::Upsert { object, file })
    }
    fn delete(key: ObjectKey) -> SourceEvent {
        SourceEvent::Change(Change::Delete(key))
    }
    fn is_upsert(event: &SourceEvent) -> bool {
        matches!(event, SourceEvent::Change(Change::Upsert { .. }))
    }
    fn problem(fault: Fault<ObjectKey>) -> Problem {
        let Fault { file, object, field, message, severity } = fault;
        Problem { file, object, field, message, severity, topic: Topic::Field, service: None }
    }
    fn report(problem: Problem) -> SourceEvent {
        SourceEvent::Problem(problem)
    }
}
