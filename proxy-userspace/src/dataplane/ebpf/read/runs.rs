//! Run time of programs, which the kernel measures while somebody asks for it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use aya::programs::loaded_programs;
use aya::sys::{Stats, enable_stats};

/// The runs of a program while they were measured. Those of its parts count as its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTime {
    /// The number of runs.
    pub count: u64,
    /// The time of all, in nanoseconds.
    pub nanoseconds: u64,
}

/// Makes the kernel measure all programs, until the descriptor is closed. It costs each run some nanoseconds.
pub fn measure_run_times() -> Result<OwnedFd, io::Error> {
    enable_stats(Stats::RunTime).map_err(|error| error.io_error)
}

/// Returns the run times of the loaded programs by their id. A program that ends meanwhile may be missing.
pub fn run_times() -> BTreeMap<u32, RunTime> {
    let programs = loaded_programs().filter_map(Result::ok);
    programs
        .map(|info| {
            let nanoseconds = u64::try_from(info.run_time().as_nanos()).unwrap_or(u64::MAX);
            (info.id(), RunTime { count: info.run_count(), nanoseconds })
        })
        .collect()
}
