//! The XDP mode that the agent chooses for a driver.

use std::io::{self, Write};

use anyhow::{Result, ensure};

use crate::fixture::{driver, shared};

/// The drivers with XDP, and the first kernel that has it.
const NATIVE: [(&str, [u32; 2]); 2] = [("virtio_net", [4, 10]), ("vmxnet3", [6, 6])];

#[test]
fn the_agent_attaches_xdp_in_a_driver_that_can_and_leaves_others_to_tc() -> Result<()> {
    let cluster = shared();
    let driver = driver()?;
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let version: Vec<u32> =
        kernel.split(['.', '-', '+']).map_while(|part| part.parse().ok()).take(2).collect();
    let is_native = NATIVE.iter().any(|(name, since)| *name == driver && version[..] >= since[..]);
    for proxy in cluster.proxies() {
        let attached = proxy.attached()?;
        let mode = |hook: &str| {
            let row = attached.iter().find(|row| row.device == "eth0" && row.hook == hook);
            row.map(|row| row.mode.to_string())
        };
        // Not `println!`, which libtest shows only after a failure. It has begun a line already.
        writeln!(
            io::stdout(),
            "\ndriver {driver} on {} of kernel {}: xdp {}, tc_ingress {}, tc_egress {}",
            proxy.node(),
            kernel.trim(),
            mode("xdp").unwrap_or_else(|| "-".to_owned()),
            mode("tc_ingress").unwrap_or_else(|| "-".to_owned()),
            mode("tc_egress").unwrap_or_else(|| "-".to_owned()),
        )?;
        let expected = is_native.then_some("native");
        ensure!(mode("xdp").as_deref() == expected, "{}: {:?}, not {expected:?}", proxy.node(), mode("xdp"));
        ensure!(is_native || mode("tc_ingress").is_some(), "{}: nothing takes packets", proxy.node());
    }
    Ok(())
}
