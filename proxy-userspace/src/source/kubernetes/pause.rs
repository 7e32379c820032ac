//! When a server that failed is asked again: one back-off for all kinds, so that what belongs together comes back together.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Shared by the followers of all kinds.
#[derive(Debug)]
pub(super) struct Pause {
    builder: ExponentialBuilder,
    longest: Duration,
    state: Mutex<State>,
    /// How often a watch began to work: whoever waits goes on then.
    ends: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    backoff: ExponentialBackoff,
    /// When all are asked again that have failed since the last time.
    until: Instant,
}

/// What a follower has seen of the pauses' ends when it began to ask.
#[derive(Debug)]
pub(super) struct Turn(watch::Receiver<u64>);

impl Pause {
    /// The shortest and the longest wait; a random share is added to all but the longest.
    pub fn new((shortest, longest): (Duration, Duration)) -> Self {
        let builder = ExponentialBuilder::new().with_min_delay(shortest).with_max_delay(longest);
        let builder = builder.with_jitter().without_max_times();
        let state = State { backoff: builder.build(), until: Instant::now() };
        Self { builder, longest, state: Mutex::new(state), ends: watch::Sender::new(0) }
    }

    /// An attempt begins.
    pub fn turn(&self) -> Turn {
        Turn(self.ends.subscribe())
    }

    /// Waits after an attempt that failed, until the next one of all kinds is due, or until the watch of another kind
    /// works; for as long as the server itself asks for in any case.
    pub async fn wait(&self, turn: &mut Turn, least: Option<Duration>) {
        let now = Instant::now();
        let until = self.next(now);
        if let Some(least) = least {
            return sleep_until(until.max(now + least)).await;
        }
        tokio::select! {
            () = sleep_until(until) => {}
            // Never closed: its sender lives as long as this.
            _ = turn.0.changed() => {}
        }
    }

    /// A watch works: what keeps the others from it is over, as a rule.
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
            // The longest wait is the longest with its random share, too.
            let wait = state.backoff.next().unwrap_or(self.longest).min(self.longest);
            state.until = now + wait;
        }
        state.until
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change leaves it whole.
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
            pause.wait(&mut pause.turn(), least).await;
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
        let mut turn = pause.turn();
        pause.end();
        let begun = Instant::now();
        pause.wait(&mut turn, None).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
