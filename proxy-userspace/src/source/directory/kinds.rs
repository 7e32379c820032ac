//! A group of kinds that manifests have.

use serde_norway::Value;

use crate::source::Listing;
use crate::source::feed::Feed;

/// A group of kinds that manifests have.
pub trait Manifests: Feed {
    /// The kinds, for messages.
    const TAKES: &'static str;
    /// Whether objects of other kinds are reported.
    const REPORTS_OTHERS: bool;

    /// Returns the kind with an apiVersion and a name.
    fn kind(version: &str, name: &str) -> Option<Self::Kind>;
    /// Parses an object with a name.
    fn decode(kind: Self::Kind, version: &str, value: Value) -> Result<Self::Object, Broken<Self::Object>>;
    /// Returns the event at the end of the first listing, `former` being `None`, or of its change.
    fn listed(former: Option<&Listing>, listing: &Listing) -> Option<Self::Event>;
}

/// The fault of an object with a name.
#[derive(Debug)]
pub struct Broken<O> {
    /// Path of the unreadable field.
    pub field: String,
    /// The fault.
    pub message: String,
    /// What takes the object's place if it was never readable.
    pub stand_in: Option<O>,
}
