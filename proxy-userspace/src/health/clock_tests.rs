use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::{Clock, Moment};

/// A clock that the test moves. Clones show the same time.
#[derive(Clone, Debug)]
pub struct HandClock(Arc<Mutex<Moment>>);

impl HandClock {
    /// Returns a time a little after noon.
    pub fn new() -> Self {
        let wall = "2026-11-21T12:00:00.5Z".parse::<Timestamp>().unwrap();
        Self(Arc::new(Mutex::new(Moment { instant: Instant::now(), wall })))
    }

    pub fn advance(&self, by: Duration) {
        let mut now = self.0.lock().unwrap();
        *now = Moment { instant: now.instant + by, wall: now.wall + by };
    }
}

impl Clock for HandClock {
    fn now(&self) -> Moment {
        *self.0.lock().unwrap()
    }
}
