//! The flags of `millrace agent`, as text: [`Settings::resolve`](super::Settings::resolve) gives them meaning.

use std::path::PathBuf;

/// Flags of `millrace agent`.
///
/// Values are text here so that a wrong one gets our one line, which names the flag and what it takes,
/// instead of clap's four. A negative number is a value too, not an unknown flag.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentArgs {
    /// Where Services, EndpointSlices and Nodes come from: kubernetes, or directory:PATH, a directory of manifests as
    /// `kubectl get -o yaml` prints them [default: kubernetes]
    #[arg(long, value_name = "kubernetes|directory:PATH")]
    pub source: Option<String>,
    /// Which API server, and as whom [default: the environment's KUBECONFIG, then what a pod is given, then
    /// ~/.kube/config]
    #[arg(long, value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,
    /// A KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1, YAML or JSON), as kube-proxy reads it. A flag that is
    /// given wins over the file, whereas kube-proxy ignores most flags beside a file. What has no effect here is named
    /// in one warning each
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// This node's name [default: the file's, then the environment's NODE_NAME, then
    /// the host's name]
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,
    /// How packets are served: ebpf, ipvs, or auto: ebpf where this kernel can, else ipvs [default: auto]
    #[arg(long, value_name = "MODE")]
    pub proxy_mode: Option<String>,
    /// Seconds that existing connections have to end after a change of mode; then those of the former mode are cut
    /// [default: 3600]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub drain: Option<String>,
    /// Devices toward the network, separated by commas [default: devices with a default route or a node
    /// address, and overlay devices]
    #[arg(long, value_name = "DEVICE,...", value_delimiter = ',')]
    pub uplinks: Vec<String>,
    /// Devices toward this node's pods, separated by commas; * stands for any text. Pods that no socket hook sees are served
    /// there per packet; name a bridge's ports, too [default: veth*,tap*,cni*,cali*,lxc*,kube-bridge]
    #[arg(long, value_name = "PATTERN,...", value_delimiter = ',')]
    pub pod_interfaces: Vec<String>,
    /// Addresses NodePorts are served on: primary (the Node's first InternalIP of each family), or all or CIDRs
    /// separated by commas [default: primary]
    #[arg(long, value_name = "primary|all|CIDR,...", value_delimiter = ',')]
    pub nodeport_addresses: Vec<String>,
    /// Sources inside these ranges (those of the pods, of both families) are inside the cluster, also when they come in
    /// over an uplink; separated by commas [default: only the nodes' own addresses are]
    #[arg(long, value_name = "CIDR,...", value_delimiter = ',')]
    pub cluster_cidr: Vec<String>,
    /// Who may reach ClusterIPs from the network: inside (the nodes, and what is inside --cluster-cidr) or all, where routers
    /// send the range of the ClusterIPs to the nodes. Pods and processes of this node always may [default: inside]
    #[arg(long, value_name = "inside|all")]
    pub cluster_ip_clients: Option<String>,
    /// External IPs outside these ranges are refused; may be repeated [default: all are refused]
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub service_external_ip_range: Vec<String>,
    /// Serve only the Services whose label service.kubernetes.io/service-proxy-name says this
    #[arg(long, value_name = "NAME")]
    pub service_proxy_name: Option<String>,
    /// How a backend on another node is reached: snat or dsr [default: snat]
    #[arg(long, value_name = "snat|dsr")]
    pub forwarding: Option<String>,
    /// How packets to backends on other nodes are encapsulated with DSR: in IP, or in UDP to port 5555 where the network
    /// carries no protocol 4 or 41. Nodes take what they send; with both, separated by a comma, they send the first and take
    /// either [default: ipip]
    #[arg(long, value_name = "ipip|fou", value_delimiter = ',')]
    pub dsr_encap: Vec<String>,
    /// To whom encapsulated packets are addressed with DSR: to the backend's node, or to the pod itself, which has to take the
    /// outer header off [default: node]
    #[arg(long, value_name = "node|pod")]
    pub dsr_dispatch: Option<String>,
    /// Where encapsulated packets come from, so that receive queues are spread: a prefix, or one of each family, out of which
    /// each flow gets its own address; the same on all nodes, which take such packets. The word node before it: they take
    /// them, and send from their own address [default: node]
    #[arg(long, value_name = "[node,]PREFIX,...", value_delimiter = ',')]
    pub dsr_outer_source: Vec<String>,
    /// How a backend is chosen: random or maglev; DSR is always Maglev [default: random]
    #[arg(long, value_name = "random|maglev")]
    pub algorithm: Option<String>,
    /// Slots of a Maglev table, a prime, the same on all nodes [default: 4093]
    #[arg(long, value_name = "PRIME", allow_negative_numbers = true)]
    pub maglev_table_size: Option<String>,
    /// Which service addresses refuse ports that no Service has, unless they are on a device of this node: clusterip, all or
    /// off [default: clusterip]
    #[arg(long, value_name = "clusterip|all|off")]
    pub reject_unknown_ports: Option<String>,
    /// Entries of the flow table of each family [default: 262144]
    #[arg(long, value_name = "ENTRIES", allow_negative_numbers = true)]
    pub flow_table_size: Option<String>,
    /// Seconds after which a TCP flow that has seen only its SYN is forgotten [default: 60]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub timeout_syn: Option<String>,
    /// Seconds without a packet after which an established TCP flow is forgotten [default: 8000]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub timeout_established: Option<String>,
    /// Seconds without a packet after which a TCP flow that was closed is forgotten [default: 10]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub timeout_closing: Option<String>,
    /// Seconds without a packet after which a UDP flow is forgotten [default: 60]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub timeout_udp: Option<String>,
    /// The kernel's connection tracking, where it is in use: room for so many connections for each processor; raised only,
    /// 0 leaves the limit [default: 32768]
    #[arg(long, value_name = "ENTRIES", allow_negative_numbers = true)]
    pub conntrack_max_per_core: Option<String>,
    /// The least room of the kernel's connection tracking, unless --conntrack-max-per-core is 0 [default: 131072]
    #[arg(long, value_name = "ENTRIES", allow_negative_numbers = true)]
    pub conntrack_min: Option<String>,
    /// How long the kernel's connection tracking keeps an idle established TCP connection; 0 leaves it [default: 24h]
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true)]
    pub conntrack_tcp_timeout_established: Option<String>,
    /// How long the kernel's connection tracking keeps a TCP connection in CLOSE_WAIT; 0 leaves it [default: 1h]
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true)]
    pub conntrack_tcp_timeout_close_wait: Option<String>,
    /// The kernel's connection tracking takes TCP segments outside the window for valid [default: false]
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub conntrack_tcp_be_liberal: Option<String>,
    /// Ports of this node that connections to backends on other nodes are given: A-B; they are taken from those that
    /// sockets get by themselves [default: 61000-65535]
    #[arg(long, value_name = "A-B")]
    pub snat_ports: Option<String>,
    /// Mark of packets handed to the stack, and the bits of it that are ours; 0/0 = none [default:
    /// 0x1000/0x1000]
    #[arg(long, value_name = "VALUE/MASK")]
    pub fwmark: Option<String>,
    /// Where /healthz and /livez are served: an address, or address and port; 0.0.0.0 is both families, nothing at all
    /// ("") nowhere [default: 0.0.0.0:10256]
    #[arg(long, value_name = "IP[:PORT]")]
    pub healthz_bind_address: Option<String>,
    /// Where /metrics, /proxyMode, /healthz and /configz are served; "" is nowhere [default: 127.0.0.1:10249]
    #[arg(long, value_name = "IP[:PORT]")]
    pub metrics_bind_address: Option<String>,
    /// Whose sockets are turned to backends when they ask for a service: all (pods and processes of this node), host (only
    /// those in the agent's network namespace, for meshes that redirect inside the pod) or off [default: all]
    #[arg(long, value_name = "all|host|off")]
    pub socket_lb: Option<String>,
    /// Whether sockets of this node are refused the ports of its NodePorts: on or off [default: on]
    #[arg(long, value_name = "on|off")]
    pub bind_protection: Option<String>,
    /// The control group (cgroup2) whose processes' sockets are served [default: where a cgroup2 file system is mounted]
    #[arg(long, value_name = "PATH")]
    pub cgroup_path: Option<String>,
    /// Where the BPF file system is mounted [default: /sys/fs/bpf]
    #[arg(long, value_name = "PATH")]
    pub bpffs_path: Option<String>,
    /// XDP: native, generic, off, or auto for the best that the device can [default: auto]
    #[arg(long, value_name = "MODE")]
    pub xdp: Option<String>,
    /// With IPVS: how a server is chosen for a new connection, where the Service says nothing else: rr, wrr, lc, wlc, lblc,
    /// lblcr, sh, dh, sed, nq, fo, ovf or mh [default: rr]
    #[arg(long, value_name = "NAME")]
    pub ipvs_scheduler: Option<String>,
    /// With IPVS: virtual services at addresses inside these ranges are somebody else's; separated by commas
    #[arg(long, value_name = "CIDR,...", value_delimiter = ',')]
    pub ipvs_exclude_cidrs: Vec<String>,
    /// With IPVS: answer ARP requests for an address on its own device only (arp_ignore 1, arp_announce 2) [default: false]
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub ipvs_strict_arp: Option<String>,
    /// With IPVS: give every packet to a backend on another node this node's address [default: false]
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub masquerade_all: Option<String>,
    /// Shortest time between two syncs, in milliseconds [default: 1]
    #[arg(long, value_name = "MILLISECONDS", allow_negative_numbers = true)]
    pub min_sync_interval: Option<String>,
    /// Longest time between two syncs, in seconds; pending operations are tried again then [default: 30]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub max_sync_interval: Option<String>,
}
