//! Finds or installs what a task needs from the machine. Nothing asks the network if nothing is
//! missing.

mod apiserver;
mod cluster;
mod debian;
mod e2e;
mod go;
mod go_tools;
mod mounts;
mod policies;
mod prometheus;
mod tools;

use anyhow::Result;
pub use apiserver::{ASSETS, KUBE_PROXY, KUBERNETES, add_built, ensure_apiserver, ensure_kube_proxy};
pub use cluster::ensure_cluster_programs;
pub use debian::is_root;
pub use e2e::{agnhost_data, ensure_e2e_programs};
pub use go_tools::ensure_manifest_tools;
pub use mounts::BPFFS;
pub use policies::{POLICY_PEER, ensure_policy_peer};
pub use prometheus::ensure_prometheus;
pub use tools::{ZIG, zig};

use crate::toolchain::Toolchain;
use crate::workspace::Workspace;

/// Arguments of `cargo xtask setup`.
#[derive(clap::Args)]
pub struct Args {
    /// Build kube-apiserver, etcd, kube-proxy and kube-network-policies too, with Go; the first time
    /// takes a quarter of an hour
    #[arg(long)]
    apiserver: bool,
    /// Build the programs of `cargo xtask cluster` too, with Go; the first time takes half an hour
    #[arg(long)]
    cluster: bool,
}

/// Installs everything that any task needs.
pub fn setup(workspace: &Workspace, args: &Args) -> Result<()> {
    ensure(workspace, &Need::ALL)?;
    if args.apiserver {
        println!("export {ASSETS}={}", ensure_apiserver(workspace)?.display());
        println!("export {KUBE_PROXY}={}", ensure_kube_proxy(workspace)?.display());
        println!("export {POLICY_PEER}={}", ensure_policy_peer(workspace)?.display());
    }
    if args.cluster {
        ensure(workspace, &[Need::Cluster])?;
        ensure_cluster_programs(workspace)?;
    }
    Ok(())
}

/// A purpose for which the machine needs packages and tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The compiler of the BPF object and its linker.
    Build,
    /// The BPF file system, and the tools that the test bed suggests.
    Run,
    /// Foreign programs that the tests use as clients and servers, and to read what is packed.
    Programs,
    /// rustup's linters, and what installs the others.
    Lint,
    /// The linters besides rustup's. Building them takes minutes.
    Linters,
    /// The emulator, and a loader besides aya.
    Vm,
    /// The C compiler and the C library of container images. Only `cargo xtask image` takes it.
    Image,
    /// The container runtime's programs of Debian, for the real cluster.
    Cluster,
}

impl Need {
    /// All purposes but container images and the real cluster.
    pub const ALL: [Self; 6] = [Self::Build, Self::Run, Self::Programs, Self::Lint, Self::Linters, Self::Vm];
}

/// Installs what `needs` lack, or fails with a line that says how to.
pub fn ensure(workspace: &Workspace, needs: &[Need]) -> Result<()> {
    let toolchain = Toolchain::choose(workspace);
    let wanted: Vec<&str> =
        needs.iter().flat_map(|need| packages(*need, toolchain, workspace)).copied().collect();
    debian::ensure_packages(workspace, &wanted)?;
    for need in needs {
        match need {
            Need::Build => {
                toolchain.check(workspace)?;
                tools::ensure_bpf_linker(workspace)?;
            }
            Need::Run | Need::Vm => mounts::ensure_bpffs(workspace)?,
            Need::Programs | Need::Cluster => {}
            Need::Image => tools::ensure_zig(workspace)?,
            Need::Lint => tools::ensure_rustup_components(workspace)?,
            Need::Linters => {
                tools::ensure_cargo_deny(workspace)?;
                tools::ensure_typos(workspace)?;
            }
        }
    }
    Ok(())
}

fn packages(need: Need, toolchain: Toolchain, workspace: &Workspace) -> &'static [&'static str] {
    const LINKER: &[&str] = &["llvm-22-dev", "libpolly-22-dev", "zlib1g-dev", "libzstd-dev", "libxml2-dev"];
    const COMPILER_AND_LINKER: &[&str] = &[
        "rustc-web",
        "rust-web-src",
        "cargo-web",
        "llvm-22-dev",
        "libpolly-22-dev",
        "zlib1g-dev",
        "libzstd-dev",
        "libxml2-dev",
    ];
    match (need, toolchain) {
        (Need::Build, Toolchain::Debian) => COMPILER_AND_LINKER,
        (Need::Build, Toolchain::Nightly) => LINKER,
        (Need::Run, _) => &["mount", "iproute2", "util-linux", "tcpdump", "curl"],
        (Need::Programs, _) => &[
            "bind9-dnsutils",
            "bird2",
            "curl",
            "dnsmasq-base",
            "frr",
            "iperf3",
            "iptables",
            "iputils-tracepath",
            "ncat",
            "nftables",
            "python3",
            "skopeo",
        ],
        (Need::Cluster, _) => &[
            "runc",
            "containernetworking-plugins",
            "iptables",
            "nftables",
            "iproute2",
            "util-linux",
            "gcc",
            "libc6-dev",
        ],
        (Need::Lint, _) if tools::has_typos(workspace) => &[],
        (Need::Linters, _) => &[],
        (Need::Image, _) if tools::has_zig(workspace) => &[],
        (Need::Lint | Need::Image, _) => &["python3-pip"],
        (Need::Vm, _) => &["qemu-system-x86", "mount", "bpftool", "nftables", "iproute2", "ipvsadm", "ncat"],
    }
}
