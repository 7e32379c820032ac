//! A certificate authority.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair};

/// A certificate authority.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// Makes an authority with a key of its own.
    pub(crate) fn new(common_name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name(common_name, None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// Returns its certificate.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// Writes a certificate and its key to `<file>.crt` and `<file>.key` in a directory.
    pub(crate) fn issue(&self, directory: &Path, file: &str, params: &CertificateParams) -> Result<()> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.0)?;
        for (ending, text) in [("key", key.serialize_pem()), ("crt", certificate.pem())] {
            let path = directory.join(format!("{file}.{ending}"));
            fs::write(&path, text).with_context(|| format!("can't write {}", path.display()))?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// Returns a name. Kubernetes takes the organisation for a group.
pub(crate) fn name(common_name: &str, group: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    if let Some(group) = group {
        name.push(DnType::OrganizationName, group);
    }
    name
}
