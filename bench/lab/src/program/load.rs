//! Loading the object and its programs.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::Context;
use aya::Ebpf;
use aya::maps::ProgramArray;
use aya::programs::{ProgramFd, SchedClassifier, Xdp};
use proxy_common::config::AGENT_HEARTBEAT;
use proxy_common::part::{Part, parts_of};
use proxy_common::selection::BackendRef;

use super::builder::{BedBuilder, Sizes, unless_refused};
use super::run::Hook;
use super::{coverage, pool};

/// The programs with maps of their own, without pins and attachments.
///
/// Verifying the programs takes longer than any test. On drop, a bed of default sizes therefore
/// goes to a pool with its maps cleared. The next bed with the same settings is taken from there.
pub struct Bed {
    ebpf: Arc<Mutex<Ebpf>>,
    builder: BedBuilder,
    pub(super) next_service: Cell<u32>,
    pub(super) next_slot: Cell<u32>,
    pub(super) next_way: Cell<u32>,
    pub(super) next_backend: Cell<u32>,
    /// The words of ADDRESS_FILTER, NODE_PORTS and DEVICE_MACS that the test wrote. To clear all takes a thousand times
    /// as long.
    pub(super) marked: RefCell<Vec<(&'static str, u32)>>,
    pub(super) backends: RefCell<HashMap<SocketAddr, BackendRef>>,
}

impl BedBuilder {
    /// Makes the object's maps, with a heartbeat of the agent. A program is loaded when it is first
    /// run, because verifying one takes longer than most tests.
    ///
    /// # Panics
    /// If the object is missing or the kernel refuses its maps.
    #[must_use]
    pub fn load(self) -> Bed {
        let bed = Bed {
            ebpf: pool::take(&self).unwrap_or_else(|| Arc::new(Mutex::new(self.make_maps()))),
            builder: self,
            next_service: Cell::new(1),
            next_slot: Cell::new(0),
            next_way: Cell::new(1),
            next_backend: Cell::new(1),
            marked: RefCell::default(),
            backends: RefCell::default(),
        };
        bed.beat();
        bed
    }
}

impl Bed {
    /// Returns a bed with small maps and default settings.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().load()
    }

    /// Returns a builder, for other settings.
    #[must_use]
    pub fn builder() -> BedBuilder {
        BedBuilder::default()
    }

    /// Writes a heartbeat of the agent. After thirty seconds without one, the programs do not
    /// believe resolved ways.
    pub fn beat(&self) {
        self.set_agent_word(AGENT_HEARTBEAT, monotonic_seconds());
    }

    /// Returns the loaded program, for a tail call.
    ///
    /// # Panics
    /// If the kernel refuses it; the message holds the verifier's log.
    pub fn program_fd(&self, hook: Hook) -> ProgramFd {
        let ebpf = self.with_program(hook);
        let program = ebpf.program(hook.program()).expect("a program that was loaded");
        let fd = program.fd().and_then(|fd| Ok(fd.try_clone()?));
        fd.unwrap_or_else(|error| panic!("{}: {error:?}", hook.program()))
    }

    /// Returns the kernel's id of the loaded program.
    ///
    /// # Panics
    /// If the kernel refuses it; the message holds the verifier's log.
    pub fn program_id(&self, hook: Hook) -> u32 {
        let ebpf = self.with_program(hook);
        let program = ebpf.program(hook.program()).expect("a program that was loaded");
        program.info().unwrap_or_else(|error| panic!("{}: {error:?}", hook.program())).id()
    }

    /// Empties a place in the array of the parts of a loaded program. Beds of default sizes serve other tests later, so
    /// this one must have others.
    ///
    /// # Panics
    /// If the sizes are the default, or the place was empty.
    pub fn remove_part(&self, hook: Hook, part: Part) {
        assert_ne!(self.builder.sizes, Sizes::default(), "another test would get this bed");
        let mut ebpf = self.with_program(hook);
        let program =
            parts_of(hook.program()).find(|program| program.part == part).expect("a part of the program");
        let array = ebpf.map_mut(program.array).expect(program.array);
        let mut array = ProgramArray::try_from(array).expect(program.array);
        array.clear_index(&(part as u32)).unwrap_or_else(|error| panic!("{}: {error:?}", program.name));
    }

    /// Pins the maps in one directory and the programs in another, by their names, as an agent does. The directories
    /// are in a BPF file system.
    ///
    /// # Panics
    /// If a pin can't be made, or the kernel refuses a program.
    pub fn pin(&self, hooks: &[Hook], maps: &Path, programs: &Path) {
        for hook in hooks {
            drop(self.with_program(*hook));
        }
        let mut ebpf = self.ebpf();
        for (name, map) in ebpf.maps() {
            // The agent pins the sections beside the programs.
            let path = match name.strip_prefix('.') {
                Some(section) => programs.join(section.replace('.', "_").to_uppercase()),
                None => maps.join(name),
            };
            map.pin(path).unwrap_or_else(|error| panic!("{name}: {error:?}"));
        }
        for hook in hooks {
            let (name, path) = (hook.program(), programs.join(hook.program()));
            let program = ebpf.program_mut(name).expect("a program that was loaded");
            program.pin(&path).unwrap_or_else(|error| panic!("{name}: {error:?}"));
        }
    }

    /// Returns the object with this program loaded.
    pub(super) fn with_program(&self, hook: Hook) -> MutexGuard<'_, Ebpf> {
        let mut ebpf = self.ebpf();
        unless_refused(|| load_program(&mut ebpf, hook));
        ebpf
    }

    pub(super) fn ebpf(&self) -> MutexGuard<'_, Ebpf> {
        self.ebpf.lock().expect("a bed that no test has left in the middle")
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Ok(ebpf) = self.ebpf.lock() {
            coverage::note(&ebpf);
        }
        if !std::thread::panicking() && self.builder.sizes == Sizes::default() {
            self.clear();
            pool::put(self.builder.clone(), Arc::clone(&self.ebpf));
        }
    }
}

impl Default for Bed {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns `CLOCK_MONOTONIC_COARSE` in seconds, the programs' clock.
///
/// # Panics
/// If there is no such clock.
#[must_use]
pub fn monotonic_seconds() -> u64 {
    let now =
        nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC_COARSE).expect("a monotonic clock");
    u64::try_from(now.tv_sec()).expect("a clock that runs forward")
}

/// Loads a program and its parts unless they are loaded.
fn load_program(ebpf: &mut Ebpf, hook: Hook) -> Result<(), String> {
    let name = hook.program();
    if ebpf.program(name).is_some_and(|program| program.fd().is_ok()) {
        return Ok(());
    }
    for part in parts_of(name) {
        load_one(ebpf, part.name, hook.is_xdp())?;
        fill(ebpf, part.array, part.part as u32, part.name)
            .map_err(|error| format!("{} can't be put into {}: {error}", part.name, part.array))?;
    }
    load_one(ebpf, name, hook.is_xdp())
}

fn fill(ebpf: &mut Ebpf, array: &str, index: u32, program: &str) -> anyhow::Result<()> {
    let fd = ebpf.program(program).context("there is no such program")?.fd()?.try_clone()?;
    let mut array = ProgramArray::try_from(ebpf.map_mut(array).context("there is no such array")?)?;
    Ok(array.set(index, &fd, 0)?)
}

fn load_one(ebpf: &mut Ebpf, name: &str, is_xdp: bool) -> Result<(), String> {
    let program = ebpf.program_mut(name).ok_or_else(|| format!("the object has no program {name}"))?;
    let loaded = if is_xdp {
        <&mut Xdp>::try_from(program).and_then(Xdp::load)
    } else {
        <&mut SchedClassifier>::try_from(program).and_then(SchedClassifier::load)
    };
    loaded.map_err(|error| format!("{name} does not load: {error:?}"))
}
