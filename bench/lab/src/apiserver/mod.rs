//! A real kube-apiserver with a real etcd, on a machine of their own in the bed.
//!
//! There is no controller. A test writes EndpointSlices, Node objects and load balancer addresses
//! itself, through the API, as the administrator or as the agents' ServiceAccount.

mod api;
mod credentials;
mod programs;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::etcd;
use crate::net::Namespace;
use crate::process::Process;
use crate::topology::Bed;
pub use api::Kube;
pub use credentials::{Credentials, Trust, Validity};
pub use programs::Programs;

/// Name of the machine, and of the router's device that leads to it.
pub const HOST: &str = "apiserver";
/// Number of the machine in the nodes' network.
const HOST_NUMBER: u8 = 2;
/// Port of the API server.
pub const PORT: u16 = 6443;
/// The longest duration of a start, which takes a few seconds on an idle machine.
const START_LIMIT: Duration = Duration::from_mins(2);
/// The agents' ServiceAccount, as manifests/base names it.
const NAMESPACE: &str = "kube-system";
const ACCOUNT: &str = "millrace";
/// The controller's, as manifests/controller names it.
const CONTROLLER: &str = "millrace-controller";

/// An API server and its etcd. They are killed on drop, and with the test's process at the latest.
#[derive(Debug)]
pub struct ApiServer {
    // Dropped in this order.
    server: Option<Process>,
    etcd: Option<Process>,
    programs: Programs,
    credentials: Credentials,
    directory: PathBuf,
    address: SocketAddr,
    admin: Kube,
    namespace: Arc<Namespace>,
}

impl ApiServer {
    /// Starts both on a machine of their own, and gives the agents' ServiceAccount the rights of
    /// manifests/base/rbac.yaml.
    pub fn start(bed: &Bed) -> Result<Self> {
        let programs = Programs::find()?;
        let host = bed.add_host(HOST, HOST_NUMBER)?;
        let directory = bed.directory().join(HOST);
        fs::create_dir_all(&directory)?;
        let addresses = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(host.address())];
        let credentials = Credentials::create(&directory, &addresses, PORT)?;
        let address = SocketAddr::new(host.address().into(), PORT);
        let namespace = Arc::clone(host.namespace());
        let admin = Kube::connect(&namespace, &credentials.admin_kubeconfig())?;
        let mut server =
            Self { server: None, etcd: None, programs, credentials, directory, address, admin, namespace };
        server.start_etcd()?;
        server.start_server()?;
        server.grant()?;
        server.renew_token()?;
        Ok(server)
    }

    /// Returns the API for an administrator on the server's own machine.
    #[must_use]
    pub const fn kube(&self) -> &Kube {
        &self.admin
    }

    /// Returns the namespace of both. [`admin_kubeconfig`](Self::admin_kubeconfig) is for it.
    #[must_use]
    pub const fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    /// Returns the address for nodes.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the kubeconfig of the agents' ServiceAccount. Its token is in a file beside it.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        self.credentials.agent_kubeconfig()
    }

    /// Gives the controller's ServiceAccount the rights of manifests/controller/rbac.yaml, and returns a
    /// kubeconfig of it for nodes.
    pub fn controller_kubeconfig(&self) -> Result<PathBuf> {
        self.admin.put_all(programs::rbac("controller", NAMESPACE)?)?;
        let token = self.admin.token(NAMESPACE, CONTROLLER)?;
        self.credentials.token_kubeconfig("controller.kubeconfig", self.address, &token)
    }

    /// Returns the kubeconfig of an administrator on the server's own machine.
    #[must_use]
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.credentials.admin_kubeconfig()
    }

    /// Certificates, keys and kubeconfigs.
    #[must_use]
    pub const fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Starts the API server again after [`stop_server`](Self::stop_server) or
    /// [`kill_server`](Self::kill_server), and waits until it is ready.
    pub fn start_server(&mut self) -> Result<()> {
        let arguments = Programs::server_arguments(&self.credentials, PORT);
        let log = self.directory.join("kube-apiserver.log");
        self.server = Some(Process::start(&self.namespace, self.programs.server(), arguments, &log)?);
        self.wait_until_ready()
    }

    /// Waits until the API server says that it is ready.
    pub fn wait_until_ready(&self) -> Result<()> {
        let end = Instant::now() + START_LIMIT;
        loop {
            let Err(problem) = self.admin.read("/readyz") else { return Ok(()) };
            if Instant::now() > end || !self.server.as_ref().is_some_and(Process::is_running) {
                let log = end_of(&self.directory.join("kube-apiserver.log"));
                bail!("kube-apiserver is not ready: {problem:#}; its log ends:\n{log}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Starts the stopped programs again.
    pub fn restore(&mut self) -> Result<()> {
        if self.etcd.is_none() {
            self.start_etcd()?;
        }
        if self.server.is_none() {
            self.start_server()?;
        }
        self.grant()
    }

    /// Asks the API server to end, and waits until it has.
    pub fn stop_server(&mut self) -> Result<()> {
        self.server.take().context("the API server does not run")?.stop().map(drop)
    }

    /// Kills the API server at once.
    pub fn kill_server(&mut self) -> Result<()> {
        self.server.take().context("the API server does not run")?.kill()
    }

    /// Starts etcd; the API server waits for it by itself.
    pub fn start_etcd(&mut self) -> Result<()> {
        let arguments = etcd::arguments(&self.directory.join("etcd"));
        let log = self.directory.join("etcd.log");
        self.etcd = Some(Process::start(&self.namespace, self.programs.etcd(), arguments, &log)?);
        Ok(())
    }

    /// Kills etcd at once.
    pub fn kill_etcd(&mut self) -> Result<()> {
        self.etcd.take().context("etcd does not run")?.kill()
    }

    /// Copies etcd's data. Both programs are stopped for it, and start again.
    pub fn back_up(&mut self) -> Result<()> {
        self.kill_server()?;
        self.kill_etcd()?;
        copy(&self.directory.join("etcd"), &self.directory.join("etcd.backup"))?;
        self.start_etcd()?;
        self.start_server()
    }

    /// Puts the data of [`back_up`](Self::back_up) in the place of etcd's. Everything since then is
    /// forgotten.
    pub fn restore_backup(&mut self) -> Result<()> {
        self.kill_server()?;
        self.kill_etcd()?;
        copy(&self.directory.join("etcd.backup"), &self.directory.join("etcd"))?;
        self.start_etcd()?;
        self.start_server()
    }

    /// Compacts etcd. No watch can then start before the present revision.
    pub fn compact(&self) -> Result<()> {
        let etcd = Kube::connect_to_etcd(&self.namespace)?;
        // The key is base64 for "/", which does not exist. Only the header of the answer is needed.
        let answer = etcd.write("/v3/kv/range", &json!({"key": "Lw=="}))?;
        let revision = answer.pointer("/header/revision").context("etcd's answer has no revision")?;
        etcd.write("/v3/kv/compaction", &json!({"revision": revision, "physical": true}))?;
        Ok(())
    }

    /// Writes a new token of the agents' ServiceAccount into the file that their kubeconfig names.
    pub fn renew_token(&self) -> Result<()> {
        let token = self.admin.token(NAMESPACE, ACCOUNT)?;
        self.credentials.write_token(&token)
    }

    /// Makes all tokens of the agents' ServiceAccount invalid: replaces the account by another one
    /// of the same name.
    ///
    /// The API server accepts a token that it has seen for ten more seconds. A restarted one does
    /// not.
    pub fn revoke_tokens(&self) -> Result<()> {
        self.admin.delete("v1", "ServiceAccount", NAMESPACE, ACCOUNT)?;
        self.admin.put(json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"namespace": NAMESPACE, "name": ACCOUNT},
        }))
    }

    /// Gives the agents the rights of manifests/base/rbac.yaml.
    pub fn grant(&self) -> Result<()> {
        self.admin.put(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}))?;
        self.admin.put_all(programs::rbac("base", NAMESPACE)?)
    }
}

/// Replaces a directory by a copy of another one.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("can't remove {}", to.display()))?;
    }
    let status = Command::new("cp").arg("-a").args([from, to]).status().context("can't start cp")?;
    if !status.success() {
        bail!("can't copy {}", from.display());
    }
    Ok(())
}

/// Returns the last lines of a log.
fn end_of(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(20)..).unwrap_or_default().join("\n")
}
