//! The calls of bpf(2) for entries of maps of any shape, which aya has for maps of known types only.

use nix::errno::Errno;

/// linux/bpf.h: a command.
#[derive(Clone, Copy, Debug)]
pub enum Command {
    /// `BPF_MAP_LOOKUP_ELEM`
    Look = 1,
    /// `BPF_MAP_DELETE_ELEM`
    Delete = 3,
    /// `BPF_MAP_GET_NEXT_KEY`
    NextKey = 4,
    /// `BPF_MAP_LOOKUP_BATCH`
    LookAtMany = 24,
    /// `BPF_MAP_UPDATE_BATCH`
    UpdateMany = 26,
}

/// The part of union bpf_attr for calls of one entry.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Entry {
    /// The map's descriptor.
    pub map: u32,
    /// Zero.
    pub padding: u32,
    /// The address of the key.
    pub key: u64,
    /// The address of the value, or of the next key.
    pub value: u64,
    /// Zero.
    pub flags: u64,
}

/// The part of union bpf_attr for calls of many entries.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Batch {
    /// The address of the place to begin at; 0 = the beginning.
    pub begin: u64,
    /// The address for the place behind the last entry.
    pub end: u64,
    /// The address of the keys.
    pub keys: u64,
    /// The address of the values.
    pub values: u64,
    /// The number of entries; the kernel writes how many it has done.
    pub count: u32,
    /// The map's descriptor.
    pub map: u32,
    /// Zero.
    pub flags: [u64; 2],
}

/// Calls the kernel with an [`Entry`] or a [`Batch`].
///
/// # Safety
/// The memory that it names must live until the call returns, and have the sizes of the map's keys and values.
pub unsafe fn call<T>(command: Command, attribute: &mut T) -> nix::Result<()> {
    let attribute = std::ptr::from_mut(attribute);
    // SAFETY: as the caller has promised.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command as libc::c_long, attribute, size_of::<T>()) };
    Errno::result(done).map(drop)
}
