//! Every field of a `KubeProxyConfiguration` and its effect.
//!
//! Warnings and the reference page are made from this list.

/// A field of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The path in the file, with dots.
    pub path: &'static str,
    /// The flags that set the same.
    pub flags: &'static [&'static str],
    /// The difference from the flags, or the effect of a field without flags, in sentences. Empty if there is
    /// no difference.
    pub effect: &'static str,
    /// Set if a value has no effect and gives a warning.
    pub unheeded: Option<Unheeded>,
}

/// A field that kube-proxy heeds and Millrace doesn't.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unheeded {
    /// kube-proxy's defaults, as text. They and zero values request nothing, so they give no warning.
    pub upstream: &'static [&'static str],
    /// The reason.
    pub why: &'static str,
}

impl Field {
    /// Returns the mode of the field's section. Only the section of the chosen mode counts, as in kube-proxy.
    #[must_use]
    pub fn section(&self) -> Option<&'static str> {
        let (section, _) = self.path.split_once('.')?;
        ["iptables", "ipvs", "nftables"].contains(&section).then_some(section)
    }

    const fn unless(self, upstream: &'static [&'static str], why: &'static str) -> Self {
        Self { unheeded: Some(Unheeded { upstream, why }), ..self }
    }
}

/// Returns a field that does the same as flags. `effect` describes the difference.
const fn same(path: &'static str, flags: &'static [&'static str], effect: &'static str) -> Field {
    Field { path, flags, effect, unheeded: None }
}

/// Returns a field without a flag.
const fn own(path: &'static str, effect: &'static str) -> Field {
    same(path, &[], effect)
}

/// Returns a field without effect, which gives a warning.
const fn unheeded(path: &'static str, upstream: &'static [&'static str], why: &'static str) -> Field {
    own(path, "").unless(upstream, why)
}

const JSON: &str = "the API server is asked for JSON";
const EVENTS: &str = "the agent writes Events only, and they have a limit of their own";
const LOGGING: &str = "the environment variable RUST_LOG decides what is logged";
const WINDOWS: &str = "it is for Windows";
const MASQUERADE: &str = "SNAT by eBPF needs no mark and no netfilter rule";
const MIN_SYNC: &str = "1s, kube-proxy's default, counts as not set. At most 1m0s.";
const MAX_SYNC: &str = "At most 1h0m0s.";
const NEWER: &str =
    "A field of newer versions of the format, for all modes. It wins over the one in the mode's section.";
const UDP: &str =
    "The longer of udpTimeout and udpStreamTimeout counts. The kernel's connection tracking gets each.";
const IPVS_TIMEOUT: &str = "Time-out of IPVS. 0s leaves the kernel's.";
const POD_DEVICE: &str = "The device is added to the flag's default.";
const SILENT: &str = "No effect and no warning, as in kube-proxy in these modes.";

/// All fields, sorted by path.
pub const FIELDS: &[Field] = &[
    own("apiVersion", "Must be kubeproxy.config.k8s.io/v1alpha1."),
    own(
        "bindAddress",
        "An IPv6 address moves the defaults of healthzBindAddress and metricsBindAddress to `[::]` and `[::1]`.",
    )
    .unless(&["0.0.0.0", "::"], "the node's addresses are its Node object's"),
    unheeded("bindAddressHardFail", &[], "an address that can't be bound is tried again"),
    unheeded("clientConnection.acceptContentTypes", &["application/json"], JSON),
    unheeded("clientConnection.burst", &["10"], EVENTS),
    unheeded(
        "clientConnection.contentType",
        &["application/json", "application/vnd.kubernetes.protobuf"],
        JSON,
    ),
    same("clientConnection.kubeconfig", &["--kubeconfig"], ""),
    unheeded("clientConnection.qps", &["5.0"], EVENTS),
    same("clusterCIDR", &["--cluster-cidr"], "It counts with detectLocalMode ClusterCIDR only."),
    own("configSyncPeriod", SILENT),
    same("conntrack.maxPerCore", &["--conntrack-max-per-core"], ""),
    same("conntrack.min", &["--conntrack-min"], "Where maxPerCore is 0 it has no effect, with a warning."),
    same("conntrack.tcpBeLiberal", &["--conntrack-tcp-be-liberal"], ""),
    same("conntrack.tcpCloseWaitTimeout", &["--conntrack-tcp-timeout-close-wait"], ""),
    same(
        "conntrack.tcpEstablishedTimeout",
        &["--timeout-established", "--conntrack-tcp-timeout-established"],
        "For flows of Services at most a year.",
    ),
    same("conntrack.udpStreamTimeout", &["--timeout-udp"], UDP),
    same("conntrack.udpTimeout", &["--timeout-udp"], UDP),
    same("detectLocal.bridgeInterface", &["--pod-interfaces"], POD_DEVICE),
    same("detectLocal.clusterCIDRs", &["--cluster-cidr"], "It counts where clusterCIDR is empty."),
    same("detectLocal.interfaceNamePrefix", &["--pod-interfaces"], POD_DEVICE),
    own(
        "detectLocalMode",
        "ClusterCIDR (default): clusterCIDR is inside the cluster. NodeCIDR, BridgeInterface, \
         InterfaceNamePrefix: of packets from an uplink, only those of nodes are from inside the cluster.",
    ),
    unheeded("enableProfiling", &[], "there is no profiling over HTTP"),
    own("featureGates", "No effect; each gate is named in a warning."),
    same("healthzBindAddress", &["--healthz-bind-address"], "Empty means the default address."),
    same("hostnameOverride", &["--hostname-override"], ""),
    unheeded("iptables.localhostNodePorts", &["true"], "NodePorts are not served on loopback addresses"),
    same("iptables.masqueradeAll", &["--masquerade-all"], "It counts with mode ipvs only.").unless(&[], MASQUERADE),
    unheeded("iptables.masqueradeBit", &["14"], MASQUERADE),
    same("iptables.minSyncPeriod", &["--min-sync-interval"], MIN_SYNC),
    unheeded(
        "iptables.snatNodeInternalIP",
        &[],
        "the source address is the one that the route to the other node prefers",
    ),
    same("iptables.syncPeriod", &["--max-sync-interval"], MAX_SYNC),
    same("ipvs.excludeCIDRs", &["--ipvs-exclude-cidrs"], ""),
    same("ipvs.minSyncPeriod", &["--min-sync-interval"], MIN_SYNC),
    same("ipvs.scheduler", &["--ipvs-scheduler"], ""),
    same("ipvs.strictARP", &["--ipvs-strict-arp"], ""),
    same("ipvs.syncPeriod", &["--max-sync-interval"], MAX_SYNC),
    own("ipvs.tcpFinTimeout", IPVS_TIMEOUT),
    own("ipvs.tcpTimeout", IPVS_TIMEOUT),
    own("ipvs.udpTimeout", IPVS_TIMEOUT),
    own("kind", "Must be KubeProxyConfiguration."),
    unheeded("logging.flushFrequency", &["5s", "5000000000"], LOGGING),
    same("logging.format", &["--log-format"], ""),
    unheeded("logging.options.json.infoBufferSize", &["0"], LOGGING),
    unheeded("logging.options.json.splitStream", &[], LOGGING),
    unheeded("logging.options.text.infoBufferSize", &["0"], LOGGING),
    unheeded("logging.options.text.splitStream", &[], LOGGING),
    unheeded("logging.verbosity", &[], LOGGING),
    unheeded("logging.vmodule", &[], LOGGING),
    same("metricsBindAddress", &["--metrics-bind-address"], "Empty means the default address."),
    same("minSyncPeriod", &["--min-sync-interval"], NEWER),
    same(
        "mode",
        &["--proxy-mode"],
        "Empty means the flag's default. The modes iptables and nftables are served by eBPF.",
    ),
    unheeded("nftables.masqueradeAll", &[], MASQUERADE),
    unheeded("nftables.masqueradeBit", &["14"], MASQUERADE),
    same("nftables.minSyncPeriod", &["--min-sync-interval"], MIN_SYNC),
    same("nftables.syncPeriod", &["--max-sync-interval"], MAX_SYNC),
    same("nodePortAddresses", &["--nodeport-addresses"], ""),
    unheeded("oomScoreAdj", &["-999"], "set it where the agent is started; the data path needs no agent"),
    own("portRange", SILENT),
    unheeded("showHiddenMetricsForVersion", &[], "no metric is hidden"),
    same("syncPeriod", &["--max-sync-interval"], NEWER),
    own("udpIdleTimeout", SILENT),
    unheeded("windowsRunAsService", &[], WINDOWS),
    unheeded("winkernel.enableDSR", &[], "it is for Windows; here --forwarding dsr does it"),
    unheeded("winkernel.forwardHealthCheckVip", &[], WINDOWS),
    unheeded("winkernel.networkName", &[], WINDOWS),
    unheeded("winkernel.rootHnsEndpointName", &[], WINDOWS),
    unheeded("winkernel.sourceVip", &[], WINDOWS),
];
