//! Certificates, keys and kubeconfigs of all components.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair};
use serde_json::json;

use super::plan::{API_ADDRESS, API_PORT, FIRST_SERVICES, Plan};
use crate::authority::{Authority, name};

/// The group of administrators.
const MASTERS: &str = "system:masters";
/// Names of the API server in certificates.
const SERVER_NAMES: [&str; 3] = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"];

/// The credentials of a cluster, all below one directory.
#[derive(Debug)]
pub(super) struct Credentials {
    directory: PathBuf,
    authority: Authority,
}

impl Credentials {
    /// Makes the authority, the server's certificate and the keys of ServiceAccount tokens.
    pub(super) fn create(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory)?;
        let credentials =
            Self { directory: directory.to_owned(), authority: Authority::new("millrace cluster")? };
        credentials.write("ca.crt", &credentials.authority.pem())?;
        let tokens = KeyPair::generate()?;
        credentials.write("tokens.key", &tokens.serialize_pem())?;
        credentials.write("tokens.pub", &tokens.public_key_pem())?;
        credentials.issue_server()?;
        credentials.issue_client("kubelet-client", "kube-apiserver-kubelet-client", MASTERS)?;
        Ok(credentials)
    }

    /// Returns the path of one of the files.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Makes a user of the API and a kubeconfig for it.
    fn user(&self, file: &str, user: &str, group: &str, server: SocketAddr) -> Result<PathBuf> {
        self.issue_client(file, user, group)?;
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "millrace", "cluster": {
                "server": format!("https://{server}"),
                "certificate-authority": self.path("ca.crt"),
            }}],
            "users": [{"name": user, "user": {
                "client-certificate": self.path(&format!("{file}.crt")),
                "client-key": self.path(&format!("{file}.key")),
            }}],
            "contexts": [{"name": "millrace", "context": {"cluster": "millrace", "user": user}}],
            "current-context": "millrace",
        });
        let file = format!("{file}.kubeconfig");
        self.write(&file, &config.to_string())?;
        Ok(self.path(&file))
    }

    /// Makes a component's user, which reaches the API server over the fabric.
    /// `on` distinguishes the files of components of the same user.
    pub(super) fn component(&self, user: &str, group: &str, on: &str) -> Result<PathBuf> {
        let [address, _] = Plan::control();
        let file = format!("{}-on-{on}", user.replace(':', "-"));
        self.user(&file, user, group, SocketAddr::new(address, API_PORT))
    }

    /// Makes an administrator for programs of this machine, at the forwarder's address.
    pub(super) fn administrator(&self, server: SocketAddr) -> Result<PathBuf> {
        self.user("admin", "admin", MASTERS, server)
    }

    /// Makes an administrator for programs of the machine outside.
    pub(super) fn administrator_outside(&self) -> Result<PathBuf> {
        self.component("admin", MASTERS, "outside")
    }

    fn issue_server(&self) -> Result<()> {
        let mut names: Vec<String> = SERVER_NAMES.map(str::to_owned).to_vec();
        let addresses = [IpAddr::V4(Ipv4Addr::LOCALHOST), API_ADDRESS]
            .into_iter()
            .chain(Plan::control())
            .chain(FIRST_SERVICES);
        names.extend(addresses.map(|address| address.to_string()));
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = name("kube-apiserver", None);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.authority.issue(&self.directory, "server", &params)
    }

    fn issue_client(&self, file: &str, user: &str, group: &str) -> Result<()> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name(user, Some(group));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.authority.issue(&self.directory, file, &params)
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.path(file);
        fs::write(&path, text).with_context(|| format!("can't write {}", path.display()))
    }
}
