//! Pinned maps as an agent would make them: without entries.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use anyhow::{Context, Result, bail};
use aya::maps::{MapData, MapInfo, MapType};
use nix::errno::Errno;

use crate::map_calls::{Batch, Command, Entry, call};

/// linux/bpf.h
const BPF_F_MMAPABLE: u32 = 1 << 10;
const WRITABLE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Empties a pinned map.
pub(super) fn clear(pin: &Path) -> Result<()> {
    let map = MapData::from_pin(pin).with_context(|| format!("can't open {}", pin.display()))?;
    let info = map.info()?;
    let descriptor = map.fd().as_fd().as_raw_fd();
    let cleared = match info.map_type()? {
        MapType::Hash | MapType::LruHash | MapType::LruPerCpuHash | MapType::LpmTrie => {
            remove_all(descriptor, info.key_size())
        }
        MapType::Array if info.map_flags() & BPF_F_MMAPABLE != 0 => zero_mapped(descriptor, &info),
        MapType::Array => zero_all(descriptor, info.max_entries(), info.value_size() as usize),
        MapType::PerCpuArray => {
            let each = (info.value_size() as usize).next_multiple_of(size_of::<u64>());
            zero_all(descriptor, info.max_entries(), each * possible_cpus()?)
        }
        MapType::RingBuf => drain(descriptor),
        other => bail!("{} is of the kind {other:?}", pin.display()),
    };
    cleared.with_context(|| format!("can't clear {}", pin.display()))
}

fn possible_cpus() -> Result<usize> {
    aya::util::nr_cpus().map_err(|(file, error)| anyhow::anyhow!("{file}: {error}"))
}

fn remove_all(map: i32, key_size: u32) -> Result<()> {
    let map = u32::try_from(map)?;
    let (mut key, mut next) = (vec![0_u8; key_size as usize], vec![0_u8; key_size as usize]);
    let after = |key: Option<&[u8]>, next: &mut [u8]| {
        let key = key.map_or(0, |key| key.as_ptr() as u64);
        let mut entry = Entry { map, key, value: next.as_mut_ptr() as u64, ..Entry::default() };
        // SAFETY: both keys have the size of the map's, and outlive the call.
        match unsafe { call(Command::NextKey, &mut entry) } {
            Err(Errno::ENOENT) => Ok(false),
            found => found.map(|()| true),
        }
    };
    let mut is_found = after(None, &mut key)?;
    while is_found {
        is_found = after(Some(&key), &mut next)?;
        let mut entry = Entry { map, key: key.as_ptr() as u64, ..Entry::default() };
        // SAFETY: as above.
        match unsafe { call(Command::Delete, &mut entry) } {
            // A full map evicted it.
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(error) => return Err(error.into()),
        }
        key.copy_from_slice(&next);
    }
    Ok(())
}

fn zero_all(map: i32, entries: u32, value_size: usize) -> Result<()> {
    let mut keys: Vec<u32> = (0..entries).collect();
    let mut values = vec![0_u8; value_size * entries as usize];
    let mut batch = Batch {
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count: entries,
        map: u32::try_from(map)?,
        ..Batch::default()
    };
    // SAFETY: there are as many keys and values as the map has entries, and they outlive the call.
    Ok(unsafe { call(Command::UpdateMany, &mut batch) }?)
}

/// A part of a map in memory.
struct Mapping {
    at: *mut libc::c_void,
    bytes: usize,
}

impl Mapping {
    fn new(map: i32, bytes: usize, offset: usize, protection: libc::c_int) -> Result<Self> {
        let (at, offset) = (std::ptr::null_mut(), libc::off_t::try_from(offset)?);
        // SAFETY: a new mapping, which nothing else refers to.
        let at = unsafe { libc::mmap(at, bytes, protection, libc::MAP_SHARED, map, offset) };
        if at == libc::MAP_FAILED {
            return Err(Errno::last()).context("mmap");
        }
        Ok(Self { at, bytes })
    }

    const fn word(&self, index: usize) -> *mut u64 {
        // SAFETY: the callers stay inside the mapping.
        unsafe { self.at.cast::<u64>().add(index) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: no reference into the mapping is left.
        unsafe { libc::munmap(self.at, self.bytes) };
    }
}

/// Writes only what is not zero: most pages of a large array were never touched.
fn zero_mapped(map: i32, info: &MapInfo) -> Result<()> {
    let each = (info.value_size() as usize).next_multiple_of(size_of::<u64>());
    let mapping = Mapping::new(map, each * info.max_entries() as usize, 0, WRITABLE)?;
    for index in 0..mapping.bytes / size_of::<u64>() {
        let word = mapping.word(index);
        // SAFETY: the index is inside the mapping, and no program runs that would read half a word.
        unsafe {
            if word.read_volatile() != 0 {
                word.write_volatile(0);
            }
        }
    }
    Ok(())
}

/// Takes all records: the reader's position becomes that of the writers. Each has a page of its own.
fn drain(map: i32) -> Result<()> {
    // SAFETY: a call without memory.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })?;
    let reader = Mapping::new(map, page, 0, WRITABLE)?;
    // The kernel lets nobody write this page.
    let writers = Mapping::new(map, page, page, libc::PROT_READ)?;
    // SAFETY: both positions are the first word of their pages.
    unsafe { reader.word(0).write_volatile(writers.word(0).read_volatile()) };
    Ok(())
}
