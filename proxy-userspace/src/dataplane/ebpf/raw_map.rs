//! A map as bytes: copies of entries between two maps of one shape, whatever their types.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use aya::maps::{MapData, MapType};

use super::error::OpenError;
use super::sys;

const MAP_LOOKUP_ELEM: libc::c_long = 1;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const MAP_DELETE_ELEM: libc::c_long = 3;
const MAP_GET_NEXT_KEY: libc::c_long = 4;

/// A map of any kind.
#[derive(Debug)]
pub struct RawMap {
    name: String,
    fd: OwnedFd,
    key_bytes: usize,
    /// Bytes that the kernel copies for one entry: those of all CPUs in a per-CPU map.
    value_bytes: usize,
    entries: u32,
    is_array: bool,
}

/// The part of `union bpf_attr` for one element.
#[repr(C)]
struct ElementAttr {
    map: RawFd,
    reserved: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl RawMap {
    /// Takes another reference to a map.
    pub fn of(name: &str, map: &MapData) -> Result<Self, OpenError> {
        let failed = |error| OpenError::Map { map: name.to_owned(), error };
        let info = map.info().map_err(failed)?;
        let bytes = |size: u32| usize::try_from(size).unwrap_or(0);
        let value = bytes(info.value_size());
        let kind = info.map_type().map_err(failed)?;
        let is_array = matches!(kind, MapType::Array | MapType::PerCpuArray);
        let value_bytes = match kind {
            MapType::PerCpuArray | MapType::PerCpuHash | MapType::LruPerCpuHash => {
                value.next_multiple_of(size_of::<u64>()) * aya::util::nr_cpus().unwrap_or(1)
            }
            _ => value,
        };
        let fd = map.fd().as_fd().try_clone_to_owned();
        let fd = fd.map_err(|error| OpenError::RawMap { map: name.to_owned(), error })?;
        let (key_bytes, entries) = (bytes(info.key_size()), info.max_entries());
        Ok(Self { name: name.to_owned(), fd, key_bytes, value_bytes, entries, is_array })
    }

    /// How often an entry is written while the kernel lacks memory.
    const TRIES: usize = 20;

    /// Returns the number of entries it has room for.
    pub const fn entries(&self) -> u32 {
        self.entries
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, OpenError> {
        let mut value = vec![0; self.value_bytes];
        let found = self.call(MAP_LOOKUP_ELEM, key, value.as_mut_ptr() as u64)?;
        Ok(found.then_some(value))
    }

    /// Writes the entry of `key` as another map has it, or removes it if that map has none.
    pub fn copy(&self, from: &Self, key: &[u8]) -> Result<(), OpenError> {
        match from.get(key)? {
            Some(value) if value.len() == self.value_bytes => self.insert(key, &value),
            Some(_) => Err(self.failed(io::ErrorKind::InvalidData.into())),
            None => self.remove(key),
        }
    }

    /// Writes an entry.
    ///
    /// The kernel may lack memory for a moment: a map that takes it on demand has only a little at hand.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<(), OpenError> {
        self.insert_within(Self::TRIES, key, value)
    }

    /// Writes an entry; tries so many times if the kernel lacks memory.
    pub fn insert_within(&self, tries: usize, key: &[u8], value: &[u8]) -> Result<(), OpenError> {
        const PAUSE: Duration = Duration::from_millis(1);
        if value.len() != self.value_bytes {
            return Err(self.failed(io::ErrorKind::InvalidInput.into()));
        }
        let mut tries = 1..tries;
        loop {
            match self.call(MAP_UPDATE_ELEM, key, value.as_ptr() as u64) {
                Err(OpenError::RawMap { error, .. })
                    if matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN | libc::EBUSY))
                        && tries.next().is_some() =>
                {
                    std::thread::sleep(PAUSE);
                }
                result => return result.map(drop),
            }
        }
    }

    /// Copies all entries of an array.
    pub fn copy_array(&self, from: &Self) -> Result<(), OpenError> {
        for index in 0..self.entries.min(from.entries) {
            self.copy(from, &index.to_ne_bytes())?;
        }
        Ok(())
    }

    /// Copies all entries of a map. Entries that programs write meanwhile may be missed.
    pub fn copy_all(&self, from: &Self) -> Result<(), OpenError> {
        if from.is_array {
            return self.copy_array(from);
        }
        let mut key = vec![0; from.key_bytes];
        let mut next = vec![0; from.key_bytes];
        let mut found = from.call_with(MAP_GET_NEXT_KEY, 0, next.as_mut_ptr() as u64)?;
        // A removed key lets the walk begin anew.
        let mut steps = 0..u64::from(from.entries) * 4;
        while found && steps.next().is_some() {
            std::mem::swap(&mut key, &mut next);
            self.copy(from, &key)?;
            found = from.call_with(MAP_GET_NEXT_KEY, key.as_ptr() as u64, next.as_mut_ptr() as u64)?;
        }
        Ok(())
    }

    /// Removes all entries of a hash map.
    pub fn clear(&self) -> Result<(), OpenError> {
        let mut key = vec![0; self.key_bytes];
        while self.call_with(MAP_GET_NEXT_KEY, 0, key.as_mut_ptr() as u64)? {
            self.remove(&key)?;
        }
        Ok(())
    }

    /// Removes the entry of a key, if there is one.
    pub fn remove(&self, key: &[u8]) -> Result<(), OpenError> {
        self.call(MAP_DELETE_ELEM, key, 0).map(drop)
    }

    fn call(&self, command: libc::c_long, key: &[u8], value: u64) -> Result<bool, OpenError> {
        if key.len() != self.key_bytes {
            return Err(self.failed(io::ErrorKind::InvalidInput.into()));
        }
        self.call_with(command, key.as_ptr() as u64, value)
    }

    /// Returns false if the map has no such entry. The callers answer for the sizes of the memory.
    fn call_with(&self, command: libc::c_long, key: u64, value: u64) -> Result<bool, OpenError> {
        let map = self.fd.as_raw_fd();
        match sys::bpf_mut(command, &mut ElementAttr { map, reserved: 0, key, value, flags: 0 }) {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&self, error: io::Error) -> OpenError {
        OpenError::RawMap { map: self.name.clone(), error }
    }
}

/// Returns a shared type as the bytes of a key.
pub fn bytes_of<T: aya::Pod>(value: &T) -> Vec<u8> {
    // SAFETY: `Pod` types have no padding, so all of their bytes are initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }.to_vec()
}
