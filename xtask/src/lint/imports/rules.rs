//! The rules, as data: the packages, folders and crates that each may use.

/// Each package of the workspace and the ones it may depend on.
pub const PACKAGES: &[Uses] = &[
    Uses { name: "proxy-common", may_use: &[] },
    Uses { name: "proxy-ebpf", may_use: &["proxy-common"] },
    Uses { name: "millrace-views", may_use: &[] },
    Uses { name: "millrace", may_use: &["proxy-common", "millrace-views"] },
    Uses { name: "millrace-lab", may_use: &["proxy-common", "millrace-views"] },
    Uses { name: "millrace-bench", may_use: &["millrace", "millrace-lab", "proxy-common"] },
    Uses { name: "xtask", may_use: &[] },
    Uses { name: "vm-guest", may_use: &["proxy-common"] },
];

/// The folders of each package that has an order of its own.
pub const FOLDERS: &[Layout] = &[PROGRAMS, AGENT];

/// The order in which a packet meets the folders.
const PROGRAMS: Layout = Layout {
    package: "proxy-ebpf",
    roots: &["bench_wrapper", "bench_rate", "kernel_drops", "pod_firewall"],
    folders: Folders::Layers(&[
        &["main", "parts"],
        &["action"],
        &["hooks"],
        &["announced"],
        &["icmp"],
        &["forward"],
        &["parse"],
        &["select"],
        &["flow"],
        &["packet"],
        &["trace"],
        &["maps"],
        // The firewall is an object of its own.
        &["policy"],
        &["header", "required", "verdict"],
    ]),
};

const AGENT: Layout = Layout {
    package: "millrace",
    // The root files only declare modules and call the command line.
    roots: &["lib", "main"],
    folders: Folders::Each(&[
        Uses { name: "model", may_use: &[] },
        Uses { name: "http", may_use: &[] },
        Uses { name: "heap", may_use: &[] },
        Uses { name: "policy", may_use: &["model"] },
        Uses { name: "source", may_use: &["model", "policy"] },
        Uses { name: "node", may_use: &["model"] },
        Uses { name: "dataplane", may_use: &["model", "policy", "node", "heap"] },
        Uses { name: "config", may_use: &["model", "node", "dataplane"] },
        Uses { name: "explain", may_use: &["dataplane"] },
        Uses { name: "check", may_use: &["model", "source", "node", "dataplane", "config"] },
        Uses { name: "reconcile", may_use: &["model", "source", "node", "dataplane", "heap"] },
        Uses { name: "routes", may_use: &["model", "node", "dataplane", "reconcile"] },
        Uses { name: "announce", may_use: &["model", "node", "dataplane", "reconcile"] },
        Uses { name: "firewall", may_use: &["policy", "model", "source", "node", "dataplane"] },
        Uses { name: "health", may_use: &["model", "source", "dataplane", "reconcile", "firewall", "http"] },
        Uses {
            name: "events",
            may_use: &["policy", "model", "source", "dataplane", "firewall", "reconcile", "health"],
        },
        Uses {
            name: "metrics",
            may_use: &[
                "model",
                "source",
                "dataplane",
                "config",
                "reconcile",
                "announce",
                "firewall",
                "health",
                "http",
            ],
        },
        Uses {
            name: "faces",
            may_use: &[
                "source",
                "dataplane",
                "config",
                "check",
                "reconcile",
                "announce",
                "firewall",
                "health",
                "metrics",
                "http",
            ],
        },
        Uses {
            name: "agent",
            may_use: &[
                "model",
                "source",
                "node",
                "dataplane",
                "config",
                "check",
                "reconcile",
                "announce",
                "routes",
                "firewall",
                "health",
                "events",
                "faces",
            ],
        },
        Uses { name: "controller", may_use: &["model", "source", "http"] },
        Uses { name: "echo", may_use: &[] },
        Uses {
            name: "cli",
            may_use: &[
                "policy",
                "source",
                "node",
                "dataplane",
                "config",
                "check",
                "explain",
                "echo",
                "health",
                "agent",
                "controller",
            ],
        },
        Uses { name: "kubectl", may_use: &["config", "check", "echo", "cli"] },
    ]),
};

/// Crates, modules and types that a folder never names.
pub const NEVER: &[Never] = &[
    Never {
        package: "millrace",
        folder: "model",
        paths: IMPURE,
        why: "the model does no I/O and reads no clock",
    },
    Never {
        package: "millrace",
        folder: "dataplane/ebpf/plan",
        paths: IMPURE,
        why: "a plan does no I/O and reads no clock",
    },
    Never {
        package: "millrace",
        folder: "dataplane/ipvs/plan",
        paths: IMPURE,
        why: "a plan does no I/O and reads no clock",
    },
    Never {
        package: "millrace",
        folder: "controller/plan",
        paths: IMPURE,
        why: "the plan of addresses does no I/O and reads no clock",
    },
    Never {
        package: "millrace",
        folder: "policy",
        paths: IMPURE,
        why: "the model of policies does no I/O and reads no clock",
    },
    Never {
        package: "millrace",
        folder: "model",
        paths: &["std::collections::HashMap", "std::collections::HashSet"],
        why: "the same input gives the same output, so its order is ours",
    },
    Never {
        package: "millrace",
        folder: "policy",
        paths: &["std::collections::HashMap", "std::collections::HashSet"],
        why: "the same input gives the same output, so its order is ours",
    },
];

/// Folders of which none imports from another.
pub const APART: &[Apart] = &[Apart {
    package: "millrace",
    folders: &["dataplane/ebpf", "dataplane/ipvs"],
    why: "a reader of one data plane never has to open the other",
}];

/// Crates that only some folders of a package name.
pub const ONLY: &[Only] = &[
    Only { package: "millrace", krate: "aya*", folders: &["dataplane/ebpf"], why: "maps and programs" },
    Only { package: "millrace", krate: "object", folders: &["dataplane/ebpf"], why: "the programs' object" },
    Only {
        package: "millrace",
        krate: "kube*",
        folders: &["source", "events", "controller", "kubectl"],
        why: "the API server",
    },
    Only { package: "millrace", krate: "rtnetlink", folders: &["node"], why: "the node's network" },
    Only {
        package: "millrace",
        krate: "netlink_*",
        folders: &["dataplane"],
        why: "the kernel's tables of IPVS and of sockets",
    },
    Only {
        package: "millrace",
        krate: "proxy_common",
        folders: &["dataplane", "config", "check", "explain", "announce", "metrics", "events", "cli"],
        why: "the types of maps, and checksums",
    },
];

/// Crates, modules and types that read or change something outside the process, wait, or tell the time.
const IMPURE: &[&str] = &[
    "aya*",
    "inotify",
    "jiff",
    "kube*",
    "libc",
    "netlink_*",
    "nix",
    "rtnetlink",
    "tokio",
    "std::env",
    "std::fs",
    "std::net::Tcp*",
    "std::net::Udp*",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
];

/// A name and the names it may use.
#[derive(Clone, Copy, Debug)]
pub struct Uses {
    /// A package, or a folder or file directly below `src`, without its ending.
    pub name: &'static str,
    /// Others of the same table.
    pub may_use: &'static [&'static str],
}

/// The files of a package and what each may use.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The package's name.
    pub package: &'static str,
    /// Root files without a rule, without their ending.
    pub roots: &'static [&'static str],
    /// Every other folder and file directly below `src`.
    pub folders: Folders,
}

/// Which folder may use which.
#[derive(Clone, Copy, Debug)]
pub enum Folders {
    /// Each names the ones it may use.
    Each(&'static [Uses]),
    /// Each may use those in its own layer and in the layers below; the topmost layer is first.
    Layers(&'static [&'static [&'static str]]),
}

impl Folders {
    /// Returns the folders that a folder may use, or `None` if no rule names it.
    pub fn below(self, name: &str) -> Option<Vec<&'static str>> {
        match self {
            Self::Each(folders) => {
                folders.iter().find(|folder| folder.name == name).map(|folder| folder.may_use.to_vec())
            }
            Self::Layers(layers) => {
                let top = layers.iter().position(|layer| layer.contains(&name))?;
                Some(
                    layers
                        .iter()
                        .skip(top)
                        .copied()
                        .flatten()
                        .copied()
                        .filter(|below| *below != name)
                        .collect(),
                )
            }
        }
    }
}

/// Paths that a folder never names.
#[derive(Clone, Copy, Debug)]
pub struct Never {
    /// The package's name.
    pub package: &'static str,
    /// The folder below `src`.
    pub folder: &'static str,
    /// Paths of other crates; a trailing `*` stands for any rest of a name.
    pub paths: &'static [&'static str],
    /// The reason, for the message.
    pub why: &'static str,
}

/// Folders that import nothing from each other.
#[derive(Clone, Copy, Debug)]
pub struct Apart {
    /// The package's name.
    pub package: &'static str,
    /// The folders below `src`.
    pub folders: &'static [&'static str],
    /// The reason, for the message.
    pub why: &'static str,
}

/// The folders that may name a crate.
#[derive(Clone, Copy, Debug)]
pub struct Only {
    /// The package's name.
    pub package: &'static str,
    /// The crate; a trailing `*` stands for any rest of its name.
    pub krate: &'static str,
    /// The folders below `src` that may name it.
    pub folders: &'static [&'static str],
    /// The purpose of the crate, for the message.
    pub why: &'static str,
}
