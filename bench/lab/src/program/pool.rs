//! Unused beds. Verifying the programs takes longer than any test, so tests share them.

use std::sync::{Arc, Mutex, MutexGuard};

use aya::Ebpf;

use super::builder::BedBuilder;
use super::coverage;

/// Unused beds of default sizes, the one that was used last at the end.
static POOL: Mutex<Vec<Idle>> = Mutex::new(Vec::new());

/// The most beds in [`POOL`]. The kernel frees all programs of a process when it ends, and Linux 6.18 locks up
/// for good if more than 1024 are freed on one CPU at a time: each takes a place in one queue of work, and the
/// first waits for work that finds no place there.
const MOST_IDLE: usize = 24;
/// The same for an object with probes, so that a process has few programs at any time.
const MOST_IDLE_WITH_PROBES: usize = 8;

type Idle = (BedBuilder, Arc<Mutex<Ebpf>>);

/// Takes a bed with these settings.
pub(super) fn take(settings: &BedBuilder) -> Option<Arc<Mutex<Ebpf>>> {
    let mut pool = lock();
    let index = pool.iter().position(|(others, _)| others == settings)?;
    Some(pool.remove(index).1)
}

/// Puts a cleared bed with these settings in, for the price of the one that was unused longest if there are too
/// many.
pub(super) fn put(settings: BedBuilder, ebpf: Arc<Mutex<Ebpf>>) {
    let mut pool = lock();
    pool.push((settings, ebpf));
    let most = if coverage::folder().is_some() { MOST_IDLE_WITH_PROBES } else { MOST_IDLE };
    let excess = (pool.len() > most).then(|| pool.remove(0));
    // Freeing a bed's programs takes long, and other tests wait for the pool.
    drop(pool);
    drop(excess);
}

fn lock() -> MutexGuard<'static, Vec<Idle>> {
    POOL.lock().expect("a pool that is only pushed to and popped from")
}
