//! The programs that the kernel reports on a device.

use anyhow::{Context, Result};
use aya::programs::{SchedClassifier, tc::TcAttachType};
use aya::util::KernelVersion;
use futures_util::TryStreamExt;
use rtnetlink::packet_route::link::{LinkAttribute, LinkXdp};

use super::Netlink;

/// Returns the hooks that have a program, of a device of the current thread's namespace: `xdp`, `tc
/// ingress` and `tc egress`.
pub async fn attached_programs(device: &str) -> Result<Vec<String>> {
    let netlink = Netlink::open()?;
    let mut hooks = Vec::new();
    if has_xdp(&netlink, device).await? {
        hooks.push("xdp".to_owned());
    }
    for (direction, name) in [(TcAttachType::Ingress, "tc ingress"), (TcAttachType::Egress, "tc egress")] {
        let has_program = if has_tcx()? {
            !SchedClassifier::query_tcx(device, direction)?.1.is_empty()
        } else {
            has_filter(&netlink, device, direction).await?
        };
        if has_program {
            hooks.push(name.to_owned());
        }
    }
    Ok(hooks)
}

/// Returns whether TC programs are attached by tcx. Older kernels have only clsact.
pub fn has_tcx() -> Result<bool> {
    Ok(KernelVersion::current()? >= KernelVersion::new(6, 6, 0))
}

/// Returns whether a device's clsact qdisc has a filter.
async fn has_filter(netlink: &Netlink, device: &str, direction: TcAttachType) -> Result<bool> {
    let index = i32::try_from(nix::net::if_::if_nametoindex(device)?)?;
    let mut filters = netlink.handle.traffic_filter(index);
    let request = match direction {
        TcAttachType::Ingress => filters.get().ingress(),
        _ => filters.get().egress(),
    };
    Ok(request.execute().try_next().await?.is_some())
}

async fn has_xdp(netlink: &Netlink, device: &str) -> Result<bool> {
    let link = netlink.handle.link().get().match_name(device.to_owned()).execute().try_next().await?;
    let link = link.with_context(|| format!("there is no device {device}"))?;
    Ok(link.attributes.iter().any(|attribute| match attribute {
        LinkAttribute::Xdp(xdp) => xdp.iter().any(|entry| matches!(entry, LinkXdp::ProgId(id) if *id != 0)),
        _ => false,
    }))
}
