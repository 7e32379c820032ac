//! Run time of programs, which the kernel measures while somebody asks for it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use aya::programs::loaded_programs;
use aya::sys::{Stats, enable_stats};
use serde::Serialize;

use super::Interval;
use super::rate::rate;
use crate::cli::error::CliError;
use crate::cli::output::{Column, Row};
use crate::dataplane::ebpf::read::AttachedView;

/// The programs that are attached, by their id.
pub type Runs = BTreeMap<u32, Run>;

/// The runs of a program while they were measured. Those of its parts count as its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Its hooks, as `eth0/tc_ingress`.
    hooks: BTreeSet<String>,
    /// The number of runs.
    count: u64,
    /// The time of all, in nanoseconds.
    nanoseconds: u64,
}

/// Makes the kernel measure, until the descriptor is closed. It costs each run some nanoseconds.
pub fn measure() -> Result<OwnedFd, CliError> {
    enable_stats(Stats::RunTime).map_err(|error| CliError::Kernel {
        action: "measure the run time of programs",
        error: error.io_error,
    })
}

/// Reads the runs of the attached programs. A program that is being detached may be gone already.
pub fn read(attached: &[AttachedView]) -> Runs {
    let mut runs = Runs::new();
    for one in attached {
        let run = runs.entry(one.program_id).or_default();
        run.hooks.insert(format!("{}/{}", one.device, one.hook));
    }
    for info in loaded_programs().filter_map(Result::ok) {
        if let Some(run) = runs.get_mut(&info.id()) {
            (run.count, run.nanoseconds) =
                (info.run_count(), u64::try_from(info.run_time().as_nanos()).unwrap_or(u64::MAX));
        }
    }
    runs
}

/// The runs of a program in an interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProgramRate {
    /// Its hooks.
    hooks: BTreeSet<String>,
    /// The kernel's id of the program.
    program_id: u32,
    /// Runs.
    runs_per_second: f64,
    /// Mean time of a run; none without any.
    nanoseconds_per_run: Option<f64>,
    /// Share of one CPU.
    cpu_percent: f64,
}

/// Returns a row for each program.
pub fn rows(interval: &Interval<'_>) -> Vec<ProgramRate> {
    let both =
        interval.now.runs.iter().filter_map(|(id, now)| Some((*id, interval.before.runs.get(id)?, now)));
    both.map(|(id, before, now)| {
        let runs = interval.per_second(before.count, now.count);
        let nanoseconds = interval.per_second(before.nanoseconds, now.nanoseconds);
        ProgramRate {
            hooks: now.hooks.clone(),
            program_id: id,
            runs_per_second: runs,
            nanoseconds_per_run: (runs > 0.0).then(|| nanoseconds / runs),
            cpu_percent: nanoseconds / 1e7,
        }
    })
    .collect()
}

impl Row for ProgramRate {
    const COLUMNS: &'static [Column] = &[
        Column::new("HOOKS", "hooks").wrapped(),
        Column::new("PROGRAM", "program_id").spare(1),
        Column::new("RUNS/S", "runs_per_second"),
        Column::new("NS/RUN", "nanoseconds_per_run"),
        Column::new("CPU %", "cpu_percent"),
    ];

    fn cells(&self, _: bool) -> Vec<String> {
        vec![
            self.hooks.iter().cloned().collect::<Vec<_>>().join(", "),
            self.program_id.to_string(),
            rate(self.runs_per_second),
            self.nanoseconds_per_run.map(|time| format!("{time:.0}")).unwrap_or_default(),
            format!("{:.1}", self.cpu_percent),
        ]
    }

    fn name(&self) -> String {
        self.program_id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{interval, reading};
    use super::*;

    #[test]
    fn a_run_has_a_mean_time_and_a_share_of_a_cpu() {
        let (mut before, mut now) = (reading(), reading());
        let hooks = BTreeSet::from(["eth0/tc_ingress".to_owned()]);
        let run = |count, nanoseconds| Run { hooks: hooks.clone(), count, nanoseconds };
        before.runs = Runs::from([(7, run(100, 1000)), (8, run(0, 0))]);
        now.runs = Runs::from([(7, run(2_000_100, 400_001_000)), (8, run(0, 0)), (9, run(1, 1))]);
        let rows = rows(&interval(&before, &now, 2.0));
        assert_eq!(rows[0].cells(false), ["eth0/tc_ingress", "7", "1.0 M", "200", "20.0"]);
        assert_eq!(rows[1].cells(false), ["eth0/tc_ingress", "8", "0", "", "0.0"]);
        assert_eq!(rows.len(), 2, "one reading alone has no rate");
    }
}
