//! The settings of a bed, and its object with them.

use std::path::PathBuf;
use std::sync::OnceLock;

use aya::util::KernelVersion;
use aya::{Ebpf, EbpfLoader};
use ipnet::{Ipv4Net, Ipv6Net};
use proxy_common::config::{DEFAULT_MARK, DEFAULT_SNAT_PORTS, SHARE_ALONE, TAKES_FOU, TAKES_IPIP, global};
use proxy_common::event::EVENTS_PER_CPU;
use proxy_common::timeouts::Timeouts;
use proxy_common::vip::VIP_CLUSTER_IP;
use proxy_common::{Addr4, Addr6};

/// The reason why the object does not load. It is remembered: each try takes a second, and there
/// are hundreds of tests.
static REFUSED: OnceLock<String> = OnceLock::new();

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

/// Settings of a [`Bed`](super::Bed).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BedBuilder {
    object: PathBuf,
    pub(super) sizes: Sizes,
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

fn cpus() -> u32 {
    aya::util::nr_cpus().ok().and_then(|cpus| u32::try_from(cpus).ok()).expect("a number of CPUs")
}

/// Returns whether the kernel accepts the flags for decapsulation, as the agent does. Kernels
/// before 6.3 refuse them.
fn takes_decap_flags() -> bool {
    KernelVersion::current().is_ok_and(|current| current >= KernelVersion::new(6, 3, 0))
}

/// Loads, unless an earlier load failed: then every test fails at once, with the same reason.
pub(super) fn unless_refused<T>(load: impl FnOnce() -> Result<T, String>) -> T {
    REFUSED.get().inspect(|refusal| panic!("{refusal}"));
    load().unwrap_or_else(|refusal| panic!("{}", REFUSED.get_or_init(|| refusal)))
}
