//! The smallest XDP program, which passes all packets.
//!
//! A virtual device gets frames that its peer sends back (`XDP_TX`) at once only if it has an XDP
//! program itself (`veth_xdp_flush` in drivers/net/veth.c). Otherwise such a frame waits for the
//! next one that comes another way. Merging of received frames is enough for redirected frames, but
//! not for these.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use nix::errno::Errno;
use rtnetlink::LinkUnspec;
use rtnetlink::packet_route::link::{LinkAttribute, LinkXdp};

use super::netlink::{Netlink, index_of};

/// linux/bpf.h: the command, the kind of program, and the verdict.
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_TYPE_XDP: u32 = 6;
const XDP_PASS: u64 = 2;
/// `r0 = XDP_PASS` and `exit`, each as a struct bpf_insn in memory.
const INSTRUCTIONS: [u64; 2] = [XDP_PASS << 32 | 0xb7, 0x95];

/// The part of union bpf_attr that loading a program needs. The kernel takes the rest as zero.
#[repr(C)]
struct Load {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log: [u64; 2],
}

impl Netlink {
    /// Attaches an XDP program that passes all packets to a device.
    pub async fn attach_pass(&self, device: &str) -> Result<()> {
        self.attach_xdp(device, load()?.as_fd()).await
    }

    /// Attaches an XDP program to a device, in the place of one that was attached this way.
    pub async fn attach_xdp(&self, device: &str, program: BorrowedFd<'_>) -> Result<()> {
        let xdp = LinkAttribute::Xdp(vec![LinkXdp::Fd(program.as_raw_fd())]);
        let message = LinkUnspec::new_with_index(index_of(device)?).append_extra_attribute(xdp).build();
        let attached = self.handle.link().set(message).execute().await;
        attached.with_context(|| format!("can't attach an XDP program to {device}"))
    }
}

fn load() -> Result<OwnedFd> {
    let load = Load {
        kind: BPF_PROG_TYPE_XDP,
        instruction_count: u32::try_from(INSTRUCTIONS.len())?,
        instructions: INSTRUCTIONS.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        log: [0; 2],
    };
    // SAFETY: the kernel reads `load`, the instructions and the licence. All of them live until the
    // call returns.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const load, size_of::<Load>()) };
    let fd = Errno::result(fd).context("can't load an XDP program")?;
    // SAFETY: the call above returned the descriptor, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd)?) })
}
