//! The programs: loaded, or taken over from an earlier agent.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use aya::programs::{Program as LoadedBy, ProgramError};
use aya::util::KernelVersion;
use aya::{Ebpf, EbpfLoader};
use proxy_common::config::global;
use proxy_common::part::{PartProgram, parts_of};
use proxy_common::{Addr4, Addr6};
use tracing::{debug, info};

use super::bpffs::{entries, remove_tree};
use super::error::OpenError;
use super::hooks::SocketHook;
use super::inventory::{check_maps, maps, renew_counters, size_of_map};
use super::layout::Layout;
use super::object::OBJECT;
use super::parts;
use super::pins;
use super::program::Program;
use super::settings::{Dispatch, OwnSource, Settings, SocketLb, XdpMode};
use super::shape;
use crate::dataplane::Encapsulation;
use crate::model::fnv1a;
use crate::node::Hook;

/// The loaded programs of uplinks, of pods' devices and of sockets.
#[derive(Debug)]
pub struct Programs {
    /// `xdp_ingress`, loaded for the first device with XDP: its verification takes longest.
    pub xdp_ingress: Option<Program>,
    /// Packets from an uplink without XDP, or passed by XDP.
    pub tc_ingress: Program,
    /// Packets that leave the node.
    pub tc_egress: Program,
    /// Packets from a pod.
    pub tc_pod_in: Program,
    /// Packets to a pod.
    pub tc_pod_out: Program,
    /// The programs of sockets, in the order of [`SocketHook::ALL`].
    sockets: Vec<Program>,
    /// The programs for devices without Ethernet frames, loaded for the first such device: their verification
    /// takes as long.
    pub bare: Option<BarePrograms>,
    /// The directory of their pins.
    pub directory: PathBuf,
    constants: Constants,
    /// The directories of other builds and settings, whose programs may still serve.
    former: Vec<PathBuf>,
}

/// The TC programs for devices without Ethernet frames.
#[derive(Debug)]
pub struct BarePrograms {
    /// As `tc_ingress`.
    pub tc_ingress_l3: Program,
    /// As `tc_egress`.
    pub tc_egress_l3: Program,
}

const XDP_INGRESS: &str = "xdp_ingress";
const TC_INGRESS: &str = "tc_ingress";
const TC_EGRESS: &str = "tc_egress";
const TC_POD_IN: &str = "tc_pod_in";
const TC_POD_OUT: &str = "tc_pod_out";
const TC_INGRESS_L3: &str = "tc_ingress_l3";
const TC_EGRESS_L3: &str = "tc_egress_l3";
/// The programs that are always loaded.
const USUAL: [&str; 4] = [TC_INGRESS, TC_EGRESS, TC_POD_IN, TC_POD_OUT];

/// Programs that are loaded for the first device that needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// `xdp_ingress`.
    Xdp,
    /// The programs for devices without Ethernet frames.
    Bare,
}

impl Extra {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Xdp, Self::Bare];

    const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Xdp => &[XDP_INGRESS],
            Self::Bare => &[TC_INGRESS_L3, TC_EGRESS_L3],
        }
    }

    /// Returns the consequence of a failure to load them.
    #[must_use]
    pub const fn without(self) -> &'static str {
        match self {
            Self::Xdp => "no device has XDP; tc_ingress serves them",
            Self::Bare => "devices without Ethernet frames are not served",
        }
    }

    /// Whether a hook runs one of them if XDP is attached in this mode.
    #[must_use]
    pub fn has(self, hook: Hook, mode: XdpMode) -> bool {
        match self {
            Self::Xdp => hook == Hook::Xdp && mode != XdpMode::Off,
            Self::Bare => matches!(hook, Hook::TcIngressL3 | Hook::TcEgressL3),
        }
    }
}

impl Programs {
    /// Returns the programs of this build with these settings.
    ///
    /// `replies` are the ports at which they look for replies to SNAT. The programs that an earlier agent pinned are taken over if they are the same and use the same maps.
    /// Else new ones are loaded. Links still run the programs they ran before.
    pub fn open(
        settings: &Settings,
        layout: &Layout,
        replies: &RangeInclusive<u16>,
    ) -> Result<Self, OpenError> {
        let constants = Constants::new(settings, replies);
        let directory = layout.programs().join(constants.fingerprint());
        shape::check(&layout.maps())?;
        renew_counters(&layout.maps())?;
        if pins::are_usable(&directory, &layout.maps(), &USUAL) {
            debug!(directory = %directory.display(), "programs are unchanged");
        } else {
            pins::set_aside(&directory, &USUAL)?;
            load(settings, &constants, layout, &directory, &USUAL)?;
        }
        let mut former = entries(&layout.programs())?;
        former.retain(|path| *path != directory);
        Ok(Self {
            // An earlier agent loaded it.
            xdp_ingress: if_there(Program::open(&directory, XDP_INGRESS))?,
            tc_ingress: Program::open(&directory, TC_INGRESS)?,
            tc_egress: Program::open(&directory, TC_EGRESS)?,
            tc_pod_in: Program::open(&directory, TC_POD_IN)?,
            tc_pod_out: Program::open(&directory, TC_POD_OUT)?,
            sockets: SocketHook::ALL
                .into_iter()
                .map(|hook| Program::open(&directory, hook.name))
                .collect::<Result<_, _>>()?,
            // As `xdp_ingress`.
            bare: if_there(BarePrograms::open(&directory))?,
            directory,
            constants,
            former,
        })
    }

    /// Removes the programs of other builds and settings, once no link runs them.
    ///
    /// The kernel empties an array of parts with its last pin. A program that still ran would then drop the
    /// packets of its parts.
    pub fn remove_former(&mut self) -> Result<(), OpenError> {
        while let Some(directory) = self.former.last() {
            remove_tree(directory, &mut Vec::new())?;
            self.former.pop();
        }
        Ok(())
    }

    /// Whether these programs are loaded.
    #[must_use]
    pub const fn have(&self, extra: Extra) -> bool {
        match extra {
            Extra::Xdp => self.xdp_ingress.is_some(),
            Extra::Bare => self.bare.is_some(),
        }
    }

    /// Loads these programs unless they are loaded.
    pub fn need(&mut self, extra: Extra, settings: &Settings, layout: &Layout) -> Result<(), OpenError> {
        if self.have(extra) {
            return Ok(());
        }
        load(settings, &self.constants, layout, &self.directory, extra.names())?;
        match extra {
            Extra::Xdp => self.xdp_ingress = Some(Program::open(&self.directory, XDP_INGRESS)?),
            Extra::Bare => self.bare = Some(BarePrograms::open(&self.directory)?),
        }
        Ok(())
    }

    /// Returns the program for a hook; `None` if it is not loaded.
    #[must_use]
    pub fn of(&self, hook: Hook) -> Option<&Program> {
        match hook {
            Hook::Xdp => self.xdp_ingress.as_ref(),
            Hook::TcIngress => Some(&self.tc_ingress),
            Hook::TcEgress => Some(&self.tc_egress),
            Hook::TcPodIn => Some(&self.tc_pod_in),
            Hook::TcPodOut => Some(&self.tc_pod_out),
            Hook::TcIngressL3 => self.bare.as_ref().map(|bare| &bare.tc_ingress_l3),
            Hook::TcEgressL3 => self.bare.as_ref().map(|bare| &bare.tc_egress_l3),
        }
    }

    /// Returns the program for a hook of sockets.
    #[must_use]
    pub fn of_socket(&self, hook: SocketHook) -> Option<&Program> {
        self.sockets.iter().find(|program| program.name == hook.name)
    }
}

impl BarePrograms {
    fn open(directory: &Path) -> Result<Self, OpenError> {
        Ok(Self {
            tc_ingress_l3: Program::open(directory, TC_INGRESS_L3)?,
            tc_egress_l3: Program::open(directory, TC_EGRESS_L3)?,
        })
    }
}

/// Returns what an earlier agent pinned, and `None` if it did not.
fn if_there<T>(opened: Result<T, OpenError>) -> Result<Option<T>, OpenError> {
    match opened {
        Err(OpenError::File { error, .. }) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// The load-time constants of the programs.
#[derive(Debug)]
struct Constants {
    /// Words by name: one, or four for an IPv6 address, or those of a table.
    values: Vec<(&'static str, Vec<u32>)>,
}

impl Constants {
    fn new(settings: &Settings, replies: &RangeInclusive<u16>) -> Self {
        let words = [
            (global::MARK_VALUE, settings.mark.value),
            (global::MARK_MASK, settings.mark.mask),
            (global::REJECT_UNKNOWN, settings.refusing_vips()),
            (global::DSR_FOU, u32::from(settings.dsr.encapsulation == Encapsulation::Fou)),
            (global::DSR_TAKES, settings.takes()),
            (global::DSR_POD, u32::from(settings.dsr.dispatch == Dispatch::Pod)),
            (global::OUTER_SPREAD, u32::from(settings.dsr.outer_source.own == OwnSource::Spread)),
            (global::TC_DECAP_FLAGS, since(KernelVersion::new(6, 3, 0))),
            (global::SNAT_PORT_FIRST, u32::from(*settings.snat_ports.start())),
            (global::SNAT_PORT_COUNT, u32::try_from(settings.snat_ports.len()).unwrap_or(0)),
            (global::SNAT_REPLY_FIRST, u32::from(*replies.start())),
            (global::SNAT_REPLY_COUNT, u32::try_from(replies.len()).unwrap_or(0)),
            (global::FIB_SOURCE, since(KernelVersion::new(6, 7, 0))),
            (global::SHARE, settings.share.word()),
            (global::SOCKET_NODE_ONLY, u32::from(settings.sockets.lb == SocketLb::Host)),
        ];
        let outer = &settings.dsr.outer_source;
        let v4 = outer.v4.map(|net| (Addr4::from(net.network()).0, Addr4::from(net.netmask()).0));
        let v6 = outer.v6.map(|net| (Addr6::from(net.network()).0, Addr6::from(net.netmask()).0));
        let ((prefix4, mask4), (prefix6, mask6)) = (v4.unwrap_or_default(), v6.unwrap_or_default());
        let tables = [
            (global::FLOW_LIMITS, settings.timeouts.table().to_vec()),
            (global::OUTER_PREFIX4, prefix4.to_vec()),
            (global::OUTER_MASK4, mask4.to_vec()),
            (global::OUTER_PREFIX6, prefix6.to_vec()),
            (global::OUTER_MASK6, mask6.to_vec()),
        ];
        let words = words.into_iter().map(|(name, word)| (name, vec![word]));
        Self { values: words.chain(tables).collect() }
    }

    /// Returns a name for this object with these constants: FNV-1a over both. The kernel's own tag of a
    /// program does not tell constants apart.
    fn fingerprint(&self) -> String {
        let constants = self.values.iter().flat_map(|(_, words)| words).flat_map(|word| word.to_le_bytes());
        format!("{:016x}", fnv1a(OBJECT.iter().copied().chain(constants)))
    }
}

/// Returns 1 on this kernel version and later ones, else 0.
fn since(version: KernelVersion) -> u32 {
    u32::from(KernelVersion::current().is_ok_and(|current| current >= version))
}

fn load(
    settings: &Settings,
    constants: &Constants,
    layout: &Layout,
    directory: &Path,
    names: &[&'static str],
) -> Result<(), OpenError> {
    let started = Instant::now();
    // The kernel verifies them, which takes seconds.
    info!(programs = names.join(", "), "loading programs");
    let mut loader = EbpfLoader::new();
    for (name, words) in &constants.values {
        loader.override_global(name, words.as_slice(), true);
    }
    for (name, size) in maps(&settings.sizes) {
        let pin = layout.maps().join(name);
        if let Some(size) = size_of_map(layout, name, size) {
            loader.map_max_entries(name, size);
        }
        loader.map_pin_path(name, pin);
    }
    let parts: Vec<&PartProgram> = names.iter().copied().flat_map(parts_of).collect();
    for part in &parts {
        loader.map_pin_path(part.array, directory.join(part.array));
    }
    std::fs::create_dir_all(directory)
        .map_err(|error| OpenError::File { path: directory.to_owned(), error })?;
    // An agent killed between two pins left them. No link runs such a program.
    for name in names.iter().copied().chain(parts.iter().flat_map(|part| [part.name, part.array])) {
        pins::remove(&directory.join(name))?;
    }
    let mut object = loader.load(OBJECT).map_err(OpenError::Object)?;
    check_maps(&object)?;
    let sockets = if names.contains(&TC_INGRESS) { SocketHook::ALL.as_slice() } else { &[] };
    let parts_first = parts.iter().map(|part| part.name);
    let wanted: Vec<_> =
        parts_first.chain(names.iter().copied()).chain(sockets.iter().map(|hook| hook.name)).collect();
    load_programs(&mut object, &wanted)?;
    parts.into_iter().try_for_each(|part| parts::fill(&mut object, part))?;
    pins::add_sections(&object, directory)?;
    wanted.into_iter().try_for_each(|name| pins::add_program(&object, name, directory))?;
    let seconds = format!("{:.1}", started.elapsed().as_secs_f64());
    info!(programs = names.join(", "), seconds, "programs loaded");
    Ok(())
}

/// Loads programs, two at a time: the kernel verifies each on the CPU of its caller. More at a time would need
/// more memory at once.
pub(super) fn load_programs(object: &mut Ebpf, names: &[&'static str]) -> Result<(), OpenError> {
    const THREADS: usize = 2;
    let mut programs: BTreeMap<String, &mut LoadedBy> =
        object.programs_mut().map(|(name, program)| (name.to_owned(), program)).collect();
    let mut found = Vec::new();
    for name in names.iter().copied() {
        found.push((name, programs.remove(name).ok_or(OpenError::NoProgram { program: name })?));
    }
    let queue = Mutex::new(found.into_iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some((name, program)) = next() {
            load_program(program, name)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..THREADS).map(|_| scope.spawn(work)).collect();
        let own = work();
        let results =
            others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        results.chain([own]).collect()
    })
}

fn load_program(program: &mut LoadedBy, name: &'static str) -> Result<(), OpenError> {
    let loaded = match program {
        LoadedBy::Xdp(xdp) => xdp.load(),
        LoadedBy::SchedClassifier(classifier) => classifier.load(),
        LoadedBy::CgroupSockAddr(hook) => hook.load(),
        LoadedBy::CgroupSock(hook) => hook.load(),
        _ => Err(ProgramError::UnexpectedProgramType),
    };
    loaded.map_err(|error| OpenError::load(name, error))
}
