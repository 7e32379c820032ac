//! Run time of programs.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use super::Interval;
use super::rate::rate;
use crate::cli::error::CliError;
use crate::cli::output::{Column, Row, some_of};
use crate::dataplane::ebpf::read::{AttachedView, RunTime, measure_run_times, run_times};

const MEASURE: &str = "measure the run time of programs (it takes CAP_SYS_ADMIN, which agents in pods lack: run this as root on the node)";

/// The programs that are attached, by their id.
pub type Runs = BTreeMap<u32, Run>;

/// An attached program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Its hooks, as `eth0/tc_ingress`.
    hooks: BTreeSet<String>,
    time: RunTime,
}

/// Makes the kernel measure, until the descriptor is closed.
pub fn measure() -> Result<OwnedFd, CliError> {
    measure_run_times().map_err(|error| CliError::Kernel { action: MEASURE, error })
}

/// Reads the runs of the attached programs. A program that is being detached may be gone already.
pub fn read(attached: &[AttachedView]) -> Runs {
    let mut runs = Runs::new();
    let times = run_times();
    for one in attached {
        let run = runs.entry(one.program_id).or_default();
        run.hooks.insert(format!("{}/{}", one.device, one.hook));
        run.time = times.get(&one.program_id).copied().unwrap_or_default();
    }
    runs
}

/// The runs of a program in an interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
        let runs = interval.per_second(before.time.count, now.time.count);
        let nanoseconds = interval.per_second(before.time.nanoseconds, now.time.nanoseconds);
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

    fn cells(&self, is_wide: bool) -> Vec<String> {
        let hooks: Vec<&str> = self.hooks.iter().map(String::as_str).collect();
        vec![
            // A program of pods has a hook for each pod. A blank lets the table go on in another line.
            if is_wide { hooks.join(", ") } else { some_of(&hooks).replace(',', ", ") },
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
        let run = |count, nanoseconds| Run { hooks: hooks.clone(), time: RunTime { count, nanoseconds } };
        before.runs = Runs::from([(7, run(100, 1000)), (8, run(0, 0))]);
        now.runs = Runs::from([(7, run(2_000_100, 400_001_000)), (8, run(0, 0)), (9, run(1, 1))]);
        let rows = rows(&interval(&before, &now, 2.0));
        assert_eq!(rows[0].cells(false), ["eth0/tc_ingress", "7", "1.0 M", "200", "20.0"]);
        assert_eq!(rows[1].cells(false), ["eth0/tc_ingress", "8", "0", "", "0.0"]);
        assert_eq!(rows.len(), 2, "one reading alone has no rate");
    }

    #[test]
    fn a_program_of_many_devices_names_some_and_json_has_all() {
        let mut reading = reading();
        let hooks = (0..110).map(|pod| format!("pod{pod:03}/tc_pod_in")).collect();
        reading.runs = Runs::from([(7, Run { hooks, time: RunTime::default() })]);
        let rows = rows(&interval(&reading, &reading, 1.0));
        assert_eq!(rows[0].cells(false)[0], "pod000/tc_pod_in, pod001/tc_pod_in, pod002/tc_pod_in, +107");
        assert!(rows[0].cells(true)[0].ends_with(", pod109/tc_pod_in"));
        let json = serde_json::to_value(&rows[0]).unwrap();
        assert_eq!(json["hooks"].as_array().unwrap().len(), 110);
    }
}
