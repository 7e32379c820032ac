use std::time::Duration;

use super::*;
use crate::config::ipvs::FileIpvs;
use crate::config::{BindAddress, Interval, LogFormat, ProxyMode};
use crate::dataplane::ipvs::Timeouts;
use crate::model::{NodePortAddresses, Scheduler};
use crate::node::DevicePattern;

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

/// Returns the settings of a file with more than its head.
fn read_text(text: &str) -> Result<FileSettings, ConfigError> {
    interpret(Path::new("/c.yaml"), format!("{HEAD}{text}").as_bytes())
}

fn address(text: &str) -> BindAddress {
    BindAddress(Some(text.parse().unwrap()))
}

fn interval(origin: &str, milliseconds: u64) -> Interval {
    Interval { origin: origin.to_owned(), period: Duration::from_millis(milliseconds) }
}

#[track_caller]
fn refused(text: &str, line: &str) {
    assert_eq!(read_text(text).map_err(|error| error.to_string()), Err(line.to_owned()));
}

#[track_caller]
fn warned(text: &str, lines: &[&str]) {
    let warnings: Vec<Remark> = lines.iter().map(|line| Remark::Warning((*line).to_owned())).collect();
    assert_eq!(read_text(text).unwrap().remarks, warnings);
}

#[test]
fn the_file_of_kubeadm_gives_no_remark() {
    let settings = interpret(Path::new("/c.yaml"), include_bytes!("kubeadm.yaml")).unwrap();
    let expected = FileSettings {
        kubeconfig: Some("/var/lib/kube-proxy/kubeconfig.conf".into()),
        cluster_ranges: Some(vec!["10.244.0.0/16".parse().unwrap()]),
        ..FileSettings::default()
    };
    assert_eq!(settings, expected);
}

#[test]
fn the_defaults_that_kube_proxy_writes_give_no_warning() {
    let settings = interpret(Path::new("/c.yaml"), include_bytes!("written.yaml")).unwrap();
    assert_eq!(settings.remarks, [Remark::Info("/c.yaml: mode: iptables is served by eBPF".to_owned())]);
    assert_eq!(settings.min_sync_interval, None);
    assert_eq!(settings.max_sync_interval, Some(interval("/c.yaml: iptables.syncPeriod", 30_000)));
    assert_eq!(settings.timeout_established, Some(86_400));
}

#[test]
fn every_supported_field_takes_effect() {
    let settings = interpret(Path::new("/c.json"), include_bytes!("everything.json")).unwrap();
    let ranges = ["10.0.0.0/8", "2001:db8::/32"].map(|range| range.parse().unwrap());
    let expected = FileSettings {
        kubeconfig: Some("/etc/kubeconfig".into()),
        node_name: Some("node-7".to_owned()),
        proxy_mode: Some(ProxyMode::Ebpf),
        healthz_bind_address: Some(address("10.0.0.1:10256")),
        metrics_bind_address: Some(address("0.0.0.0:1234")),
        node_ports: Some(NodePortAddresses::Within(ranges.into())),
        cluster_ranges: Some(Vec::new()),
        pod_interface: DevicePattern::new("gke*"),
        timeout_established: Some(3601),
        timeout_udp: Some(120),
        conntrack: crate::node::Conntrack {
            established: 3600,
            udp: 20,
            udp_stream: 120,
            ..Default::default()
        },
        min_sync_interval: Some(interval("/c.json: nftables.minSyncPeriod", 50)),
        max_sync_interval: Some(interval("/c.json: nftables.syncPeriod", 60_000)),
        log_format: Some(LogFormat::Json),
        ipvs: FileIpvs::default(),
        remarks: vec![Remark::Info("/c.json: mode: nftables is served by eBPF".to_owned())],
    };
    assert_eq!(settings, expected);
}

#[test]
fn the_log_has_the_files_form_unless_the_flag_gives_another() {
    refused(
        "logging: {format: klog}",
        "/c.yaml: logging.format: \"klog\" is not accepted; takes text or json",
    );
    assert_eq!(read_text("logging: {format: text}").unwrap().log_format, Some(LogFormat::Text));
    assert_eq!(read_text("logging: {format: ''}").unwrap().log_format, None);
}

#[test]
fn our_modes_and_the_periods_of_newer_versions_are_accepted() {
    let settings = read_text("mode: ebpf\nsyncPeriod: 10s\nminSyncPeriod: 2ms\n").unwrap();
    assert_eq!((settings.proxy_mode, settings.remarks), (Some(ProxyMode::Ebpf), vec![]));
    assert_eq!(settings.min_sync_interval, Some(interval("/c.yaml: minSyncPeriod", 2)));
    assert_eq!(settings.max_sync_interval, Some(interval("/c.yaml: syncPeriod", 10_000)));
    assert_eq!(read_text("mode: auto").unwrap().proxy_mode, Some(ProxyMode::Auto));
    assert_eq!(read_text("mode: ''").unwrap().proxy_mode, None);
}

#[test]
fn the_mode_ipvs_has_its_own_section_and_takes_masquerade_all_from_iptables() {
    let settings = read_text(
        "mode: ipvs\niptables: {masqueradeAll: true, syncPeriod: 7s}\nipvs: {scheduler: wlc, strictARP: true, \
         excludeCIDRs: [192.0.2.0/24], tcpTimeout: 900s, tcpFinTimeout: 2m, udpTimeout: 5m, syncPeriod: 20s, \
         minSyncPeriod: 50ms}",
    )
    .unwrap();
    assert_eq!((settings.proxy_mode, settings.remarks), (Some(ProxyMode::Ipvs), vec![]));
    assert_eq!(settings.min_sync_interval, Some(interval("/c.yaml: ipvs.minSyncPeriod", 50)));
    assert_eq!(settings.max_sync_interval, Some(interval("/c.yaml: ipvs.syncPeriod", 20_000)));
    let expected = FileIpvs {
        scheduler: Some(Scheduler::Wlc),
        excluded: vec!["192.0.2.0/24".parse().unwrap()],
        strict_arp: true,
        masquerade_all: true,
        timeouts: Timeouts { tcp: 900, tcp_fin: 120, udp: 300 },
    };
    assert_eq!(settings.ipvs, expected);
}

#[test]
fn local_traffic_is_detected_by_ranges_or_by_devices_as_in_kube_proxy() {
    let ranges = |texts: &[&str]| Some(texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>());
    for (text, cluster_ranges, device) in [
        ("clusterCIDR: 10.1.0.0/16, fd00::/64", ranges(&["10.1.0.0/16", "fd00::/64"]), None),
        ("detectLocal: {clusterCIDRs: [10.1.0.0/16]}", ranges(&["10.1.0.0/16"]), None),
        ("detectLocalMode: ClusterCIDR\nclusterCIDR: 10.1.0.0/16", ranges(&["10.1.0.0/16"]), None),
        ("detectLocalMode: NodeCIDR\nclusterCIDR: 10.1.0.0/16", ranges(&[]), None),
        (
            "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cbr0}",
            ranges(&[]),
            DevicePattern::new("cbr0"),
        ),
    ] {
        let settings = read_text(text).unwrap();
        assert_eq!((settings.cluster_ranges, settings.pod_interface), (cluster_ranges, device), "{text}");
    }
}

#[test]
fn an_ipv6_bind_address_moves_the_servers_to_ipv6() {
    let settings = read_text("bindAddress: '::'").unwrap();
    assert_eq!(settings.healthz_bind_address, Some(address("[::]:10256")));
    assert_eq!(settings.metrics_bind_address, Some(address("[::1]:10249")));
    let settings = read_text("bindAddress: '::'\nmetricsBindAddress: 127.0.0.1").unwrap();
    assert_eq!(settings.metrics_bind_address, Some(address("127.0.0.1:10249")));
}

#[test]
fn each_field_without_effect_is_named_once_with_its_path() {
    warned(
        "iptables: {masqueradeBit: 15, masqueradeAll: true}\nipvs: {scheduler: rr, strictARP: true}",
        &[
            "/c.yaml: iptables.masqueradeAll: true has no effect: SNAT by eBPF needs no mark and no netfilter rule",
            "/c.yaml: iptables.masqueradeBit: 15 has no effect: SNAT by eBPF needs no mark and no netfilter rule",
        ],
    );
    warned(
        "conntrack: {maxPerCore: 0, min: 7}\nfeatureGates: {Some: true}\nbindAddress: 10.0.0.5\nlogging: {verbosity: 4}\n\
         clientConnection: {qps: 50}",
        &[
            "/c.yaml: bindAddress: 10.0.0.5 has no effect: the node's addresses are its Node object's",
            "/c.yaml: clientConnection.qps: 50.0 has no effect: the agent writes Events only, and they have a limit \
             of their own",
            "/c.yaml: logging.verbosity: 4 has no effect: the environment variable RUST_LOG decides what is logged",
            "/c.yaml: featureGates.Some: true has no effect: there are no feature gates",
            "/c.yaml: conntrack.min: 7 has no effect: conntrack.maxPerCore is 0, which leaves the limit as it is",
        ],
    );
    warned(
        "iptables: {syncPeriod: 2h22m}",
        &["/c.yaml: iptables.syncPeriod: 2h22m0s is too long; 1h0m0s is used"],
    );
}

#[test]
fn connection_tracking_has_the_settings_of_the_file_or_the_defaults_of_kube_proxy() {
    use crate::node::Conntrack;

    let of = |text: &str| read_text(text).unwrap().conntrack;
    assert_eq!(of(""), Conntrack::default());
    assert_eq!(of("conntrack: {maxPerCore: null, tcpCloseWaitTimeout: null}"), Conntrack::default());
    let all = "conntrack: {maxPerCore: 7, min: 8, tcpEstablishedTimeout: 2h, tcpCloseWaitTimeout: 90s, \
               tcpBeLiberal: true, udpTimeout: 9s, udpStreamTimeout: 10s}";
    let expected = Conntrack {
        max_per_core: 7,
        min: 8,
        established: 7200,
        close_wait: 90,
        be_liberal: true,
        udp: 9,
        udp_stream: 10,
    };
    assert_eq!(of(all), expected);
    let none = "conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}";
    let nothing =
        Conntrack { max_per_core: 0, min: 0, established: 0, close_wait: 0, ..Conntrack::default() };
    assert_eq!(of(none), nothing);
    refused("conntrack: {min: -1}", "/c.yaml: conntrack.min: -1 is not accepted; takes 0 or more");
}

/// Returns the paths of all values. An empty list or map counts as a value.
fn paths(value: &Value, prefix: &str) -> Vec<String> {
    match value {
        Value::Object(members) if !members.is_empty() => {
            let below = |(name, value): (&String, &Value)| {
                paths(value, &if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") })
            };
            members.iter().flat_map(below).collect()
        }
        _ => vec![prefix.to_owned()],
    }
}

#[test]
fn the_table_of_fields_has_every_field_of_the_format_once_and_sorted() {
    let value = serde_json::to_value(KubeProxyConfiguration::default()).unwrap();
    // The format reads this field, but never writes it.
    let mut expected = [paths(&value, ""), vec!["udpIdleTimeout".to_owned()]].concat();
    expected.sort();
    let listed: Vec<&str> = FIELDS.iter().map(|field| field.path).collect();
    assert_eq!(listed, expected);
    let is_explained =
        |field: &Field| !field.flags.is_empty() || !field.effect.is_empty() || field.unheeded.is_some();
    assert!(FIELDS.iter().all(is_explained));
}

#[test]
fn a_field_that_does_not_exist_is_an_error_that_names_its_path() {
    refused(
        "iptables: {masqueradBit: 14}",
        "/c.yaml: iptables.masqueradBit: unknown field `masqueradBit`, expected one of `masqueradeBit`, \
         `masqueradeAll`, `localhostNodePorts`, `snatNodeInternalIP`, `syncPeriod`, `minSyncPeriod`",
    );
    let error = read_text("Mode: iptables").unwrap_err().to_string();
    assert!(
        error.starts_with("/c.yaml: Mode: unknown field `Mode`, expected one of `apiVersion`"),
        "{error}"
    );
}

#[test]
fn a_wrong_value_names_the_file_the_path_and_the_accepted_values() {
    refused(
        "mode: userspace",
        "/c.yaml: mode: \"userspace\" is not accepted; takes auto, ebpf, ipvs, iptables or nftables",
    );
    refused(
        "ipvs: {scheduler: fastest}",
        "/c.yaml: ipvs.scheduler: \"fastest\" is not accepted; takes rr, wrr, lc, wlc, lblc, lblcr, sh, dh, sed, nq, fo, \
         ovf or mh",
    );
    refused(
        "ipvs: {excludeCIDRs: [10.0.0.0]}",
        "/c.yaml: ipvs.excludeCIDRs: \"10.0.0.0\" is not accepted; takes a CIDR such as 203.0.113.0/24 or \
         2001:db8::/64",
    );
    refused(
        "iptables: {syncPeriod: 30}",
        "/c.yaml: iptables.syncPeriod: invalid type: integer `30`, expected a duration such as 30s or 1h15m",
    );
    refused(
        "conntrack: {udpTimeout: -5s}",
        "/c.yaml: conntrack.udpTimeout: \"-5s\" is not accepted; takes a duration such as 30s or 1h15m",
    );
    refused(
        "enableProfiling: 'yes'",
        "/c.yaml: enableProfiling: invalid type: string \"yes\", expected a boolean",
    );
    refused(
        "clusterCIDR: 10.0.0.0",
        "/c.yaml: clusterCIDR: \"10.0.0.0\" is not accepted; takes a CIDR such as 203.0.113.0/24 or 2001:db8::/64",
    );
    refused(
        "nodePortAddresses: [10.0.0.0/8, here]",
        "/c.yaml: nodePortAddresses: \"here\" is not accepted; takes the word primary alone, or all or CIDRs \
         separated by commas",
    );
    refused(
        "healthzBindAddress: node1:10256",
        "/c.yaml: healthzBindAddress: \"node1:10256\" is not accepted; takes an address or address:port such as \
         0.0.0.0:10256 or [::]:10256",
    );
    refused(
        "bindAddress: any",
        "/c.yaml: bindAddress: \"any\" is not accepted; takes an address such as 0.0.0.0",
    );
    refused(
        "hostnameOverride: a/b",
        "/c.yaml: hostnameOverride: \"a/b\" is not accepted; takes the name of this node's Node object",
    );
    refused(
        "detectLocalMode: Pods",
        "/c.yaml: detectLocalMode: \"Pods\" is not accepted; takes ClusterCIDR, NodeCIDR, BridgeInterface or \
         InterfaceNamePrefix",
    );
    refused(
        "detectLocalMode: BridgeInterface",
        "/c.yaml: detectLocal.bridgeInterface: \"\" is not accepted; takes the name of a device, or its beginning, \
         as detectLocalMode requires",
    );
}

#[test]
fn a_file_of_another_kind_gives_an_error_of_one_line() {
    for (text, line) in [
        ("", "takes one KubeProxyConfiguration, as YAML or JSON"),
        ("# nothing\n", "takes one KubeProxyConfiguration, as YAML or JSON"),
        ("- a\n", "takes one KubeProxyConfiguration, as YAML or JSON"),
        ("kind: Pod\n", "apiVersion: \"\" is not accepted; takes kubeproxy.config.k8s.io/v1alpha1"),
        (
            "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\n",
            "apiVersion: \"kubeproxy.config.k8s.io/v1alpha2\" is not accepted; takes kubeproxy.config.k8s.io/v1alpha1",
        ),
        (
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeletConfiguration\n",
            "kind: \"KubeletConfiguration\" is not accepted; takes KubeProxyConfiguration",
        ),
        (&format!("{HEAD}---\n{HEAD}"), "has several documents; takes one KubeProxyConfiguration"),
    ] {
        let error = interpret(Path::new("/c.yaml"), text.as_bytes()).unwrap_err().to_string();
        assert_eq!(error, format!("/c.yaml: {line}"), "{text}");
    }
    for (text, begin) in [
        ("a: [", "/c.yaml: is not YAML: "),
        ("{\"a\": ", "/c.yaml: is not JSON: "),
        (&format!("{HEAD}mode: ''\nmode: ''\n"), "/c.yaml: is not YAML: "),
    ] {
        let error = interpret(Path::new("/c.yaml"), text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with(begin) && !error.contains('\n'), "{error}");
    }
    assert_eq!(read_text("---\n").map(|settings| settings.remarks), Ok(Vec::new()));
}
