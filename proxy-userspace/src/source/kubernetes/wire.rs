//! The envelopes of lists and watches.

use std::collections::BTreeMap;

use http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::failure::Failure;

/// A page of a listing.
#[derive(Deserialize)]
pub(super) struct Page<'a> {
    pub metadata: PageMeta,
    #[serde(borrow)]
    pub items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
pub(super) struct PageMeta {
    #[serde(rename = "resourceVersion")]
    pub resource_version: String,
    #[serde(rename = "continue")]
    pub continue_token: Option<String>,
}

/// A line of a watch.
#[derive(Deserialize)]
pub(super) struct Event<'a> {
    #[serde(rename = "type")]
    pub event_type: EventType,
    #[serde(borrow)]
    pub object: &'a RawValue,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum EventType {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

impl Event<'_> {
    /// Returns the status in the object of an ERROR event.
    pub fn status(&self) -> Option<StatusCode> {
        #[derive(Deserialize)]
        struct Coded {
            code: u16,
        }
        let Coded { code } = serde_json::from_str(self.object.get()).ok()?;
        StatusCode::from_u16(code).ok()
    }
}

/// The version that a watch has reached.
#[derive(Deserialize)]
pub(super) struct Bookmark {
    pub metadata: BookmarkMeta,
}

#[derive(Deserialize)]
pub(super) struct BookmarkMeta {
    #[serde(rename = "resourceVersion")]
    pub resource_version: String,
    annotations: Option<BTreeMap<String, String>>,
}

impl Bookmark {
    /// Returns whether this bookmark ends a listing.
    pub fn ends_listing(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        annotations.is_some_and(|annotations| annotations.contains_key("k8s.io/initial-events-end"))
    }
}

pub(super) fn parse<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, Failure> {
    serde_json::from_slice(json).map_err(|error| Failure::Garbled(error.to_string()))
}
