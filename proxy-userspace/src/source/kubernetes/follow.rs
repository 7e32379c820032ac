//! Follows one kind of objects: lists it, watches it, and begins again where that ends.

use std::collections::HashMap;
use std::sync::Arc;

use http::StatusCode;
use kube::Client;
use serde_json::value::RawValue;
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, sleep_until};
use tracing::debug;

use super::decode::{Undecodable, decode, identify};
use super::failure::Failure;
use super::known::Known;
use super::link::{Lines, Link, refusal};
use super::pause::Pause;
use super::progress::Progress;
use super::query::Query;
use super::report::{Reports, problem};
use super::wire::{Bookmark, Event, EventType, Page, parse};
use super::{KubernetesSettings, Timing};
use crate::source::{Batch, Change, Kind, ObjectKey, Severity, SourceEvent};

/// A watch that the server can't give so often is given up for a new listing: the version may be one that it will
/// never know, as after a restored backup.
pub(super) const VERSION_ATTEMPTS: u32 = 5;
/// A version is too old now and then. So many in a row, without a watch that works in between, are worth a word.
pub(super) const EXPIRIES: u32 = 4;
/// So many objects of a page are told together, so that the whole list is never held twice.
const TOLD_TOGETHER: usize = 64;

/// Where the followers tell what they see.
#[derive(Clone, Debug)]
pub(super) struct Teller {
    pub events: Sender<Batch>,
    pub reports: Arc<Reports>,
    /// How far the first listing of all kinds is.
    pub progress: Arc<Progress>,
    /// When a server that failed is asked again.
    pub pause: Arc<Pause>,
}

/// The task that follows one kind.
pub(super) struct Follower {
    kind: Kind,
    link: Link,
    query: Query,
    own_node: String,
    timing: Timing,
    teller: Teller,
    known: Known,
    /// The version to go on from; `None` = everything has to be listed, or is just being.
    version: Option<String>,
    /// Attempts to go on from it in a row that the server could not answer.
    attempts: u32,
    /// Versions in a row that were too old.
    expiries: u32,
    /// Whether the server can begin a watch with everything there is.
    streams: bool,
    /// Whether everything was told once. Until then what a listing brings is told as it comes; later only when it is
    /// whole.
    listed: bool,
    /// The watch works.
    settled: bool,
    /// What is to be told together.
    batch: Batch,
    /// What was said of objects that can't be read, and the number of the last listing that had them.
    unread: HashMap<ObjectKey, (String, u32)>,
    /// Number of the listing that is under way or was the last.
    listing: u32,
}

impl Follower {
    pub fn new(
        kind: Kind,
        client: Client,
        settings: &KubernetesSettings,
        timing: Timing,
        teller: Teller,
    ) -> Self {
        Self {
            kind,
            link: Link { client, idle: timing.idle },
            query: Query::new(kind, settings.service_proxy_name.as_deref()),
            own_node: settings.node_name.clone(),
            timing,
            teller,
            known: Known::of(kind),
            version: None,
            attempts: 0,
            expiries: 0,
            streams: true,
            listed: false,
            settled: false,
            batch: Batch::new(),
            unread: HashMap::new(),
            listing: 0,
        }
    }

    /// Runs until nobody listens.
    pub async fn run(mut self) {
        let events = self.teller.events.clone();
        tokio::select! {
            () = self.follow() => {}
            () = events.closed() => {}
        }
    }

    async fn follow(&mut self) {
        loop {
            // Seen before it: a server that came back meanwhile is asked again at once.
            let mut turn = self.teller.pause.turn();
            let outcome = self.session().await;
            // What came before it failed.
            self.tell().await;
            if self.settled {
                turn = self.teller.pause.turn();
            }
            let Err(failure) = outcome else { continue };
            debug!(kind = %self.kind, "{failure}");
            self.teller.reports.count_error(self.kind);
            self.judge(&failure).await;
            self.teller.pause.wait(&mut turn, failure.retry_after()).await;
        }
    }

    /// One answer of the server, or the pages of one listing. Ends well where the next one may begin at once.
    async fn session(&mut self) -> Result<(), Failure> {
        self.settled = false;
        let Some(version) = &self.version else {
            self.known.begin();
            self.listing = self.listing.wrapping_add(1);
            return self.list().await;
        };
        let lines = self.link.open(self.query.watch(version)?, self.kind, "watch").await?;
        self.read(lines).await
    }

    /// Decides what the next session begins with, and says what is wrong.
    async fn judge(&mut self, failure: &Failure) {
        let is_listing = self.version.is_none();
        match failure {
            Failure::Gone(kind) => {
                self.version = None;
                self.expiries += 1;
                if self.expiries >= EXPIRIES {
                    self.tell_of(&Failure::Expiring(*kind)).await;
                }
                return;
            }
            Failure::Silent(_) | Failure::Endless | Failure::Cut(_) | Failure::Ended if is_listing => {
                self.streams = false;
            }
            // Says nothing of the version, and a new listing is the last thing such a server needs.
            Failure::Unable { status, .. } if matches!(status.as_u16(), 429 | 502 | 503) => {}
            Failure::Refused { .. } => self.version = None,
            Failure::Unable { .. } | Failure::Garbled(_) => {
                self.attempts += 1;
                if self.attempts >= VERSION_ATTEMPTS {
                    self.version = None;
                    self.attempts = 0;
                }
            }
            _ => {}
        }
        self.tell_of(failure).await;
    }

    async fn tell_of(&self, failure: &Failure) {
        if let Some(problem) = self.teller.reports.failed(self.kind, failure) {
            self.teller.send(vec![SourceEvent::Problem(problem)]).await;
        }
    }

    async fn list(&mut self) -> Result<(), Failure> {
        if self.streams {
            match self.link.open(self.query.stream()?, self.kind, "watch").await {
                Ok(lines) => return self.read(lines).await,
                Err(failure @ Failure::Refused { .. }) => {
                    debug!(kind = %self.kind, "listed in pages: {failure}");
                    self.streams = false;
                }
                Err(failure) => return Err(failure),
            }
        }
        let mut continue_token = None;
        loop {
            let body = self.link.get(self.query.page(continue_token)?, self.kind, "list").await?;
            let page: Page<'_> = parse(&body)?;
            for items in page.items.unwrap_or_default().chunks(TOLD_TOGETHER) {
                for item in items {
                    self.upsert(item);
                }
                self.tell().await;
            }
            continue_token = page.metadata.continue_token.filter(|token| !token.is_empty());
            if continue_token.is_none() {
                self.finish(page.metadata.resource_version);
                return Ok(());
            }
        }
    }

    /// Takes what comes until it ends.
    async fn read(&mut self, mut lines: Lines) -> Result<(), Failure> {
        let settled_at = Instant::now() + self.timing.settled;
        let listed_by = Instant::now() + self.timing.idle;
        loop {
            let next = tokio::select! {
                biased;
                () = sleep_until(settled_at), if !self.settled && self.version.is_some() => {
                    self.settle();
                    self.tell().await;
                    continue;
                }
                () = sleep_until(listed_by), if self.version.is_none() => return Err(Failure::Endless),
                next = lines.next() => next,
            };
            let failure = match next {
                Ok(Some(chunk)) => {
                    self.teller.reports.hear();
                    // The timer may be late.
                    if !self.settled && self.version.is_some() && Instant::now() >= settled_at {
                        self.settle();
                    }
                    for line in chunk.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                        self.take(line)?;
                    }
                    self.tell().await;
                    continue;
                }
                Ok(None) => Failure::Ended,
                Err(failure) => failure,
            };
            if self.version.is_some() && Instant::now() >= settled_at {
                self.settle();
                // Watches end, be it by the server's clock, its restart or a dead connection in between.
                debug!(kind = %self.kind, "watch over: {failure}");
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
                return Err(refusal(self.kind, "watch", status, event.object.get().as_bytes(), None));
            }
        }
        Ok(())
    }

    fn upsert(&mut self, json: &RawValue) {
        match decode(self.kind, json.get(), &self.own_node) {
            Ok(decoded) => {
                self.advance(&decoded.identity.resource_version);
                if self.known.meet(&decoded.identity) {
                    let change = Change::Upsert { object: decoded.object, file: None };
                    self.batch.push(SourceEvent::Change(change));
                }
                self.clear_unread(&decoded.identity.key);
            }
            Err(undecodable) => self.skip(*undecodable),
        }
    }

    /// Leaves out a version that can't be read, and says so once.
    fn skip(&mut self, undecodable: Undecodable) {
        let Undecodable { identity, field, message } = undecodable;
        let object = identity.as_ref().map(|identity| identity.key.clone());
        if let Some(identity) = identity {
            self.advance(&identity.resource_version);
            if self.known.meet_unread(&identity) {
                self.batch.push(SourceEvent::Change(Change::Delete(identity.key)));
            }
        }
        let name = object.clone().unwrap_or_else(|| nameless(self.kind));
        let message = format!("{message}; this version is skipped");
        let said = format!("{field}: {message}");
        let before = self.unread.insert(name, (said.clone(), self.listing));
        if before.is_some_and(|(before, _)| before == said) {
            return;
        }
        self.batch.push(SourceEvent::Problem(problem(object, field, message, Severity::Warning)));
    }

    fn delete(&mut self, json: &RawValue) {
        let Some(identity) = identify(self.kind, json.get()) else { return };
        self.advance(&identity.resource_version);
        if self.known.forget(&identity.key) {
            self.batch.push(SourceEvent::Change(Change::Delete(identity.key.clone())));
        }
        self.clear_unread(&identity.key);
    }

    /// An object can be read by now, or is gone.
    fn clear_unread(&mut self, key: &ObjectKey) {
        if !self.unread.is_empty() && self.unread.remove(key).is_some() {
            self.batch.extend(self.teller.progress.settled(key).map(SourceEvent::Listed));
        }
    }

    /// The versions of a listing's objects are not in order: only its end has one to go on from.
    fn advance(&mut self, version: &str) {
        if let Some(known) = &mut self.version
            && !version.is_empty()
        {
            version.clone_into(known);
        }
    }

    /// A listing is whole: what was not in it is gone.
    fn finish(&mut self, version: String) {
        let gone = self.known.end().into_iter();
        self.batch.extend(gone.map(|key| SourceEvent::Change(Change::Delete(key))));
        let unread = self.unread.iter().filter(|(_, (_, listing))| *listing != self.listing);
        for key in unread.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.clear_unread(&key);
        }
        self.version = Some(version);
        // A whole listing is no good while its version is too old for a watch each time.
        if self.expiries < EXPIRIES {
            self.recover();
        }
    }

    fn settle(&mut self) {
        self.settled = true;
        self.teller.pause.end();
        self.expiries = 0;
        self.recover();
    }

    fn recover(&mut self) {
        self.attempts = 0;
        self.batch.extend(self.teller.reports.well(self.kind).map(SourceEvent::Problem));
    }

    /// Tells what there is to tell; of a later listing nothing until it is whole.
    async fn tell(&mut self) {
        if self.listed && self.version.is_none() {
            return;
        }
        let batch = std::mem::take(&mut self.batch);
        if !batch.is_empty() {
            self.teller.send(batch).await;
        }
        if !self.listed && self.version.is_some() {
            self.listed = true;
            let unread = self.unread.keys().filter(|key| !key.name.is_empty()).cloned();
            if let Some(listing) = self.teller.progress.listed(unread) {
                self.teller.send(vec![SourceEvent::Listed(listing)]).await;
            }
        }
    }
}

impl Teller {
    async fn send(&self, batch: Batch) {
        // Nobody listens any more: the task is about to end.
        let _ = self.events.send(batch).await;
    }
}

/// Stands for the objects of a kind that don't even have a name.
fn nameless(kind: Kind) -> ObjectKey {
    ObjectKey { kind, namespace: String::new(), name: String::new() }
}
