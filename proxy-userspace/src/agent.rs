//! The daemon: source, model, data plane and node monitor wired together.

mod firewall;
mod init;
mod inspect;

use std::future::pending;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::{info, warn};

use crate::announce::{AnnounceObserver, AnnounceSettings, Wanted, announce};
use crate::config::{ConfigFile, ProxyMode, Settings, Source};
use crate::dataplane::ebpf::{self, Mounted, OpenError, OuterSource, Share, Sizes, Sockets, cgroup};
use crate::dataplane::growing::Growing;
use crate::dataplane::{Dataplane, Mode, change, ipvs};
use crate::events;
use crate::faces::{HttpServers, ServedState};
use crate::model::{Desired, Model};
use crate::node::{self, NodeError, NodeSettings, PodRoutes};
use crate::reconcile::{self, Channels, Intervals, Observer, Reconciler};
use crate::routes::{RouteObserver, keep_routes};
use crate::source::kubernetes::{KubernetesSettings, NodeParts};
use crate::source::{self, Batch, PolicyBatch, SourceError};

/// Batches that may wait during a sync.
///
/// Few, since during the listing each holds up to a megabyte of text as objects, and the heap never
/// shrinks by itself.
pub const BATCHES: usize = 4;
/// Failures to open health check node ports, and problems of the node, that may wait to be reported.
const FAILURES: usize = 64;

use firewall::Surroundings;
pub use init::init;
use inspect::Receivers;

type Observers = Vec<Box<dyn Observer>>;

/// The reasons why the agent can't run, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The data plane can't be opened.
    #[error(transparent)]
    Dataplane(#[from] OpenError),
    /// `--proxy-mode ipvs` is set, and IPVS can't be used.
    #[error("--proxy-mode ipvs: {0}")]
    Ipvs(#[from] ipvs::OpenError),
    /// The node can't be given back to kube-proxy.
    #[error(transparent)]
    IpvsServes(#[from] change::IpvsServes),
    /// Neither data plane can be opened.
    #[error("this kernel has neither eBPF ({ebpf}) nor IPVS ({ipvs})")]
    Neither {
        /// Why eBPF can't be used.
        ebpf: Box<OpenError>,
        /// Why IPVS can't be used.
        ipvs: ipvs::OpenError,
    },
    /// A node's address is in the prefix that is reserved for encapsulated packets.
    #[error("--dsr-outer-source: {prefix} holds {address} of node {node}; takes unused addresses")]
    OuterSource {
        /// The flag's value.
        prefix: IpNet,
        /// The address in it.
        address: IpAddr,
        /// The Node that has it.
        node: String,
    },
    /// The source can't work.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The node's network can't be followed.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// Signals can't be received.
    #[error("signal handler: {0}")]
    Signal(io::Error),
    /// A task panicked, which is a fault in this program.
    #[error("the {0} task panicked")]
    Panicked(&'static str),
}

/// Logs the facts that a reader of a log needs first.
fn log_settings(settings: &Settings) {
    let uplinks = if settings.uplinks.is_empty() {
        "those with a default route or a node address".to_owned()
    } else {
        settings.uplinks.join(",")
    };
    info!(
        version = env!("CARGO_PKG_VERSION"),
        node = settings.model.node_name,
        mode = settings.proxy_mode.name(),
        uplinks,
        bpffs = %settings.bpffs.display(),
        pid = std::process::id(),
        "the agent starts"
    );
}

/// Warns of other programs that serve this node. With `--service-proxy-name` kube-proxy is expected
/// beside the agent.
fn warn_of_others(settings: &Settings, mode: Mode) {
    if settings.model.service_proxy_name.is_none() && mode != Mode::None {
        for trace in ipvs::traces_of_kube_proxy() {
            warn!(
                %trace,
                "kube-proxy's rules are on this node, and both serve the same Services; stop kube-proxy here, \
                 then run `kube-proxy --cleanup`"
            );
        }
    }
    if mode == Mode::Ebpf {
        ebpf::warn_of_others(&settings.bpffs);
    }
}

/// Serves until SIGTERM or SIGINT. The data path stays in place, after an error too.
pub async fn run(settings: Settings) -> Result<(), AgentError> {
    for remark in &settings.remarks {
        remark.log();
    }
    let mounted = mount(&settings)?;
    log_settings(&settings);
    let (event_sender, events) = mpsc::channel(BATCHES);
    let (target_sender, targets) = watch::channel(None);
    let (topology_sender, topology) = watch::channel(None);
    let (stop, stopped) = watch::channel(());

    let config = settings.config.clone();
    let (failures, failed) = mpsc::channel(FAILURES);
    let (node_problems, of_node) = mpsc::channel(FAILURES);
    let (policy_problems, of_policies) = mpsc::channel(FAILURES);
    let servers = HttpServers::start(&settings, failures);
    let served = servers.served();
    let mut observers = served.clone().observers();
    let others = events::Others { failures: failed, of_node, of_policies };
    let (to_announce, wanted) = watch::channel(None);
    let announcer = announce(announce_settings(&settings), wanted, topology.clone(), served.announced());
    let mut announcer = tokio::spawn(announcer);
    let (routes, wanted) = watch::channel(None);
    observers.push(Box::new(RouteObserver::new(settings.routes.clone(), routes)));
    let mut keeper = tokio::spawn(keep_routes(wanted));
    let (policy_sender, policies) = firewall::channel(&settings);
    let outputs = Outputs { batches: event_sender, policies: policy_sender };
    let mut source = start_source(&settings, &served, outputs, others, &mut observers).await?;
    let around = Surroundings {
        topology: topology.clone(),
        nodes: targets.clone(),
        mode: served.mode_told(),
        problems: policy_problems,
    };
    let mut firewall = firewall::start(&settings, policies, around, stopped.clone(), served.firewall());
    // An agent with a wrong --kubeconfig or --source ends above, and has changed no setting of the host.
    if settings.proxy_mode != ProxyMode::None {
        tokio::spawn(node::set_up_conntrack(settings.conntrack));
    }
    let receivers = Receivers { served: served.clone(), events: node_problems };
    let inspection = tokio::spawn(inspect::inspect(settings.clone(), targets.clone(), receivers));
    let mut node = tokio::spawn(node::follow(node_settings(&settings), targets, topology_sender));
    let channels = Channels { events, topology, targets: target_sender, stop: stopped };
    let runtime = Handle::current();
    // The reconcile task has a thread of its own, since the data plane's system calls block.
    let mut reconcile = spawn_blocking(move || {
        runtime.block_on(reconcile(settings, mounted, channels, observers, to_announce, &served))
    });

    let result = tokio::select! {
        signal = stop_signal() => signal.map_err(AgentError::Signal).map(|name| info!(signal = name, "the agent stops; the data path goes on")),
        path = changed(config) => {
            info!(
                file = %path.display(),
                "the configuration file has changed: the agent ends, to be restarted with it; the data path goes on"
            );
            Ok(())
        }
        error = failure_of(&mut source, "source") => Err(error),
        error = failure_of(&mut node, "node") => Err(error),
        error = failure_of(&mut reconcile, "reconcile") => Err(error),
        error = panic_of(&mut firewall, "firewall") => Err(error),
        error = panic_of(&mut announcer, "announce") => Err(error),
        error = panic_of(&mut keeper, "routes") => Err(error),
    };
    inspection.abort();
    announcer.abort();
    keeper.abort();
    // The running sync ends first; then the data plane's lock is released.
    drop(stop);
    if !reconcile.is_finished() {
        let _ = reconcile.await;
    }
    if !firewall.is_finished() {
        let _ = firewall.await;
    }
    servers.stop().await;
    result
}

/// Where a source sends what it reads.
struct Outputs {
    batches: mpsc::Sender<Batch>,
    policies: Option<mpsc::Sender<PolicyBatch>>,
}

/// Starts the source. An API server also gets Events about problems.
async fn start_source(
    settings: &Settings,
    served: &ServedState,
    outputs: Outputs,
    others: events::Others,
    observers: &mut Observers,
) -> Result<JoinHandle<Result<(), SourceError>>, AgentError> {
    match settings.source.clone() {
        Source::Directory(path) => {
            let policies = match outputs.policies {
                Some(policies) => {
                    let directory = source::directory::open(path.clone())?;
                    Some(source::directory::watch_policies(directory, policies))
                }
                None => None,
            };
            let mut directory = source::directory::open(path)?;
            if policies.is_some() {
                directory = directory.beside_policies();
            }
            Ok(firewall::watch_both(source::directory::watch(directory, outputs.batches), policies))
        }
        Source::Kubernetes { kubeconfig } => {
            let connection = source::kubernetes::connect(kubeconfig.as_deref(), served.signs()).await?;
            let node = &settings.model.node_name;
            observers.push(events::start(connection.client.clone(), node, others));
            let wanted = kubernetes_settings(settings);
            let policies = outputs
                .policies
                .map(|policies| source::kubernetes::watch_policies(connection.clone(), policies));
            let services = source::kubernetes::watch(connection, wanted, outputs.batches);
            Ok(firewall::watch_both(services, policies))
        }
    }
}

/// Lists everything, opens the data plane and reconciles. Maps are sized by the first listing.
async fn reconcile(
    settings: Settings,
    mounted: Option<Mounted>,
    mut channels: Channels,
    mut observers: Observers,
    to_announce: watch::Sender<Option<Wanted>>,
    served: &ServedState,
) -> Result<(), AgentError> {
    let mut model = Model::new(settings.model.clone());
    let Some(listing) = reconcile::list(&mut model, &mut channels, &mut observers).await else {
        return Ok(());
    };
    let (dataplane, mode) = open(&settings, model.desired())?;
    warn_of_others(&settings, mode);
    if let Some(mounted) = mounted.filter(|_| mode == Mode::Ebpf) {
        mounted.keep();
    }
    served.set_mode(mode, settings.proxy_mode);
    observers.push(Box::new(AnnounceObserver::new(announced_ranges(&settings, mode), to_announce)));
    let intervals =
        Intervals { min: settings.min_sync_interval, max: settings.max_sync_interval, drain: settings.drain };
    let reconciler = Reconciler::new(model, listing, dataplane, channels, intervals);
    reconciler.observed_by(observers).run().await;
    Ok(())
}

/// Returns the ranges of the addresses that the programs answer for on links. Only eBPF has such programs.
fn announced_ranges(settings: &Settings, mode: Mode) -> Vec<IpNet> {
    if mode == Mode::Ebpf {
        return settings.l2_announce.clone();
    }
    if !settings.l2_announce.is_empty() {
        warn!(
            mode = mode.name(),
            "--l2-announce has no effect in this mode: eBPF programs answer for the addresses"
        );
    }
    Vec::new()
}

/// Mounts the BPF file system before the source is asked, which may take long.
///
/// Returns `None` where IPVS is to serve, or may serve a kernel without BPF file system.
fn mount(settings: &Settings) -> Result<Option<Mounted>, AgentError> {
    if matches!(settings.proxy_mode, ProxyMode::Ipvs | ProxyMode::None) {
        return Ok(None);
    }
    match ebpf::prepare(&settings.bpffs) {
        Err(error) if settings.proxy_mode == ProxyMode::Auto && error.is_of_the_kernel() => Ok(None),
        mounted => Ok(Some(mounted?)),
    }
}

/// Opens the requested data plane; with `auto` eBPF, else IPVS.
fn open(settings: &Settings, desired: &Desired) -> Result<(Box<dyn Dataplane>, Mode), AgentError> {
    check_outer_source(&settings.dsr.outer_source, desired)?;
    let ebpf = || -> Result<Box<dyn Dataplane>, OpenError> {
        let settings = settings.clone();
        let open = move |sizes: &Sizes, desired: &Desired| {
            change::to_ebpf(ebpf_settings(&settings, *sizes), &settings.ipvs, settings.drain, desired)
        };
        Ok(Box::new(Growing::open(desired, open)?))
    };
    let of_ebpf = || ebpf_settings(settings, Sizes::for_desired(desired));
    let ipvs = || change::to_ipvs(&settings.ipvs, of_ebpf(), settings.drain);
    match settings.proxy_mode {
        ProxyMode::Ebpf => Ok((ebpf()?, Mode::Ebpf)),
        ProxyMode::Ipvs => Ok((ipvs()?, Mode::Ipvs)),
        ProxyMode::None => Ok((change::to_kernel_rules(of_ebpf(), settings.drain)?, Mode::None)),
        ProxyMode::Auto => match ebpf() {
            Ok(dataplane) => Ok((dataplane, Mode::Ebpf)),
            Err(ebpf) if ebpf.is_of_the_kernel() => match ipvs() {
                Ok(dataplane) => {
                    warn!(error = %ebpf, "served by IPVS, since this kernel can't do eBPF");
                    Ok((dataplane, Mode::Ipvs))
                }
                Err(ipvs) => Err(AgentError::Neither { ebpf: Box::new(ebpf), ipvs }),
            },
            Err(error) => Err(error.into()),
        },
    }
}

/// Checks the prefix of `--dsr-outer-source` against the first listing. With a node's address in
/// it, that node's own packets could not be told from those of all nodes.
fn check_outer_source(outer: &OuterSource, desired: &Desired) -> Result<(), AgentError> {
    let addresses =
        desired.nodes.iter().flat_map(|(node, addresses)| addresses.iter().map(move |a| (node, a)));
    for (node, address) in addresses {
        if let Some(prefix) = outer.prefixes().find(|prefix| prefix.contains(address)) {
            return Err(AgentError::OuterSource { prefix, address: *address, node: node.clone() });
        }
    }
    Ok(())
}

/// Waits until the task fails. A task ends without an error only because another one has failed.
async fn failure_of<E: Into<AgentError>>(
    task: &mut JoinHandle<Result<(), E>>,
    name: &'static str,
) -> AgentError {
    match task.await {
        Ok(Ok(())) => pending().await,
        Ok(Err(error)) => error.into(),
        Err(_) => AgentError::Panicked(name),
    }
}

/// Waits until a task panics that may end by itself.
async fn panic_of(task: &mut JoinHandle<()>, name: &'static str) -> AgentError {
    match task.await {
        Err(error) if error.is_panic() => AgentError::Panicked(name),
        _ => pending().await,
    }
}

/// Waits until the file of `--config` changes.
async fn changed(config: Option<ConfigFile>) -> PathBuf {
    match config {
        Some(config) => config.changed().await,
        None => pending().await,
    }
}

/// Waits until a person or the kubelet ends this process. Returns the signal's name.
pub async fn stop_signal() -> io::Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    })
}

fn announce_settings(settings: &Settings) -> AnnounceSettings {
    AnnounceSettings { bpffs: settings.bpffs.clone(), devices: settings.l2_devices.clone() }
}

fn kubernetes_settings(settings: &Settings) -> KubernetesSettings {
    KubernetesSettings {
        nodes: NodeParts::OfOne(settings.model.node_name.clone()),
        service_proxy_name: settings.model.service_proxy_name.clone(),
    }
}

fn node_settings(settings: &Settings) -> NodeSettings {
    NodeSettings {
        // During a change of mode the former data plane is in use, too.
        snat_ports: (matches!(settings.proxy_mode, ProxyMode::Auto | ProxyMode::Ebpf)
            || ebpf::is_attached(&settings.bpffs))
        .then(|| settings.snat_ports.clone()),
        own_device: (matches!(settings.proxy_mode, ProxyMode::Auto | ProxyMode::Ipvs) || ipvs::is_here())
            .then(|| ipvs::DEVICE.to_owned()),
        notes: Some(ebpf::notes(&settings.bpffs)),
        ..settings.node()
    }
}

fn ebpf_settings(settings: &Settings, sizes: Sizes) -> ebpf::Settings {
    ebpf::Settings {
        bpffs_path: settings.bpffs.clone(),
        xdp: settings.xdp,
        timeouts: settings.timeouts,
        snat_ports: settings.snat_ports.clone(),
        mark: settings.mark,
        reject_unknown: settings.reject_unknown,
        dsr: settings.dsr.clone(),
        has_pod_tunnels: settings.routes.to_pods == PodRoutes::Ipip,
        sockets: Sockets {
            cgroup: settings.sockets.cgroup.clone().or_else(cgroup::mounted),
            ..settings.sockets.clone()
        },
        sizes: Sizes { flows: settings.flow_table_size, ..sizes }.for_sockets(settings.sockets.lb),
        share: Share::Alone,
    }
}
