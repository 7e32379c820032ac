//! The requests to the API server.

use std::time::Duration;

use kube::api::{ListParams, VersionMatch, WatchParams};
use kube::client::Body;
use kube::core::Request;

use super::failure::Failure;

/// Objects in one page of a listing, as in client-go: two to four megabytes of EndpointSlices.
const PAGE: u32 = 500;

/// The lists and watches of one kind.
#[derive(Debug)]
pub(super) struct Query {
    request: Request,
    selector: Option<String>,
    /// Age in seconds at which the server ends a watch.
    watch_seconds: u32,
}

pub(super) type HttpRequest = http::Request<Body>;

impl Query {
    /// Takes the path of the kind's objects, a selector of them, and the age at which the server ends a watch.
    pub fn new(path: String, selector: Option<String>, watch: Duration) -> Self {
        let watch_seconds = u32::try_from(watch.as_secs()).unwrap_or(u32::MAX);
        Self { request: Request::new(path), selector, watch_seconds }
    }

    /// Requests a listing as the begin of a watch.
    pub fn stream(&self) -> Result<HttpRequest, Failure> {
        self.watch_with("", true)
    }

    /// Requests the changes since a version.
    pub fn watch(&self, version: &str) -> Result<HttpRequest, Failure> {
        self.watch_with(version, false)
    }

    /// Requests a page of a listing.
    pub fn page(&self, continue_token: Option<String>) -> Result<HttpRequest, Failure> {
        let parameters = ListParams {
            label_selector: self.selector.clone(),
            limit: Some(PAGE),
            continue_token,
            ..ListParams::default()
        };
        self.list(&parameters)
    }

    /// Asks whether the server has a version.
    ///
    /// One object is the cheapest answer. Without a selector the server need not look for it.
    pub fn confirm(&self, version: &str) -> Result<HttpRequest, Failure> {
        self.list(&ListParams {
            limit: Some(1),
            resource_version: Some(version.to_owned()),
            version_match: Some(VersionMatch::NotOlderThan),
            ..ListParams::default()
        })
    }

    fn list(&self, parameters: &ListParams) -> Result<HttpRequest, Failure> {
        Ok(self.request.list(parameters).map_err(|error| Failure::request(&error))?.map(Body::from))
    }

    fn watch_with(&self, version: &str, send_initial_events: bool) -> Result<HttpRequest, Failure> {
        let parameters = WatchParams {
            label_selector: self.selector.clone(),
            timeout: Some(self.watch_seconds),
            bookmarks: true,
            send_initial_events,
            ..WatchParams::default()
        };
        Ok(self
            .request
            .watch(&parameters, version)
            .map_err(|error| Failure::request(&error))?
            .map(Body::from))
    }
}
