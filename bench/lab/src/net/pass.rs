//! The smallest XDP program, which passes all packets.
//!
//! A virtual device gets frames that its peer sends back (`XDP_TX`) at once only if it has an XDP
//! program itself (`veth_xdp_flush` in drivers/net/veth.c). Otherwise such a frame waits for the
//! next one that comes another way. Merging of received frames is enough for redirected frames, but
//! not for these.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use anyhow::{Context, Result};
use rtnetlink::LinkUnspec;
use rtnetlink::packet_route::link::{LinkAttribute, LinkXdp};

use super::bpf::{self, ProgramType};
use super::netlink::{Netlink, index_of};

const XDP_PASS: u64 = 2;
/// `r0 = XDP_PASS` and `exit`, each as a struct bpf_insn in memory.
const INSTRUCTIONS: [u64; 2] = [XDP_PASS << 32 | 0xb7, 0x95];
/// The descriptor that takes a program away (`dev_change_xdp_fd` in net/core/dev.c).
const NO_PROGRAM: i32 = -1;

impl Netlink {
    /// Attaches an XDP program that passes all packets to a device.
    pub async fn attach_pass(&self, device: &str) -> Result<()> {
        self.attach_xdp(device, bpf::load(ProgramType::Xdp, &INSTRUCTIONS)?.as_fd()).await
    }

    /// Attaches an XDP program to a device, in the place of one that was attached this way.
    pub async fn attach_xdp(&self, device: &str, program: BorrowedFd<'_>) -> Result<()> {
        let attached = self.set_xdp(device, program.as_raw_fd()).await;
        attached.with_context(|| format!("can't attach an XDP program to {device}"))
    }

    /// Takes an XDP program off that was attached this way.
    pub async fn detach_xdp(&self, device: &str) -> Result<()> {
        let detached = self.set_xdp(device, NO_PROGRAM).await;
        detached.with_context(|| format!("can't detach the XDP program of {device}"))
    }

    async fn set_xdp(&self, device: &str, program: i32) -> Result<()> {
        let xdp = LinkAttribute::Xdp(vec![LinkXdp::Fd(program)]);
        let message = LinkUnspec::new_with_index(index_of(device)?).append_extra_attribute(xdp).build();
        Ok(self.handle.link().set(message).execute().await?)
    }
}
