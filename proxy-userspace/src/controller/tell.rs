//! Writes Events on Services, beside the task that writes statuses: an Event must not keep an address away.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::CONTROLLER;
use super::status::Notice;
use crate::model::ServiceKey;

/// Events that may wait. Further ones are in the log only.
const WAITING: usize = 256;
/// The API's limit of a note, in bytes.
const LONGEST_NOTE: usize = 1024;
/// An API server that takes longer is overloaded.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Hands Events to the task that writes them.
#[derive(Debug)]
pub struct Teller {
    notices: mpsc::Sender<(ObjectReference, Notice)>,
}

impl Teller {
    /// Starts the task, which ends with the teller.
    pub fn start(client: Client, identity: &str) -> Self {
        let (sender, mut notices) = mpsc::channel(WAITING);
        let reporter = Reporter { controller: CONTROLLER.to_owned(), instance: Some(identity.to_owned()) };
        tokio::spawn(async move {
            while let Some((reference, notice)) = notices.recv().await {
                // A recorder counts by reason and keeps the first note, so each note has one of its own.
                let recorder = Recorder::new(client.clone(), reporter.clone());
                let written = timeout(WRITE_TIMEOUT, recorder.publish(&event(&notice), &reference)).await;
                if !matches!(written, Ok(Ok(()))) {
                    debug!(
                        service = reference.name,
                        ?written,
                        "an Event can't be written; it is in the log only"
                    );
                }
            }
        });
        Self { notices: sender }
    }

    /// Tells of a Service in the log and by an Event, without waiting.
    pub fn tell(&self, key: &ServiceKey, uid: Option<&str>, notice: Notice) {
        warn!(service = %key, reason = notice.reason, "{}", notice.note);
        let reference = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Service".to_owned()),
            name: Some(key.name.clone()),
            namespace: Some(key.namespace.clone()),
            uid: uid.map(str::to_owned),
            ..ObjectReference::default()
        };
        if self.notices.try_send((reference, notice)).is_err() {
            debug!(service = %key, "too many Events: this one is in the log only");
        }
    }
}

fn event(notice: &Notice) -> Event {
    let note = notice.note.get(..notice.note.floor_char_boundary(LONGEST_NOTE)).unwrap_or_default();
    Event {
        type_: EventType::Warning,
        reason: notice.reason.to_owned(),
        note: Some(note.to_owned()),
        action: "GiveAddress".to_owned(),
        secondary: None,
    }
}
