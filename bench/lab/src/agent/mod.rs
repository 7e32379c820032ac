//! The proxy on a node: the agent as a process, and the command line that reads its pinned maps.

mod clear;
mod command;
mod pool;
mod view;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

pub use command::{binary, former_binary};
pub use millrace_views::{AttachedView, BackendView, CounterView, FrontendView, ServiceView};

use crate::manifests::{Manifests, has_policies};
use crate::net::Namespace;
use crate::patience::patience;
use crate::process::{self, Process};
use crate::topology::{Bed, Node};

/// The longest time until a change is in the maps of a busy test machine. The 4000 frontends of a
/// thousand NodePorts take a debug build 4 s on a quiet one.
pub const SYNC_LIMIT: Duration = Duration::from_secs(40);
/// The longest time of an agent to load its programs. Each node's kernel verifies them anew, all at
/// once.
const LOAD_LIMIT: Duration = Duration::from_mins(2);
/// The time without another frontend after which all of a Service's are there.
const SETTLED: Duration = Duration::from_millis(300);
/// The pause of a wait between two questions, at least and at most.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Flags of agents that get no `--network-policy on`.
const UNGUARDED: [&str; 2] = ["--dsr-dispatch", "--network-policy"];

/// The source of the agents.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A directory.
    Directory(&'a Manifests),
    /// The API server that a kubeconfig leads to.
    ApiServer(&'a Path),
}

/// A node's proxy. It outlives its agent, as the pinned maps and links do.
#[derive(Debug)]
pub struct Proxy {
    namespace: Arc<Namespace>,
    node: String,
    bpffs: PathBuf,
    log: PathBuf,
    /// The binary of a version that a test has set, of the agent and of the command line.
    binary: Option<PathBuf>,
    arguments: Vec<String>,
    /// The flags of the agents that were started, without repetitions.
    started_with: Mutex<BTreeSet<Vec<String>>>,
    /// Process id of the last started agent; 0 before that.
    agent: AtomicU32,
}

impl Source<'_> {
    fn arguments(self) -> Vec<String> {
        match self {
            Self::Directory(manifests) => {
                vec!["--source".to_owned(), format!("directory:{}", manifests.path().display())]
            }
            Self::ApiServer(kubeconfig) => {
                let kubeconfig = kubeconfig.display().to_string();
                ["--source", "kubernetes", "--kubeconfig", &kubeconfig].map(str::to_owned).to_vec()
            }
        }
    }
}

impl Proxy {
    /// Returns the proxy of `node`, with its source and the agent's `--xdp`.
    pub fn new(bed: &Bed, node: &Node, source: Source<'_>, xdp: &str) -> Result<Self> {
        command::mount_bpffs()?;
        let bpffs = bed.bpffs_directory().join(node.name());
        std::fs::create_dir_all(&bpffs).with_context(|| format!("can't create {}", bpffs.display()))?;
        let pins = bpffs.display().to_string();
        let cgroup = node.cgroup().display().to_string();
        let arguments = [
            ("--hostname-override", node.name()),
            ("--pod-interfaces", "veth*,cni0"),
            ("--service-external-ip-range", "203.0.113.0/24"),
            ("--service-external-ip-range", "2001:db8:e::/64"),
            ("--xdp", xdp),
            ("--bpffs-path", &pins),
            ("--cgroup-path", &cgroup),
        ];
        let arguments = arguments.iter().flat_map(|(flag, value)| [(*flag).into(), (*value).into()]);
        let arguments = source.arguments().into_iter().chain(arguments).collect();
        let log = bed.directory().join(format!("{}.log", node.name()));
        Ok(Self {
            namespace: node.namespace().clone(),
            node: node.name().into(),
            bpffs,
            log,
            binary: None,
            arguments,
            started_with: Mutex::default(),
            agent: AtomicU32::new(0),
        })
    }

    /// Returns the name of the node.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Returns the node's namespace.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the agent's `--bpffs-path`.
    #[must_use]
    pub fn bpffs(&self) -> &Path {
        &self.bpffs
    }

    /// Sets the binary of agents to come, and of the command line: each version reads only its own maps.
    pub fn set_binary(&mut self, binary: PathBuf) {
        self.binary = Some(binary);
    }

    fn binary(&self) -> Result<PathBuf> {
        self.binary.clone().map_or_else(binary, Ok)
    }

    /// Starts the agent; does not wait for it.
    pub fn start(&self) -> Result<Process> {
        self.start_with(&[])
    }

    /// Starts the agent with further flags.
    pub fn start_with(&self, arguments: &[&str]) -> Result<Process> {
        self.start_prepared(arguments, |_| {})
    }

    /// Starts the agent with further flags, after `prepare` has changed the command.
    pub fn start_prepared(
        &self,
        arguments: &[&str],
        prepare: impl FnOnce(&mut Command) + Send + 'static,
    ) -> Result<Process> {
        self.note_start(arguments);
        let arguments = self.agent_arguments(arguments);
        let agent = Process::start_prepared(&self.namespace, self.binary()?, arguments, &self.log, prepare)?;
        self.agent.store(agent.id(), Ordering::Relaxed);
        Ok(agent)
    }

    /// Notes the flags of an agent that starts. The first one gets the pins of an ended one with the same flags.
    fn note_start(&self, more: &[&str]) {
        let flags = self.flags_in_common(more);
        let mut started_with = self.started_with.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = started_with.is_empty() && !more.contains(&"--bpffs-path");
        if is_first && std::fs::read_dir(&self.bpffs).is_ok_and(|mut pins| pins.next().is_none()) {
            pool::take(&flags, &self.bpffs);
        }
        started_with.insert(flags);
    }

    /// Returns the flags that agents of other nodes may have, too, and the binary: another one has other programs.
    fn flags_in_common(&self, more: &[&str]) -> Vec<String> {
        let xdp = self.arguments.chunks(2).filter(|own| own.first().is_some_and(|flag| flag == "--xdp"));
        let flags = xdp.flatten().map(String::as_str).chain(more.iter().copied()).map(str::to_owned);
        flags.chain(self.binary.iter().map(|binary| binary.display().to_string())).collect()
    }

    /// Keeps the programs and maps of ended agents for a later one.
    pub(crate) fn give_pins(&self) {
        let mut started_with = self.started_with.lock().unwrap_or_else(PoisonError::into_inner);
        let agent = self.agent.load(Ordering::Relaxed).to_string();
        // A test may have taken the agent, and not ended it. And larger maps are not like new ones.
        let is_running = Path::new("/proc").join(agent).exists();
        if started_with.len() != 1 || is_running || self.log().contains("maps get another size") {
            return;
        }
        let given = started_with.pop_first().map_or(Ok(()), |flags| pool::give(flags, &self.bpffs));
        if let Err(error) = given {
            eprintln!("the pins of {} are not kept: {error:#}", self.node);
        }
    }

    /// Returns the agent's arguments. A flag in `more` replaces the proxy's own.
    fn agent_arguments(&self, more: &[&str]) -> Vec<String> {
        let is_replaced = |own: &&[String]| own.first().is_some_and(|flag| more.contains(&flag.as_str()));
        let own = self.arguments.chunks(2).filter(|own| !is_replaced(own)).flatten().map(String::as_str);
        // Pods that answer from Services' addresses and the firewall exclude each other.
        let is_guarded = has_policies() && !more.iter().any(|flag| UNGUARDED.contains(flag));
        let policies: &[&str] = if is_guarded { &["--network-policy", "on"] } else { &[] };
        let own = ["agent"].into_iter().chain(own).chain(policies.iter().copied());
        own.chain(more.iter().copied()).map(str::to_owned).collect()
    }

    /// Runs `millrace <arguments>` in the node's namespace on the node's pins.
    pub fn command(&self, arguments: &[&str]) -> Result<Output> {
        let mut arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        arguments.extend(["--bpffs-path".to_owned(), self.bpffs.display().to_string()]);
        command::run(&self.namespace, self.binary()?, arguments)
    }

    /// Runs an agent with further flags and waits until it ends by itself, as after a wrong flag.
    pub fn refused_agent(&self, arguments: &[&str]) -> Result<Output> {
        command::run(&self.namespace, self.binary()?, self.agent_arguments(arguments))
    }

    /// Returns the endpoints in the pinned maps.
    pub fn backends(&self) -> Result<Vec<BackendView>> {
        view::backends(&self.json("backends")?)
    }

    /// Returns the services in the pinned maps.
    pub fn services(&self) -> Result<Vec<ServiceView>> {
        view::services(&self.json("services")?)
    }

    /// Returns the counted packets by program and reason.
    pub fn counters(&self) -> Result<Vec<CounterView>> {
        view::counters(&self.json("status")?)
    }

    /// Returns the attached programs.
    pub fn attached(&self) -> Result<Vec<AttachedView>> {
        view::attached(&self.json("status")?)
    }

    /// Returns the number of other nodes' addresses with a resolved way: the programs need no FIB
    /// look-up.
    pub fn resolved_ways(&self) -> Result<usize> {
        Ok(view::ways(&self.json("status")?)?.iter().filter(|way| way.resolved).count())
    }

    /// Returns whether another node's address is reached by a device, with a resolved way.
    pub fn leads_by(&self, target: IpAddr, device: u32) -> Result<bool> {
        let is_it =
            |way: &millrace_views::WayView| (way.target, way.device, way.resolved) == (target, device, true);
        Ok(view::ways(&self.json("status")?)?.iter().any(is_it))
    }

    /// Returns the output of `millrace <subject> -o json`.
    pub fn json(&self, subject: &str) -> Result<serde_json::Value> {
        let output = self.command(&[subject, "-o", "json"])?;
        if !output.status.success() {
            bail!("millrace {subject} on {}: {}", self.node, String::from_utf8_lossy(&output.stderr).trim());
        }
        serde_json::from_slice(&output.stdout).with_context(|| format!("millrace {subject} printed no JSON"))
    }

    /// Returns the items that `millrace <subject> -o json` lists.
    pub fn items(&self, subject: &str) -> Result<Vec<serde_json::Value>> {
        view::items(&self.json(subject)?).cloned()
    }

    /// Waits until every port of a Service, in both families, has exactly these backends.
    pub fn wait_for_backends(&self, service: &str, backends: &[SocketAddr]) -> Result<()> {
        let wanted = |services: &[ServiceView]| {
            [true, false].into_iter().all(|v4| {
                let mut expected: Vec<_> = backends.iter().filter(|b| b.is_ipv4() == v4).copied().collect();
                expected.sort_unstable();
                let mut rows =
                    services.iter().filter(|row| view::is_cluster_list(row, service, v4)).peekable();
                // A Service of one family has no row for the other.
                let is_there = rows.peek().is_some() || (expected.is_empty() && !backends.is_empty());
                // A list is written before its frontends. Without backends it looks complete too early.
                let is_served = |row: &ServiceView| !backends.is_empty() || !row.frontends.is_empty();
                is_there && rows.all(|row| row.backends == expected && is_served(row))
            })
        };
        // The frontends are written one after the other. All are there when no more have come for some time.
        let last: Cell<Option<(usize, Instant)>> = Cell::new(None);
        let is_settled = |services: &[ServiceView]| {
            let rows = services.iter().filter(|row| row.name == service);
            let count = rows.map(|row| row.frontends.len()).sum::<usize>();
            match last.get() {
                Some((before, since)) if before == count => since.elapsed() >= SETTLED,
                _ => {
                    last.set(Some((count, Instant::now())));
                    false
                }
            }
        };
        self.wait_until(&format!("{service} has the backends {backends:?}"), || {
            let services = self.services()?;
            Ok(wanted(&services) && (!backends.is_empty() || is_settled(&services)))
        })
    }

    /// Waits until a program is attached to `device` at every one of `hooks`.
    pub fn wait_for_hooks(&self, device: &str, hooks: &[&str]) -> Result<()> {
        self.wait_until_within(LOAD_LIMIT, &format!("{hooks:?} of {device} are attached"), || {
            // A command costs more than reading the log.
            if !self.log().contains("serving as") {
                return Ok(false);
            }
            let attached = self.attached()?;
            Ok(hooks.iter().all(|hook| attached.iter().any(|a| a.device == device && a.hook == *hook)))
        })
    }

    /// Waits until the agent has logged for the `times`th time that it serves.
    pub fn wait_for_start(&self, times: usize) -> Result<()> {
        self.wait_until_within(LOAD_LIMIT, &format!("start {times} of the agent"), || {
            Ok(self.log().matches("serving as").count() >= times)
        })
    }

    /// Waits until a condition holds. An error of the condition counts as "no". Fails early if the
    /// agent has ended by itself.
    pub fn wait_until(&self, what: &str, condition: impl Fn() -> Result<bool>) -> Result<()> {
        self.wait_until_within(SYNC_LIMIT, what, condition)
    }

    /// Waits as [`wait_until`](Self::wait_until) does, with another bound.
    pub fn wait_until_within(
        &self,
        limit: Duration,
        what: &str,
        condition: impl Fn() -> Result<bool>,
    ) -> Result<()> {
        let end = Instant::now() + patience(limit);
        loop {
            let asked = Instant::now();
            let last = condition();
            if matches!(last, Ok(true)) {
                return Ok(());
            }
            let why = if process::has_ended(self.agent.load(Ordering::Relaxed)) {
                "the agent has ended".to_owned()
            } else if Instant::now() > end {
                last.err().map_or_else(|| "no".to_owned(), |error| format!("{error:#}"))
            } else {
                // The pause leaves the processors to the agent.
                std::thread::sleep((asked.elapsed() * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE));
                continue;
            };
            bail!("{}: waited in vain until {what}: {why}; the agent's log:\n{}", self.node, self.log());
        }
    }

    /// Returns the output of the node's agents.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}
