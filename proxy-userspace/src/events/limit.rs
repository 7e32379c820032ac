//! Limits the number of Events.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// The rate for one Service, as in client-go's spam filter.
const OF_SERVICE: Rate = Rate { burst: 25, every: Duration::from_mins(5) };
/// The rate for all Services of this node: a cluster with thousands of problems must not drown in
/// Events.
const OF_NODE: Rate = Rate { burst: 100, every: Duration::from_secs(5) };

#[derive(Clone, Copy, Debug)]
struct Rate {
    burst: u32,
    /// Time until one more Event is allowed.
    every: Duration,
}

/// Decides whether an Event may be written.
#[derive(Debug)]
pub(super) struct Limiter {
    node: Bucket,
    services: HashMap<Arc<str>, Bucket>,
}

/// The time at which the token bucket is full again, which is its whole state.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    full_at: Instant,
}

impl Limiter {
    pub fn new(now: Instant) -> Self {
        Self { node: Bucket { full_at: now }, services: HashMap::new() }
    }

    /// Returns whether one more Event may be written on the Service with this uid.
    pub fn admits(&mut self, uid: &Arc<str>, now: Instant) -> bool {
        self.services.retain(|_, bucket| bucket.full_at > now);
        let mut service = self.services.get(uid).copied().unwrap_or(Bucket { full_at: now });
        let mut node = self.node;
        if !service.take(OF_SERVICE, now) || !node.take(OF_NODE, now) {
            return false;
        }
        self.node = node;
        self.services.insert(uid.clone(), service);
        true
    }
}

impl Bucket {
    fn take(&mut self, rate: Rate, now: Instant) -> bool {
        let full_at = self.full_at.max(now) + rate.every;
        let has_one = full_at <= now + rate.every * rate.burst;
        if has_one {
            self.full_at = full_at;
        }
        has_one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(limiter: &mut Limiter, uid: &Arc<str>, now: Instant) -> usize {
        (0..1000).filter(|_| limiter.admits(uid, now)).count()
    }

    #[test]
    fn a_service_has_a_burst_and_then_one_event_every_five_minutes() {
        let start = Instant::now();
        let (mut limiter, uid) = (Limiter::new(start), Arc::from("a"));
        assert_eq!(admitted(&mut limiter, &uid, start), 25);
        assert_eq!(admitted(&mut limiter, &uid, start + Duration::from_secs(299)), 0);
        assert_eq!(admitted(&mut limiter, &uid, start + Duration::from_mins(5)), 1);
        assert_eq!(admitted(&mut limiter, &uid, start + Duration::from_mins(15)), 2);
        assert_eq!(admitted(&mut limiter, &Arc::from("b"), start + Duration::from_mins(15)), 25);
    }

    #[test]
    fn all_services_together_have_a_burst_and_then_one_event_every_five_seconds() {
        let start = Instant::now();
        let mut limiter = Limiter::new(start);
        let mut ask =
            |now| (0..1000).filter(|index| limiter.admits(&Arc::from(format!("{index}")), now)).count();
        assert_eq!(ask(start), 100);
        assert_eq!(ask(start + Duration::from_secs(50)), 10);
    }

    #[test]
    fn services_that_have_their_burst_again_are_forgotten() {
        let start = Instant::now();
        let (mut limiter, uid) = (Limiter::new(start), Arc::from("a"));
        admitted(&mut limiter, &uid, start);
        limiter.admits(&Arc::from("b"), start + OF_SERVICE.every * OF_SERVICE.burst);
        assert_eq!(limiter.services.keys().map(|uid| &**uid).collect::<Vec<_>>(), ["b"]);
    }
}
