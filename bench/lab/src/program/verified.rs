//! Programs as the kernel verified and compiled them.

use std::time::{Duration, Instant};

use aya::programs::Program;

use super::BedBuilder;

/// All programs of an object, loaded once.
#[derive(Clone, Debug)]
pub struct Load {
    /// The time to parse the object and to make its maps.
    pub maps: Duration,
    /// The programs, by name.
    pub programs: Vec<LoadedProgram>,
}

/// A program in the kernel.
#[derive(Clone, Debug)]
pub struct LoadedProgram {
    /// The program's name.
    pub name: String,
    /// The time of the system call: verification and compilation.
    pub time: Duration,
    /// Instructions that the verifier walked through.
    pub verified: u32,
    /// Instructions of the program.
    pub instructions: u32,
    /// Bytes of machine code.
    pub machine_code: u32,
}

impl BedBuilder {
    /// Loads every program of the object, one after another, and forgets them.
    ///
    /// # Panics
    /// If the kernel refuses one; the message holds the verifier's log.
    #[must_use]
    pub fn load_programs(&self) -> Load {
        let start = Instant::now();
        let mut ebpf = self.make_maps();
        let maps = start.elapsed();
        let mut programs: Vec<LoadedProgram> =
            ebpf.programs_mut().map(|(name, program)| load(name, program)).collect();
        programs.sort_by(|one, other| one.name.cmp(&other.name));
        Load { maps, programs }
    }
}

fn load(name: &str, program: &mut Program) -> LoadedProgram {
    let start = Instant::now();
    let loaded = match program {
        Program::Xdp(xdp) => xdp.load(),
        Program::SchedClassifier(classifier) => classifier.load(),
        Program::CgroupSockAddr(hook) => hook.load(),
        Program::CgroupSock(hook) => hook.load(),
        other => panic!("{name} is of a kind this loader does not know: {other:?}"),
    };
    let time = start.elapsed();
    loaded.unwrap_or_else(|error| panic!("{name} does not load: {error:?}"));
    let info = program.info().unwrap_or_else(|error| panic!("{name}: {error:?}"));
    LoadedProgram {
        name: name.to_owned(),
        time,
        verified: info.verified_instruction_count().unwrap_or(0),
        instructions: info.size_translated().unwrap_or(0) / INSTRUCTION,
        machine_code: info.size_jitted(),
    }
}

/// Bytes of an instruction.
const INSTRUCTION: u32 = 8;
