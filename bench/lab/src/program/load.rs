//! Finding and loading the object.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use anyhow::Context;
use aya::maps::ProgramArray;
use aya::programs::{ProgramFd, SchedClassifier, Xdp};
use aya::util::KernelVersion;
use aya::{Ebpf, EbpfLoader};
use ipnet::{Ipv4Net, Ipv6Net};
use proxy_common::config::{
    AGENT_HEARTBEAT, DEFAULT_MARK, DEFAULT_SNAT_PORTS, SHARE_ALONE, TAKES_FOU, TAKES_IPIP, global,
};
use proxy_common::event::EVENTS_PER_CPU;
use proxy_common::part::parts_of;
use proxy_common::selection::BackendRef;
use proxy_common::timeouts::Timeouts;
use proxy_common::vip::VIP_CLUSTER_IP;
use proxy_common::{Addr4, Addr6};

use super::run::Hook;

/// Returns the path of the BPF object: `MILLRACE_BPF_OBJECT`, else the output of `cargo xtask
/// build`.
#[must_use]
pub fn object_path() -> PathBuf {
    std::env::var_os("MILLRACE_BPF_OBJECT").map_or_else(
        || {
            let workspace = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
            workspace.join("target/bpf/millrace-bpf")
        },
        PathBuf::from,
    )
}

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
    /// The words of ADDRESS_FILTER and NODE_PORTS that the test wrote. To clear all takes a thousand times as long.
    pub(super) marked: RefCell<Vec<(&'static str, u32)>>,
    pub(super) backends: RefCell<HashMap<SocketAddr, BackendRef>>,
}

/// Unused beds of default sizes, the one that was used last at the end.
static POOL: Mutex<Vec<Idle>> = Mutex::new(Vec::new());

/// The most beds in [`POOL`]. The kernel frees all programs of a process when it ends, and Linux 6.18 locks up
/// for good if more than 1024 are freed on one CPU at a time: each takes a place in one queue of work, and the
/// first waits for work that finds no place there.
const MOST_IDLE: usize = 24;

/// The reason why the object does not load. It is remembered: each try takes a second, and there
/// are hundreds of tests.
static REFUSED: OnceLock<String> = OnceLock::new();

type Idle = (BedBuilder, Arc<Mutex<Ebpf>>);

/// The sizes of the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Frontends, services and their statistics.
    pub services: u32,
    /// Slots of SELECTION.
    pub slots: u32,
    /// Backends and hints.
    pub backends: u32,
    /// Entries of FLOWS for each family. FLOWS_NEW has a quarter of them, and no fewer than 1024.
    pub flows: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { services: 1 << 10, slots: 1 << 16, backends: 1 << 10, flows: 1 << 13 }
    }
}

/// Settings of a [`Bed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BedBuilder {
    object: PathBuf,
    sizes: Sizes,
    timeouts: Timeouts,
    mark: (u32, u32),
    reject_unknown: u32,
    snat_ports: (u16, u16),
    reply_ports: (u16, u16),
    fou: u32,
    takes: u32,
    pods_answer: u32,
    outer_source: OuterSource,
    share: u32,
}

/// The sources of encapsulated packets besides the nodes' own addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OuterSource {
    v4: Option<Ipv4Net>,
    v6: Option<Ipv6Net>,
    spread: u32,
}

impl Default for BedBuilder {
    fn default() -> Self {
        let mark = (DEFAULT_MARK, DEFAULT_MARK);
        let (sizes, timeouts) = (Sizes::default(), Timeouts::default());
        let snat_ports = (*DEFAULT_SNAT_PORTS.start(), *DEFAULT_SNAT_PORTS.end());
        let outer_source = OuterSource::default();
        Self {
            object: object_path(),
            sizes,
            timeouts,
            mark,
            reject_unknown: VIP_CLUSTER_IP,
            snat_ports,
            reply_ports: snat_ports,
            fou: 0,
            takes: TAKES_IPIP,
            pods_answer: 0,
            outer_source,
            share: SHARE_ALONE,
        }
    }
}

impl BedBuilder {
    /// Sets the path of the BPF object.
    #[must_use]
    pub fn object(mut self, path: PathBuf) -> Self {
        self.object = path;
        self
    }

    /// Sets the sizes of the maps.
    #[must_use]
    pub fn sizes(mut self, sizes: Sizes) -> Self {
        self.sizes = sizes;
        self
    }

    /// Sets the time-outs of flows.
    #[must_use]
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// Sets the mark of packets that are passed to the stack, and its mask.
    #[must_use]
    pub fn mark(mut self, value: u32, mask: u32) -> Self {
        self.mark = (value, mask);
        self
    }

    /// Sets the kinds of Service addresses that refuse unknown ports: `VIP_*` bits.
    #[must_use]
    pub fn reject_unknown(mut self, kinds: u32) -> Self {
        self.reject_unknown = kinds;
        self
    }

    /// Sets the first and the last SNAT port.
    #[must_use]
    pub fn snat_ports(mut self, first: u16, last: u16) -> Self {
        self.snat_ports = (first, last);
        self.reply_ports(first, last)
    }

    /// Sets the first and the last port of replies to SNAT, which may be more than [`snat_ports`](Self::snat_ports).
    #[must_use]
    pub fn reply_ports(mut self, first: u16, last: u16) -> Self {
        self.reply_ports = (first, last);
        self
    }

    /// Encapsulates packets to other nodes in UDP.
    #[must_use]
    pub fn fou(mut self) -> Self {
        self.fou = 1;
        self.takes(TAKES_FOU)
    }

    /// Sets the encapsulations that the node decapsulates: `TAKES_*` bits. The default is only its
    /// own encapsulation.
    #[must_use]
    pub fn takes(mut self, bits: u32) -> Self {
        self.takes = bits;
        self
    }

    /// Lets pods of this node answer clients themselves.
    #[must_use]
    pub fn pods_answer(mut self) -> Self {
        self.pods_answer = 1;
        self
    }

    /// Accepts encapsulated packets from these prefixes.
    #[must_use]
    pub fn outer_source(mut self, v4: Ipv4Net, v6: Ipv6Net) -> Self {
        self.outer_source = OuterSource { v4: Some(v4), v6: Some(v6), ..self.outer_source };
        self
    }

    /// Sends encapsulated packets from these prefixes, too.
    #[must_use]
    pub fn spread(mut self) -> Self {
        self.outer_source.spread = 1;
        self
    }

    /// Shares connections with another mode: a `SHARE_*` word.
    #[must_use]
    pub fn share(mut self, share: u32) -> Self {
        self.share = share;
        self
    }

    /// Makes the object's maps, with a heartbeat of the agent. A program is loaded when it is first
    /// run, because verifying one takes longer than most tests.
    ///
    /// # Panics
    /// If the object is missing or the kernel refuses its maps.
    #[must_use]
    pub fn load(self) -> Bed {
        let bed = Bed {
            ebpf: self.take_idle().unwrap_or_else(|| Arc::new(Mutex::new(self.make_maps()))),
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

    fn take_idle(&self) -> Option<Arc<Mutex<Ebpf>>> {
        let mut pool = pool();
        let index = pool.iter().position(|(settings, _)| settings == self)?;
        Some(pool.remove(index).1)
    }

    pub(super) fn make_maps(&self) -> Ebpf {
        unless_refused(|| {
            let path = &self.object;
            let object = std::fs::read(path)
                .map_err(|error| format!("{}: {error}; `cargo xtask build` makes it", path.display()))?;
            self.load_object(&object).map_err(|error| format!("{}: {error:?}", path.display()))
        })
    }

    fn load_object(&self, object: &[u8]) -> Result<Ebpf, aya::EbpfError> {
        let Sizes { services, slots, backends, flows } = self.sizes;
        let sizes = [
            ("FRONTENDS4", services * 2),
            ("FRONTENDS6", services * 2),
            ("SERVICES", services),
            ("SERVICE_STATS", services),
            ("SERVICE_CONNECTIONS", services),
            ("SERVICE_HANDSHAKES", services),
            ("BACKEND_CONNECTIONS4", backends),
            ("BACKEND_CONNECTIONS6", backends),
            ("EVENTS", cpus() * EVENTS_PER_CPU),
            ("NAMES", 1),
            ("SELECTION", slots),
            ("BACKENDS4", backends),
            ("BACKENDS6", backends),
            ("HINTS", backends * 2),
            ("VIPS", services),
            ("HOPS4", backends),
            ("HOPS6", backends),
            ("WAYS", 64),
            ("NARROWED", 64),
            ("PEERS", 64),
            ("FLOWS4", flows),
            ("FLOWS6", flows),
            ("FLOWS_NEW4", flows.div_ceil(4).max(1 << 10)),
            ("FLOWS_NEW6", flows.div_ceil(4).max(1 << 10)),
            ("FRAGMENTS4", flows.div_ceil(4)),
            ("FRAGMENTS6", flows.div_ceil(4)),
        ];
        let globals = [
            (global::MARK_VALUE, self.mark.0),
            (global::MARK_MASK, self.mark.1),
            (global::REJECT_UNKNOWN, self.reject_unknown),
            (global::DSR_FOU, self.fou),
            (global::DSR_TAKES, self.takes),
            (global::DSR_POD, self.pods_answer),
            (global::SHARE, self.share),
            (global::TC_DECAP_FLAGS, u32::from(takes_decap_flags())),
            (global::OUTER_SPREAD, self.outer_source.spread),
            (global::SNAT_PORT_FIRST, u32::from(self.snat_ports.0)),
            (global::SNAT_PORT_COUNT, u32::from(self.snat_ports.1 - self.snat_ports.0) + 1),
            (global::SNAT_REPLY_FIRST, u32::from(self.reply_ports.0)),
            (global::SNAT_REPLY_COUNT, u32::from(self.reply_ports.1 - self.reply_ports.0) + 1),
        ];
        let OuterSource { v4, v6, .. } = self.outer_source;
        let v4 = v4.map(|net| [net.network(), net.netmask()].map(|address| Addr4::from(address).0));
        let v6 = v6.map(|net| [net.network(), net.netmask()].map(|address| Addr6::from(address).0));
        let mut loader = EbpfLoader::new();
        let limits = self.timeouts.table();
        loader.override_global(global::FLOW_LIMITS, limits.as_slice(), false);
        if let Some([prefix, mask]) = &v4 {
            loader.override_global(global::OUTER_PREFIX4, prefix.as_slice(), true);
            loader.override_global(global::OUTER_MASK4, mask.as_slice(), true);
        }
        if let Some([prefix, mask]) = &v6 {
            loader.override_global(global::OUTER_PREFIX6, prefix.as_slice(), true);
            loader.override_global(global::OUTER_MASK6, mask.as_slice(), true);
        }
        for (map, entries) in sizes {
            loader.map_max_entries(map, entries);
        }
        for (name, value) in &globals {
            loader.override_global(name, value, false);
        }
        loader.load(object)
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
        if !std::thread::panicking() && self.builder.sizes == Sizes::default() {
            self.clear();
            let mut pool = pool();
            pool.push((self.builder.clone(), Arc::clone(&self.ebpf)));
            if pool.len() > MOST_IDLE {
                drop(pool.remove(0));
            }
        }
    }
}

impl Default for Bed {
    fn default() -> Self {
        Self::new()
    }
}

fn pool() -> MutexGuard<'static, Vec<Idle>> {
    POOL.lock().expect("a pool that is only pushed to and popped from")
}

fn cpus() -> u32 {
    aya::util::nr_cpus().ok().and_then(|cpus| u32::try_from(cpus).ok()).expect("a number of CPUs")
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

/// Returns whether the kernel accepts the flags for decapsulation, as the agent does. Kernels
/// before 6.3 refuse them.
fn takes_decap_flags() -> bool {
    KernelVersion::current().is_ok_and(|current| current >= KernelVersion::new(6, 3, 0))
}

/// Loads, unless an earlier load failed: then every test fails at once, with the same reason.
fn unless_refused<T>(load: impl FnOnce() -> Result<T, String>) -> T {
    REFUSED.get().inspect(|refusal| panic!("{refusal}"));
    load().unwrap_or_else(|refusal| panic!("{}", REFUSED.get_or_init(|| refusal)))
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
