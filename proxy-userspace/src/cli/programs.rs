//! `millrace programs`.

use clap::Args;

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

/// Prints the attached programs.
pub fn run(args: &ProgramsArgs) -> Result<(), CliError> {
    args.list.show(&args.place, || {
        let attached = args.place.maps()?.status()?.attached.into_iter();
        let is_chosen =
            |program: &AttachedView| args.device.as_ref().is_none_or(|device| *device == program.device);
        let programs: Vec<AttachedView> = attached.filter(is_chosen).collect();
        Ok(List::new("ProgramList", vec![Group::of("ebpf", &programs, args.list.is_wide())?]))
    })
}

/// An attached program.
impl Row for AttachedView {
    const COLUMNS: &'static [Column] = &[
        Column::new("DEVICE", "device"),
        Column::new("INDEX", "device_index"),
        Column::new("HOOK", "hook"),
        Column::new("MODE", "mode"),
        Column::new("PROGRAM", "program_id"),
    ];

    fn cells(&self, _: bool) -> Vec<String> {
        vec![
            self.device.clone(),
            self.device_index.to_string(),
            self.hook.to_string(),
            self.mode.to_string(),
            self.program_id.to_string(),
        ]
    }

    fn name(&self) -> String {
        format!("{}/{}", self.device, self.hook)
    }
}
