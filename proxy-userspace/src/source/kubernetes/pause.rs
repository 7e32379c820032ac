//! The back-off before a failed server is asked again.
//!
//! It is one for all kinds, so that objects that belong together come back together.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The back-off, shared by the followers of all kinds.
#[derive(Debug)]
pub(super) struct Pause {
    builder: ExponentialBuilder,
    longest: Duration,
    state: Mutex<State>,
    /// Counts the watches that began to work. Each ends the present waits.
    ends: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    backoff: ExponentialBackoff,
    /// The end of the present wait, for all kinds.
    until: Instant,
}

/// The count of working watches when an attempt began.
#[derive(Debug)]
pub(super) struct Attempt(watch::Receiver<u64>);

impl Pause {
    /// Takes the shortest and the longest wait. A random share is added to all but the longest.
    pub fn new((shortest, longest): (Duration, Duration)) -> Self {
        let builder = ExponentialBuilder::new().with_min_delay(shortest).with_max_delay(longest);
        let builder = builder.with_jitter().without_max_times();
        let state = State { backoff: builder.build(), until: Instant::now() };
        Self { builder, longest, state: Mutex::new(state), ends: watch::Sender::new(0) }
    }

    /// Begins an attempt.
    pub fn begin_attempt(&self) -> Attempt {
        Attempt(self.ends.subscribe())
    }

    /// Waits after a failed attempt, until the next one is due for all kinds or a watch of another
    /// kind works.
    ///
    /// A wait that the server asks for is always kept.
    pub async fn wait(&self, attempt: &mut Attempt, least: Option<Duration>) {
        let now = Instant::now();
        let until = self.next(now);
        if let Some(least) = least {
            return sleep_until(until.max(now + least)).await;
        }
        tokio::select! {
            () = sleep_until(until) => {}
            // The sender lives as long as this, so the channel is never closed.
            _ = attempt.0.changed() => {}
        }
    }

    /// Ends all waits: a watch works, so the cause of the others' failures is probably gone.
    pub fn end(&self) {
        let mut state = self.state();
        state.backoff = self.builder.build();
        state.until = Instant::now();
        drop(state);
        self.ends.send_modify(|ends| *ends = ends.wrapping_add(1));
    }

    fn next(&self, now: Instant) -> Instant {
        let mut state = self.state();
        if state.until <= now {
            // The random share does not make the longest wait longer.
            let wait = state.backoff.next().unwrap_or(self.longest).min(self.longest);
            state.until = now + wait;
        }
        state.until
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_hours(1));

    #[tokio::test(start_paused = true)]
    async fn kinds_that_fail_one_after_the_other_are_asked_again_at_the_same_time() {
        let pause = Pause::new(BACKOFF);
        let (first, second) = (pause.next(Instant::now()), Instant::now() + Duration::from_secs(3));
        assert_eq!(pause.next(second), first);
        let third = pause.next(first);
        assert!(third - first > first - Instant::now(), "the next wait is longer");
        assert_eq!(pause.next(first), third);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_goes_on_when_another_watch_works_unless_the_server_asked_for_time() {
        let pause = Pause::new(BACKOFF);
        let begun = Instant::now();
        let waits = async |least| {
            pause.wait(&mut pause.begin_attempt(), least).await;
            begun.elapsed()
        };
        let long = Duration::from_hours(2);
        let works = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            pause.end();
        };
        let (waited, patient, ()) = tokio::join!(waits(None), waits(Some(long)), works);
        assert_eq!((waited, patient), (Duration::from_secs(1), long));
        assert!(pause.next(Instant::now()) - Instant::now() <= BACKOFF.0 * 2, "it begins anew");
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_failed_while_another_watch_began_to_work_is_repeated_at_once() {
        let pause = Pause::new(BACKOFF);
        let mut attempt = pause.begin_attempt();
        pause.end();
        let begun = Instant::now();
        pause.wait(&mut attempt, None).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
