//! Routing daemons of Debian: FRR and BIRD. The router's has a BGP session with each node's.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::net::Namespace;
use crate::patience::patience;
use crate::process::{Process, output};
use crate::topology::{Bed, Family, Node};

/// The autonomous system of the nodes, and that of the router. The numbers are for private use.
const NODES: u32 = 64_512;
const ROUTER: u32 = 64_500;
/// Silence in seconds after which a session ends: the least that BGP allows.
const HOLD: u8 = 3;
/// The longest time until a daemon listens.
const START_LIMIT: Duration = Duration::from_secs(20);

/// A product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Daemon {
    /// FRR's zebra and bgpd.
    Frr,
    /// BIRD 2.
    Bird,
}

/// The daemons of one machine. They are killed when this is dropped.
#[derive(Debug)]
pub struct Speaker {
    _processes: Vec<Process>,
}

impl Speaker {
    /// Starts a node's daemons. They announce the routes of protocol 109 that they find in the kernel.
    pub fn on_node(bed: &Bed, node: &Node, daemon: Daemon) -> Result<Self> {
        let folder = folder(bed, node.name())?;
        let (own, router) = (node.addresses(), bed.lan_gateway_addresses());
        let (own, router) = (own.of(Family::V4), router.of(Family::V4));
        match daemon {
            Daemon::Bird => {
                let learn = |family| {
                    format!(
                        "protocol kernel {{ {family} {{ import where krt_source = 109 && dest = RTD_BLACKHOLE; export none; }}; learn; scan time 1; }}"
                    )
                };
                let channel = |family| {
                    format!(
                        "{family} {{ import none; export filter {{ bgp_origin = ORIGIN_INCOMPLETE; bgp_med = 0; accept; }}; next hop self; }};"
                    )
                };
                let config = format!(
                    "router id {own};\nprotocol device {{ scan time 1; }}\n{}\n{}\n\
                     protocol bgp up {{ local {own} as {NODES}; neighbor {router} as {ROUTER}; hold time {HOLD}; \
                     connect retry time 1; connect delay time 1; error wait time 1, 2; {} {} }}\n",
                    learn("ipv4"),
                    learn("ipv6"),
                    channel("ipv4"),
                    channel("ipv6"),
                );
                Ok(Self { _processes: vec![bird(node.namespace(), &folder, &config)?] })
            }
            Daemon::Frr => {
                let config = format!(
                    "route-map SERVED permit 10\n set metric 0\n\
                     router bgp {NODES}\n bgp router-id {own}\n no bgp ebgp-requires-policy\n\
                     \x20neighbor {router} remote-as {ROUTER}\n neighbor {router} timers 1 {HOLD}\n\
                     \x20neighbor {router} timers connect 1\n\
                     \x20address-family ipv4 unicast\n  redistribute kernel route-map SERVED\n exit-address-family\n\
                     \x20address-family ipv6 unicast\n  neighbor {router} activate\n\
                     \x20 redistribute kernel route-map SERVED\n exit-address-family\n"
                );
                Ok(Self { _processes: frr(node.namespace(), &folder, &config)? })
            }
        }
    }

    /// Starts the router's daemons. They put the routes of all nodes into the kernel: several for one address if several
    /// nodes announce it.
    pub fn of_router(bed: &Bed, daemon: Daemon) -> Result<Self> {
        let folder = folder(bed, "router")?;
        Ok(Self {
            _processes: match daemon {
                Daemon::Bird => vec![bird(bed.router(), &folder, &Self::bird_of_router(bed))?],
                Daemon::Frr => frr(bed.router(), &folder, &Self::frr_of_router(bed))?,
            },
        })
    }

    fn frr_of_router(bed: &Bed) -> String {
        let own = bed.lan_gateway_addresses().of(Family::V4);
        let nodes: Vec<_> = bed.nodes().iter().map(|node| node.addresses().of(Family::V4)).collect();
        let of_all = |line: &dyn Fn(&std::net::IpAddr) -> String| nodes.iter().map(line).collect::<String>();
        let sessions = of_all(&|node| {
            format!(
                " neighbor {node} remote-as {NODES}\n neighbor {node} timers 1 {HOLD}\n neighbor {node} timers connect 1\n"
            )
        });
        let active = of_all(&|node| format!("  neighbor {node} activate\n"));
        format!(
            "router bgp {ROUTER}\n bgp router-id {own}\n no bgp ebgp-requires-policy\n{sessions}\
             \x20address-family ipv4 unicast\n  maximum-paths 8\n exit-address-family\n\
             \x20address-family ipv6 unicast\n{active}  maximum-paths 8\n exit-address-family\n"
        )
    }

    /// Graceful restart is off: with it, BIRD would keep the routes of a node that is silent for two minutes more, because
    /// FRR offers that.
    fn bird_of_router(bed: &Bed) -> String {
        let own = bed.lan_gateway_addresses().of(Family::V4);
        let kernel = |family| {
            format!(
                "protocol kernel {{ {family} {{ export where source = RTS_BGP; import none; }}; merge paths on; }}\n"
            )
        };
        let session = |node: &Node| {
            format!(
                "protocol bgp {} {{ local {own} as {ROUTER}; neighbor {} as {NODES}; hold time {HOLD}; \
                 connect retry time 1; connect delay time 1; error wait time 1, 2; \
                 graceful restart off; long lived graceful restart off; \
                 ipv4 {{ import all; export none; }}; ipv6 {{ import all; export none; }}; }}\n",
                node.name(),
                node.addresses().of(Family::V4),
            )
        };
        let sessions: String = bed.nodes().iter().map(session).collect();
        format!(
            "router id {own};\nprotocol device {{ scan time 1; }}\n{}{}{sessions}",
            kernel("ipv4"),
            kernel("ipv6")
        )
    }
}

/// Makes a folder for a machine's daemons, who may run as another user.
fn folder(bed: &Bed, machine: &str) -> Result<PathBuf> {
    let folder = bed.directory().join(format!("routing-{machine}"));
    fs::create_dir_all(&folder)?;
    fs::set_permissions(&folder, Permissions::from_mode(0o777))?;
    Ok(folder)
}

fn bird(namespace: &Namespace, folder: &Path, config: &str) -> Result<Process> {
    let file = folder.join("bird.conf");
    fs::write(&file, config)?;
    forget(&folder.join("bird.ctl"))?;
    let (file, control) = (file.display().to_string(), folder.join("bird.ctl").display().to_string());
    let arguments = ["-f", "-c", &file, "-s", &control].map(str::to_owned).to_vec();
    let process = Process::start(namespace, "/usr/sbin/bird".into(), arguments, &folder.join("bird.log"))?;
    wait_for(&folder.join("bird.ctl"), &folder.join("bird.log"))?;
    Ok(process)
}

fn frr(namespace: &Namespace, folder: &Path, config: &str) -> Result<Vec<Process>> {
    let file = folder.join("frr.conf");
    fs::write(&file, config)?;
    let log = folder.join("frr.log");
    let path = |name: &str| folder.join(name).display().to_string();
    let start = |daemon: &str| {
        let arguments = [
            "--config_file",
            &file.display().to_string(),
            "--socket",
            &path("zserv.api"),
            "--pid_file",
            &path(&format!("{daemon}.pid")),
            "--vty_socket",
            &folder.display().to_string(),
            "--log",
            "stdout",
        ];
        let arguments = arguments.map(str::to_owned).to_vec();
        Process::start(namespace, Path::new("/usr/lib/frr").join(daemon), arguments, &log)
    };
    forget(&folder.join("zserv.api"))?;
    forget(&folder.join("bgpd.vty"))?;
    let zebra = start("zebra")?;
    wait_for(&folder.join("zserv.api"), &log)?;
    let bgpd = start("bgpd")?;
    wait_for(&folder.join("bgpd.vty"), &log)?;
    // Last first: bgpd tells zebra that it ends.
    Ok(vec![bgpd, zebra])
}

/// Removes the socket of a daemon that was killed.
fn forget(socket: &Path) -> Result<()> {
    match fs::remove_file(socket) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

fn wait_for(socket: &Path, log: &Path) -> Result<()> {
    let end = Instant::now() + patience(START_LIMIT);
    while !socket.exists() {
        let said = || fs::read_to_string(log).unwrap_or_default();
        ensure!(Instant::now() < end, "{} is not there; the daemon said:\n{}", socket.display(), said());
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Returns what `ip` shows of a machine's routes to a prefix in the main table, both families alike.
pub fn routes_to(namespace: &Namespace, prefix: &str) -> Result<String> {
    let family = if prefix.contains(':') { "-6" } else { "-4" };
    output(namespace, &["ip", family, "route", "show", prefix]).with_context(|| format!("routes to {prefix}"))
}
