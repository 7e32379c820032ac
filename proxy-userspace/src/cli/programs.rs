//! `millrace programs`.

use clap::Args;
use serde::Serialize;

use super::error::CliError;
use super::output::{Column, Group, List, ListArgs, Row};
use super::place::Place;
use crate::dataplane::ebpf::read::AttachedView;

/// Arguments of `millrace programs`.
#[derive(Args, Clone, Debug)]
pub struct ProgramsArgs {
    /// Programs on this device, or on cgroup
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    place: Place,
}

/// An attached program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
struct Program(AttachedView);

/// Prints the attached programs.
pub fn run(args: &ProgramsArgs) -> Result<(), CliError> {
    args.list.show(&args.place, || {
        let attached = args.place.maps()?.status()?.attached.into_iter();
        let is_chosen =
            |program: &AttachedView| args.device.as_ref().is_none_or(|device| *device == program.device);
        let programs: Vec<Program> = attached.filter(is_chosen).map(Program).collect();
        Ok(List::new("ProgramList", vec![Group::of("ebpf", &programs, args.list.is_wide())?]))
    })
}

impl Row for Program {
    const COLUMNS: &'static [Column] = &[
        Column::new("DEVICE", "device"),
        Column::new("INDEX", "device_index"),
        Column::new("HOOK", "hook"),
        Column::new("MODE", "mode"),
        Column::new("PROGRAM", "program_id"),
    ];

    fn cells(&self, _: bool) -> Vec<String> {
        let program = &self.0;
        vec![
            program.device.clone(),
            program.device_index.to_string(),
            program.hook.to_string(),
            program.mode.to_string(),
            program.program_id.to_string(),
        ]
    }

    fn name(&self) -> String {
        format!("{}/{}", self.0.device, self.0.hook)
    }
}
