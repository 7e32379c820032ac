use super::*;
use crate::model::NodePortAddresses;

use clap::Parser;

#[derive(Parser)]
struct Agent {
    #[command(flatten)]
    args: AgentArgs,
}

/// Settings of a host called `host-1` from flags separated by blanks, with a source where they name none.
fn resolve(flags: &str) -> Result<Settings, ConfigError> {
    let own = ["agent"].into_iter().chain(flags.split_whitespace());
    let mut agent = Agent::parse_from(own);
    agent.args.source.get_or_insert_with(|| "directory:/manifests".to_owned());
    Settings::resolve_on(&agent.args, Some("Host-1 \n".to_owned()))
}

#[track_caller]
fn refused(flags: &str, line: &str) {
    assert_eq!(resolve(flags).map_err(|error| error.to_string()), Err(line.to_owned()));
}

#[test]
fn without_flags_the_defaults_hold() {
    let settings = resolve("").unwrap();
    assert_eq!(settings.source, Source::Directory(PathBuf::from("/manifests")));
    assert_eq!(settings.model, ModelSettings { node_name: "host-1".to_owned(), ..ModelSettings::default() });
    assert_eq!(settings.timeouts, Timeouts::default());
    assert_eq!(settings.mark, Mark { value: 0x1000, mask: 0x1000 });
    assert_eq!(settings.bpffs, PathBuf::from("/sys/fs/bpf"));
    assert!(settings.uplinks.is_empty());
    assert!(settings.pod_interfaces.iter().any(|pattern| pattern.matches("veth12ab")));
}

#[test]
fn every_flag_is_heard() {
    let settings = resolve(
        "--hostname-override node-7 --uplinks eth0,eth1 --pod-interfaces cni0 --nodeport-addresses \
         10.0.0.0/8,2001:db8::/32 --cluster-cidr 10.244.0.0/16,fd00:244::/56 --service-external-ip-range 192.0.2.0/24 --service-external-ip-range \
         2001:db8:e::/64 --service-proxy-name edge --forwarding dsr --algorithm maglev --maglev-table-size 251 \
         --flow-table-size 4096 --timeout-syn 1 --timeout-established 2 --timeout-closing 3 --timeout-udp 4 \
         --fwmark 0x10/255 --bpffs-path /bpf --xdp generic --proxy-mode ebpf --min-sync-interval 5 \
         --max-sync-interval 6",
    )
    .unwrap();
    let range = |text: &str| text.parse().unwrap();
    let model = ModelSettings {
        node_name: "node-7".to_owned(),
        node_ports: NodePortAddresses::Within(vec![range("10.0.0.0/8"), range("2001:db8::/32")]),
        cluster_ranges: vec![range("10.244.0.0/16"), range("fd00:244::/56")],
        external_ip_ranges: vec![range("192.0.2.0/24"), range("2001:db8:e::/64")],
        service_proxy_name: Some("edge".to_owned()),
        forwarding: Forwarding::Dsr,
        maglev: true,
        maglev_size: 251,
    };
    assert_eq!(settings.model, model);
    assert_eq!(settings.uplinks, ["eth0", "eth1"]);
    assert_eq!(settings.pod_interfaces, [DevicePattern::new("cni0").unwrap()]);
    assert_eq!(settings.timeouts, Timeouts { syn: 1, established: 2, closing: 3, datagram: 4 });
    assert_eq!(settings.flow_table_size, 4096);
    assert_eq!(settings.mark, Mark { value: 0x10, mask: 0xff });
    assert_eq!((settings.bpffs, settings.xdp), (PathBuf::from("/bpf"), XdpMode::Generic));
    assert_eq!(settings.proxy_mode, ProxyMode::Ebpf);
    assert_eq!(settings.min_sync_interval, Duration::from_millis(5));
    assert_eq!(settings.max_sync_interval, Duration::from_secs(6));
}

#[test]
fn a_wrong_value_names_the_flag_and_what_it_takes() {
    refused("--source api", "--source: \"api\" is not accepted; takes directory:PATH");
    refused("--source kubernetes", "--source: kubernetes is not in this version; takes directory:PATH");
    refused("--proxy-mode ipvs", "--proxy-mode: ipvs is not in this version; takes auto or ebpf");
    refused("--forwarding DSR", "--forwarding: \"DSR\" is not accepted; takes snat or dsr");
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
        "--nodeport-addresses: \"primary\" is not accepted; takes the word primary alone, or CIDRs separated by \
         commas",
    );
    refused(
        "--service-external-ip-range 10.0.0.0",
        "--service-external-ip-range: \"10.0.0.0\" is not accepted; takes a CIDR such as 203.0.113.0/24 or \
         2001:db8::/64",
    );
    refused("--bpffs-path bpf", "--bpffs-path: \"bpf\" is not accepted; takes an absolute path");
    refused(
        "--uplinks eth*",
        "--uplinks: \"eth*\" is not accepted; takes names of devices, separated by commas",
    );
}

#[test]
fn the_source_must_be_given_and_the_node_must_have_a_name() {
    let none = AgentArgs::default();
    let error = Settings::resolve_on(&none, Some("node-1".to_owned())).unwrap_err();
    assert_eq!(error.to_string(), "--source: not given; takes directory:PATH");
    let sourced = AgentArgs { source: Some("directory:/manifests".to_owned()), ..none };
    let error = Settings::resolve_on(&sourced, None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "--hostname-override: \"\" is not accepted; takes the name of this node's Node object"
    );
}
