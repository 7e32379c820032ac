//! The section of IPVS in the file of `--config`.

use ipnet::IpNet;

use super::scheduler;
use crate::config::ConfigError;
use crate::config::file::{GoDuration, KubeProxyConfiguration, Origin};
use crate::config::parse;
use crate::dataplane::ipvs::Timeouts;
use crate::model::Scheduler;

/// The settings of a file for IPVS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileIpvs {
    pub scheduler: Option<Scheduler>,
    pub excluded: Vec<IpNet>,
    pub strict_arp: bool,
    pub masquerade_all: bool,
    pub timeouts: Timeouts,
}

impl FileIpvs {
    /// Checks the section.
    pub(in crate::config) fn read(
        file: &KubeProxyConfiguration,
        origin: Origin<'_>,
    ) -> Result<Self, ConfigError> {
        let section = &file.ipvs;
        let seconds = |path: &str, period: GoDuration| {
            let seconds = parse::in_seconds(period.0);
            seconds.ok_or_else(|| origin.error(path, format!("{period} is not accepted; takes up to a year")))
        };
        Ok(Self {
            scheduler: origin.read("ipvs.scheduler", &section.scheduler, scheduler)?,
            excluded: origin.read_all("ipvs.excludeCIDRs", &section.exclude_cidrs, parse::range)?,
            strict_arp: section.strict_arp,
            // This is the section of another mode, but kube-proxy reads it with IPVS, too.
            masquerade_all: file.iptables.masquerade_all,
            timeouts: Timeouts {
                tcp: seconds("ipvs.tcpTimeout", section.tcp_timeout)?,
                tcp_fin: seconds("ipvs.tcpFinTimeout", section.tcp_fin_timeout)?,
                udp: seconds("ipvs.udpTimeout", section.udp_timeout)?,
            },
        })
    }
}
