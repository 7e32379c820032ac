//! Commands of bpf(2) that aya lacks in the needed form: links by interface index and without a
//! netlink fallback, links with a replaceable program, and look-ups in batches.

use std::ffi::CString;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

const MAP_CREATE: libc::c_long = 0;
const MAP_LOOKUP_ELEM: libc::c_long = 1;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const OBJ_PIN: libc::c_long = 6;
const OBJ_GET: libc::c_long = 7;
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const PROG_QUERY: libc::c_long = 16;
const MAP_LOOKUP_BATCH: libc::c_long = 24;
const LINK_CREATE: libc::c_long = 28;
const LINK_UPDATE: libc::c_long = 29;
const LINK_DETACH: libc::c_long = 34;
/// The maps that the kernel allows a program, `MAX_USED_MAPS`, and more.
const MOST_MAPS: usize = 256;
/// More programs than anybody has on one side of a device.
const MOST_PROGRAMS: usize = 256;

/// The kind of attachment: `enum bpf_attach_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttachType {
    /// `BPF_CGROUP_INET4_BIND`
    CgroupInet4Bind = 8,
    /// `BPF_CGROUP_INET6_BIND`
    CgroupInet6Bind = 9,
    /// `BPF_CGROUP_INET4_CONNECT`
    CgroupInet4Connect = 10,
    /// `BPF_CGROUP_INET6_CONNECT`
    CgroupInet6Connect = 11,
    /// `BPF_CGROUP_UDP4_SENDMSG`
    CgroupUdp4Sendmsg = 14,
    /// `BPF_CGROUP_UDP6_SENDMSG`
    CgroupUdp6Sendmsg = 15,
    /// `BPF_CGROUP_UDP4_RECVMSG`
    CgroupUdp4Recvmsg = 19,
    /// `BPF_CGROUP_UDP6_RECVMSG`
    CgroupUdp6Recvmsg = 20,
    /// `BPF_CGROUP_INET4_GETPEERNAME`
    CgroupInet4Getpeername = 29,
    /// `BPF_CGROUP_INET6_GETPEERNAME`
    CgroupInet6Getpeername = 30,
    /// `BPF_CGROUP_INET_SOCK_RELEASE`
    CgroupInetSockRelease = 34,
    /// `BPF_XDP`
    Xdp = 37,
    /// `BPF_TCX_INGRESS`
    TcxIngress = 46,
    /// `BPF_TCX_EGRESS`
    TcxEgress = 47,
}

/// The kernel's information on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    /// Id of the program.
    pub program_id: u32,
    /// Index of the device; 0 once the device is gone.
    pub device: u32,
}

/// The kernel's information on a link to a control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupLinkInfo {
    /// Id of the program.
    pub program_id: u32,
    /// Id of the control group; 0 once it is gone.
    pub cgroup: u64,
}

/// Makes an array of one word, or of one map shaped as `inner`.
pub fn create_array(inner: Option<BorrowedFd<'_>>) -> io::Result<OwnedFd> {
    const ARRAY: u32 = 2;
    const ARRAY_OF_MAPS: u32 = 12;
    let attr = MapCreateAttr {
        kind: if inner.is_some() { ARRAY_OF_MAPS } else { ARRAY },
        key_size: 4,
        value_size: 4,
        max_entries: 1,
        flags: 0,
        inner: inner.map_or(0, |inner| inner.as_raw_fd()),
    };
    owned(bpf(MAP_CREATE, &attr)?)
}

/// Puts a map into an array of maps.
pub fn put_map(array: BorrowedFd<'_>, index: u32, map: BorrowedFd<'_>) -> io::Result<()> {
    let value = map.as_raw_fd();
    bpf(MAP_UPDATE_ELEM, &MapElementAttr::new(array, &index, (&raw const value) as u64)).map(drop)
}

/// Returns the id of the program in an array of programs; `None` if the entry is empty.
pub fn program_in_array(array: BorrowedFd<'_>, index: u32) -> io::Result<Option<u32>> {
    let mut id = 0_u32;
    match bpf(MAP_LOOKUP_ELEM, &MapElementAttr::new(array, &index, (&raw mut id) as u64)) {
        Ok(_) => Ok(Some(id)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens a pinned object.
pub fn obj_get(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let attr = ObjAttr { path: path.as_ptr() as u64, ..ObjAttr::default() };
    owned(bpf(OBJ_GET, &attr)?)
}

/// Pins an object.
pub fn obj_pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let attr = ObjAttr { path: path.as_ptr() as u64, fd: object.as_raw_fd(), flags: 0 };
    bpf(OBJ_PIN, &attr).map(drop)
}

/// Attaches a program to a device of this thread's network namespace.
///
/// The kernel detaches it when the link and every pin of it are gone.
pub fn link_create(
    program: BorrowedFd<'_>,
    device: u32,
    attach: AttachType,
    flags: u32,
) -> io::Result<OwnedFd> {
    let attr = LinkCreateAttr {
        program: program.as_raw_fd(),
        device,
        attach: attach as u32,
        flags,
        ..LinkCreateAttr::default()
    };
    owned(bpf(LINK_CREATE, &attr)?)
}

/// Attaches a program to a control group, beside other programs.
pub fn cgroup_link_create(
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    attach: AttachType,
) -> io::Result<OwnedFd> {
    let target = u32::try_from(cgroup.as_raw_fd()).map_err(io::Error::other)?;
    link_create(program, target, attach, 0)
}

/// Replaces a link's program, atomically.
pub fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let attr =
        LinkUpdateAttr { link: link.as_raw_fd(), program: program.as_raw_fd(), ..LinkUpdateAttr::default() };
    bpf(LINK_UPDATE, &attr).map(drop)
}

/// Detaches a link's program at once. The kernel detaches a link without references only some time
/// later.
pub fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    bpf(LINK_DETACH, &link.as_raw_fd()).map(drop)
}

/// Returns the program and device of an XDP or tcx link.
pub fn link_info(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    let info: RawLinkInfo = object_info(link)?;
    Ok(LinkInfo { program_id: info.program_id, device: info.device })
}

/// Returns the program and control group of a link.
pub fn cgroup_link_info(link: BorrowedFd<'_>) -> io::Result<CgroupLinkInfo> {
    let info: RawCgroupLinkInfo = object_info(link)?;
    Ok(CgroupLinkInfo { program_id: info.program_id, cgroup: info.cgroup })
}

/// Returns the cookie of this thread's network namespace, as in `bpf_get_netns_cookie`.
pub fn network_namespace_cookie() -> io::Result<u64> {
    /// `SO_NETNS_COOKIE`, Linux 5.14 and later.
    const OPTION: libc::c_int = 71;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket_word(socket.as_fd(), OPTION)
}

/// Returns a 64-bit socket option of level `SOL_SOCKET`.
pub fn socket_word(socket: BorrowedFd<'_>, option: libc::c_int) -> io::Result<u64> {
    let mut word = 0_u64;
    let mut length = libc::socklen_t::try_from(size_of::<u64>()).map_err(io::Error::other)?;
    let (value, length) = ((&raw mut word).cast(), &raw mut length);
    // SAFETY: `value` has the eight bytes that `length` says, and both live until the call returns.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(word) }
}

/// Returns the kernel's id of a program.
pub fn program_id(program: BorrowedFd<'_>) -> io::Result<u32> {
    object_info::<RawProgramInfo>(program).map(|info| info.id)
}

/// Returns the kernel's tag of a program: a hash of its instructions, without maps and constants.
pub fn program_tag(program: BorrowedFd<'_>) -> io::Result<[u8; 8]> {
    object_info::<RawProgramInfo>(program).map(|info| info.tag)
}

/// Returns the kernel's ids of the maps that a program uses.
pub fn program_maps(program: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut ids = vec![0_u32; MOST_MAPS];
    let count = u32::try_from(ids.len()).unwrap_or(0);
    let mut info =
        RawProgramMaps { map_count: count, map_ids: ids.as_mut_ptr() as u64, ..RawProgramMaps::default() };
    fill_info(program, &mut info)?;
    ids.truncate(usize::try_from(info.map_count).unwrap_or(0));
    Ok(ids)
}

/// Returns the kernel's ids of the tcx programs on one side of a device, in the order in which they see packets. `side`
/// is `BPF_TCX_INGRESS` or `BPF_TCX_EGRESS`.
pub fn tcx_programs(device: u32, side: u32) -> io::Result<Vec<u32>> {
    let mut ids = vec![0_u32; MOST_PROGRAMS];
    let count = u32::try_from(ids.len()).unwrap_or(0);
    let mut attr =
        QueryAttr { device, side, programs: ids.as_mut_ptr() as u64, count, ..QueryAttr::default() };
    bpf_mut(PROG_QUERY, &mut attr)?;
    ids.truncate(usize::try_from(attr.count).unwrap_or(0));
    Ok(ids)
}

/// The position of a batched look-up in a hash map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(u32);

impl Cursor {
    /// Returns the position of a bucket.
    pub const fn at(bucket: u32) -> Self {
        Self(bucket)
    }

    /// Returns the bucket of the position.
    pub const fn bucket(self) -> u32 {
        self.0
    }
}

/// Fills `keys` and `values` with entries of a hash map, from `cursor` or from the start. Returns
/// the number of entries and the next position; `None` at the end.
///
/// `K` and `V` must be the map's own types.
pub fn lookup_batch<K: aya::Pod, V: aya::Pod>(
    map: BorrowedFd<'_>,
    cursor: Option<Cursor>,
    keys: &mut [K],
    values: &mut [V],
) -> io::Result<(usize, Option<Cursor>)> {
    let from = cursor.unwrap_or_default();
    let mut next = Cursor::default();
    let mut attr = BatchAttr {
        in_batch: if cursor.is_some() { (&raw const from) as u64 } else { 0 },
        out_batch: (&raw mut next) as u64,
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count: u32::try_from(keys.len().min(values.len())).unwrap_or(u32::MAX),
        map: map.as_raw_fd(),
        ..BatchAttr::default()
    };
    let result = bpf_mut(MAP_LOOKUP_BATCH, &mut attr);
    let count = usize::try_from(attr.count).unwrap_or(0);
    match result {
        Ok(_) => Ok((count, Some(next))),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok((count, None)),
        Err(error) => Err(error),
    }
}

#[repr(C)]
#[derive(Default)]
struct ObjAttr {
    path: u64,
    fd: RawFd,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct LinkCreateAttr {
    program: RawFd,
    device: u32,
    attach: u32,
    flags: u32,
    /// For tcx: the link before or after which ours goes. 0 = none: before or after all.
    relative: u32,
    reserved: u32,
    expected_revision: u64,
}

#[repr(C)]
#[derive(Default)]
struct LinkUpdateAttr {
    link: RawFd,
    program: RawFd,
    flags: u32,
    old_program: u32,
}

#[repr(C)]
#[derive(Default)]
struct QueryAttr {
    device: u32,
    side: u32,
    query_flags: u32,
    attach_flags: u32,
    programs: u64,
    /// Room for programs; then their number.
    count: u32,
    reserved: u32,
    program_flags: u64,
    links: u64,
    link_flags: u64,
    revision: u64,
}

#[repr(C)]
#[derive(Default)]
struct InfoAttr {
    fd: RawFd,
    length: u32,
    info: u64,
}

#[repr(C)]
#[derive(Default)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: RawFd,
    element_flags: u64,
    flags: u64,
}

/// The common beginning of `struct bpf_link_info` for XDP and tcx links.
#[repr(C)]
#[derive(Default)]
struct RawLinkInfo {
    kind: u32,
    id: u32,
    program_id: u32,
    reserved: u32,
    device: u32,
    attach: u32,
}

/// `struct bpf_link_info` of a link to a control group.
#[repr(C)]
#[derive(Default)]
struct RawCgroupLinkInfo {
    kind: u32,
    id: u32,
    program_id: u32,
    reserved: u32,
    cgroup: u64,
    attach: u32,
    padding: u32,
}

#[repr(C)]
struct MapCreateAttr {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    inner: RawFd,
}

#[repr(C)]
struct MapElementAttr {
    map: RawFd,
    reserved: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl MapElementAttr {
    /// Names an element of an array. `value` is the address that the kernel reads from or writes to.
    fn new(array: BorrowedFd<'_>, index: &u32, value: u64) -> Self {
        Self { map: array.as_raw_fd(), reserved: 0, key: ptr::from_ref(index) as u64, value, flags: 0 }
    }
}

/// The beginning of `struct bpf_prog_info`.
#[repr(C)]
#[derive(Default)]
struct RawProgramInfo {
    kind: u32,
    id: u32,
    tag: [u8; 8],
}

/// The beginning of `struct bpf_prog_info`, up to the ids of maps.
#[repr(C)]
#[derive(Default)]
struct RawProgramMaps {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    jited_length: u32,
    translated_length: u32,
    jited: u64,
    translated: u64,
    load_time: u64,
    created_by: u32,
    /// Room for ids; then the number of the program's maps.
    map_count: u32,
    map_ids: u64,
}

fn object_info<T: Default>(object: BorrowedFd<'_>) -> io::Result<T> {
    let mut info = T::default();
    fill_info(object, &mut info)?;
    Ok(info)
}

/// Reads the kernel's information about an object. Pointers in it must lead to memory of the length that it says.
fn fill_info<T>(object: BorrowedFd<'_>, info: &mut T) -> io::Result<()> {
    let attr = InfoAttr {
        fd: object.as_raw_fd(),
        length: u32::try_from(size_of::<T>()).unwrap_or(0),
        info: std::ptr::from_mut(info) as u64,
    };
    bpf(OBJ_GET_INFO_BY_FD, &attr).map(drop)
}

fn bpf<T>(command: libc::c_long, attr: &T) -> io::Result<libc::c_long> {
    // SAFETY: `attr` is a prefix of the command's part of `union bpf_attr`, and its pointers, made by the callers
    // in this file, point to live memory of the length the attributes say. The commands of this function do
    // not write to `attr`.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attr), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Runs a command of bpf(2) whose attributes the kernel may write to. The caller answers for the
/// pointers.
pub(super) fn bpf_mut<T>(command: libc::c_long, attr: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: as in `bpf`; the kernel may write to `attr`, which is borrowed mutably.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    let fd = RawFd::try_from(result).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for this call, and no other owner exists.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}
