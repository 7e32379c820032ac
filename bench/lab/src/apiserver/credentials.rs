//! Certificates, keys and kubeconfigs, all below one directory.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair, date_time_ymd};
use serde_json::{Value, json};

use crate::authority::{Authority, name};

/// The validity of a server's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// Valid now.
    Now,
    /// Valid until some years ago.
    Past,
}

/// The authority that a kubeconfig trusts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The authority that signed the server's certificate.
    Own,
    /// Another authority.
    Other,
}

/// The credentials of the API server and of its users.
#[derive(Debug)]
pub struct Credentials {
    directory: PathBuf,
    authority: Authority,
    addresses: Vec<IpAddr>,
    agent: PathBuf,
}

impl Credentials {
    /// Makes all credentials of a server at `addresses`. The administrator uses the first address,
    /// the agents the last.
    pub(super) fn create(directory: &Path, addresses: &[IpAddr], port: u16) -> Result<Self> {
        let authority = Authority::new("millrace test bed")?;
        let credentials = Self {
            directory: directory.to_owned(),
            authority,
            addresses: addresses.to_owned(),
            agent: directory.join("agent.kubeconfig"),
        };
        credentials.write(Trust::Own.file(), &credentials.authority.pem())?;
        credentials.write(Trust::Other.file(), &Authority::new("somebody else")?.pem())?;
        let tokens = KeyPair::generate()?;
        credentials.write("tokens.key", &tokens.serialize_pem())?;
        credentials.write("tokens.pub", &tokens.public_key_pem())?;
        credentials.issue_administrator()?;
        credentials.issue_server(Validity::Now)?;
        let [first, .., last] = addresses else { anyhow::bail!("a server has two addresses at least") };
        let admin = json!({
            "client-certificate": credentials.path("admin.crt"),
            "client-key": credentials.path("admin.key"),
        });
        // The administrator is on the server's own machine. He must have access even if the
        // server's certificate is bad.
        let local = json!({"server": url(SocketAddr::new(*first, port)), "insecure-skip-tls-verify": true});
        credentials.write_kubeconfig("admin.kubeconfig", &local, &admin)?;
        credentials.agent_kubeconfig_for("agent.kubeconfig", SocketAddr::new(*last, port), Trust::Own)?;
        Ok(credentials)
    }

    /// Returns the path of one of the files.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns the kubeconfig of the agents' ServiceAccount.
    #[must_use]
    pub fn agent_kubeconfig(&self) -> &Path {
        &self.agent
    }

    /// Writes another kubeconfig of the agents' ServiceAccount, for a server at another address or
    /// of another authority.
    pub fn agent_kubeconfig_for(&self, file: &str, server: SocketAddr, trust: Trust) -> Result<PathBuf> {
        let cluster = json!({"server": url(server), "certificate-authority": self.path(trust.file())});
        self.write_kubeconfig(file, &cluster, &json!({"tokenFile": self.path("agent.token")}))?;
        Ok(self.path(file))
    }

    /// Writes a kubeconfig with a token.
    pub(super) fn token_kubeconfig(&self, file: &str, server: SocketAddr, token: &str) -> Result<PathBuf> {
        let cluster = json!({"server": url(server), "certificate-authority": self.path(Trust::Own.file())});
        self.write_kubeconfig(file, &cluster, &json!({ "token": token }))?;
        Ok(self.path(file))
    }

    /// Returns the kubeconfig of an administrator.
    #[must_use]
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.path("admin.kubeconfig")
    }

    /// Writes a certificate for the server, which reads it when it starts.
    pub fn issue_server(&self, validity: Validity) -> Result<()> {
        let mut params =
            CertificateParams::new(self.addresses.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        params.distinguished_name = name("kube-apiserver", None);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = match validity {
            Validity::Now => date_time_ymd(2100, 1, 1),
            Validity::Past => date_time_ymd(2021, 1, 1),
        };
        self.issue("server", &params)
    }

    /// Replaces the agents' token, in one step.
    pub fn write_token(&self, token: &str) -> Result<()> {
        self.write("agent.token.new", token)?;
        fs::rename(self.path("agent.token.new"), self.path("agent.token"))?;
        Ok(())
    }

    fn issue_administrator(&self) -> Result<()> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name("admin", Some("system:masters"));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue("admin", &params)
    }

    fn issue(&self, file: &str, params: &CertificateParams) -> Result<()> {
        self.authority.issue(&self.directory, file, params)
    }

    /// Writes a kubeconfig as JSON, which is a part of YAML.
    fn write_kubeconfig(&self, file: &str, cluster: &Value, user: &Value) -> Result<()> {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "bed", "cluster": cluster}],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": "user"}}],
            "current-context": "bed",
        });
        self.write(file, &config.to_string())
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.path(file);
        fs::write(&path, text).with_context(|| format!("can't write {}", path.display()))
    }
}

impl Trust {
    const fn file(self) -> &'static str {
        match self {
            Self::Own => "ca.crt",
            Self::Other => "other-ca.crt",
        }
    }
}

fn url(server: SocketAddr) -> String {
    format!("https://{server}")
}
