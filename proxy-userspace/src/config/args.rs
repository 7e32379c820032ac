//! The flags of `millrace agent`. clap hands each value to its parser, which refuses a wrong one in our words.
//!
//! The first paragraph of a flag is a noun phrase, its values and its default: `-h` shows it alone. `--help` and the reference
//! page show all.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use super::ipvs::IpvsArgs;
use super::parse::{self, AlgorithmWord, BindAddress, NodePortRange, OuterSourceItem};
use super::{LogFormat, ProxyMode, Source};
use crate::dataplane::ebpf::{Dispatch, SocketLb, XdpMode};
use crate::dataplane::{Encapsulation, Mark, RejectUnknown};
use crate::model::{ClusterIpClients, Forwarding};
use crate::node::{DevicePattern, PodRoutes};

// The groups of flags in `--help` and on the reference page.
const SOURCE: &str = "Source and node";
const DATA_PLANE: &str = "Data plane";
const DEVICES: &str = "Devices";
const SERVICES: &str = "Services and their clients";
const ANNOUNCEMENT: &str = "Announcements and routes";
const POLICIES: &str = "Network policies";
const BACKENDS: &str = "Backends";
const DSR: &str = "Direct Server Return";
const FLOWS: &str = "Flows";
const SOCKETS: &str = "Socket load balancing";
const CONNTRACK: &str = "Connection tracking of the kernel";
const HTTP: &str = "HTTP servers";
const LOG: &str = "Log";

/// Flags of `millrace agent`.
///
/// A flag that is not given is `None`, or an empty list: then the field of the `--config` file counts.
/// A negative number is a value too, not an unknown flag.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentArgs {
    /// Source of Services, EndpointSlices and Nodes: the API server, or a directory of manifests [default:
    /// kubernetes]
    ///
    /// A directory is read with the folders below it, 16 levels deep: every *.yaml, *.yml and *.json file, in
    /// the form of `kubectl get -o yaml`. Names that begin with a dot are left out. No Events are written.
    #[arg(
        long, help_heading = SOURCE, value_name = "kubernetes|directory:PATH",
        value_parser = parse::source
    )]
    pub source: Option<Source>,
    /// Kubeconfig file [default: the --config file's, then KUBECONFIG, then the pod's service account, then
    /// ~/.kube/config]
    ///
    /// It is refused with `--source directory:PATH`.
    #[arg(long, help_heading = SOURCE, value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,
    /// KubeProxyConfiguration file (kubeproxy.config.k8s.io/v1alpha1, YAML or JSON) [default: none]
    ///
    /// A flag wins over the file; kube-proxy ignores most flags beside a file. An unknown field is an error. A
    /// value without effect is named in one warning. When the file changes, the agent ends with status 0, to
    /// be started again.
    #[arg(long, help_heading = SOURCE, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Name of this node's Node object [default: the --config file's, then NODE_NAME, then the host's name]
    #[arg(long, help_heading = SOURCE, value_name = "NAME", value_parser = parse::node_name)]
    pub hostname_override: Option<String>,
    /// Data plane: ebpf, ipvs, auto for ebpf where the kernel can, else ipvs, or none [default: auto]
    ///
    /// With none, kube-proxy gets new connections as soon as its rules are on this node. eBPF keeps its own for
    /// --drain, and is removed then.
    #[arg(
        long, help_heading = DATA_PLANE, value_name = "auto|ebpf|ipvs|none",
        value_parser = parse::proxy_mode
    )]
    pub proxy_mode: Option<ProxyMode>,
    /// Set-up of the node by a process with all rights, which then ends [default: false]
    ///
    /// It mounts the BPF file system, loads kernel modules and sets sysctls, with the agent's other flags. The
    /// agent needs only CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN afterwards. NODE_IPS names the node's addresses,
    /// because the API server is not asked.
    #[arg(
        long, help_heading = DATA_PLANE, value_name = "true|false", value_parser = parse::switch,
        num_args = 0..=1, require_equals = true, default_missing_value = "true"
    )]
    pub init_only: Option<bool>,
    /// Time for existing connections to end after a mode change [default: 3600]
    ///
    /// The connections of the former mode that are left then are cut. For the same time, an address of this node is served
    /// after it has left the status of a Service.
    #[arg(
        long, help_heading = DATA_PLANE, value_name = "SECONDS", value_parser = parse::drain,
        allow_negative_numbers = true
    )]
    pub drain: Option<Duration>,
    /// Attachment of XDP to uplinks: auto is the best that the device can [default: auto]
    ///
    /// A veth device is served by TC alone, unless native or generic is given. TC serves what XDP passes.
    #[arg(long, help_heading = DATA_PLANE, value_name = "auto|native|generic|off", value_parser = parse::xdp)]
    pub xdp: Option<XdpMode>,
    /// BPF file system for pinned maps and links, or a directory in one [default: /sys/fs/bpf]
    ///
    /// The agent mounts one over an empty directory, and refuses any other path. In a container, mount the
    /// host's: pins in the pod's own are lost with the pod.
    #[arg(long, help_heading = DATA_PLANE, value_name = "PATH", value_parser = parse::absolute_path)]
    pub bpffs_path: Option<PathBuf>,
    /// Mark of packets handed to the stack, and the mask of its bits; 0/0 is no mark [default: 0x1000/0x1000]
    ///
    /// With IPVS the mark is on packets that are masqueraded as they leave; `--proxy-mode ipvs` refuses 0/0.
    #[arg(long, help_heading = DATA_PLANE, value_name = "VALUE/MASK", value_parser = parse::mark)]
    pub fwmark: Option<Mark>,
    /// Shortest time between two syncs, 0 to 60000 [default: 1]
    #[arg(
        long, help_heading = DATA_PLANE, value_name = "MILLISECONDS",
        value_parser = parse::min_sync_interval, allow_negative_numbers = true
    )]
    pub min_sync_interval: Option<Duration>,
    /// Longest time between two syncs, 1 to 3600 [default: 30]
    ///
    /// Failed operations are tried again at the next sync.
    #[arg(
        long, help_heading = DATA_PLANE, value_name = "SECONDS", value_parser = parse::max_sync_interval,
        allow_negative_numbers = true
    )]
    pub max_sync_interval: Option<Duration>,
    /// Devices toward the network [default: devices with a default route or a node's address, and overlay
    /// devices]
    ///
    /// The log names other devices that have an address.
    #[arg(
        long, help_heading = DEVICES, value_name = "DEVICE,...", value_parser = parse::device,
        value_delimiter = ','
    )]
    pub uplinks: Vec<String>,
    /// Devices toward this node's pods; * is any text [default: veth*,tap*,cni*,cali*,lxc*,kube-bridge]
    ///
    /// They serve, per packet, the pods whose sockets no hook sees. Name a bridge's ports, too: frames between
    /// its ports don't pass the bridge.
    #[arg(
        long, help_heading = DEVICES, value_name = "PATTERN,...", value_parser = parse::device_pattern,
        value_delimiter = ','
    )]
    pub pod_interfaces: Vec<DevicePattern>,
    /// Addresses that serve NodePorts: the Node's first InternalIP of each family, all, or those inside ranges
    /// [default: primary]
    #[arg(
        long, help_heading = SERVICES, value_name = "primary|all|CIDR,...",
        value_parser = parse::node_port_range, value_delimiter = ','
    )]
    pub nodeport_addresses: Vec<NodePortRange>,
    /// Address ranges of pods, of both families [default: none]
    ///
    /// Sources in these ranges are inside the cluster, also when they come in over an uplink. Nodes' own
    /// addresses always are.
    #[arg(
        long, help_heading = SERVICES, value_name = "CIDR,...", value_parser = parse::range,
        value_delimiter = ','
    )]
    pub cluster_cidr: Vec<IpNet>,
    /// Clients from the network that may reach ClusterIPs: nodes and --cluster-cidr, or all [default: inside]
    ///
    /// Other clients' packets are dropped as source_refused. Pods and processes of this node always may. Use
    /// all where routers send the range of the ClusterIPs to the nodes. Without effect with IPVS.
    #[arg(long, help_heading = SERVICES, value_name = "inside|all", value_parser = parse::cluster_ip_clients)]
    pub cluster_ip_clients: Option<ClusterIpClients>,
    /// Ranges of accepted external IPs; the flag may be repeated [default: none]
    ///
    /// External IPs outside these ranges are refused.
    #[arg(
        long, help_heading = SERVICES, value_name = "CIDR", value_parser = parse::range,
        value_delimiter = ','
    )]
    pub service_external_ip_range: Vec<IpNet>,
    /// Ranges of Services' addresses that nodes answer for on their links (ARP, neighbour discovery) [default: none]
    ///
    /// They are addresses of load balancers, and external IPs. One node answers for each; when it is gone, another one
    /// does. The annotation millrace.dev/announce keeps one Service out. It takes CAP_NET_RAW, and eBPF.
    #[arg(
        long, help_heading = ANNOUNCEMENT, value_name = "CIDR,...", value_parser = parse::range,
        value_delimiter = ','
    )]
    pub l2_announce: Vec<IpNet>,
    /// Devices to answer on, of the uplinks; * is any text [default: all uplinks with a MAC address]
    #[arg(
        long, help_heading = ANNOUNCEMENT, value_name = "PATTERN,...", value_parser = parse::device_pattern,
        value_delimiter = ','
    )]
    pub l2_devices: Vec<DevicePattern>,
    /// Ranges of Services' addresses that have a route while this node serves them [default: none]
    ///
    /// A routing daemon of the node, such as FRR or BIRD, finds the route in the main table and announces it by BGP or
    /// OSPF. The route has the protocol number 109, and leads nowhere.
    #[arg(
        long, help_heading = ANNOUNCEMENT, value_name = "CIDR,...", value_parser = parse::range,
        value_delimiter = ','
    )]
    pub route_announce: Vec<IpNet>,
    /// Route to this node's own range of pods, for routing daemons to announce [default: off]
    ///
    /// It leads nowhere, as those of `--route-announce` do: the routes to the pods themselves are longer. Network plugins
    /// that have a bridge need none, because the bridge's subnet is a route of its own.
    #[arg(long, help_heading = ANNOUNCEMENT, value_name = "on|off", value_parser = parse::on_off)]
    pub route_announce_pods: Option<bool>,
    /// Routes to the pods of other nodes, by their addresses, where no network plugin has them [default: off]
    ///
    /// The ranges are the podCIDRs of the Nodes. `subnet` is for nodes that are all on one subnet. With `ipip`, packets to
    /// a node behind a router are encapsulated.
    #[arg(long, help_heading = ANNOUNCEMENT, value_name = "off|subnet|ipip", value_parser = parse::pod_routes)]
    pub pod_routes: Option<PodRoutes>,
    /// Enforcement of NetworkPolicies for this node's pods [default: off]
    ///
    /// It takes the rights to list and watch pods, namespaces and networkpolicies.networking.k8s.io. It works on the
    /// devices that --pod-interfaces names, and not with `--dsr-dispatch pod` or `--proxy-mode ipvs` and `none`.
    #[arg(long, help_heading = POLICIES, value_name = "on|off", value_parser = parse::on_off)]
    pub network_policy: Option<bool>,
    /// Value of the label service.kubernetes.io/service-proxy-name of the Services to serve [default: Services
    /// without the label]
    #[arg(long, help_heading = SERVICES, value_name = "NAME", value_parser = parse::service_proxy_name)]
    pub service_proxy_name: Option<String>,
    /// Service addresses that refuse ports and protocols without a Service [default: clusterip]
    ///
    /// An address on a device of this node never refuses.
    #[arg(
        long, help_heading = SERVICES, value_name = "clusterip|all|off",
        value_parser = parse::reject_unknown
    )]
    pub reject_unknown_ports: Option<RejectUnknown>,
    /// Forwarding to backends on other nodes: SNAT or Direct Server Return [default: snat]
    ///
    /// The annotation millrace.dev/forwarding decides for one Service.
    #[arg(long, help_heading = BACKENDS, value_name = "snat|dsr", value_parser = parse::forwarding)]
    pub forwarding: Option<Forwarding>,
    /// Choice of a backend for a new connection [default: random]
    ///
    /// Direct Server Return always uses Maglev. The annotation millrace.dev/algorithm decides for one Service.
    #[arg(long, help_heading = BACKENDS, value_name = "random|maglev", value_parser = parse::algorithm)]
    pub algorithm: Option<AlgorithmWord>,
    /// Slots of a Maglev table, a prime from 3 to 65537 [default: 4093]
    ///
    /// It must be the same on all nodes. The annotation millrace.dev/maglev-size decides for one Service.
    #[arg(
        long, help_heading = BACKENDS, value_name = "PRIME", value_parser = parse::maglev_size,
        allow_negative_numbers = true
    )]
    pub maglev_table_size: Option<u32>,
    /// Ports of this node for connections to backends on other nodes, at least 64 above 1023 [default:
    /// 61000-65535]
    ///
    /// The kernel no longer gives them to sockets by itself (`ip_local_reserved_ports`). A new range ends the
    /// connections of the old one.
    #[arg(long, help_heading = BACKENDS, value_name = "FIRST-LAST", value_parser = parse::snat_ports)]
    pub snat_ports: Option<RangeInclusive<u16>>,
    /// Encapsulation to other nodes: in IP (ipip), or in UDP to port 5555 (fou) [default: ipip]
    ///
    /// A node takes the encapsulation that it sends. With both, as in `ipip,fou`, it sends the first and takes
    /// both. Use fou where the network carries no IP protocol 4 or 41.
    #[arg(
        long, help_heading = DSR, value_name = "ipip|fou", value_parser = parse::encapsulation,
        value_delimiter = ','
    )]
    pub dsr_encap: Vec<Encapsulation>,
    /// Receiver of encapsulated packets: the backend's node, or the pod [default: node]
    ///
    /// With pod, the pod takes the outer header off itself.
    #[arg(long, help_heading = DSR, value_name = "node|pod", value_parser = parse::dispatch)]
    pub dsr_dispatch: Option<Dispatch>,
    /// Source of encapsulated packets: the node's address, or for each flow an address of a prefix [default:
    /// node]
    ///
    /// A prefix spreads flows over receive queues. Give at most one of each family, /8 to /31 or /32 to /127
    /// with IPv6, the same on all nodes. No host may have its addresses. With `node,PREFIX` a node takes
    /// packets from the prefix and sends from its own address.
    #[arg(
        long, help_heading = DSR, value_name = "[node,]PREFIX,...",
        value_parser = parse::outer_source_item, value_delimiter = ','
    )]
    pub dsr_outer_source: Vec<OuterSourceItem>,
    /// Entries of the flow table of each address family, 1024 to 16777216 [default: 262144]
    #[arg(
        long, help_heading = FLOWS, value_name = "ENTRIES", value_parser = parse::flow_table_size,
        allow_negative_numbers = true
    )]
    pub flow_table_size: Option<u32>,
    /// Lifetime of a TCP flow that has seen only its SYN [default: 60]
    #[arg(
        long, help_heading = FLOWS, value_name = "SECONDS", value_parser = parse::seconds,
        allow_negative_numbers = true
    )]
    pub timeout_syn: Option<u32>,
    /// Lifetime of an idle established TCP flow [default: 8000]
    #[arg(
        long, help_heading = FLOWS, value_name = "SECONDS", value_parser = parse::seconds,
        allow_negative_numbers = true
    )]
    pub timeout_established: Option<u32>,
    /// Lifetime of an idle TCP flow that was closed [default: 10]
    ///
    /// The director of a flow with Direct Server Return keeps one that its client has half closed for at least
    /// 240 seconds.
    #[arg(
        long, help_heading = FLOWS, value_name = "SECONDS", value_parser = parse::seconds,
        allow_negative_numbers = true
    )]
    pub timeout_closing: Option<u32>,
    /// Lifetime of an idle UDP flow [default: 60]
    #[arg(
        long, help_heading = FLOWS, value_name = "SECONDS", value_parser = parse::seconds,
        allow_negative_numbers = true
    )]
    pub timeout_udp: Option<u32>,
    /// Sockets that hooks connect to backends: of pods and node processes, of the agent's network namespace
    /// only, or none [default: all]
    ///
    /// Use host for meshes that redirect inside the pod. Pods that are left out are served per packet at
    /// --pod-interfaces.
    #[arg(long, help_heading = SOCKETS, value_name = "all|host|off", value_parser = parse::socket_lb)]
    pub socket_lb: Option<SocketLb>,
    /// Refusal of NodePorts' numbers to sockets of this node that bind them [default: on]
    ///
    /// The call fails with EADDRINUSE.
    #[arg(long, help_heading = SOCKETS, value_name = "on|off", value_parser = parse::on_off)]
    pub bind_protection: Option<bool>,
    /// Control group (cgroup2) whose processes the socket hooks serve [default: the mount point of cgroup2]
    ///
    /// In a container, mount the host's.
    #[arg(long, help_heading = SOCKETS, value_name = "PATH", value_parser = parse::absolute_path)]
    pub cgroup_path: Option<PathBuf>,
    /// Room for connections for each processor; 0 leaves the limit [default: 32768]
    ///
    /// The limit is only raised. No Service needs it: it is for other traffic of the node.
    #[arg(
        long, help_heading = CONNTRACK, value_name = "ENTRIES", value_parser = parse::entries,
        allow_negative_numbers = true
    )]
    pub conntrack_max_per_core: Option<u32>,
    /// Least room for connections [default: 131072]
    ///
    /// Without effect with `--conntrack-max-per-core 0`.
    #[arg(
        long, help_heading = CONNTRACK, value_name = "ENTRIES", value_parser = parse::entries,
        allow_negative_numbers = true
    )]
    pub conntrack_min: Option<u32>,
    /// Lifetime of an idle established TCP connection; 0 leaves the kernel's [default: 24h]
    #[arg(
        long, help_heading = CONNTRACK, value_name = "DURATION", value_parser = parse::conntrack_seconds,
        allow_negative_numbers = true
    )]
    pub conntrack_tcp_timeout_established: Option<u32>,
    /// Lifetime of a TCP connection in CLOSE_WAIT; 0 leaves the kernel's [default: 1h]
    #[arg(
        long, help_heading = CONNTRACK, value_name = "DURATION", value_parser = parse::conntrack_seconds,
        allow_negative_numbers = true
    )]
    pub conntrack_tcp_timeout_close_wait: Option<u32>,
    /// Acceptance of TCP segments outside the window [default: false]
    #[arg(
        long, help_heading = CONNTRACK, value_name = "true|false", value_parser = parse::switch,
        num_args = 0..=1, require_equals = true, default_missing_value = "true"
    )]
    pub conntrack_tcp_be_liberal: Option<bool>,
    /// Address of /healthz, /livez and /readyz; "" is no server [default: 0.0.0.0:10256]
    ///
    /// 0.0.0.0 is all addresses of both families.
    #[arg(long, help_heading = HTTP, value_name = "IP[:PORT]", value_parser = parse::healthz_address)]
    pub healthz_bind_address: Option<BindAddress>,
    /// Address of /metrics, /proxyMode, /healthz, /readyz and /configz; "" is no server [default:
    /// 127.0.0.1:10249]
    #[arg(long, help_heading = HTTP, value_name = "IP[:PORT]", value_parser = parse::metrics_address)]
    pub metrics_bind_address: Option<BindAddress>,
    /// Form of the log: text, or json for a JSON object in each line [default: text]
    ///
    /// Levels come from RUST_LOG. SIGUSR1 shows the agent's decisions, too, and the next SIGUSR1 ends that.
    #[arg(long, help_heading = LOG, value_name = "text|json", value_parser = parse::log_format)]
    pub log_format: Option<LogFormat>,
    /// What IPVS alone uses.
    #[command(flatten)]
    pub ipvs: IpvsArgs,
}
