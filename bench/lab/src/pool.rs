//! Clusters that the tests of one process share, each with one test at a time.
#![allow(clippy::expect_used, reason = "a cluster that was taken is there until it is given back")]

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use anyhow::Result;

use crate::cluster::Cluster;
use crate::net::remove_own_at_exit;

/// A number of clusters that start as they are needed, and live as long as the process.
#[derive(Debug)]
pub struct Pool {
    start: fn() -> Result<Cluster>,
    /// The largest number of clusters.
    limit: usize,
    state: Mutex<State>,
    given_back: Condvar,
}

#[derive(Debug)]
struct State {
    idle: Vec<Cluster>,
    started: usize,
}

/// A cluster that one test has. It goes back when this is dropped.
#[derive(Debug)]
pub struct Taken {
    cluster: Option<Cluster>,
    pool: &'static Pool,
}

impl Pool {
    /// Returns a pool of at most `limit` clusters, at least one.
    #[must_use]
    pub const fn new(limit: usize, start: fn() -> Result<Cluster>) -> Self {
        let state = State { idle: Vec::new(), started: 0 };
        Self { start, limit, state: Mutex::new(state), given_back: Condvar::new() }
    }

    /// Returns a cluster that no other test has: one that runs, else a new one, else the next that is given back. A test
    /// that failed may have left it in any state.
    pub fn take(&'static self) -> Result<Taken> {
        let mut state = self.lock();
        loop {
            if let Some(cluster) = state.idle.pop() {
                return Ok(Taken { cluster: Some(cluster), pool: self });
            }
            if state.started < self.limit.max(1) {
                break;
            }
            state = self.given_back.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.started += 1;
        drop(state);
        remove_own_at_exit();
        // If it does not start, by a panic or an error, its place is free again.
        let mut taken = Taken { cluster: None, pool: self };
        taken.cluster = Some((self.start)()?);
        Ok(taken)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for Taken {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        self.cluster.as_ref().expect("taken")
    }
}

impl DerefMut for Taken {
    fn deref_mut(&mut self) -> &mut Cluster {
        self.cluster.as_mut().expect("taken")
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        match self.cluster.take() {
            Some(cluster) => state.idle.push(cluster),
            None => state.started -= 1,
        }
        drop(state);
        self.pool.given_back.notify_one();
    }
}
