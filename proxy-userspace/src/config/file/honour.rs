//! The settings that follow from the fields of a file.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use super::remark::remarks;
use super::{GoDuration, KubeProxyConfiguration, Origin, Remark, nonempty};
use crate::config::ipvs::FileIpvs;
use crate::config::parse::{
    self, BindAddress, LONGEST_MAX_SYNC, LONGEST_MIN_SYNC, LONGEST_TIMEOUT, in_seconds,
};
use crate::config::{ConfigError, HEALTHZ_PORT, Interval, LogFormat, METRICS_PORT, ProxyMode};
use crate::model::NodePortAddresses;
use crate::node::{Conntrack, DevicePattern};

/// kube-proxy's default of minSyncPeriod, which counts as not set.
///
/// kube-proxy writes it into its own files without a request. The pause helps a kernel that rewrites all
/// rules at once. Millrace doesn't need it.
const UPSTREAM_MIN_SYNC: Duration = Duration::from_secs(1);

/// The settings of a file; `None` = the file does not set it.
#[derive(Debug, Default, PartialEq)]
pub struct FileSettings {
    pub kubeconfig: Option<PathBuf>,
    pub node_name: Option<String>,
    pub proxy_mode: Option<ProxyMode>,
    pub healthz_bind_address: Option<BindAddress>,
    pub metrics_bind_address: Option<BindAddress>,
    pub node_ports: Option<NodePortAddresses>,
    pub cluster_ranges: Option<Vec<IpNet>>,
    /// Devices toward pods, in addition to the flag's default.
    pub pod_interface: Option<DevicePattern>,
    pub timeout_established: Option<u32>,
    pub timeout_udp: Option<u32>,
    pub conntrack: Conntrack,
    pub min_sync_interval: Option<Interval>,
    pub max_sync_interval: Option<Interval>,
    pub log_format: Option<LogFormat>,
    pub ipvs: FileIpvs,
    pub remarks: Vec<Remark>,
}

impl FileSettings {
    pub(super) fn from_configuration(
        file: &KubeProxyConfiguration,
        origin: Origin<'_>,
    ) -> Result<Self, ConfigError> {
        let mode = Mode::choose(file, origin)?;
        let mut remarks = remarks(file, mode.section, origin);
        remarks.splice(0..0, mode.remark.clone());
        let (healthz, metrics) = default_addresses(&file.bind_address, origin)?;
        let local = LocalDetection::read(file, origin)?;
        let mut settings = Self {
            kubeconfig: nonempty(&file.client_connection.kubeconfig).map(PathBuf::from),
            node_name: origin.read("hostnameOverride", &file.hostname_override, parse::node_name)?,
            proxy_mode: mode.meaning,
            healthz_bind_address: origin
                .read("healthzBindAddress", &file.healthz_bind_address, parse::healthz_address)?
                .or(healthz),
            metrics_bind_address: origin
                .read("metricsBindAddress", &file.metrics_bind_address, parse::metrics_address)?
                .or(metrics),
            node_ports: node_ports(&file.node_port_addresses, origin)?,
            cluster_ranges: Some(local.cluster_ranges),
            pod_interface: local.pod_interface,
            log_format: origin.read("logging.format", &file.logging.format, parse::log_format)?,
            ipvs: FileIpvs::read(file, origin)?,
            conntrack: conntrack(file, origin, &mut remarks)?,
            remarks,
            ..Self::default()
        };
        settings.add_periods(file, &mode, origin);
        Ok(settings)
    }

    fn add_periods(&mut self, file: &KubeProxyConfiguration, mode: &Mode, origin: Origin<'_>) {
        let conntrack = &file.conntrack;
        let mut period = Period { origin, remarks: &mut self.remarks };
        let established = conntrack.tcp_established_timeout.unwrap_or_default();
        self.timeout_established =
            period.seconds("conntrack.tcpEstablishedTimeout", established, LONGEST_TIMEOUT);
        // Millrace has one time-out for all UDP flows. With the longer one, no flow ends too early.
        let (udp, stream) = (conntrack.udp_timeout, conntrack.udp_stream_timeout);
        self.timeout_udp = if udp > stream {
            period.seconds("conntrack.udpTimeout", udp, LONGEST_TIMEOUT)
        } else {
            period.seconds("conntrack.udpStreamTimeout", stream, LONGEST_TIMEOUT)
        };
        let (path, min) = mode.period(file, "minSyncPeriod");
        let min = if min.0 == UPSTREAM_MIN_SYNC { GoDuration::default() } else { min };
        let interval = |path: &str, period| Interval { origin: origin.at(path), period };
        let min = period.capped(&path, min, LONGEST_MIN_SYNC);
        self.min_sync_interval = min.map(|min| interval(&path, min));
        let (path, max) = mode.period(file, "syncPeriod");
        let max = period.seconds(&path, max, LONGEST_MAX_SYNC);
        self.max_sync_interval = max.map(|seconds| interval(&path, Duration::from_secs(seconds.into())));
    }
}

fn node_ports(texts: &[String], origin: Origin<'_>) -> Result<Option<NodePortAddresses>, ConfigError> {
    const FIELD: &str = "nodePortAddresses";
    let items = origin.read_all(FIELD, texts, parse::node_port_range)?;
    parse::node_ports(&items).map_err(|refused| refused.at(origin.at(FIELD)))
}

/// Returns the default addresses of the servers.
///
/// They depend on the family of `bindAddress`, as in kube-proxy.
fn default_addresses(
    text: &str,
    origin: Origin<'_>,
) -> Result<(Option<BindAddress>, Option<BindAddress>), ConfigError> {
    let Some(text) = nonempty(text) else { return Ok((None, None)) };
    match text.parse() {
        Ok(IpAddr::V4(_)) => Ok((None, None)),
        Ok(IpAddr::V6(_)) => Ok((
            Some(BindAddress::new(Ipv6Addr::UNSPECIFIED.into(), HEALTHZ_PORT)),
            Some(BindAddress::new(Ipv6Addr::LOCALHOST.into(), METRICS_PORT)),
        )),
        Err(_) => {
            let example = Ipv4Addr::UNSPECIFIED;
            Err(origin.error(
                "bindAddress",
                format!("{text:?} is not accepted; takes an address such as {example}"),
            ))
        }
    }
}

/// Returns the settings of the kernel's connection tracking. A missing field has kube-proxy's default.
fn conntrack(
    file: &KubeProxyConfiguration,
    origin: Origin<'_>,
    remarks: &mut Vec<Remark>,
) -> Result<Conntrack, ConfigError> {
    let (section, defaults) = (&file.conntrack, Conntrack::default());
    let entries = |field: &str, number: Option<i32>, default: u32| {
        let wrong = |number| origin.error(field, format!("{number} is not accepted; takes 0 or more"));
        number.map_or(Ok(default), |number| u32::try_from(number).map_err(|_| wrong(number)))
    };
    let seconds = |field: &str, period: Option<GoDuration>, default: u32| {
        let wrong = |period| origin.error(field, format!("{period} is not accepted; takes up to a year"));
        period.map_or(Ok(default), |period| in_seconds(period.0).ok_or_else(|| wrong(period)))
    };
    let max_per_core = entries("conntrack.maxPerCore", section.max_per_core, defaults.max_per_core)?;
    if let (0, Some(min @ 1..)) = (max_per_core, section.min) {
        let place = origin.at("conntrack.min");
        let why = "conntrack.maxPerCore is 0, which leaves the limit as it is";
        remarks.push(Remark::Warning(format!("{place}: {min} has no effect: {why}")));
    }
    Ok(Conntrack {
        max_per_core,
        min: entries("conntrack.min", section.min, defaults.min)?,
        // `add_periods` warns about a time-out above the limit.
        established: section
            .tcp_established_timeout
            .map_or(defaults.established, |period| in_seconds(period.0).unwrap_or(LONGEST_TIMEOUT)),
        close_wait: seconds(
            "conntrack.tcpCloseWaitTimeout",
            section.tcp_close_wait_timeout,
            defaults.close_wait,
        )?,
        be_liberal: section.tcp_be_liberal,
        udp: in_seconds(section.udp_timeout.0).unwrap_or(LONGEST_TIMEOUT),
        udp_stream: in_seconds(section.udp_stream_timeout.0).unwrap_or(LONGEST_TIMEOUT),
    })
}

/// The meaning of `mode`.
struct Mode {
    meaning: Option<ProxyMode>,
    /// The section of the mode, if kube-proxy knows the mode.
    section: Option<&'static str>,
    remark: Option<Remark>,
}

impl Mode {
    fn choose(file: &KubeProxyConfiguration, origin: Origin<'_>) -> Result<Self, ConfigError> {
        match file.mode.as_str() {
            "" => Ok(Self { meaning: None, section: Some("iptables"), remark: None }),
            "iptables" | "nftables" => {
                let section = if file.mode == "iptables" { "iptables" } else { "nftables" };
                let remark = Remark::Info(format!("{}: {section} is served by eBPF", origin.at("mode")));
                Ok(Self { meaning: Some(ProxyMode::Ebpf), section: Some(section), remark: Some(remark) })
            }
            "ipvs" => Ok(Self { meaning: Some(ProxyMode::Ipvs), section: Some("ipvs"), remark: None }),
            mode => {
                let modes = [
                    ("auto", ProxyMode::Auto),
                    ("ebpf", ProxyMode::Ebpf),
                    ("ipvs", ProxyMode::Ipvs),
                    ("iptables", ProxyMode::Ebpf),
                    ("nftables", ProxyMode::Ebpf),
                ];
                let meaning = origin.read("mode", mode, |mode| parse::choice(mode, &modes))?;
                Ok(Self { meaning, section: None, remark: None })
            }
        }
    }

    /// Returns a period and its path: the one for all modes, or else the one of this mode.
    fn period(&self, file: &KubeProxyConfiguration, field: &str) -> (String, GoDuration) {
        let (iptables, nftables, ipvs) = (&file.iptables, &file.nftables, &file.ipvs);
        let (all, iptables, nftables, ipvs) = if field == "syncPeriod" {
            (file.sync_period, iptables.sync_period, nftables.sync_period, ipvs.sync_period)
        } else {
            (file.min_sync_period, iptables.min_sync_period, nftables.min_sync_period, ipvs.min_sync_period)
        };
        match self.section {
            Some(section) if all == GoDuration::default() => {
                let period = match section {
                    "iptables" => iptables,
                    "ipvs" => ipvs,
                    _ => nftables,
                };
                (format!("{section}.{field}"), period)
            }
            _ => (field.to_owned(), all),
        }
    }
}

/// The reader of periods. Zero means "not set", and a period above the limit becomes the limit.
struct Period<'a> {
    origin: Origin<'a>,
    remarks: &'a mut Vec<Remark>,
}

impl Period<'_> {
    fn capped(&mut self, path: &str, period: GoDuration, longest: Duration) -> Option<Duration> {
        if period.0 > longest {
            let (place, most) = (self.origin.at(path), GoDuration(longest));
            self.remarks.push(Remark::Warning(format!("{place}: {period} is too long; {most} is used")));
        }
        (!period.0.is_zero()).then(|| period.0.min(longest))
    }

    /// Returns the period, rounded up to seconds.
    fn seconds(&mut self, path: &str, period: GoDuration, longest: u32) -> Option<u32> {
        let period = self.capped(path, period, Duration::from_secs(longest.into()))?;
        let seconds = period.as_secs() + u64::from(period.subsec_nanos() > 0);
        u32::try_from(seconds).ok()
    }
}

/// The detection of traffic from inside the cluster, as in kube-proxy.
///
/// Some modes look at devices, or at this node's own pods. Packets from an uplink are then never from inside
/// the cluster, so there is no range.
struct LocalDetection {
    cluster_ranges: Vec<IpNet>,
    pod_interface: Option<DevicePattern>,
}

impl LocalDetection {
    fn read(file: &KubeProxyConfiguration, origin: Origin<'_>) -> Result<Self, ConfigError> {
        let local = &file.detect_local;
        let by_device = |field: &str, text: &str, suffix: &str| {
            let pattern = DevicePattern::new(&format!("{text}{suffix}"))
                .filter(|_| !text.is_empty() && !text.contains('*'));
            let takes = "takes the name of a device, or its beginning, as detectLocalMode requires";
            let wrong = || origin.error(field, format!("{text:?} is not accepted; {takes}"));
            let pod_interface = Some(pattern.ok_or_else(wrong)?);
            Ok(Self { cluster_ranges: Vec::new(), pod_interface })
        };
        match file.detect_local_mode.as_str() {
            "" | "ClusterCIDR" => {
                let (path, texts) = match nonempty(&file.cluster_cidr) {
                    Some(text) => {
                        ("clusterCIDR", text.split(',').map(|text| text.trim().to_owned()).collect())
                    }
                    None => ("detectLocal.clusterCIDRs", local.cluster_cidrs.clone()),
                };
                let cluster_ranges = origin.read_all(path, &texts, parse::range)?;
                Ok(Self { cluster_ranges, pod_interface: None })
            }
            "NodeCIDR" => Ok(Self { cluster_ranges: Vec::new(), pod_interface: None }),
            "BridgeInterface" => by_device("detectLocal.bridgeInterface", &local.bridge_interface, ""),
            "InterfaceNamePrefix" => {
                by_device("detectLocal.interfaceNamePrefix", &local.interface_name_prefix, "*")
            }
            other => {
                let takes = "takes ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix";
                Err(origin.error("detectLocalMode", format!("{other:?} is not accepted; {takes}")))
            }
        }
    }
}
