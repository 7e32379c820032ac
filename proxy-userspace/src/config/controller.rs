//! The flags of `millrace controller`.

use std::path::PathBuf;

use super::{BindAddress, LogFormat, parse};

/// The class of Services that get addresses of nodes, by default.
const NODE_IP_CLASS: &str = "millrace.dev/node-ip";

/// Flags of `millrace controller`.
#[derive(clap::Args, Clone, Debug)]
pub struct ControllerArgs {
    /// Kubeconfig file [default: KUBECONFIG, then the pod's service account, then ~/.kube/config]
    #[arg(long, value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,
    /// Value of spec.loadBalancerClass of the Services that get addresses of nodes
    #[arg(long, value_name = "CLASS", default_value = NODE_IP_CLASS, value_parser = parse::class)]
    pub service_lb_class: String,
    /// Whether Services without a class get addresses of nodes, too
    ///
    /// Use false where another controller gives addresses to them, such as a cloud's or MetalLB's.
    #[arg(
        long, value_name = "true|false", value_parser = parse::switch, default_value = "true",
        action = clap::ArgAction::Set
    )]
    pub service_lb_default: bool,
    /// Value of the label service.kubernetes.io/service-proxy-name of the Services [default: Services without the label]
    ///
    /// Give the agents the same.
    #[arg(long, value_name = "NAME", value_parser = parse::service_proxy_name)]
    pub service_proxy_name: Option<String>,
    /// Namespace of the Lease millrace-controller [default: the pod's, or the kubeconfig's]
    ///
    /// Of several controllers the one that has the Lease writes.
    #[arg(long, value_name = "NAMESPACE", value_parser = parse::namespace)]
    pub lease_namespace: Option<String>,
    /// Address of /healthz, /readyz and /metrics; "" is no server
    #[arg(
        long, value_name = "IP[:PORT]", default_value = "0.0.0.0:10270",
        value_parser = parse::controller_address
    )]
    pub bind_address: BindAddress,
    /// Form of the log: text, or json for a JSON object in each line
    ///
    /// Levels come from RUST_LOG. SIGUSR1 shows decisions, too, and the next SIGUSR1 ends that.
    #[arg(long, value_name = "text|json", default_value = "text", value_parser = parse::log_format)]
    pub log_format: LogFormat,
}
