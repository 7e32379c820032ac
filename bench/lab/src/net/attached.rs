//! What the kernel itself says is attached to a device.

use anyhow::{Context, Result};
use aya::programs::{SchedClassifier, tc::TcAttachType};
use futures_util::TryStreamExt;
use rtnetlink::packet_route::link::{LinkAttribute, LinkXdp};

/// Hooks of a device of the current thread's namespace that have a program, as `xdp`, `tcx ingress` and
/// `tcx egress`.
pub async fn attached_programs(device: &str) -> Result<Vec<String>> {
    let mut hooks = Vec::new();
    if has_xdp(device).await? {
        hooks.push("xdp".to_owned());
    }
    for (direction, name) in [(TcAttachType::Ingress, "tcx ingress"), (TcAttachType::Egress, "tcx egress")] {
        let (_, programs) = SchedClassifier::query_tcx(device, direction)?;
        if !programs.is_empty() {
            hooks.push(name.to_owned());
        }
    }
    Ok(hooks)
}

async fn has_xdp(device: &str) -> Result<bool> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    let connection = tokio::spawn(connection);
    let link = handle.link().get().match_name(device.to_owned()).execute().try_next().await?;
    connection.abort();
    let link = link.with_context(|| format!("there is no device {device}"))?;
    Ok(link.attributes.iter().any(|attribute| match attribute {
        LinkAttribute::Xdp(xdp) => xdp.iter().any(|entry| matches!(entry, LinkXdp::ProgId(id) if *id != 0)),
        _ => false,
    }))
}
