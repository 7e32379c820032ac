//! Follows the objects of one kind: lists them, watches them, and begins again when the watch ends.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
use kube::Client;
use serde_json::value::RawValue;
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, sleep_until};
use tracing::debug;

use super::Timing;
use super::decode::identify;
use super::doubts::{Doubts, is_older};
use super::failure::Failure;
use super::known::{Known, Sent};
use super::link::{Lines, Link, refusal};
use super::pause::Pause;
use super::progress::Progress;
use super::query::{HttpRequest, Query};
use super::report::Reports;
use super::resource::{Resources, Undecodable};
use super::wire::{Bookmark, Event, EventType, Page, parse};
use crate::source::Severity;
use crate::source::feed::Fault;
use crate::source::policies::STANDS_IN;

/// Failed attempts at a watch before a new listing. The server may never know the version again, as
/// after a restore from a backup.
pub(super) const VERSION_ATTEMPTS: u32 = 5;
/// Expired versions in a row that are worth a log line. A single one is normal.
pub(super) const EXPIRIES: u32 = 4;
/// Objects of a page in one batch, so that the whole list is never held twice.
const BATCH: usize = 64;

/// The shared parts of all followers.
pub(super) struct Output<F: Resources> {
    pub events: Sender<Vec<F::Event>>,
    pub reports: Arc<Reports<F>>,
    /// The progress of the first listing of all kinds.
    pub progress: Arc<Progress<F::Key>>,
    /// The back-off of all kinds.
    pub pause: Arc<Pause>,
    /// The doubts about the versions of all kinds.
    pub doubts: Doubts,
}

/// Whether the server is known to have a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Confirmation {
    Given,
    Missing,
}

/// The task that follows one kind.
pub(super) struct Follower<F: Resources> {
    kind: F::Kind,
    link: Link,
    query: Query,
    settings: F::Settings,
    timing: Timing,
    output: Output<F>,
    known: Known<F>,
    /// The version to watch from; `None` = a listing is due or under way.
    version: Option<String>,
    /// The version before the present listing.
    former: Option<String>,
    /// Whether the server is known to have the version. A lost connection may lead to another state.
    confirmation: Confirmation,
    /// Requests in a row in which the server did not have the version.
    refusals: u32,
    /// The time of the last request for a watch.
    opened: Instant,
    /// Attempts in a row to watch from it that the server could not answer.
    attempts: u32,
    /// Versions in a row that had expired.
    expiries: u32,
    /// Whether the server can send a listing as the begin of a watch.
    streams: bool,
    /// Whether everything was listed once. Objects of the first listing are sent as they come,
    /// those of later ones only when the listing is whole.
    listed: bool,
    /// Whether the watch is working.
    working: bool,
    /// The batch that is being filled.
    batch: Vec<F::Event>,
    /// The messages about unreadable objects, each with the number of the last listing that had the
    /// object.
    unread: BTreeMap<F::Key, (String, u32)>,
    /// The number of the present or last listing.
    listing: u32,
}

impl<F: Resources> Follower<F> {
    pub fn new(
        kind: F::Kind,
        client: Client,
        settings: &F::Settings,
        timing: Timing,
        output: Output<F>,
    ) -> Self {
        Self {
            kind,
            link: Link { client, idle: timing.idle },
            query: Query::new(F::path(kind), F::selector(kind, settings), timing.watch),
            settings: settings.clone(),
            timing,
            output,
            known: Known::of(kind),
            version: None,
            former: None,
            confirmation: Confirmation::Missing,
            refusals: 0,
            opened: Instant::now(),
            attempts: 0,
            expiries: 0,
            streams: true,
            listed: false,
            working: false,
            batch: Vec::new(),
            unread: BTreeMap::new(),
            listing: 0,
        }
    }

    /// Runs until the receiver of the batches is gone.
    pub async fn run(mut self) {
        let events = self.output.events.clone();
        tokio::select! {
            () = self.follow() => {}
            () = events.closed() => {}
        }
    }

    async fn follow(&mut self) {
        loop {
            // Begun before the session: a server that came back meanwhile is asked again at once.
            let mut attempt = self.output.pause.begin_attempt();
            let outcome = self.session().await;
            // Events from before the failure are sent first.
            self.send_batch().await;
            if self.working {
                attempt = self.output.pause.begin_attempt();
            }
            let Err(failure) = outcome else { continue };
            debug!(kind = %self.kind, error = %failure, "listing or watch failed");
            self.output.reports.count_error(self.kind);
            self.plan_next(&failure).await;
            self.output.pause.wait(&mut attempt, failure.retry_after()).await;
        }
    }

    fn resource(&self) -> &'static str {
        F::resource(self.kind)
    }

    /// Reads one watch, or all pages of one listing. Returns `Ok` where the next session may begin
    /// at once.
    async fn session(&mut self) -> Result<(), Failure> {
        self.working = false;
        if self.output.doubts.take() {
            self.doubt();
        }
        let Some(version) = self.version.clone() else {
            if self.known.is_doubted() {
                // A listing that was cut off has left objects here. All of them come again.
                self.batch.retain(|event| !F::is_upsert(event));
            }
            self.known.begin();
            self.listing = self.listing.wrapping_add(1);
            return self.list().await;
        };
        if self.confirmation == Confirmation::Missing {
            self.confirm(&version).await?;
        }
        let lines = self.open_watch(self.query.watch(&version)?).await?;
        self.read(lines).await
    }

    /// Asks whether the server has the version.
    ///
    /// A server with an older state would be silent about a watch from a version of its future.
    async fn confirm(&mut self, version: &str) -> Result<(), Failure> {
        match self.link.get(self.query.confirm(version)?, self.resource(), "list").await {
            Ok(body) => {
                let page: Page<'_> = parse(&body)?;
                if is_older(&page.metadata.resource_version, version) {
                    return Err(Failure::older(&page.metadata.resource_version, version));
                }
            }
            Err(failure @ Failure::Refused { .. }) => {
                debug!(kind = %self.kind, error = %failure, "the server does not tell whether it has a version");
            }
            Err(failure) => return Err(failure),
        }
        self.refusals = 0;
        Ok(())
    }

    async fn open_watch(&mut self, request: HttpRequest) -> Result<Lines, Failure> {
        self.confirmation = Confirmation::Missing;
        self.opened = Instant::now();
        self.link.open(request, self.resource(), "watch").await
    }

    /// Forgets the version, so that the next session is a listing.
    fn list_again(&mut self) {
        self.former = self.version.take().or(self.former.take());
    }

    /// Takes each version for doubtful: everything is listed again, and counts as changed.
    fn doubt(&mut self) {
        self.version = None;
        self.former = None;
        self.refusals = 0;
        self.known.doubt();
    }

    /// Decides how the next session begins, and reports the failure.
    async fn plan_next(&mut self, failure: &Failure) {
        let is_listing = self.version.is_none();
        match failure {
            Failure::Gone(resource) => {
                self.list_again();
                self.expiries += 1;
                if self.expiries >= EXPIRIES {
                    self.report_failure(&Failure::Expiring(resource)).await;
                }
                return;
            }
            Failure::Silent(_) | Failure::Endless | Failure::Cut(_) | Failure::Ended if is_listing => {
                self.streams = false;
            }
            // This says nothing about the version, and a new listing would add to the server's
            // load.
            Failure::Unable { status, .. } if matches!(status.as_u16(), 429 | 502 | 503) => {}
            Failure::Older { .. } => {
                self.refusals += 1;
                if self.refusals == 1 {
                    // The server answers. A long outage has made the waits long.
                    self.output.pause.end();
                }
                // One of several servers may only lag.
                if self.refusals < VERSION_ATTEMPTS || !self.output.doubts.raise() {
                    return;
                }
                // No kind need wait, unless the server asked for time.
                self.output.pause.end();
            }
            Failure::Refused { .. } => self.list_again(),
            Failure::Unable { .. } | Failure::Garbled(_) => {
                self.attempts += 1;
                if self.attempts >= VERSION_ATTEMPTS {
                    self.list_again();
                    self.attempts = 0;
                }
            }
            _ => {}
        }
        self.report_failure(failure).await;
    }

    async fn report_failure(&self, failure: &Failure) {
        if let Some(problem) = self.output.reports.failed(self.kind, failure) {
            self.output.send(vec![F::report(problem)]).await;
        }
    }

    async fn list(&mut self) -> Result<(), Failure> {
        if self.streams {
            match self.open_watch(self.query.stream()?).await {
                Ok(lines) => return self.read(lines).await,
                Err(failure @ Failure::Refused { .. }) => {
                    debug!(kind = %self.kind, error = %failure, "listing as a watch refused; listing in pages");
                    self.streams = false;
                }
                Err(failure) => return Err(failure),
            }
        }
        let mut continue_token = None;
        loop {
            let body = self.link.get(self.query.page(continue_token)?, self.resource(), "list").await?;
            let page: Page<'_> = parse(&body)?;
            for items in page.items.unwrap_or_default().chunks(BATCH) {
                for item in items {
                    self.upsert(item);
                }
                self.send_batch().await;
            }
            continue_token = page.metadata.continue_token.filter(|token| !token.is_empty());
            if continue_token.is_none() {
                self.finish(page.metadata.resource_version);
                self.confirmation = Confirmation::Given;
                return Ok(());
            }
        }
    }

    /// Reads a watch until it ends.
    async fn read(&mut self, mut lines: Lines) -> Result<(), Failure> {
        let working_at = Instant::now() + self.timing.working;
        let listed_by = Instant::now() + self.timing.idle;
        loop {
            let next = tokio::select! {
                biased;
                // The next session lists everything again.
                () = self.output.doubts.raised() => return Ok(()),
                () = sleep_until(working_at), if !self.working && self.version.is_some() => {
                    self.set_working();
                    self.send_batch().await;
                    continue;
                }
                () = sleep_until(listed_by), if self.version.is_none() => return Err(Failure::Endless),
                next = lines.next() => next,
            };
            let failure = match next {
                Ok(Some(chunk)) => {
                    self.output.reports.hear();
                    // The timer may be late.
                    if !self.working && self.version.is_some() && Instant::now() >= working_at {
                        self.set_working();
                    }
                    for line in chunk.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                        self.take(line)?;
                    }
                    self.send_batch().await;
                    continue;
                }
                Ok(None) => Failure::Ended,
                Err(failure) => failure,
            };
            // The server ends a watch at this age. An earlier end may be that of the server.
            if failure == Failure::Ended && self.opened.elapsed() >= self.timing.watch {
                self.confirmation = Confirmation::Given;
            }
            if self.version.is_some() && Instant::now() >= working_at {
                self.set_working();
                // Watches end: by the server's clock, by its restart, or by a broken connection.
                debug!(kind = %self.kind, error = %failure, "watch ended");
                return Ok(());
            }
            return Err(failure);
        }
    }

    fn take(&mut self, line: &[u8]) -> Result<(), Failure> {
        let event: Event<'_> = parse(line)?;
        match event.event_type {
            EventType::Added | EventType::Modified => self.upsert(event.object),
            EventType::Deleted => self.delete(event.object),
            EventType::Bookmark => {
                let bookmark: Bookmark = parse(event.object.get().as_bytes())?;
                if self.version.is_some() {
                    self.advance(&bookmark.metadata.resource_version);
                } else if bookmark.ends_listing() {
                    self.finish(bookmark.metadata.resource_version);
                }
            }
            EventType::Error => {
                let status = event.status().unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                return Err(refusal(self.resource(), "watch", status, event.object.get().as_bytes(), None));
            }
        }
        Ok(())
    }

    fn upsert(&mut self, json: &RawValue) {
        match F::decode(self.kind, json.get(), &self.settings) {
            Ok(decoded) => {
                self.advance(&decoded.identity.resource_version);
                if self.known.meet(&decoded.identity) {
                    self.batch.push(F::upsert(decoded.object, None));
                }
                self.clear_unread(&decoded.identity.key);
            }
            Err(undecodable) => self.skip(*undecodable),
        }
    }

    /// Skips an unreadable version of an object, and reports it once.
    fn skip(&mut self, undecodable: Undecodable<F>) {
        let Undecodable { identity, field, message, stand_in } = undecodable;
        let object = identity.as_ref().map(|identity| identity.key.clone());
        let mut consequence = "this version is skipped";
        if let Some(identity) = identity {
            self.advance(&identity.resource_version);
            match (self.known.meet_unread(&identity), stand_in) {
                (Sent::Readable, _) | (Sent::Nothing, None) => {}
                (Sent::Former, None) => self.batch.push(F::delete(identity.key)),
                (Sent::Nothing | Sent::Former, Some(stand_in)) => {
                    consequence = STANDS_IN;
                    if self.known.meet_stand_in(&identity) {
                        self.batch.push(F::upsert(stand_in, None));
                    }
                }
            }
        }
        let name = object.clone().unwrap_or_else(|| F::named(self.kind, "", ""));
        let message = format!("{message}; {consequence}");
        let said = format!("{field}: {message}");
        let before = self.unread.insert(name, (said.clone(), self.listing));
        if before.is_some_and(|(before, _)| before == said) {
            return;
        }
        let fault = Fault { file: None, object, field, message, severity: Severity::Warning };
        self.batch.push(F::report(F::problem(fault)));
    }

    fn delete(&mut self, json: &RawValue) {
        let Some(identity) = identify::<F>(self.kind, json.get()) else { return };
        self.advance(&identity.resource_version);
        if self.known.forget(&identity.key) {
            self.batch.push(F::delete(identity.key.clone()));
        }
        self.clear_unread(&identity.key);
    }

    /// Forgets that an object was unreadable: it is readable now, or gone.
    fn clear_unread(&mut self, key: &F::Key) {
        if !self.unread.is_empty() && self.unread.remove(key).is_some() {
            self.batch.extend(self.output.progress.resolve(key).and_then(F::listed_again));
        }
    }

    /// Moves on to a version. Objects of a listing are not ordered by version, so only its end has
    /// a usable one.
    fn advance(&mut self, version: &str) {
        if let Some(known) = &mut self.version
            && !version.is_empty()
        {
            version.clone_into(known);
        }
    }

    /// Ends a listing: objects that were not in it are gone.
    fn finish(&mut self, version: String) {
        let gone = self.known.end().into_iter();
        self.batch.extend(gone.map(F::delete));
        let unread = self.unread.iter().filter(|(_, (_, listing))| *listing != self.listing);
        for key in unread.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.clear_unread(&key);
        }
        let former = self.former.take().filter(|former| is_older(&version, former));
        self.refusals = 0;
        self.version = Some(version);
        if let (Some(former), Some(version)) = (former, &self.version)
            && self.output.doubts.raise()
        {
            let problem = self.output.reports.failed(self.kind, &Failure::older(version, &former));
            self.batch.extend(problem.map(F::report));
            return;
        }
        // A whole listing is no success if its version has expired each time.
        if self.expiries < EXPIRIES {
            self.recover();
        }
    }

    fn set_working(&mut self) {
        self.working = true;
        self.output.pause.end();
        self.expiries = 0;
        self.recover();
    }

    fn recover(&mut self) {
        self.attempts = 0;
        self.batch.extend(self.output.reports.well(self.kind).map(F::report));
    }

    /// Sends the batch. A later listing is sent only when it is whole.
    async fn send_batch(&mut self) {
        if self.listed && self.version.is_none() {
            return;
        }
        let batch = std::mem::take(&mut self.batch);
        if !batch.is_empty() {
            self.output.send(batch).await;
        }
        if !self.listed && self.version.is_some() {
            self.listed = true;
            let unread = self.unread.keys().filter(|key| !F::names(key).1.is_empty()).cloned();
            if let Some(unread) = self.output.progress.listed(unread) {
                self.output.send(vec![F::listed(unread)]).await;
            }
        }
    }
}

impl<F: Resources> Output<F> {
    async fn send(&self, batch: Vec<F::Event>) {
        // The receiver is gone: the task is about to end.
        let _ = self.events.send(batch).await;
    }
}
