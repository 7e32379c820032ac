//! The record of all trouble of the traffic, and of everything under way.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::fault::Loss;
use super::way::Way;
use crate::patience::patience;
use crate::topology::Family;

/// The longest time of an exchange without trouble. A busy machine delays some by a second, so only a
/// second repetition by TCP is a trouble.
const SLOW: Duration = Duration::from_secs(2);

/// Something that went wrong.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub(crate) way: Way,
    pub(crate) family: Family,
    /// The loss; none for an exchange that only took long.
    pub(crate) loss: Option<Loss>,
    /// The backend, if it is known.
    pub(crate) backend: Option<String>,
    /// The last moment at which something is known to have been wrong.
    pub(crate) at: Instant,
    pub(crate) what: String,
}

#[derive(Debug, Default)]
struct Book {
    troubles: Vec<Trouble>,
    /// The starts of everything under way.
    pending: BTreeMap<u64, (Way, Family, Instant)>,
    next: u64,
    /// The number of exchanges that ended well.
    good: u64,
    /// What they took, since somebody asked.
    durations: Vec<Duration>,
}

/// The record. All clones are the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    book: Arc<Mutex<Book>>,
}

/// The record of one way in one family.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    ledger: Ledger,
    pub(super) way: Way,
    pub(super) family: Family,
}

/// An exchange under way. A dropped one is forgotten.
#[derive(Debug)]
pub(super) struct Exchange<'a> {
    page: &'a Page,
    number: u64,
    began: Instant,
}

impl Ledger {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn page(&self, way: Way, family: Family) -> Page {
        Page { ledger: self.clone(), way, family }
    }

    /// Returns all trouble that was recorded from the `first`th on.
    pub(crate) fn troubles_from(&self, first: usize) -> Vec<Trouble> {
        self.book().troubles.get(first..).unwrap_or_default().to_vec()
    }

    /// Returns the number of troubles so far.
    pub(super) fn len(&self) -> usize {
        self.book().troubles.len()
    }

    /// Returns the number of exchanges that ended well.
    pub(super) fn good(&self) -> u64 {
        self.book().good
    }

    /// Takes out what the exchanges took that ended well since the last time.
    pub(crate) fn take_durations(&self) -> Vec<Duration> {
        std::mem::take(&mut self.book().durations)
    }

    /// Returns whether the last trouble is older than `quiet`, and nothing under way takes long.
    pub(super) fn is_quiet(&self, quiet: Duration) -> bool {
        let book = self.book();
        book.pending.values().all(|(_, _, began)| began.elapsed() < patience(SLOW))
            && book.troubles.iter().all(|trouble| trouble.at.elapsed() > quiet)
    }

    /// Describes an exchange that takes long.
    pub(super) fn hanging(&self) -> Option<String> {
        let book = self.book();
        let slow = book.pending.values().find(|(_, _, began)| began.elapsed() >= patience(SLOW));
        slow.map(|(way, family, began)| {
            format!("{way} {family} has waited for {:.0} s", began.elapsed().as_secs_f32())
        })
    }
}

impl Page {
    /// Notes that something begins.
    pub(super) fn begin(&self) -> Exchange<'_> {
        let began = Instant::now();
        let mut book = self.ledger.book();
        book.next += 1;
        let number = book.next;
        book.pending.insert(number, (self.way, self.family, began));
        drop(book);
        Exchange { page: self, number, began }
    }

    /// Records a trouble.
    pub(super) fn record(&self, loss: Option<Loss>, backend: Option<&str>, at: Instant, what: String) {
        let backend = backend.map(str::to_owned);
        let trouble = Trouble { way: self.way, family: self.family, loss, backend, at, what };
        self.ledger.book().troubles.push(trouble);
    }

    /// Notes an exchange that ended well after `took`. A long time is a trouble, without a loss.
    pub(super) fn succeed(&self, took: Duration, backend: &str) {
        let mut book = self.ledger.book();
        book.good += 1;
        book.durations.push(took);
        drop(book);
        if took > patience(SLOW) {
            self.record(None, Some(backend), Instant::now(), format!("took {} ms", took.as_millis()));
        }
    }
}

impl Exchange<'_> {
    /// Returns when it began.
    pub(super) fn began(&self) -> Instant {
        self.began
    }

    /// Notes the end of an exchange that has its answer.
    pub(super) fn succeed(self, backend: &str) {
        self.page.succeed(self.began.elapsed(), backend);
    }
}

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        self.page.ledger.book().pending.remove(&self.number);
    }
}
