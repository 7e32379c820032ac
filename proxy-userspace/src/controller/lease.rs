//! Elects one of several controllers by a Lease, as Kubernetes' own controllers do.
//!
//! Whether a Lease has run out is measured with this process's own clock, from the moment when the Lease
//! was seen to change. The times in a Lease are for people: a clock that jumps elects nobody.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use crate::source::kubernetes::explain_refusal;

/// The Lease's name.
pub const NAME: &str = "millrace-controller";
/// Time after its last renewal at which a Lease may be taken by another candidate.
const DURATION: Duration = Duration::from_secs(15);
/// Time after its last renewal at which the leader stops writing. What it has begun ends before another
/// one may begin.
const RENEWAL: Duration = Duration::from_secs(10);
/// Time between two attempts to get or to renew the Lease.
const RETRY: Duration = Duration::from_secs(2);
/// An API server that takes longer is no help for this Lease.
const REQUEST: Duration = Duration::from_secs(4);

/// The end of this process's leadership, unless it renews the Lease; `None` = another one leads.
#[derive(Debug)]
pub struct Leadership {
    until: watch::Receiver<Option<Instant>>,
    /// Whether the last change that was told began a leadership.
    was_held: bool,
}

impl Leadership {
    /// Returns whether this process leads now.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.until.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// Returns whether this process may lead soon without a change being told: its time is over, and it
    /// still tries to renew the Lease.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.until.borrow().is_some() && !self.is_held()
    }

    /// Waits until this process has begun or ceased to lead. Returns `false` if no election is held any
    /// more. Dropping the future early loses no change.
    pub async fn changed(&mut self) -> bool {
        while self.until.borrow_and_update().is_some() == self.was_held {
            if self.until.changed().await.is_err() {
                return false;
            }
        }
        self.was_held = !self.was_held;
        true
    }
}

/// Starts the election in a namespace. The Lease is given back when `stop` is closed.
///
/// `identity` must be another one in each process. The task ends after that.
#[must_use]
pub fn elect(
    client: Client,
    namespace: &str,
    identity: String,
    stop: watch::Receiver<()>,
) -> (Leadership, tokio::task::JoinHandle<()>) {
    let (sender, receiver) = watch::channel(None);
    let api = Api::namespaced(client, namespace);
    let election = Election { api, candidate: Candidate::new(identity), until: sender, failing: None };
    (Leadership { until: receiver, was_held: false }, tokio::spawn(election.run(stop)))
}

struct Election {
    api: Api<Lease>,
    candidate: Candidate,
    until: watch::Sender<Option<Instant>>,
    /// The last attempt's error, if it failed.
    failing: Option<String>,
}

impl Election {
    async fn run(mut self, mut stop: watch::Receiver<()>) {
        loop {
            self.attempt().await;
            tokio::select! {
                _ = stop.changed() => break,
                () = sleep(RETRY) => {}
            }
        }
        self.give_back().await;
    }

    async fn attempt(&mut self) {
        let begun = Instant::now();
        let twice = async {
            match self.ask(begun).await? {
                // Somebody wrote the Lease meanwhile: another candidate, or a person who labels it.
                Outcome::Outrun => Ok(self.ask(begun).await? == Outcome::Held),
                outcome => Ok(outcome == Outcome::Held),
            }
        };
        let result: Result<Result<bool, kube::Error>, _> = timeout(REQUEST, twice).await;
        match result {
            Ok(Ok(is_held)) => {
                self.failing = None;
                self.set(is_held.then(|| begun + RENEWAL));
            }
            failed => {
                let why = match failed {
                    Ok(Err(error)) => explain_refusal(&error),
                    _ => format!("no answer within {} s", REQUEST.as_secs()),
                };
                if self.failing.is_none() {
                    warn!(lease = NAME, error = why, "the Lease can't be read or written; tried again");
                }
                self.failing = Some(why);
                // A leader that can't renew goes on until its time is over.
                if self.until.borrow().is_some_and(|until| until <= Instant::now()) {
                    self.set(None);
                }
            }
        }
    }

    /// Reads the Lease, and takes or renews it.
    async fn ask(&mut self, now: Instant) -> Result<Outcome, kube::Error> {
        let parameters = PostParams::default();
        let lease = self.api.get_opt(NAME).await?;
        let step = self.candidate.step(lease.as_ref(), now);
        let spec = self.candidate.spec(lease.as_ref(), step, Timestamp::now());
        let written = match (step, lease) {
            (Step::Wait, _) => return Ok(Outcome::Waits),
            (Step::Create, _) | (_, None) => {
                let metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
                self.api.create(&parameters, &Lease { metadata, spec: Some(spec) }).await
            }
            // With the version that was read: of two candidates the server takes one.
            (Step::Take | Step::Renew, Some(lease)) => {
                self.api.replace(NAME, &parameters, &Lease { spec: Some(spec), ..lease }).await
            }
        };
        match written {
            Ok(_) => Ok(Outcome::Held),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Outcome::Outrun),
            Err(error) => Err(error),
        }
    }

    fn set(&self, until: Option<Instant>) {
        let was_held = self.until.borrow().is_some();
        match (was_held, until.is_some()) {
            (false, true) => info!(lease = NAME, "this process leads"),
            (true, false) => warn!(lease = NAME, "this process leads no longer"),
            _ => {}
        }
        self.until.send_replace(until);
    }

    /// Lets another process begin at once.
    async fn give_back(&mut self) {
        if self.until.borrow().is_none() {
            return;
        }
        self.until.send_replace(None);
        let free = async {
            let Some(lease) = self.api.get_opt(NAME).await? else { return Ok(()) };
            if holder(&lease) != Some(self.candidate.identity.as_str()) {
                return Ok(());
            }
            let spec = LeaseSpec {
                holder_identity: None,
                lease_duration_seconds: Some(1),
                ..lease.spec.clone().unwrap_or_default()
            };
            self.api.replace(NAME, &PostParams::default(), &Lease { spec: Some(spec), ..lease }).await?;
            Ok::<(), kube::Error>(())
        };
        match timeout(REQUEST, free).await {
            Ok(Ok(())) => debug!(lease = NAME, "given back"),
            failed => debug!(lease = NAME, ?failed, "not given back; it runs out"),
        }
    }
}

/// The result of a request for the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Held,
    Waits,
    /// Another version was written between reading and writing.
    Outrun,
}

/// What a candidate does with the Lease that it has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create,
    Take,
    Renew,
    Wait,
}

/// A process that wants the Lease.
#[derive(Debug)]
struct Candidate {
    identity: String,
    /// The version of another holder's Lease, and when it was seen first.
    observed: Option<(Option<String>, Instant)>,
    /// The holder that the log has named.
    named: Option<String>,
}

impl Candidate {
    const fn new(identity: String) -> Self {
        Self { identity, observed: None, named: None }
    }

    fn step(&mut self, lease: Option<&Lease>, now: Instant) -> Step {
        let Some(lease) = lease else {
            self.observed = None;
            return Step::Create;
        };
        match holder(lease) {
            None => Step::Take,
            Some(holder) if holder == self.identity => Step::Renew,
            Some(holder) => {
                if self.named.as_deref() != Some(holder) {
                    info!(lease = NAME, holder, "another process has the Lease; this one waits");
                    self.named = Some(holder.to_owned());
                }
                let version = lease.metadata.resource_version.clone();
                let since = match &self.observed {
                    Some((seen, since)) if *seen == version => *since,
                    _ => {
                        self.observed = Some((version, now));
                        now
                    }
                };
                let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
                let duration =
                    seconds.and_then(|seconds| u64::try_from(seconds).ok()).filter(|seconds| *seconds > 0);
                let duration = duration.map_or(DURATION, Duration::from_secs);
                if now.duration_since(since) < duration { Step::Wait } else { Step::Take }
            }
        }
    }

    /// Returns the Lease's content after a step.
    fn spec(&self, lease: Option<&Lease>, step: Step, now: Timestamp) -> LeaseSpec {
        let before = lease.and_then(|lease| lease.spec.clone()).unwrap_or_default();
        let is_new = step != Step::Renew;
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: if is_new { Some(MicroTime(now)) } else { before.acquire_time },
            renew_time: Some(MicroTime(now)),
            lease_transitions: match step {
                Step::Take => Some(before.lease_transitions.unwrap_or_default().saturating_add(1)),
                Step::Create | Step::Renew | Step::Wait => before.lease_transitions.or(Some(0)),
            },
            ..before
        }
    }
}

fn holder(lease: &Lease) -> Option<&str> {
    let spec = lease.spec.as_ref()?;
    spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str, version: u32, seconds: Option<i32>) -> Lease {
        Lease {
            metadata: ObjectMeta { resource_version: Some(version.to_string()), ..ObjectMeta::default() },
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.to_owned()),
                lease_duration_seconds: seconds,
                lease_transitions: Some(4),
                ..LeaseSpec::default()
            }),
        }
    }

    #[test]
    fn a_lease_of_another_process_is_taken_when_it_was_not_seen_to_change_for_its_duration() {
        let mut candidate = Candidate::new("me".to_owned());
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(candidate.step(Some(&lease("other", 1, Some(15))), at(0)), Step::Wait);
        assert_eq!(candidate.step(Some(&lease("other", 1, Some(15))), at(14)), Step::Wait);
        // A renewal begins the time anew, whatever clock the other process has.
        assert_eq!(candidate.step(Some(&lease("other", 2, Some(15))), at(14)), Step::Wait);
        assert_eq!(candidate.step(Some(&lease("other", 2, Some(15))), at(28)), Step::Wait);
        assert_eq!(candidate.step(Some(&lease("other", 2, Some(15))), at(29)), Step::Take);
    }

    #[test]
    fn a_clock_that_jumps_neither_takes_nor_keeps_a_lease() {
        let begin = Instant::now();
        for renewed in [0, 4_000_000_000] {
            let mut candidate = Candidate::new("me".to_owned());
            let mut lease = lease("other", 1, Some(15));
            let time = Timestamp::from_second(renewed).unwrap();
            lease.spec.as_mut().unwrap().renew_time = Some(MicroTime(time));
            assert_eq!(candidate.step(Some(&lease), begin), Step::Wait);
            assert_eq!(candidate.step(Some(&lease), begin + Duration::from_secs(14)), Step::Wait);
            assert_eq!(candidate.step(Some(&lease), begin + Duration::from_secs(15)), Step::Take);
        }
    }

    #[test]
    fn the_holders_own_duration_counts_and_a_senseless_one_is_ours() {
        let begin = Instant::now();
        let steps = |seconds| {
            let mut candidate = Candidate::new("me".to_owned());
            let lease = lease("other", 1, seconds);
            assert_eq!(candidate.step(Some(&lease), begin), Step::Wait);
            (1..200)
                .find(|after| candidate.step(Some(&lease), begin + Duration::from_secs(*after)) == Step::Take)
        };
        assert_eq!(steps(Some(60)), Some(60));
        assert_eq!([steps(Some(0)), steps(Some(-5)), steps(None)], [Some(15); 3]);
    }

    #[test]
    fn a_missing_or_free_lease_is_taken_at_once_and_the_own_one_renewed() {
        let mut candidate = Candidate::new("me".to_owned());
        let now = Instant::now();
        assert_eq!(candidate.step(None, now), Step::Create);
        assert_eq!(candidate.step(Some(&lease("", 1, Some(1))), now), Step::Take);
        assert_eq!(candidate.step(Some(&lease("me", 2, Some(15))), now), Step::Renew);
    }

    #[test]
    fn a_renewal_keeps_when_the_lease_was_taken() {
        let candidate = Candidate::new("me".to_owned());
        let (early, late) = (Timestamp::from_second(100).unwrap(), Timestamp::from_second(200).unwrap());
        let taken = candidate.spec(Some(&lease("other", 1, Some(15))), Step::Take, early);
        assert_eq!(taken.lease_transitions, Some(5));
        let lease = Lease { metadata: ObjectMeta::default(), spec: Some(taken) };
        let renewed = candidate.spec(Some(&lease), Step::Renew, late);
        assert_eq!(renewed.acquire_time, Some(MicroTime(early)));
        assert_eq!(renewed.renew_time, Some(MicroTime(late)));
        assert_eq!((renewed.lease_transitions, renewed.lease_duration_seconds), (Some(5), Some(15)));
        assert_eq!(renewed.holder_identity.as_deref(), Some("me"));
    }
}
