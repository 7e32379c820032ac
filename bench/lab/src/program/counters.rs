//! All counters, read by one call. A test runs thousands of frames, each between two readings, and a call for
//! each counter would take most of its time.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use aya::maps::Map;
use nix::errno::Errno;
use proxy_common::verdict::{COUNTER_ENTRIES, Counter};

use super::Bed;
use crate::map_calls::{Batch, Command, call};

impl Bed {
    /// Reads all counters, summed over the CPUs; indexed by
    /// [`Program::counter`](proxy_common::verdict::Program::counter).
    ///
    /// # Panics
    /// If the kernel can't read them.
    #[must_use]
    pub fn counters(&self) -> Vec<Counter> {
        let cpus = aya::util::nr_cpus().expect("a number of CPUs");
        let ebpf = self.ebpf();
        let Some(Map::PerCpuArray(map)) = ebpf.map("COUNTERS") else {
            panic!("COUNTERS is no array of each CPU")
        };
        let mut each = vec![Counter::default(); COUNTER_ENTRIES as usize * cpus];
        read_all(map.fd().as_fd(), &mut each).expect("counters");
        each.chunks(cpus).map(sum).collect()
    }
}

/// Reads the array from its beginning on; the values of an entry lie side by side.
fn read_all(map: BorrowedFd<'_>, each: &mut [Counter]) -> nix::Result<()> {
    let (mut end, mut keys) = (0_u32, vec![0_u32; COUNTER_ENTRIES as usize]);
    let mut batch = Batch {
        end: (&raw mut end) as u64,
        keys: keys.as_mut_ptr() as u64,
        values: each.as_mut_ptr() as u64,
        count: COUNTER_ENTRIES,
        map: u32::try_from(map.as_raw_fd()).expect("a descriptor"),
        ..Batch::default()
    };
    // SAFETY: the kernel writes `count` keys, as many values for each CPU, and the place after the last one. All
    // memory has that size and lives until the call returns.
    match unsafe { call(Command::LookAtMany, &mut batch) } {
        // There is none after the last one.
        Ok(()) | Err(Errno::ENOENT) if batch.count == COUNTER_ENTRIES => Ok(()),
        Ok(()) => Err(Errno::EIO),
        Err(error) => Err(error),
    }
}

/// Adds the values of all CPUs.
pub(super) fn sum<'a>(values: impl IntoIterator<Item = &'a Counter>) -> Counter {
    values.into_iter().fold(Counter::default(), |sum, one| Counter {
        packets: sum.packets + one.packets,
        bytes: sum.bytes + one.bytes,
    })
}
