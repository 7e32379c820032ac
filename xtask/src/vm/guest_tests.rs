//! Test targets inside machines: built here, carried there with the libraries they need.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::OBJECT_IN_GUEST;
use super::image::{self, Contents};
use super::kernel::{self, Kernel};
use super::qemu::{self, Machine};
use crate::command;
use crate::test::{self, Outcome, Tally};
use crate::workspace::Workspace;

/// A test target that machines run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Modules it takes, each after those it needs.
    modules: &'static [&'static str],
    /// The kernels and the tests of its test layer, which has minutes, not an hour.
    kernels: &'static [&'static str],
    filters: &'static [&'static str],
    /// Whether it starts agents.
    takes_agent: bool,
    /// Programs of this machine that it or its agents run.
    tools: &'static [&'static str],
}

impl Target {
    /// Whole frames.
    pub const PACKET: Self = Self {
        name: "packet",
        modules: &[],
        kernels: &["6.1", "6.12"],
        filters: &["sctp::", "backend_node::a_hinted", "backend_node::a_flow_entry"],
        takes_agent: false,
        tools: &[],
    };
    /// Sockets over SCTP, which few machines have.
    pub const SCTP: Self = Self {
        name: "sctp",
        kernels: &["6.12"],
        filters: &[],
        modules: &[
            "net/llc/llc",
            "net/802/stp",
            "net/bridge/bridge",
            "net/ipv4/udp_tunnel",
            "net/ipv6/ip6_udp_tunnel",
            "lib/libcrc32c",
            "net/sctp/sctp",
        ],
        takes_agent: true,
        tools: &["/usr/bin/ncat", "/usr/sbin/ip"],
    };
    /// Agents that serve by IPVS, whose modules few machines have.
    pub const IPVS: Self = Self {
        name: "ipvs",
        kernels: &["6.1"],
        // Not those of a change of mode: they load the programs once or twice, which takes half a minute and more each time.
        filters: &[
            "bad_input::",
            "direct::",
            "lifetimes::",
            "neighbours::",
            "reach::",
            "scale::",
            "schedulers::",
            "views::",
        ],
        modules: &[
            "drivers/net/dummy",
            "net/llc/llc",
            "net/802/stp",
            "net/bridge/bridge",
            "net/bridge/br_netfilter",
            "net/ipv4/netfilter/nf_defrag_ipv4",
            "net/ipv6/netfilter/nf_defrag_ipv6",
            "lib/libcrc32c",
            "net/netfilter/nf_conntrack",
            "net/netfilter/ipvs/ip_vs",
            "net/netfilter/ipvs/ip_vs_rr",
            "net/netfilter/ipvs/ip_vs_wrr",
            "net/netfilter/ipvs/ip_vs_lc",
            "net/netfilter/ipvs/ip_vs_wlc",
            "net/netfilter/ipvs/ip_vs_lblc",
            "net/netfilter/ipvs/ip_vs_lblcr",
            "net/netfilter/ipvs/ip_vs_sh",
            "net/netfilter/ipvs/ip_vs_dh",
            "net/netfilter/ipvs/ip_vs_sed",
            "net/netfilter/ipvs/ip_vs_nq",
            "net/netfilter/ipvs/ip_vs_fo",
            "net/netfilter/ipvs/ip_vs_ovf",
            "net/netfilter/ipvs/ip_vs_mh",
            "net/netfilter/nfnetlink",
            "net/netfilter/nf_tables",
            "net/netfilter/nft_ct",
            "net/netfilter/nf_nat",
            "net/netfilter/nft_chain_nat",
            "net/netfilter/nft_masq",
            "net/ipv4/netfilter/nf_reject_ipv4",
            "net/ipv6/netfilter/nf_reject_ipv6",
            "net/netfilter/nft_reject",
            "net/netfilter/nft_reject_inet",
            "net/netfilter/nft_fib",
            "net/ipv6/netfilter/nft_fib_ipv6",
            "net/ipv4/netfilter/nft_fib_ipv4",
            "net/netfilter/nft_fib_inet",
            "net/netfilter/nft_nat",
            "net/ipv4/tunnel4",
            "net/ipv4/ip_tunnel",
            "net/ipv4/ipip",
            "net/ipv6/tunnel6",
            "net/ipv6/ip6_tunnel",
        ],
        takes_agent: true,
        tools: &["/usr/sbin/nft", "/usr/sbin/ip", "/usr/sbin/ipvsadm"],
    };
    /// Tunnel devices, which few machines have.
    pub const TUNNELS: Self = Self {
        name: "tunnels",
        kernels: &["6.12"],
        filters: &["pods_take_off", "uplinks::"],
        modules: &[
            "net/llc/llc",
            "net/802/stp",
            "net/bridge/bridge",
            "net/ipv4/udp_tunnel",
            "net/ipv6/ip6_udp_tunnel",
            "net/ipv4/ip_tunnel",
            "net/ipv4/tunnel4",
            "net/ipv6/tunnel6",
            "net/ipv4/ipip",
            "net/ipv6/ip6_tunnel",
            "net/ipv4/fou",
            "net/ipv6/fou6",
            "net/802/garp",
            "net/802/mrp",
            "net/8021q/8021q",
            "drivers/net/vxlan/vxlan",
            "arch/x86/crypto/poly1305-x86_64",
            "lib/crypto/libchacha",
            "arch/x86/crypto/chacha-x86_64",
            "lib/crypto/libchacha20poly1305",
            "lib/crypto/libcurve25519-generic",
            "arch/x86/crypto/curve25519-x86_64",
            "drivers/net/wireguard/wireguard",
        ],
        takes_agent: true,
        tools: &["/usr/sbin/ip"],
    };
    /// All.
    pub const ALL: [Self; 4] = [Self::PACKET, Self::SCTP, Self::IPVS, Self::TUNNELS];

    /// The target of that name.
    pub fn named(name: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|target| target.name == name) {
            Some(target) => Ok(target),
            None => {
                bail!("machines don't run `{name}`; they run {}", Self::ALL.map(|one| one.name).join(", "))
            }
        }
    }
}

/// What a target may take on a kernel, under emulation and on a busy machine; more is a hang.
const BOUND: Duration = Duration::from_mins(25);
/// How many times longer tests wait than on a real machine.
const PATIENCE: &str = "10";
const PROGRAM: &str = "/tests";
const AGENT: &str = "/millrace";
const PATH: &str = "/usr/sbin:/usr/bin";

/// How agents are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// As all tests are.
    Debug,
    /// As they are installed.
    Release,
}

impl Profile {
    const fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Debug => &[],
            Self::Release => &["--release"],
        }
    }

    const fn directory(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Release => "release",
        }
    }
}

/// What the test layer runs of a target.
pub fn run_layer(workspace: &Workspace, target: Target) -> Result<Tally> {
    let kernels = kernel::KERNELS.iter().filter(|kernel| target.kernels.contains(&kernel.name));
    let filters: Vec<_> = target.filters.iter().map(|filter| (*filter).to_owned()).collect();
    run_on(workspace, kernels, target, Profile::Debug, &filters)
}

/// Runs a target on those kernels that are not this machine's own, whose tests are layers of their own.
pub fn run_on<'a>(
    workspace: &Workspace,
    kernels: impl Iterator<Item = &'a Kernel>,
    target: Target,
    profile: Profile,
    filters: &[String],
) -> Result<Tally> {
    let program = build(workspace, target)?;
    let mut programs = vec![(program, PROGRAM)];
    if target.takes_agent {
        command::run(workspace.cargo().args(["build", "--package", "millrace"]).args(profile.flags()))?;
        let agent = workspace.target().join(profile.directory()).join("millrace");
        programs.push((stripped(workspace, &agent, "millrace")?, AGENT));
    }
    programs.extend(target.tools.iter().map(|tool| (PathBuf::from(tool), *tool)));
    let outcomes = kernels.filter_map(|kernel| Some((kernel, kernel.suite?))).map(|(kernel, suite)| {
        let title = format!("{} on kernel {}", target.name, kernel.name);
        test::settle(&title, run_one(workspace, kernel, suite, target, &programs, filters))
    });
    Ok(outcomes.sum())
}

fn run_one(
    workspace: &Workspace,
    kernel: &Kernel,
    suite: &str,
    target: Target,
    programs: &[(PathBuf, &str)],
    filters: &[String],
) -> Result<Outcome> {
    if let Some(reason) = kernel.obstacle()? {
        return Ok(Outcome::Unable(reason));
    }
    let start = Instant::now();
    let unpacked = kernel::ensure(workspace, kernel.name, suite)?;
    let guest = workspace.target().join("debug/vm-guest");
    let mut words = vec![PROGRAM];
    words.extend(filters.iter().map(String::as_str));
    let mut environment = vec![
        ("CI", "true"),
        ("MILLRACE_BPF_OBJECT", OBJECT_IN_GUEST),
        ("MILLRACE_BIN", AGENT),
        ("MILLRACE_PATIENCE", PATIENCE),
        ("PATH", PATH),
    ];
    if std::env::var_os("MILLRACE_LONG").is_some() {
        environment.push(("MILLRACE_LONG", "1"));
    }
    let contents = Contents {
        guest: &guest,
        words: &words,
        environment: &environment,
        modules: target.modules,
        programs,
        files: &[(workspace.bpf_object(), OBJECT_IN_GUEST)],
    };
    let image = image::build(workspace, &unpacked, target.name, &contents)?;
    let console = image::directory(workspace)?.join(format!("{}-{}.console", kernel.name, target.name));
    let machine = Machine { kernel: &unpacked.image, image: &image, console: &console, bound: BOUND };
    let ran = qemu::run(workspace, &machine)?;
    let tally: Tally = ran.console.lines().filter_map(|line| Tally::from_result_line(line.trim_end())).sum();
    println!("{} on kernel {} ({:.0} s): {tally}", target.name, kernel.name, start.elapsed().as_secs_f64());
    if tally.failed == 0 {
        ran.require(&console)?;
    } else {
        for line in ran.console.lines().filter(|line| line.trim_end().ends_with("... FAILED")) {
            eprintln!("  | {}", line.trim_end());
        }
        eprintln!("  the whole console is in {}", console.display());
    }
    Ok(Outcome::Ran(tally))
}

/// The target's program, without what only debuggers read.
fn build(workspace: &Workspace, target: Target) -> Result<PathBuf> {
    let mut cargo = workspace.cargo();
    cargo.args(["test", "--workspace", "--no-run", "--message-format", "json", "--test", target.name]);
    let messages = command::output(&mut cargo)?;
    let program = messages
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .find_map(|message| executable(&message, target.name))
        .with_context(|| format!("cargo has built no test target `{}`", target.name))?;
    stripped(workspace, &program, target.name)
}

fn executable(message: &Value, target: &str) -> Option<PathBuf> {
    let is_it = message.get("target")?.get("name")? == target && message.get("profile")?.get("test")? == true;
    is_it.then(|| message.get("executable")?.as_str().map(PathBuf::from))?
}

fn stripped(workspace: &Workspace, program: &Path, name: &str) -> Result<PathBuf> {
    let copy = image::directory(workspace)?.join(name);
    fs::copy(program, &copy).with_context(|| format!("can't copy {}", program.display()))?;
    command::run(workspace.command("strip").arg("--strip-debug").arg(&copy))?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_program_of_a_test_target_is_found_among_cargos_messages() {
        let message = |name: &str, test| {
            json!({"reason": "compiler-artifact", "target": {"name": name}, "profile": {"test": test},
                   "executable": "/deps/it-1"})
        };
        assert_eq!(executable(&message("packet", true), "packet"), Some(PathBuf::from("/deps/it-1")));
        assert_eq!(executable(&message("packet", false), "packet"), None);
        assert_eq!(executable(&message("other", true), "packet"), None);
        assert_eq!(executable(&json!({"reason": "build-finished"}), "packet"), None);
    }

    #[test]
    fn a_target_that_machines_do_not_run_is_refused() {
        assert_eq!(Target::named("packet").unwrap(), Target::PACKET);
        let error = Target::named("nothing").unwrap_err().to_string();
        assert!(error.contains("they run packet"), "{error}");
    }
}
