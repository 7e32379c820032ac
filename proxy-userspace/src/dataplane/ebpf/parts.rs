//! The arrays of [parts](proxy_common::part), which programs end in.

use std::os::fd::AsFd;
use std::path::Path;

use aya::Ebpf;
use aya::maps::ProgramArray;
use aya::programs::ProgramFd;
use proxy_common::part::{PartProgram, parts_of};

use super::error::OpenError;
use super::sys;

/// Returns a loaded program's file descriptor.
pub(super) fn fd_of<'a>(object: &'a Ebpf, name: &'static str) -> Result<&'a ProgramFd, OpenError> {
    let program = object.program(name).ok_or(OpenError::NoProgram { program: name })?;
    program.fd().map_err(|error| OpenError::Aya { program: name, error })
}

/// Puts a loaded part into its array.
pub(super) fn fill(object: &mut Ebpf, part: &PartProgram) -> Result<(), OpenError> {
    let fd = fd_of(object, part.name)?;
    let fd = fd.try_clone().map_err(|error| OpenError::Aya { program: part.name, error: error.into() })?;
    let failed = |error| OpenError::Map { map: part.array.to_owned(), error };
    let array = object.map_mut(part.array).ok_or(OpenError::NoProgram { program: part.name })?;
    let mut array = ProgramArray::try_from(array).map_err(failed)?;
    array.set(part.part as u32, &fd, 0).map_err(failed)
}

/// Fails if a part of a program is missing. `directory` has the pins of the program and of its array.
pub(super) fn check(directory: &Path, program: &str) -> Result<(), String> {
    // All parts of a program are in one array.
    let Some(PartProgram { array: name, .. }) = parts_of(program).next() else {
        return Ok(());
    };
    let unread = |error| format!("{name}, the parts of {program}, can't be read: {error}");
    let array = sys::obj_get(&directory.join(name)).map_err(unread)?;
    for part in parts_of(program) {
        let found = sys::program_in_array(array.as_fd(), part.part as u32).map_err(unread)?;
        if found.is_none() {
            return Err(format!("{program} lacks its part {}", part.name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use aya::maps::{Map, MapData};
    use proxy_common::config::global;

    use super::*;
    use crate::dataplane::ebpf::EbpfDataplane;
    use crate::dataplane::ebpf::node_programs::constants_in;
    use crate::dataplane::ebpf::program::Program;
    use crate::dataplane::ebpf::scratch::{Scratch, in_namespace, loopback, without_sys_admin};
    use crate::dataplane::{Dataplane, Mark};

    #[test]
    fn former_programs_keep_their_parts_until_no_link_runs_them() {
        in_namespace(|| {
            let scratch = Scratch::new("parts-former");
            let mut dataplane = scratch.open();
            assert!(dataplane.set_topology(&loopback()).is_complete());
            let former = dataplane.programs.directory.clone();
            drop(dataplane);

            // Another mark is another constant, so these are other programs. The link runs the former ones
            // until the topology is known.
            let settings = crate::dataplane::ebpf::Settings {
                mark: Mark { value: 0x2000, mask: 0x2000 },
                ..scratch.settings()
            };
            let mut restarted = EbpfDataplane::open(settings).unwrap();
            assert_eq!(check(&former, "tc_ingress"), Ok(()));
            assert!(restarted.set_topology(&loopback()).is_complete());
            assert!(!former.exists() && restarted.programs.directory != former);
            assert_eq!(check(&restarted.programs.directory, "tc_ingress"), Ok(()));
        });
    }

    #[test]
    fn programs_that_run_but_cannot_be_taken_over_keep_their_parts_until_others_run() {
        in_namespace(|| {
            let scratch = Scratch::new("parts-unusable");
            let mut dataplane = scratch.open();
            assert!(dataplane.set_topology(&loopback()).is_complete());
            let directory = dataplane.programs.directory.clone();
            drop(dataplane);
            fs::remove_file(directory.join("tc_egress")).unwrap();

            let mut restarted = scratch.open();
            assert_eq!(restarted.programs.directory, directory);
            let former = PathBuf::from(format!("{}-1", directory.display()));
            assert_eq!(check(&former, "tc_ingress"), Ok(()));
            assert!(restarted.set_topology(&loopback()).is_complete());
            assert!(!former.exists());
            assert_eq!(check(&directory, "tc_ingress"), Ok(()));
        });
    }

    #[test]
    fn an_agent_without_sys_admin_takes_over_the_programs_of_the_one_before() {
        in_namespace(|| {
            let scratch = Scratch::new("parts-capability");
            let ids = |dataplane: &EbpfDataplane| {
                let of = |program: &Program| program.id;
                [&dataplane.programs.tc_ingress, &dataplane.programs.tc_pod_in].map(of)
            };
            let before = ids(&scratch.open());
            without_sys_admin();
            assert_eq!(ids(&scratch.open()), before);
            let directory = scratch.open().programs.directory.clone();
            assert_eq!(constants_in(&directory).unwrap().word(global::MARK_VALUE), 0x1000);
        });
    }

    #[test]
    fn pins_of_an_agent_killed_while_it_loaded_programs_are_no_obstacle() {
        let scratch = Scratch::new("parts-killed");
        let dataplane = scratch.open();
        let directory = dataplane.programs.directory.clone();
        drop(dataplane);
        fs::remove_file(directory.join("tc_ingress")).unwrap();
        fs::remove_file(directory.join("tc_icmp4")).unwrap();
        drop(scratch.open());
        assert!(directory.join("tc_ingress").exists() && directory.join("tc_icmp4").exists());
        assert_eq!(check(&directory, "tc_ingress"), Ok(()));
    }

    #[test]
    fn a_missing_part_is_a_fault() {
        let scratch = Scratch::new("parts-missing");
        let mut dataplane = scratch.open();
        assert_eq!(dataplane.check().fault, None);
        let array = MapData::from_pin(dataplane.programs.directory.join("TC_PARTS")).unwrap();
        let mut array = ProgramArray::try_from(Map::ProgramArray(array)).unwrap();
        array.clear_index(&(proxy_common::part::Part::Icmp4 as u32)).unwrap();
        assert_eq!(dataplane.check().fault.as_deref(), Some("tc_ingress lacks its part tc_icmp4"));
    }
}
