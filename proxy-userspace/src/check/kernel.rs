//! The kernel and the rights of this process.

use std::fs;
use std::path::Path;

use super::{Facts, Finding, Fix};
use crate::config::ProxyMode;
use crate::dataplane::ebpf;

/// The first version with multi-buffer XDP.
const FIRST: (u32, u32) = (5, 18);
/// The first version with tcx links.
const FIRST_TCX: (u32, u32) = (6, 6);

/// The kernel, as far as the data path depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// The release, such as `6.12.9-amd64`.
    pub release: String,
    /// `net.core.bpf_jit_enable`; none where it is not visible, such as in another network namespace.
    pub jit: Option<String>,
    /// Whether IPVS is loaded, built in, or to be loaded.
    pub has_ipvs: bool,
    /// The capabilities that the agent needs and this process lacks.
    pub missing_capabilities: Vec<&'static str>,
}

impl Kernel {
    /// Reads /proc, and the kernel's list of modules.
    pub fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let release = text("/proc/sys/kernel/osrelease").unwrap_or_default();
        let modules = format!("/lib/modules/{release}");
        let is_listed = |list: &str| {
            fs::read_to_string(format!("{modules}/{list}")).is_ok_and(|names| names.contains("/ip_vs.ko"))
        };
        Self {
            jit: text("/proc/sys/net/core/bpf_jit_enable"),
            has_ipvs: Path::new("/proc/net/ip_vs").exists()
                || is_listed("modules.builtin")
                || is_listed("modules.dep"),
            missing_capabilities: ebpf::missing_capabilities(),
            release,
        }
    }

    /// Returns the first two numbers of the release.
    fn version(&self) -> Option<(u32, u32)> {
        let mut numbers = self.release.split(|c: char| !c.is_ascii_digit());
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

pub fn version(facts: &Facts) -> Vec<Finding> {
    let release = &facts.kernel.release;
    vec![match facts.kernel.version() {
        Some(version) if version >= FIRST_TCX => {
            Finding::pass(format!("{release}; TC programs are tcx links"))
        }
        Some(version) if version >= FIRST => {
            Finding::pass(format!("{release}; TC programs are filters of the qdisc clsact"))
        }
        Some(_) if facts.settings.proxy_mode == ProxyMode::Ipvs => {
            Finding::pass(format!("{release}; with --proxy-mode ipvs no program is loaded"))
        }
        Some(_) if facts.settings.proxy_mode == ProxyMode::Auto && facts.kernel.has_ipvs => Finding::warn(
            format!("{release} is older than 5.18: the programs don't load, and IPVS serves instead"),
            "install a kernel from 5.18 on",
        ),
        Some(_) => Finding::fail(
            format!("{release} is older than 5.18: the programs don't load"),
            "install a kernel from 5.18 on, or the modules of IPVS",
        ),
        None => Finding::skip(format!("the release {release:?} has no version")),
    }]
}

pub fn jit(facts: &Facts) -> Vec<Finding> {
    vec![match facts.kernel.jit.as_deref() {
        Some("0") => Fix::sysctl("core/bpf_jit_enable", 1)
            .warn("net.core.bpf_jit_enable is 0: the kernel interprets each program, many times slower"),
        Some(_) => Finding::pass("programs are compiled"),
        None => Finding::skip(
            "net.core.bpf_jit_enable is not visible in this network namespace, or this kernel always compiles",
        ),
    }]
}

pub fn ipvs(facts: &Facts) -> Vec<Finding> {
    vec![match (facts.settings.proxy_mode, facts.kernel.has_ipvs) {
        (ProxyMode::Ipvs, true) => Finding::pass("this kernel has IPVS"),
        (ProxyMode::Ipvs, false) => Finding::fail(
            "--proxy-mode ipvs: this kernel has no IPVS, so no Service is served",
            "install the kernel's module ip_vs, or use --proxy-mode ebpf",
        ),
        (ProxyMode::Auto, true) => Finding::pass("this kernel has IPVS, should eBPF not do"),
        (ProxyMode::Auto, false) => {
            Finding::skip("no IPVS is visible here: with --proxy-mode auto eBPF serves, or nothing")
        }
        (ProxyMode::Ebpf | ProxyMode::None, _) => {
            Finding::skip(format!("not used with --proxy-mode {}", facts.settings.proxy_mode.name()))
        }
    }]
}

pub fn capabilities(facts: &Facts) -> Vec<Finding> {
    let missing = facts.kernel.missing_capabilities.join(", ");
    vec![if missing.is_empty() {
        Finding::pass("CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN")
    } else {
        Finding::warn(
            format!("this process lacks {missing}: some checks are skipped, and an agent could not start so"),
            "run it as root, or with these capabilities",
        )
    }]
}

#[cfg(test)]
mod tests {
    use super::super::finding::Outcome;
    use super::*;

    fn outcome(judge: fn(&Facts) -> Vec<Finding>, kernel: Kernel, mode: ProxyMode) -> Outcome {
        let mut facts = Facts::example();
        facts.kernel = kernel;
        facts.settings.proxy_mode = mode;
        judge(&facts)[0].outcome
    }

    fn of_release(release: &str, has_ipvs: bool) -> Kernel {
        Kernel { release: release.to_owned(), has_ipvs, ..Kernel::default() }
    }

    #[test]
    fn an_old_kernel_is_a_fault_unless_ipvs_serves() {
        for (release, has_ipvs, mode, expected) in [
            ("6.12.9-amd64", false, ProxyMode::Auto, Outcome::Pass),
            ("5.18.0", false, ProxyMode::Ebpf, Outcome::Pass),
            ("5.15.0-91-generic", true, ProxyMode::Auto, Outcome::Warn),
            ("5.15.0-91-generic", false, ProxyMode::Auto, Outcome::Fail),
            ("5.15.0-91-generic", true, ProxyMode::Ebpf, Outcome::Fail),
            ("4.19.0", true, ProxyMode::Ipvs, Outcome::Pass),
            ("", true, ProxyMode::Auto, Outcome::Skip),
        ] {
            assert_eq!(outcome(version, of_release(release, has_ipvs), mode), expected, "{release}");
        }
    }

    #[test]
    fn ipvs_is_missed_where_it_is_asked_for() {
        assert_eq!(outcome(ipvs, of_release("6.12", false), ProxyMode::Ipvs), Outcome::Fail);
        assert_eq!(outcome(ipvs, of_release("6.12", false), ProxyMode::Auto), Outcome::Skip);
        assert_eq!(outcome(ipvs, of_release("6.12", true), ProxyMode::Ipvs), Outcome::Pass);
        assert_eq!(outcome(ipvs, of_release("6.12", true), ProxyMode::Ebpf), Outcome::Skip);
    }

    #[test]
    fn an_interpreter_is_a_warning() {
        let with = |jit: Option<&str>| Kernel { jit: jit.map(str::to_owned), ..Kernel::default() };
        assert_eq!(outcome(jit, with(Some("0")), ProxyMode::Auto), Outcome::Warn);
        assert_eq!(outcome(jit, with(Some("1")), ProxyMode::Auto), Outcome::Pass);
        assert_eq!(outcome(jit, with(None), ProxyMode::Auto), Outcome::Skip);
    }

    #[test]
    fn missing_capabilities_are_named() {
        let mut facts = Facts::example();
        facts.kernel.missing_capabilities = vec!["CAP_BPF", "CAP_PERFMON"];
        assert!(capabilities(&facts)[0].found.contains("lacks CAP_BPF, CAP_PERFMON:"));
        assert!(Kernel::read().version().is_some(), "this machine has a kernel");
    }
}
