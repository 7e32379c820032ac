//! The few calls of bpf(2) for programs of others than Millrace: the smallest ones, without maps.

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use nix::errno::Errno;

use super::netlink::index_of;

/// linux/bpf.h: the commands and the flag of the first place.
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_OBJ_GET: libc::c_long = 7;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_LINK_DETACH: libc::c_long = 34;
const BPF_F_BEFORE: u32 = 1 << 3;
/// `r0 = verdict` and `exit`, each as a struct bpf_insn in memory.
const MOVE: u64 = 0xb7;
const EXIT: u64 = 0x95;

/// linux/bpf.h: `enum bpf_prog_type`.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(super) enum ProgramType {
    /// `BPF_PROG_TYPE_SCHED_CLS`
    Classifier = 3,
    /// `BPF_PROG_TYPE_XDP`
    Xdp = 6,
}

/// A hook of TC. linux/bpf.h: `enum bpf_attach_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum TcHook {
    /// `BPF_TCX_INGRESS`
    Ingress = 46,
    /// `BPF_TCX_EGRESS`
    Egress = 47,
}

/// The verdict of a TC program that only looks (`TCX_NEXT`).
pub const NEXT: i32 = -1;

/// A link of a program of somebody else. The program is attached until this is dropped.
#[derive(Debug)]
pub struct ForeignLink {
    _link: OwnedFd,
}

/// The part of union bpf_attr that loading a program needs. The kernel takes the rest as zero.
#[repr(C)]
struct Load {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log: [u64; 2],
}

/// The part of union bpf_attr for a tcx link.
#[repr(C)]
struct LinkCreate {
    program: i32,
    device: u32,
    hook: u32,
    flags: u32,
    relative: u32,
    padding: u32,
    revision: u64,
}

/// Puts a TC program before all others of a device of the current thread's namespace. It returns
/// `verdict` for each packet.
pub fn attach_first(device: &str, hook: TcHook, verdict: i32) -> Result<ForeignLink> {
    let instructions = [u64::from(verdict.cast_unsigned()) << 32 | MOVE, EXIT];
    let program = load(ProgramType::Classifier, &instructions)?;
    let link = LinkCreate {
        program: program.as_raw_fd(),
        device: index_of(device)?,
        hook: hook as u32,
        flags: BPF_F_BEFORE,
        relative: 0,
        padding: 0,
        revision: 0,
    };
    // SAFETY: the kernel reads `link`, which lives until the call returns.
    let fd =
        unsafe { libc::syscall(libc::SYS_bpf, BPF_LINK_CREATE, &raw const link, size_of::<LinkCreate>()) };
    let fd = Errno::result(fd).with_context(|| format!("can't attach a program to {hook:?} of {device}"))?;
    // SAFETY: the call above returned the descriptor, and it has no other owner.
    Ok(ForeignLink { _link: unsafe { OwnedFd::from_raw_fd(i32::try_from(fd)?) } })
}

/// Detaches the program of a pinned link from its device, as `bpftool link detach` does. The pin stays.
pub fn detach_link(pin: &Path) -> Result<()> {
    let pinned = get_pinned(pin)?;
    let link = pinned.as_raw_fd();
    // SAFETY: the kernel reads the descriptor, which lives until the call returns.
    let done = unsafe { libc::syscall(libc::SYS_bpf, BPF_LINK_DETACH, &raw const link, size_of::<i32>()) };
    Errno::result(done).map(drop).with_context(|| format!("can't detach {}", pin.display()))
}

fn get_pinned(pin: &Path) -> Result<OwnedFd> {
    let path = CString::new(pin.as_os_str().as_bytes())?;
    let attributes = [path.as_ptr() as u64, 0];
    // SAFETY: the kernel reads `attributes` and `path`. Both live until the call returns.
    let fd =
        unsafe { libc::syscall(libc::SYS_bpf, BPF_OBJ_GET, &raw const attributes, size_of::<[u64; 2]>()) };
    let fd = Errno::result(fd).with_context(|| format!("can't open {}", pin.display()))?;
    // SAFETY: the call above returned the descriptor, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd)?) })
}

/// Loads a program without maps.
pub(super) fn load(kind: ProgramType, instructions: &[u64]) -> Result<OwnedFd> {
    let load = Load {
        kind: kind as u32,
        instruction_count: u32::try_from(instructions.len())?,
        instructions: instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        log: [0; 2],
    };
    // SAFETY: the kernel reads `load`, the instructions and the licence. All of them live until the
    // call returns.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const load, size_of::<Load>()) };
    let fd = Errno::result(fd).with_context(|| format!("can't load a program of type {kind:?}"))?;
    // SAFETY: the call above returned the descriptor, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd)?) })
}
