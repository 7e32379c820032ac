//! Decides what is written: the differences between wanted and present statuses, and what Events tell.
//!
//! A status that somebody else changes back is written again a few times. Then the Service is left alone
//! for some minutes, and an Event says so: two controllers that write in turn would disturb every client.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::plan::{Current, PORTS_CONDITION, Shortage, Wanted};
use crate::model::ServiceKey;

/// Writes of the same status within [`WINDOW`] after which a Service is left alone.
const MOST_REPETITIONS: usize = 3;
const WINDOW: Duration = Duration::from_mins(1);
/// Time for which a contested Service is left alone. It doubles each time. A Service that was left as it is for that time
/// is contested no more.
const REST: Duration = Duration::from_mins(5);
const LONGEST_REST: Duration = Duration::from_hours(1);

/// The first and the longest wait before a failed write is tried again.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The condition's reasons.
const CONFLICT: &str = "PortConflict";
const NO_CONFLICT: &str = "NoConflict";
/// The Event's reason when another controller writes the same status.
const CONTESTED: &str = "StatusContested";

/// What is known of the statuses besides the API server's objects.
#[derive(Debug, Default)]
pub struct Statuses {
    services: BTreeMap<ServiceKey, Book>,
}

#[derive(Debug, Default)]
struct Book {
    /// The last status that was written.
    written: Option<Statement>,
    /// Whether the API server has not told of the Service since.
    is_unconfirmed: bool,
    /// When the same status was written again.
    repetitions: Vec<Instant>,
    /// How often in a row the Service was left alone because it is contested.
    rests: u32,
    /// Since when the status is as wanted.
    settled_at: Option<Instant>,
    /// Until when the Service is left alone: it is contested, or a write failed.
    rests_until: Option<Instant>,
    /// Writes that failed in a row.
    failures: u32,
    /// What the last Events said, by reason.
    told: BTreeMap<&'static str, String>,
}

/// A status to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The addresses in their order; `None` = the present ones stay.
    pub addresses: Option<Vec<IpAddr>>,
    /// The conflict's description; `None` = there is none.
    pub conflict: Option<String>,
    /// Whether the condition has to be written.
    changes_condition: bool,
}

/// An Event to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The reason, one word in CamelCase.
    pub reason: &'static str,
    /// The text for people.
    pub note: String,
}

impl Statuses {
    /// Notes that the API server has told of a Service. One that is gone, or is to have no address, is forgotten.
    pub fn heard(&mut self, key: &ServiceKey, is_wanted: bool) {
        if !is_wanted {
            self.services.remove(key);
        } else if let Some(book) = self.services.get_mut(key) {
            book.is_unconfirmed = false;
        }
    }

    /// Forgets what was written: another process leads, or did. What was told stays told.
    pub fn forget(&mut self) {
        for book in self.services.values_mut() {
            *book = Book { told: std::mem::take(&mut book.told), ..Book::default() };
        }
    }

    /// Notes the outcome of writing a status.
    pub fn wrote(&mut self, key: &ServiceKey, statement: Statement) {
        let book = self.services.entry(key.clone()).or_default();
        book.written = Some(statement);
        book.is_unconfirmed = true;
        book.failures = 0;
    }

    /// Notes that a status could not be written. Returns whether that is new. Others do not wait for it.
    pub fn failed(&mut self, key: &ServiceKey, now: Instant) -> bool {
        let book = self.services.entry(key.clone()).or_default();
        let wait = RETRY.0.saturating_mul(1 << book.failures.min(8)).min(RETRY.1);
        book.rests_until = Some(now + wait);
        book.failures = book.failures.saturating_add(1);
        book.failures == 1
    }

    /// Returns what has to be written for a Service, and the Events that are new.
    pub fn compare(
        &mut self,
        key: &ServiceKey,
        wanted: &Wanted,
        current: &Current,
        now: Instant,
    ) -> (Option<Statement>, Vec<Notice>) {
        let book = self.services.entry(key.clone()).or_default();
        let mut notices = book.news(wanted);
        let Some(statement) = difference(wanted, current) else {
            book.settled_at.get_or_insert(now);
            return (None, notices);
        };
        if book.settled_at.take().is_some_and(|since| since + REST <= now) {
            book.rests = 0;
            book.rests_until = None;
            book.told.remove(CONTESTED);
        }
        let is_repetition = book.written.as_ref() == Some(&statement);
        if book.is_unconfirmed && is_repetition {
            return (None, notices);
        }
        if book.rests_until.is_some_and(|until| now < until) {
            return (None, notices);
        }
        book.rests_until = None;
        if is_repetition {
            book.repetitions.retain(|written| now < *written + WINDOW);
            book.repetitions.push(now);
            // After a rest, one write shows whether the other controller is still there.
            let most = if book.rests == 0 { MOST_REPETITIONS } else { 1 };
            if book.repetitions.len() > most {
                book.repetitions.clear();
                let rest = REST.saturating_mul(1 << book.rests.min(16)).min(LONGEST_REST);
                book.rests += 1;
                book.rests_until = Some(now + rest);
                notices.extend(book.tell(CONTESTED, Some(contested())));
                return (None, notices);
            }
        }
        (Some(statement), notices)
    }

    /// Returns the next time at which a Service that is left alone is looked at again.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        self.services.values().filter_map(|book| book.rests_until).filter(|until| now < *until).min()
    }
}

impl Book {
    fn news(&mut self, wanted: &Wanted) -> Vec<Notice> {
        let shortage = wanted.shortage.map(|shortage| (shortage.reason(), shortage.to_string()));
        let mut notices = Vec::new();
        for reason in Shortage::ALL.map(Shortage::reason) {
            let text = shortage.as_ref().filter(|(of, _)| *of == reason).map(|(_, text)| text.clone());
            notices.extend(self.tell(reason, text));
        }
        let conflict = wanted.conflict.as_ref().map(|conflict| format!("{conflict}; no address there"));
        notices.extend(self.tell(CONFLICT, conflict));
        notices
    }

    /// Returns an Event if the text is a new one. A text that is gone may be told again.
    fn tell(&mut self, reason: &'static str, text: Option<String>) -> Option<Notice> {
        let Some(note) = text else {
            self.told.remove(reason);
            return None;
        };
        if self.told.get(reason) == Some(&note) {
            return None;
        }
        self.told.insert(reason, note.clone());
        Some(Notice { reason, note })
    }
}

fn difference(wanted: &Wanted, current: &Current) -> Option<Statement> {
    let addresses = wanted.addresses.clone().filter(|wanted| current.addresses.as_ref() != Some(wanted));
    let changes_condition = wanted.conflict != current.conflict;
    let is_any = addresses.is_some() || changes_condition;
    is_any.then(|| Statement { addresses, conflict: wanted.conflict.clone(), changes_condition })
}

fn contested() -> String {
    format!(
        "another controller writes status.loadBalancer of this Service, too; it is left alone for {} minutes, and \
         longer each time; give it a spec.loadBalancerClass, or start one of the controllers so that it leaves Services without a class \
         alone",
        REST.as_secs() / 60
    )
}

impl Statement {
    /// Returns the strategic merge patch of the Service's status. `now` is in RFC 3339.
    pub fn patch(&self, now: &str) -> Value {
        let mut status = serde_json::Map::new();
        if let Some(addresses) = &self.addresses {
            let entries = addresses.iter().map(|ip| json!({ "ip": ip, "ipMode": "VIP" })).collect::<Vec<_>>();
            status.insert("loadBalancer".to_owned(), json!({ "ingress": entries }));
        }
        if self.changes_condition {
            let (holds, reason, message) = match &self.conflict {
                Some(conflict) => ("True", CONFLICT, conflict.as_str()),
                None => ("False", NO_CONFLICT, ""),
            };
            let condition = json!({
                "type": PORTS_CONDITION, "status": holds, "reason": reason, "message": message,
                "lastTransitionTime": now,
            });
            status.insert("conditions".to_owned(), json!([condition]));
        }
        json!({ "status": status })
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Shortage;
    use super::*;

    fn key() -> ServiceKey {
        ServiceKey { namespace: "default".to_owned(), name: "web".to_owned() }
    }

    fn wanted(addresses: &[&str]) -> Wanted {
        Wanted { addresses: Some(parsed(addresses)), conflict: None, shortage: None }
    }

    fn current(addresses: &[&str]) -> Current {
        Current { addresses: Some(parsed(addresses)), conflict: None }
    }

    fn parsed(addresses: &[&str]) -> Vec<IpAddr> {
        addresses.iter().map(|address| address.parse().unwrap()).collect()
    }

    #[test]
    fn a_status_that_somebody_changes_back_is_left_alone_after_some_writes_and_told_once() {
        let mut statuses = Statuses::default();
        let (mut now, mut writes, mut told) = (Instant::now(), 0, Vec::new());
        let (mine, theirs) = (wanted(&["192.0.2.1"]), current(&["198.51.100.1"]));
        for _ in 0..600 {
            let (statement, notices) = statuses.compare(&key(), &mine, &theirs, now);
            told.extend(notices);
            if let Some(statement) = statement {
                writes += 1;
                statuses.wrote(&key(), statement);
            }
            statuses.heard(&key(), true);
            now += Duration::from_secs(1);
        }
        // Ten minutes: the first write and its repetitions, and one more after a rest.
        assert_eq!(writes, 1 + MOST_REPETITIONS + 1);
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].reason, CONTESTED);
        // Who has let go for long, and comes again, is told of again.
        for theirs in [current(&["192.0.2.1"]), theirs] {
            now += REST;
            for _ in 0..10 {
                let (statement, notices) = statuses.compare(&key(), &mine, &theirs, now);
                told.extend(notices);
                if let Some(statement) = statement {
                    statuses.wrote(&key(), statement);
                }
                statuses.heard(&key(), true);
                now += Duration::from_secs(1);
            }
        }
        assert_eq!(told.len(), 2);
    }

    #[test]
    fn what_was_told_is_not_told_again_by_the_same_process_when_it_leads_again() {
        let mut statuses = Statuses::default();
        let without = Wanted { addresses: None, conflict: None, shortage: Some(Shortage::NoNode) };
        let told = |statuses: &mut Statuses| {
            statuses.compare(&key(), &without, &current(&[]), Instant::now()).1.len()
        };
        assert_eq!(told(&mut statuses), 1);
        statuses.forget();
        assert_eq!(told(&mut statuses), 0);
    }

    #[test]
    fn what_was_written_is_not_written_again_before_the_server_tells_of_it() {
        let mut statuses = Statuses::default();
        let now = Instant::now();
        let (mine, old) = (wanted(&["192.0.2.1"]), current(&[]));
        let (statement, _) = statuses.compare(&key(), &mine, &old, now);
        statuses.wrote(&key(), statement.unwrap());
        assert_eq!(statuses.compare(&key(), &mine, &old, now).0, None);
        // Another wish is written at once.
        let other = wanted(&["192.0.2.2"]);
        assert!(statuses.compare(&key(), &other, &old, now).0.is_some());
        statuses.heard(&key(), true);
        assert_eq!(statuses.compare(&key(), &mine, &current(&["192.0.2.1"]), now).0, None);
    }

    #[test]
    fn a_service_that_can_not_be_written_is_tried_again_ever_later_and_told_once() {
        let mut statuses = Statuses::default();
        let begin = Instant::now();
        let (mine, old) = (wanted(&["192.0.2.1"]), current(&[]));
        let mut attempts = Vec::new();
        for second in 0..120 {
            let now = begin + Duration::from_secs(second);
            if statuses.compare(&key(), &mine, &old, now).0.is_some() {
                assert_eq!(statuses.failed(&key(), now), attempts.is_empty());
                assert!(statuses.due(now).is_some());
                attempts.push(second);
            }
        }
        assert_eq!(attempts, [0, 1, 3, 7, 15, 31, 61, 91]);
    }

    #[test]
    fn an_event_is_told_when_its_text_is_new_and_again_after_it_was_gone() {
        let mut statuses = Statuses::default();
        let now = Instant::now();
        let without = Wanted { addresses: None, conflict: None, shortage: Some(Shortage::NoReadyNode) };
        let mut told = |wanted: &Wanted| {
            let (_, notices) = statuses.compare(&key(), wanted, &current(&[]), now);
            notices.into_iter().map(|notice| notice.reason).collect::<Vec<_>>()
        };
        assert_eq!(told(&without), ["NoReadyNode"]);
        assert_eq!(told(&without), [""; 0]);
        assert_eq!(told(&wanted(&[])), [""; 0]);
        assert_eq!(told(&without), ["NoReadyNode"]);
    }

    #[test]
    fn a_patch_names_only_what_changes() {
        let now = "2026-01-01T00:00:00Z";
        let addresses = difference(&wanted(&["192.0.2.1", "2001:db8::1"]), &current(&[])).unwrap();
        assert_eq!(
            addresses.patch(now),
            json!({ "status": { "loadBalancer": { "ingress": [
                { "ip": "192.0.2.1", "ipMode": "VIP" }, { "ip": "2001:db8::1", "ipMode": "VIP" },
            ] } } })
        );
        let lost = Wanted { conflict: Some("port 80".to_owned()), ..wanted(&[]) };
        let conflict = difference(&lost, &current(&[])).unwrap().patch(now);
        assert_eq!(conflict["status"].get("loadBalancer"), None);
        assert_eq!(conflict["status"]["conditions"][0]["message"], "port 80");
        let again = Current { conflict: Some("port 80".to_owned()), ..current(&[]) };
        let solved = difference(&wanted(&[]), &again).unwrap().patch(now);
        assert_eq!(solved["status"]["conditions"][0]["status"], "False");
    }
}
