//! The layers, and how each one is run.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;

use super::libtest::{self, Output};
use super::{Args, Outcome};
use crate::image::Variant;
use crate::setup::{self, Need};
use crate::workspace::Workspace;
use crate::{build, cluster, lint, manifests, vm};

/// The longest duration of a pass, build included. A longer one is a hang.
const BOUND: Duration = Duration::from_mins(20);
/// The same with `--long`.
const LONG_BOUND: Duration = Duration::from_hours(3);
/// Frames in a second that the layer fuzz plays on the slowest machine, all programs together.
const LEAST_FRAMES: u64 = 2_000;
/// Programs of the layer fuzz that get random frames.
const FUZZED: u64 = 5;

/// More frames for each program than this are worth a build that is optimised.
const FEW_FRAMES: u64 = 2_000_000;
/// Settings of that build. Overflow checks and debug assertions stay.
const OPTIMISED: [&str; 2] =
    ["profile.dev.package.millrace.opt-level=2", "profile.dev.package.proxy-common.opt-level=2"];

/// The kinds of tests, in the order in which they run: what takes long to build, and little to run, comes last. `Ahead`
/// builds it meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Layer {
    /// Tests beside the code of all crates, and the reference pages and links of the documents
    Unit,
    /// Manifests in, expected desired state and maps out
    Scenario,
    /// The real programs on whole frames
    Packet,
    /// The real maps, pins and links, adopted at restart
    Dataplane,
    /// The test bed: real agents and real sockets, through XDP and again through TC
    Namespace,
    /// A real kube-apiserver and etcd, and another implementation of NetworkPolicy, which Go builds the first time
    Apiserver,
    /// A real cluster of kubelets and pods; runs if it is named, and with `--long`
    Cluster,
    /// Random and mutated input
    Fuzz,
    /// The programs of the trace build, which log each packet's steps
    Trace,
    /// Every benchmark in a short form, for its checks
    Bench,
    /// Every program loaded by other kernels, within its instruction budget
    Vm,
    /// Formatting, clippy, documentation, dependencies, spelling
    Lint,
    /// The Helm chart, the kustomize folders and the alerts, by helm, kustomize, kubeconform and promtool
    Manifests,
}

/// Tests of the layer `apiserver` at the same time. They wait for agents that ask a server again, and leave four fifths of
/// two processors.
const WAITING: usize = 6;

/// Modules of the layer `namespace` that ask nothing of the programs of uplinks: their tests run once, not again
/// without XDP.
const WITHOUT_UPLINKS: [&str; 10] =
    ["bad_input", "check", "command_line", "faces", "host", "node", "refusals", "rights", "top", "views"];

/// Modules of the layer `namespace` whose tests are about the agent, its maps, sockets or pods. TC and XDP share the
/// code that serves them. So without XDP they run with `--long` only.
const AGAIN_IF_LONG: [&str; 11] = [
    "demonstration",
    "firewall",
    "incidents",
    "monitor",
    "own_connections",
    "priority",
    "programs",
    "resize",
    "shared_ports",
    "snat_ports",
    "survival",
];

/// Modules of the layer `namespace` that have policies of their own, ask for readiness at once, or send what the firewall drops before the
/// proxy does, or have no program but those of a bridge.
const WITH_OWN_POLICIES: [&str; 4] = ["faces", "firewall", "forged", "inside::devices"];

/// One run of a layer.
#[derive(Clone, Copy)]
pub struct Pass {
    /// The row's name.
    pub title: &'static str,
    work: Work,
}

#[derive(Clone, Copy)]
enum Work {
    Lint,
    Manifests,
    /// The tests in `src` of every package.
    Unit,
    /// One test target.
    Target(&'static str),
    /// One test target without `WITHOUT_UPLINKS` and `AGAIN_IF_LONG`, with agents that get this `--xdp`.
    TargetWithXdp(&'static str, &'static str),
    /// One test target without `WITH_OWN_POLICIES`, behind the pod firewall: all pods are selected, and everything is
    /// allowed. It runs with `--long`.
    TargetWithPolicies(&'static str),
    /// One test target that needs the benchmarks' own BPF object.
    TargetWithBenchObject(&'static str),
    /// One test target that runs the programs of the trace build.
    TargetWithTraceObject(&'static str),
    /// One test target that talks to a real API server.
    TargetWithApiserver(&'static str),
    /// One test target that asks another implementation of NetworkPolicy.
    TargetWithPolicyPeer(&'static str),
    /// One test target that starts a real cluster.
    TargetWithCluster(&'static str),
    /// The tests of one of its modules, with agents that get this `--xdp`.
    ModuleWithApiserver {
        target: &'static str,
        module: &'static str,
        xdp: &'static str,
    },
    /// Every program loaded by this machine's kernel.
    Vm,
    /// The same by other kernels, and test targets there.
    OtherKernels,
}

impl Layer {
    /// All layers, in the order in which they run.
    pub const ALL: [Self; 13] = [
        Self::Unit,
        Self::Scenario,
        Self::Packet,
        Self::Dataplane,
        Self::Namespace,
        Self::Apiserver,
        Self::Cluster,
        Self::Fuzz,
        Self::Trace,
        Self::Bench,
        Self::Vm,
        Self::Lint,
        Self::Manifests,
    ];

    /// Returns what the machine must have.
    pub fn needs(self) -> &'static [Need] {
        match self {
            Self::Lint => &[Need::Build, Need::Lint],
            // Unit tests run nft and iptables to compare with the agent's view of kube-proxy's
            // rules.
            Self::Unit => &[Need::Build, Need::Programs],
            Self::Scenario | Self::Manifests => &[Need::Build],
            Self::Packet | Self::Dataplane | Self::Fuzz | Self::Trace => &[Need::Build, Need::Run],
            Self::Namespace | Self::Apiserver | Self::Cluster | Self::Bench => {
                &[Need::Build, Need::Run, Need::Programs]
            }
            Self::Vm => &[Need::Build, Need::Programs, Need::Vm],
        }
    }

    /// Returns the passes of the layer.
    pub fn passes(self) -> &'static [Pass] {
        match self {
            Self::Lint => &[Pass { title: "lint", work: Work::Lint }],
            Self::Manifests => &[Pass { title: "manifests", work: Work::Manifests }],
            Self::Unit => &[
                Pass { title: "unit", work: Work::Unit },
                Pass { title: "reference", work: Work::Target("reference") },
            ],
            Self::Scenario => &[Pass { title: "scenario", work: Work::Target("scenario") }],
            Self::Packet => &[Pass { title: "packet", work: Work::Target("packet") }],
            Self::Dataplane => &[Pass { title: "dataplane", work: Work::Target("dataplane") }],
            Self::Namespace => &[
                Pass { title: "test bed", work: Work::Target("bed") },
                Pass { title: "drill", work: Work::Target("drill") },
                Pass { title: "namespace", work: Work::Target("namespace") },
                Pass { title: "namespace, --xdp off", work: Work::TargetWithXdp("namespace", "off") },
                Pass { title: "namespace, policies", work: Work::TargetWithPolicies("namespace") },
            ],
            Self::Apiserver => &[
                Pass { title: "apiserver", work: Work::TargetWithApiserver("apiserver") },
                Pass {
                    title: "apiserver, --xdp off",
                    work: Work::ModuleWithApiserver { target: "apiserver", module: "traffic", xdp: "off" },
                },
                Pass { title: "policies", work: Work::TargetWithPolicyPeer("policies") },
            ],
            Self::Cluster => &[Pass { title: "cluster", work: Work::TargetWithCluster("cluster") }],
            Self::Fuzz => &[Pass { title: "fuzz", work: Work::Target("fuzz") }],
            Self::Trace => &[Pass { title: "trace", work: Work::TargetWithTraceObject("trace") }],
            Self::Bench => &[Pass { title: "bench", work: Work::TargetWithBenchObject("benches") }],
            Self::Vm => &[
                Pass { title: "vm", work: Work::Vm },
                Pass { title: "other kernels", work: Work::OtherKernels },
            ],
        }
    }

    /// Whether its tests wait more than they compute: more than half of the processors' time is left.
    pub const fn leaves_processors(self) -> bool {
        matches!(self, Self::Namespace | Self::Apiserver)
    }

    fn takes_root(self) -> bool {
        self.needs().contains(&Need::Run)
    }
}

impl Pass {
    /// Whether it is that of the emulated machines.
    pub const fn is_emulated(&self) -> bool {
        matches!(self.work, Work::OtherKernels)
    }
}

impl Work {
    /// Returns the test targets that it runs.
    fn targets(self) -> Vec<&'static str> {
        match self {
            Self::Target(name)
            | Self::TargetWithXdp(name, _)
            | Self::TargetWithPolicies(name)
            | Self::TargetWithBenchObject(name)
            | Self::TargetWithTraceObject(name)
            | Self::TargetWithApiserver(name)
            | Self::TargetWithPolicyPeer(name)
            | Self::TargetWithCluster(name) => vec![name],
            Self::ModuleWithApiserver { target, .. } => vec![target],
            Self::OtherKernels => vm::Target::ALL.map(|target| target.name).to_vec(),
            Self::Lint | Self::Manifests | Self::Unit | Self::Vm => Vec::new(),
        }
    }
}

/// Runs one pass of a layer. `targets` are the workspace's test targets.
pub fn perform(
    workspace: &Workspace,
    layer: Layer,
    pass: &Pass,
    targets: &[String],
    args: &Args,
) -> Result<Outcome> {
    if layer.takes_root() && !setup::is_root()? {
        return Ok(Outcome::Unable("loading BPF programs takes root".to_owned()));
    }
    if let Some(missing) =
        pass.work.targets().iter().find(|name| !targets.iter().any(|target| target == *name))
    {
        return Ok(Outcome::Unable(format!("the workspace has no test target `{missing}`")));
    }
    if layer == Layer::Cluster && !args.asks_for(layer) {
        return Ok(Outcome::LeftOut(
            "its programs take half an hour to build, and its tests 15 minutes; see --layer cluster, or --long".to_owned(),
        ));
    }
    if matches!(pass.work, Work::TargetWithPolicies(_)) && !args.long {
        return Ok(Outcome::LeftOut("it repeats the layer behind the firewall; see --long".to_owned()));
    }
    let mut cargo = cargo_test(workspace, args);
    let mut of_tests = Vec::new();
    match pass.work {
        Work::Lint => {
            setup::ensure(workspace, &[Need::Linters])?;
            return Ok(Outcome::Ran(lint::check_all(workspace)));
        }
        Work::Manifests => return Ok(manifests::check_all(workspace)),
        Work::Vm => return vm::load_here(workspace).map(Outcome::Ran),
        Work::OtherKernels => return emulate(workspace, args),
        Work::Unit => cargo.args(["--lib", "--bins"]),
        Work::Target(name)
        | Work::TargetWithApiserver(name)
        | Work::TargetWithPolicyPeer(name)
        | Work::TargetWithCluster(name)
        | Work::TargetWithTraceObject(name)
        | Work::TargetWithBenchObject(name) => cargo.args(["--test", name]),
        Work::TargetWithXdp(name, xdp) => {
            let again: &[&str] = if args.long { &[] } else { &AGAIN_IF_LONG };
            let skipped = WITHOUT_UPLINKS.iter().chain(again);
            of_tests.extend(skipped.flat_map(|module| ["--skip".to_owned(), format!("{module}::")]));
            cargo.args(["--test", name]).env("MILLRACE_XDP", xdp)
        }
        Work::TargetWithPolicies(name) => {
            let skipped = WITH_OWN_POLICIES.iter();
            of_tests.extend(skipped.flat_map(|module| ["--skip".to_owned(), format!("{module}::")]));
            cargo.args(["--test", name]).env("MILLRACE_POLICIES", "on")
        }
        Work::ModuleWithApiserver { target, module, xdp } => {
            cargo.args(["--test", target, &format!("{module}::")]).env("MILLRACE_XDP", xdp)
        }
    };
    if layer == Layer::Fuzz && is_long_fuzz(args) {
        cargo.args(OPTIMISED.iter().flat_map(|setting| ["--config", setting]));
    }
    if matches!(pass.work, Work::TargetWithBenchObject(_)) {
        build::bench_object(workspace)?;
        setup::add_built(workspace, &mut cargo);
    }
    if matches!(pass.work, Work::TargetWithTraceObject(_)) {
        // A build script watches the other variable of that name, so only the tests get it.
        cargo.env("MILLRACE_TRACE_OBJECT", build::trace_object(workspace)?);
    }
    if matches!(pass.work, Work::TargetWithApiserver(_) | Work::ModuleWithApiserver { .. }) {
        let programs = setup::ensure_apiserver(workspace)
            .and_then(|assets| Ok((assets, setup::ensure_kube_proxy(workspace)?)));
        match programs {
            Ok((assets, proxy)) => cargo.env(setup::ASSETS, assets).env(setup::KUBE_PROXY, proxy),
            Err(reason) => return Ok(Outcome::Unable(format!("{reason:#}"))),
        };
    }
    if matches!(pass.work, Work::TargetWithPolicyPeer(_)) {
        match setup::ensure_policy_peer(workspace) {
            Ok(program) => cargo.env(setup::POLICY_PEER, program),
            Err(reason) => return Ok(Outcome::Unable(format!("{reason:#}"))),
        };
    }
    if matches!(pass.work, Work::TargetWithCluster(_)) {
        setup::ensure(workspace, &[Need::Cluster])?;
        if let Err(reason) = setup::ensure_cluster_programs(workspace) {
            return Ok(Outcome::Unable(format!("{reason:#}")));
        }
        let more = if args.long { cluster::more_images(workspace)? } else { Vec::new() };
        cluster::add_assets(workspace, Variant::Ebpf, more, &mut cargo)?;
    }
    if matches!(pass.work, Work::TargetWithApiserver(_)) {
        of_tests.push(format!("--test-threads={WAITING}"));
    }
    if args.verbose {
        of_tests.push("--nocapture".to_owned());
    }
    cargo.arg("--").args(of_tests);
    let output = if args.verbose { Output::Shown } else { Output::OnFailure };
    libtest::run(&mut cargo, output, bound(args)).map(Outcome::Ran)
}

/// Runs the emulated machines.
pub fn emulate(workspace: &Workspace, args: &Args) -> Result<Outcome> {
    let extent = if args.long { vm::Extent::Whole } else { vm::Extent::Named };
    vm::emulate(workspace, &vm::Target::ALL, extent).map(Outcome::Ran)
}

/// Returns whether the layer fuzz plays so many frames that an optimised build saves time.
fn is_long_fuzz(args: &Args) -> bool {
    args.frames.map_or(args.long, |frames| frames > FEW_FRAMES)
}

/// Returns the longest duration of a pass.
fn bound(args: &Args) -> Duration {
    let usual = if args.long { LONG_BOUND } else { BOUND };
    let frames = args.frames.unwrap_or(0).saturating_mul(FUZZED);
    usual.saturating_add(Duration::from_secs(frames / LEAST_FRAMES))
}

/// Returns the test targets that no layer runs.
pub fn without_layer(targets: &[String]) -> Vec<&str> {
    let is_run = |target: &str| {
        Layer::ALL.iter().flat_map(|layer| layer.passes()).any(|pass| pass.work.targets().contains(&target))
    };
    targets.iter().map(String::as_str).filter(|target| !is_run(target)).collect()
}

/// Returns `cargo test` for the whole workspace, so that every layer finds its dependencies built
/// with the same features.
fn cargo_test(workspace: &Workspace, args: &Args) -> Command {
    let mut cargo = workspace.cargo();
    cargo.args(["test", "--workspace", "--no-fail-fast"]);
    cargo.env("MILLRACE_BIN", workspace.target().join("debug/millrace"));
    if args.long {
        cargo.env("MILLRACE_LONG", "1");
    }
    if let Some(frames) = args.frames {
        cargo.env("MILLRACE_FRAMES", frames.to_string());
    }
    if args.verbose {
        cargo.env("MILLRACE_VERBOSE", "1");
    }
    cargo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_target_that_no_layer_runs_is_found() {
        let targets = ["packet".to_owned(), "forgotten".to_owned(), "namespace".to_owned()];
        assert_eq!(without_layer(&targets), ["forgotten"]);
    }
}
