//! Processors that don't sleep during a measurement, and threads that stay on one processor.
//!
//! A processor takes longer to wake up than the work that it wakes for, above all in a virtual
//! machine. An exchange within one processor does not compare with one between two.

use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow};
use aya::util::online_cpus;
use nix::libc;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// Keeps all processors busy until it is dropped. Its threads have the policy SCHED_IDLE, so all
/// other threads run before them.
pub struct Awake {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Awake {
    pub fn start() -> Result<Self> {
        let mut awake = Self { is_over: Arc::default(), threads: Vec::new() };
        for _ in 0..thread::available_parallelism()?.get() {
            let is_over = Arc::clone(&awake.is_over);
            let (ready, readiness) = std::sync::mpsc::sync_channel(1);
            awake.threads.push(thread::spawn(move || {
                // The receiver is gone only if `start` has failed.
                let _ = ready.send(yield_to_others());
                spin(&is_over);
            }));
            let given = readiness.recv().context("a thread that keeps a processor awake is gone")?;
            given.context("can't give a thread the scheduling policy SCHED_IDLE")?;
        }
        Ok(awake)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // The thread reported its errors when it began.
            let _ = thread.join();
        }
    }
}

/// The processor of the client or of the server. The two differ if there is more than one
/// processor.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// The first one.
    Client,
    /// The last one.
    Server,
}

impl Place {
    /// Keeps the calling thread on this processor.
    pub fn take(self) -> Result<()> {
        // The choice is among all processors: this thread may already be bound to one.
        let online = online_cpus().map_err(|(place, error)| anyhow!("{place}: {error}"))?;
        let chosen = match self {
            Self::Client => online.first(),
            Self::Server => online.last(),
        };
        let mut processors = CpuSet::new();
        processors.set(usize::try_from(*chosen.context("no processor is online")?)?)?;
        sched_setaffinity(Pid::from_raw(0), &processors).context("can't keep a thread on one processor")
    }
}

fn yield_to_others() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the calling thread's own policy; the parameters live as long as the call.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Spins without a spin hint: hypervisors take the processor away from a guest with many of them.
fn spin(is_over: &AtomicBool) {
    let mut count = 0_u64;
    while !is_over.load(Ordering::Relaxed) {
        count = black_box(count.wrapping_add(1));
    }
}

#[cfg(test)]
mod tests {
    use nix::sched::sched_getaffinity;

    use super::*;

    #[test]
    fn a_place_is_the_same_processor_each_time() {
        let places = || -> Result<Vec<CpuSet>> {
            let taken = [Place::Server, Place::Server, Place::Client, Place::Server].map(|place| {
                place.take()?;
                Ok(sched_getaffinity(Pid::from_raw(0))?)
            });
            taken.into_iter().collect()
        };
        let taken = thread::spawn(places).join().unwrap().unwrap();
        assert_eq!((taken[0], taken[0]), (taken[1], taken[3]));
        let is_alone = online_cpus().unwrap().len() == 1;
        assert_eq!(taken[2] == taken[3], is_alone);
    }
}
