//! `millrace agent --init-only`: what a node needs from a process with more rights than the agent has.

use tracing::info;

use super::{AgentError, mount, node_settings};
use crate::config::{ProxyMode, Settings};
use crate::dataplane::{ebpf, ipvs};
use crate::node;

/// Mounts the BPF file system, loads kernel modules and sets the sysctls of the agent that starts later.
///
/// No source is asked, because a pod must not wait for the API server here. Each change is logged. A second
/// run changes nothing.
pub async fn init(settings: &Settings) -> Result<(), AgentError> {
    info!(
        version = env!("CARGO_PKG_VERSION"),
        mode = settings.proxy_mode.name(),
        bpffs = %settings.bpffs.display(),
        "setting this node up"
    );
    if settings.proxy_mode == ProxyMode::None {
        info!("nothing to set up: with --proxy-mode none, kube-proxy is to serve this node");
        return Ok(());
    }
    let mounted = mount(settings)?;
    if settings.proxy_mode == ProxyMode::Ipvs {
        ipvs::load(&settings.ipvs)?;
    }
    // Its settings appear with its module, which the agent's own look at connections would load later.
    ebpf::load_connection_tracking();
    node::apply_conntrack(&settings.conntrack);
    node::prepare(&node_settings(settings), &settings.node_addresses).await?;
    if let Some(mounted) = mounted {
        mounted.keep();
    }
    info!("this node is set up; the agent needs no more than CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN");
    Ok(())
}
