use super::*;
use crate::dataplane::Encapsulation;
use crate::dataplane::ebpf::{Dispatch, OuterSource, OwnSource, SocketLb};
use crate::model::{ClusterIpClients, Forwarding, NodePortAddresses};
use crate::node::PodRoutes;

use clap::Parser;

#[test]
fn nodes_can_take_packets_from_a_prefix_before_they_send_from_there() {
    let of = |flags: &str| resolve(flags).unwrap().dsr.outer_source;
    assert_eq!(of("").names(), ["node"]);
    assert_eq!(of("--dsr-outer-source node"), of(""));
    let taken = of("--dsr-outer-source node,172.16.0.0/16");
    assert_eq!((taken.own, taken.v6), (OwnSource::Node, None));
    let sent = of("--dsr-outer-source 172.16.0.0/16");
    assert_eq!((sent.own, sent.v4), (OwnSource::Spread, taken.v4));
    assert_eq!(sent.names(), ["172.16.0.0/16"]);
}

#[test]
fn a_wrong_outer_source_is_refused_in_one_line() {
    let takes = "the word node, or a prefix of /8 to /31, or one of /32 to /127 with IPv6, or one of each, with \
                 or without node before them";
    for (flags, named) in [
        ("172.16.0.0/16,10.0.0.0/8", "10.0.0.0/8"),
        ("172.16.0.0/16,node", "node"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("::/0", "::/0"),
        ("172.16.0.1", "172.16.0.1"),
        ("director", "director"),
    ] {
        let line = format!("--dsr-outer-source: {named:?} is not accepted; takes {takes}");
        refused(&format!("--dsr-outer-source {flags}"), &line);
    }
}

#[test]
fn an_outer_source_that_pods_or_services_have_is_refused_in_one_line_that_names_both() {
    for (flags, prefix, range) in [
        ("--cluster-cidr 10.244.0.0/16", "10.244.16.0/20", "10.244.0.0/16 of --cluster-cidr"),
        ("--cluster-cidr 192.0.2.0/24,10.1.2.0/24", "10.0.0.0/8", "10.1.2.0/24 of --cluster-cidr"),
        ("--cluster-cidr fd00:244:0:1::9/56", "fd00:244::/48", "fd00:244::/56 of --cluster-cidr"),
        (
            "--service-external-ip-range 203.0.113.0/24",
            "203.0.113.128/25",
            "203.0.113.0/24 of --service-external-ip-range",
        ),
        (
            &format!("--config {KUBEADM}"),
            "10.244.0.0/16",
            &format!("10.244.0.0/16 of the cluster in {KUBEADM}"),
        ),
    ] {
        let line = format!("--dsr-outer-source: {prefix} overlaps {range}; takes unused addresses");
        refused(&format!("{flags} --dsr-outer-source {prefix}"), &line);
        refused(&format!("{flags} --dsr-outer-source node,{prefix}"), &line);
        assert!(resolve(&format!("{flags} --dsr-outer-source 172.16.0.0/16,2001:db8:f0::/48")).is_ok());
    }
}

#[test]
fn the_task_is_to_serve_unless_only_the_set_up_is_asked_for() {
    let task = |flags: &str| resolve(flags).unwrap().task;
    assert_eq!((task(""), task("--init-only=false")), (Task::Serve, Task::Serve));
    assert_eq!((task("--init-only"), task("--init-only=true")), (Task::Init, Task::Init));
    refused("--init-only=once", r#"--init-only: "once" is not accepted; takes true or false"#);
}

#[test]
fn the_nodes_addresses_are_read_as_a_pod_gets_them() {
    let read = |text: &str| of_pod(text);
    assert_eq!(read("").unwrap(), BTreeSet::new());
    let both = ["192.0.2.1", "2001:db8::1"].map(|address| address.parse().unwrap());
    assert_eq!(read("192.0.2.1, 2001:db8::1").unwrap(), BTreeSet::from(both));
    let line = r#"NODE_IPS: "node1" is not accepted; takes IP addresses, separated by commas"#;
    assert_eq!(read("192.0.2.1,node1").unwrap_err().to_string(), line);
}

/// What kubeadm writes.
const KUBEADM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/config/file/kubeadm.yaml");
/// A file that says everything we honour.
const EVERYTHING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/config/file/everything.json");

#[derive(Parser)]
struct Agent {
    #[command(flatten)]
    args: AgentArgs,
}

/// Settings of a host called `host-1` from flags separated by blanks.
pub(super) fn resolve(flags: &str) -> Result<Settings, ConfigError> {
    let own = ["agent"].into_iter().chain(flags.split_whitespace());
    let agent = Agent::try_parse_from(own).map_err(|error| ConfigError::of_flag(&error).unwrap())?;
    Settings::resolve_on(&agent.args, Some("Host-1 \n".to_owned()))
}

#[track_caller]
pub(super) fn refused(flags: &str, line: &str) {
    assert_eq!(resolve(flags).map_err(|error| error.to_string()), Err(line.to_owned()));
}

#[test]
fn without_flags_the_defaults_hold() {
    let settings = resolve("").unwrap();
    assert_eq!(settings.source, Source::Kubernetes { kubeconfig: None });
    assert_eq!(settings.model, ModelSettings { node_name: "host-1".to_owned(), ..ModelSettings::default() });
    assert_eq!(settings.timeouts, Timeouts::default());
    assert_eq!(settings.conntrack, Conntrack::default());
    assert_eq!(settings.reject_unknown, RejectUnknown::ClusterIp);
    assert_eq!(settings.dsr, Dsr::default());
    assert_eq!(settings.sockets, Sockets { lb: SocketLb::All, bind_protection: true, cgroup: None });
    assert_eq!(settings.mark, Mark { value: 0x1000, mask: 0x1000 });
    assert_eq!(settings.bpffs, PathBuf::from("/sys/fs/bpf"));
    assert!(settings.uplinks.is_empty());
    assert!(settings.pod_interfaces.iter().any(|pattern| pattern.matches("veth12ab")));
}

#[test]
fn every_flag_is_heard() {
    let settings = resolve(
        "--hostname-override node-7 --uplinks eth0,eth1 --pod-interfaces cni0 --nodeport-addresses \
         10.0.0.0/8,2001:db8::/32 --cluster-cidr 10.244.0.0/16,fd00:244::/56 --cluster-ip-clients all --service-external-ip-range 192.0.2.0/24 --service-external-ip-range \
         2001:db8:e::/64 --service-proxy-name edge --l2-announce 192.0.2.128/25,2001:db8:e::/64 --l2-devices eth* --route-announce 198.51.100.0/24 --route-announce-pods on --pod-routes ipip --forwarding dsr --algorithm maglev --maglev-table-size 251 \
         --flow-table-size 4096 --timeout-syn 1 --timeout-established 2 --timeout-closing 3 --timeout-udp 4 \
         --reject-unknown-ports all --dsr-encap fou --dsr-dispatch pod --dsr-outer-source 172.16.9.1/16,2001:db8:f0::/48 --snat-ports 20000-20999 --socket-lb host --bind-protection off --cgroup-path /cgroup --fwmark 0x10/255 --bpffs-path /bpf --xdp generic --proxy-mode ebpf --min-sync-interval 5 \
         --max-sync-interval 6 --conntrack-max-per-core 9 --conntrack-min 10 --conntrack-tcp-timeout-established 2h \
         --conntrack-tcp-timeout-close-wait 0s --conntrack-tcp-be-liberal --healthz-bind-address [::]:1 --metrics-bind-address ::1 --log-format json",
    )
    .unwrap();
    let range = |text: &str| text.parse().unwrap();
    let model = ModelSettings {
        node_name: "node-7".to_owned(),
        node_ports: NodePortAddresses::Within(vec![range("10.0.0.0/8"), range("2001:db8::/32")]),
        cluster_ranges: vec![range("10.244.0.0/16"), range("fd00:244::/56")],
        cluster_ip_clients: ClusterIpClients::All,
        external_ip_ranges: vec![range("192.0.2.0/24"), range("2001:db8:e::/64")],
        service_proxy_name: Some("edge".to_owned()),
        forwarding: Forwarding::Dsr,
        maglev: true,
        maglev_size: 251,
        announced_ranges: vec![range("192.0.2.128/25"), range("2001:db8:e::/64"), range("198.51.100.0/24")],
    };
    assert_eq!(settings.model, model);
    assert_eq!(settings.l2_announce, model.announced_ranges[..2]);
    let routes = RouteSettings {
        announced_ranges: vec![range("198.51.100.0/24")],
        own_pods: true,
        to_pods: PodRoutes::Ipip,
    };
    assert_eq!(settings.routes, routes);
    assert_eq!(settings.l2_devices, [DevicePattern::new("eth*").unwrap()]);
    assert_eq!(settings.uplinks, ["eth0", "eth1"]);
    assert_eq!(settings.pod_interfaces, [DevicePattern::new("cni0").unwrap()]);
    assert_eq!(settings.timeouts, Timeouts { syn: 1, established: 2, closing: 3, datagram: 4 });
    let conntrack = Conntrack {
        max_per_core: 9,
        min: 10,
        established: 7200,
        close_wait: 0,
        be_liberal: true,
        ..Conntrack::default()
    };
    assert_eq!(settings.conntrack, conntrack);
    assert_eq!(settings.flow_table_size, 4096);
    assert_eq!(settings.reject_unknown, RejectUnknown::All);
    let outer_source = OuterSource {
        v4: Some("172.16.0.0/16".parse().unwrap()),
        v6: Some("2001:db8:f0::/48".parse().unwrap()),
        own: OwnSource::Spread,
    };
    assert_eq!(
        settings.dsr,
        Dsr { encapsulation: Encapsulation::Fou, also_taken: None, outer_source, dispatch: Dispatch::Pod }
    );
    let both = resolve("--dsr-encap ipip,fou").unwrap().dsr;
    assert_eq!(both.taken().collect::<Vec<_>>(), [Encapsulation::Ipip, Encapsulation::Fou]);
    assert_eq!(settings.snat_ports, 20000..=20999);
    let cgroup = Some(PathBuf::from("/cgroup"));
    assert_eq!(settings.sockets, Sockets { lb: SocketLb::Host, bind_protection: false, cgroup });
    assert_eq!(settings.mark, Mark { value: 0x10, mask: 0xff });
    assert_eq!((settings.bpffs, settings.xdp), (PathBuf::from("/bpf"), XdpMode::Generic));
    assert_eq!(settings.proxy_mode, ProxyMode::Ebpf);
    assert_eq!(resolve("--proxy-mode none").unwrap().proxy_mode, ProxyMode::None);
    assert_eq!(settings.min_sync_interval, Duration::from_millis(5));
    assert_eq!(settings.max_sync_interval, Duration::from_secs(6));
    assert_eq!(settings.healthz_bind_address, Some("[::]:1".parse().unwrap()));
    assert_eq!(settings.metrics_bind_address, Some("[::1]:10249".parse().unwrap()));
    assert_eq!((settings.log_format, resolve("").unwrap().log_format), (LogFormat::Json, LogFormat::Text));
    let network_policy = |flags: &str| resolve(flags).unwrap().network_policy;
    assert!(network_policy("--network-policy on --dsr-dispatch node") && !network_policy(""));
    refused("--log-format xml", "--log-format: \"xml\" is not accepted; takes text or json");
}

#[test]
fn encapsulations_are_one_or_both_and_none_twice() {
    let both = "takes ipip, fou, or both once, what is sent first";
    for given in ["fou,fou", "ipip,fou,ipip"] {
        let error = resolve(&format!("--dsr-encap {given}")).unwrap_err().to_string();
        assert_eq!(error, format!("--dsr-encap: {given:?} is not accepted; {both}"));
    }
    let error = resolve("--dsr-encap gue").unwrap_err().to_string();
    assert_eq!(error, "--dsr-encap: \"gue\" is not accepted; takes ipip or fou");
}

#[test]
fn a_wrong_item_of_a_list_is_named_alone() {
    let takes = "names of devices, separated by commas";
    refused("--uplinks eth0,eth*,a/b", &format!("--uplinks: \"eth*\" is not accepted; takes {takes}"));
    refused("--uplinks eth0 --uplinks=", &format!("--uplinks: \"\" is not accepted; takes {takes}"));
    let uplinks = resolve("--uplinks eth0,eth1 --uplinks eth2").unwrap().uplinks;
    assert_eq!(uplinks, ["eth0", "eth1", "eth2"]);
}

#[test]
fn only_a_refusal_of_ours_is_an_error_of_a_flag() {
    let error = |flags: &[&str]| {
        let own = ["agent"].into_iter().chain(flags.iter().copied());
        ConfigError::of_flag(&Agent::try_parse_from(own).map(|agent| agent.args).unwrap_err())
    };
    for flags in [&["--uplink", "eth0"][..], &["--drain"], &["--drain", "5", "--drain", "6"], &["--help"]] {
        assert_eq!(error(flags), None, "{flags:?}");
    }
    let of_switch = error(&["--conntrack-tcp-be-liberal=1"]).unwrap();
    assert_eq!(of_switch.origin, "--conntrack-tcp-be-liberal");
}

#[test]
fn a_wrong_value_names_the_flag_and_what_it_takes() {
    refused("--source api", "--source: \"api\" is not accepted; takes kubernetes or directory:PATH");
    refused(
        "--source directory:",
        "--source: \"directory:\" is not accepted; takes kubernetes or directory:PATH",
    );
    refused(
        "--source kubernetes:x",
        "--source: \"kubernetes:x\" is not accepted; takes kubernetes or directory:PATH",
    );
    refused(
        "--source directory:/m --kubeconfig /k",
        "--kubeconfig: is not accepted with --source directory:/m; takes effect with --source kubernetes",
    );
    refused("--proxy-mode nft", "--proxy-mode: \"nft\" is not accepted; takes auto, ebpf, ipvs or none");
    refused("--forwarding DSR", "--forwarding: \"DSR\" is not accepted; takes snat or dsr");
    refused(
        "--reject-unknown-ports none",
        "--reject-unknown-ports: \"none\" is not accepted; takes clusterip, all or off",
    );
    refused("--dsr-dispatch host", "--dsr-dispatch: \"host\" is not accepted; takes node or pod");
    refused("--network-policy yes", "--network-policy: \"yes\" is not accepted; takes on or off");
    refused(
        "--network-policy on --dsr-dispatch pod",
        "--network-policy: on is not accepted with --dsr-dispatch pod: pods then answer from addresses of Services, \
         which count as forged; takes effect with --dsr-dispatch node",
    );
    assert!(resolve("--network-policy off --dsr-dispatch pod").is_ok());
    refused(
        "--network-policy on --proxy-mode ipvs",
        "--network-policy: on is not accepted with --proxy-mode ipvs: Services are translated behind the firewall there; \
         takes effect with ebpf and auto",
    );
    assert!(resolve("--network-policy off --proxy-mode none").is_ok());
    refused("--socket-lb pods", "--socket-lb: \"pods\" is not accepted; takes all, host or off");
    refused("--bind-protection maybe", "--bind-protection: \"maybe\" is not accepted; takes on or off");
    refused("--cgroup-path cgroup", "--cgroup-path: \"cgroup\" is not accepted; takes an absolute path");
    refused("--xdp fast", "--xdp: \"fast\" is not accepted; takes auto, native, generic or off");
    refused(
        "--maglev-table-size 4096",
        "--maglev-table-size: \"4096\" is not accepted; takes a prime from 3 to 65537; the nearest is 4093",
    );
    refused(
        "--maglev-table-size many",
        "--maglev-table-size: \"many\" is not accepted; takes a prime from 3 to 65537",
    );
    refused("--timeout-syn 0", "--timeout-syn: \"0\" is not accepted; takes 1 to 31536000 seconds");
    refused(
        "--flow-table-size 10",
        "--flow-table-size: \"10\" is not accepted; takes 1024 to 16777216 entries",
    );
    refused(
        "--conntrack-tcp-timeout-close-wait 3600",
        "--conntrack-tcp-timeout-close-wait: \"3600\" is not accepted; takes a duration such as 1h0m0s, up to a year; \
         0 leaves the kernel's",
    );
    refused("--conntrack-min -1", "--conntrack-min: \"-1\" is not accepted; takes 0 to 2147483647 entries");
    for ports in ["61000", "1000-2000", "2000-1500", "61000-61010", "61000-70000"] {
        refused(
            &format!("--snat-ports {ports}"),
            &format!(
                "--snat-ports: {ports:?} is not accepted; takes FIRST-LAST such as 61000-65535, at least 64 ports \
                 above 1023"
            ),
        );
    }
    for mark in ["0x100/0xff", "0/0xff"] {
        refused(
            &format!("--fwmark {mark}"),
            &format!(
                "--fwmark: {mark:?} is not accepted; takes VALUE/MASK such as 0x1000/0x1000, VALUE not zero and \
                 every bit of it inside MASK, or 0/0 for no mark"
            ),
        );
    }
    refused(
        "--nodeport-addresses primary,10.0.0.0/8",
        "--nodeport-addresses: \"primary\" is not accepted; takes the word primary alone, or all or CIDRs separated \
         by commas",
    );
    refused(
        "--service-external-ip-range 10.0.0.0",
        "--service-external-ip-range: \"10.0.0.0\" is not accepted; takes a CIDR such as 203.0.113.0/24 or \
         2001:db8::/64",
    );
    for address in ["localhost", "10.0.0.1:0", "[::1]", "10.0.0.1:70000"] {
        refused(
            &format!("--healthz-bind-address {address}"),
            &format!(
                "--healthz-bind-address: {address:?} is not accepted; takes an address or address:port such as \
                 0.0.0.0:10256 or [::]:10256"
            ),
        );
    }
    refused("--bpffs-path bpf", "--bpffs-path: \"bpf\" is not accepted; takes an absolute path");
    refused(
        "--uplinks eth*",
        "--uplinks: \"eth*\" is not accepted; takes names of devices, separated by commas",
    );
}

#[test]
fn the_servers_have_kube_proxys_addresses_unless_they_are_to_be_nowhere() {
    let settings = resolve("").unwrap();
    assert_eq!(settings.healthz_bind_address, Some("0.0.0.0:10256".parse().unwrap()));
    assert_eq!(settings.metrics_bind_address, Some("127.0.0.1:10249".parse().unwrap()));
    let settings = resolve("--healthz-bind-address= --metrics-bind-address=").unwrap();
    assert_eq!((settings.healthz_bind_address, settings.metrics_bind_address), (None, None));
}

#[test]
fn all_is_every_address_of_the_node() {
    let settings = resolve("--nodeport-addresses all").unwrap();
    let ranges = ["0.0.0.0/0", "::/0"].map(|range| range.parse().unwrap());
    assert_eq!(settings.model.node_ports, NodePortAddresses::Within(ranges.into()));
}

#[test]
fn what_neither_flag_nor_file_says_comes_from_the_environment() {
    let settings = resolve(&format!("--config {KUBEADM}")).unwrap();
    assert_eq!(settings.model.node_name, "host-1");
    assert_eq!(settings.model.cluster_ranges, ["10.244.0.0/16".parse().unwrap()]);
    assert_eq!(settings.remarks, []);
    let kubeconfig = Some("/var/lib/kube-proxy/kubeconfig.conf".into());
    assert_eq!(settings.source, Source::Kubernetes { kubeconfig });
    let without = Settings {
        model: ModelSettings { cluster_ranges: Vec::new(), ..settings.model },
        ipvs: IpvsSettings::default(),
        source: Source::Kubernetes { kubeconfig: None },
        config: None,
        ..settings
    };
    assert_eq!(Ok(without), resolve(""));
}

#[test]
fn a_flag_wins_over_the_file() {
    let settings = resolve(&format!("--config {KUBEADM} --cluster-cidr 10.0.0.0/8 --kubeconfig /k")).unwrap();
    assert_eq!(settings.source, Source::Kubernetes { kubeconfig: Some("/k".into()) });
    assert_eq!(settings.model.cluster_ranges, ["10.0.0.0/8".parse().unwrap()]);
    let settings = resolve(&format!(
        "--config {EVERYTHING} --hostname-override a --proxy-mode auto --healthz-bind-address= \
         --metrics-bind-address 127.0.0.1 --pod-interfaces cni0 --nodeport-addresses primary --timeout-established 1 \
         --timeout-udp 2 --min-sync-interval 3 --max-sync-interval 4"
    ))
    .unwrap();
    assert_eq!(settings.model.node_name, "a");
    assert_eq!(settings.proxy_mode, ProxyMode::Auto);
    assert_eq!(settings.healthz_bind_address, None);
    assert_eq!(settings.metrics_bind_address, Some("127.0.0.1:10249".parse().unwrap()));
    assert_eq!(settings.pod_interfaces, [DevicePattern::new("cni0").unwrap()]);
    assert_eq!(settings.model.node_ports, NodePortAddresses::Primary);
    assert_eq!((settings.timeouts.established, settings.timeouts.datagram), (1, 2));
    assert_eq!(settings.min_sync_interval, Duration::from_millis(3));
    assert_eq!(settings.max_sync_interval, Duration::from_secs(4));
}

#[test]
fn the_shortest_time_between_two_syncs_is_no_longer_than_the_longest() {
    refused(
        "--min-sync-interval 5001 --max-sync-interval 5",
        "--min-sync-interval: 5.001s is not accepted; takes no more than --max-sync-interval, which is 5s",
    );
    refused(
        "--min-sync-interval 60000",
        "--min-sync-interval: 1m0s is not accepted; takes no more than --max-sync-interval, which is 30s",
    );
    assert!(resolve("--min-sync-interval 5000 --max-sync-interval 5").is_ok());
}

#[test]
fn periods_of_a_file_that_contradict_each_other_are_named_as_in_the_file() {
    let path = std::env::temp_dir().join(format!("millrace-periods-{}.yaml", std::process::id()));
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
                iptables: {minSyncPeriod: 40s, syncPeriod: 20s}\n";
    std::fs::write(&path, text).unwrap();
    let error =
        |flags: &str| resolve(&format!("--config {} {flags}", path.display())).map_err(|e| e.to_string());
    let (file, takes) = (path.display(), "is not accepted; takes no more than");
    let of_file =
        format!("{file}: iptables.minSyncPeriod: 40s {takes} {file}: iptables.syncPeriod, which is 20s");
    assert_eq!(error("").unwrap_err(), of_file);
    let of_flag = format!("--min-sync-interval: 30s {takes} {file}: iptables.syncPeriod, which is 20s");
    assert_eq!(error("--min-sync-interval 30000").unwrap_err(), of_flag);
    assert!(error("--max-sync-interval 40").is_ok());
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_file_that_can_not_be_read_is_one_line() {
    let error = resolve("--config /nowhere/config.conf").unwrap_err().to_string();
    assert!(error.starts_with("--config: /nowhere/config.conf: "), "{error}");
    assert!(error.ends_with("; takes a file with a KubeProxyConfiguration"), "{error}");
}

#[test]
fn the_source_is_the_api_server_or_a_directory() {
    let source = |flags: &str| resolve(flags).unwrap().source;
    assert_eq!(source("--source directory:/m"), Source::Directory(PathBuf::from("/m")));
    let kubeconfig = Some(PathBuf::from("/k"));
    assert_eq!(source("--kubeconfig /k"), Source::Kubernetes { kubeconfig: kubeconfig.clone() });
    assert_eq!(source("--source kubernetes --kubeconfig /k"), Source::Kubernetes { kubeconfig });
}

#[test]
fn the_node_must_have_a_name() {
    let error = Settings::resolve_on(&AgentArgs::default(), None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "--hostname-override: \"\" is not accepted; takes the name of this node's Node object"
    );
}
