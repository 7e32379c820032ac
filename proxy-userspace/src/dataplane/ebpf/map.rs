//! One pinned map: opening it, and the meaning of its errors.

use std::os::fd::AsFd;
use std::path::Path;

use aya::maps::{MapData, MapError, MapInfo};

use super::error::OpenError;
use super::mapped::{Access, MappedArray};

/// Opens a pinned array of values of whole words, and maps it into memory.
pub fn mapped(directory: &Path, name: &'static str, access: Access) -> Result<MappedArray, OpenError> {
    let (map, info) = open(directory, name)?;
    let words = info.value_size() / size_of::<u64>() as u32 * info.max_entries();
    MappedArray::new(map.fd().as_fd(), words, access).map_err(|error| OpenError::MapIo { map: name, error })
}

/// Opens a pinned map.
pub fn open(directory: &Path, name: &'static str) -> Result<(MapData, MapInfo), OpenError> {
    let failed = |error| OpenError::Map { map: name.to_owned(), error };
    let map = MapData::from_pin(directory.join(name)).map_err(failed)?;
    let info = map.info().map_err(failed)?;
    Ok((map, info))
}

/// Returns the error number if the error comes from a system call.
pub fn errno(error: &MapError) -> Option<i32> {
    match error {
        MapError::SyscallError(error) => error.io_error.raw_os_error(),
        _ => None,
    }
}

/// Returns the error for a refused change of a map with this many entries. A full hash map fails with E2BIG,
/// a full trie with ENOSPC.
pub fn explain(name: &str, entries: u32, error: &MapError) -> String {
    match errno(error) {
        Some(libc::E2BIG | libc::ENOSPC) => format!("{name} is full: it has {entries} entries"),
        _ => format!("{name}: {error}"),
    }
}
