//! A group of kinds that the API server has, and their parsed objects.

use std::collections::BTreeSet;

use crate::source::feed::Feed;

/// A group of kinds that the API server has.
pub(super) trait Resources: Feed {
    /// The settings that say what is asked for and kept.
    type Settings: Clone + Send + Sync;

    /// The kinds in the order of their listings.
    const KINDS: &'static [Self::Kind];
    /// The name of the group among the troubles of a source.
    const NAME: &'static str;

    /// Returns the name of a kind's resource in RBAC and kubectl.
    fn resource(kind: Self::Kind) -> &'static str;
    /// Returns the path of a kind's objects in all namespaces.
    fn path(kind: Self::Kind) -> String;
    /// Returns the selector of the objects that are asked for.
    fn selector(kind: Self::Kind, settings: &Self::Settings) -> Option<String>;
    /// Returns whether a kind's objects keep their uid.
    fn keeps_uid(kind: Self::Kind) -> bool;
    /// Parses one object.
    fn decode(
        kind: Self::Kind,
        json: &str,
        settings: &Self::Settings,
    ) -> Result<Decoded<Self>, Box<Undecodable<Self>>>;
    /// Returns the event at the end of the first listing of all kinds, which could not read `unread`.
    fn listed(unread: BTreeSet<Self::Key>) -> Self::Event;
    /// Returns the event when objects of that listing were read after all, or are gone.
    fn listed_again(unread: BTreeSet<Self::Key>) -> Option<Self::Event>;
}

/// A parsed object.
#[derive(Debug)]
pub(super) struct Decoded<F: Feed> {
    pub identity: Identity<F::Key>,
    pub object: F::Object,
}

/// The identity of an object and of its version.
#[derive(Clone, Debug)]
pub(super) struct Identity<K> {
    pub key: K,
    /// A different uid means that the object was deleted, and created again under the same name.
    pub uid: String,
    /// The version that a watch continues from.
    pub resource_version: String,
    /// An equal value means that no part that the agent reads has changed.
    pub version: u64,
}

/// An unreadable object.
#[derive(Debug)]
pub(super) struct Undecodable<F: Feed> {
    /// `None` if even its name is unreadable.
    pub identity: Option<Identity<F::Key>>,
    /// Path of the unreadable field.
    pub field: String,
    pub message: String,
    /// What takes its place if it was never readable.
    pub stand_in: Option<F::Object>,
}
