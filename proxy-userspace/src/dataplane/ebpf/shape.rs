//! The check of pinned maps for the shape of ours. A map with other keys can't replace one of ours,
//! and the loader takes any pinned object.

use std::fmt;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use aya::maps::MapInfo;
use aya_obj::Object;

use super::bpffs::entries;
use super::error::OpenError;
use super::object::OBJECT;
use super::sys;

/// The properties that make a map a different one. The number of entries does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// `enum bpf_map_type`.
    kind: u32,
    key: u32,
    value: u32,
    flags: u32,
}

/// Flag of a map that takes memory for an entry when the entry comes.
const BPF_F_NO_PREALLOC: u32 = 1;

/// Names of `enum bpf_map_type` as in bpftool: the types in our object and other common ones.
const KINDS: [(u32, &str); 14] = [
    (1, "hash"),
    (2, "array"),
    (3, "prog_array"),
    (4, "perf_event_array"),
    (5, "percpu_hash"),
    (6, "percpu_array"),
    (9, "lru_hash"),
    (10, "lru_percpu_hash"),
    (11, "lpm_trie"),
    (12, "array_of_maps"),
    (13, "hash_of_maps"),
    (14, "devmap"),
    (22, "queue"),
    (27, "ringbuf"),
];

impl Shape {
    /// Whether a map of another shape takes the place of this one with all its entries: hash maps of former
    /// layouts evicted entries, or had memory for all of them.
    fn is_replaced_by(self, wanted: Self) -> bool {
        const HASHES: [u32; 2] = [1, 9];
        let are_hashes = HASHES.contains(&self.kind) && HASHES.contains(&wanted.kind);
        let has_same_flags = self.flags | BPF_F_NO_PREALLOC == wanted.flags | BPF_F_NO_PREALLOC;
        are_hashes && has_same_flags && (self.key, self.value) == (wanted.key, wanted.value)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, key, value, flags } = self;
        match KINDS.iter().find(|(number, _)| number == kind) {
            Some((_, name)) => write!(f, "a map of type {name}")?,
            None => write!(f, "a map of type {kind}")?,
        }
        write!(f, " with keys of {key} and values of {value} bytes, flags {flags:#x}")
    }
}

/// Fails with the first pin in the directory of maps that can't be one of ours.
pub fn check(maps: &Path) -> Result<(), OpenError> {
    if entries(maps)?.is_empty() {
        return Ok(());
    }
    let object = Object::parse(OBJECT).map_err(|error| OpenError::Object(error.into()))?;
    // Maps of the compiler, such as .rodata, are not pinned.
    let mut wanted: Vec<_> = object.maps.iter().filter(|(name, _)| !name.starts_with('.')).collect();
    wanted.sort_unstable_by_key(|(name, _)| *name);
    for (name, map) in wanted {
        let wanted = Shape {
            kind: map.map_type(),
            key: map.key_size(),
            value: map.value_size(),
            flags: map.map_flags(),
        };
        check_pin(&maps.join(name), wanted)?;
    }
    Ok(())
}

fn check_pin(path: &Path, wanted: Shape) -> Result<(), OpenError> {
    let foreign = |found: String| {
        Err(OpenError::ForeignPin { path: path.to_owned(), found, wanted: wanted.to_string() })
    };
    let failed = |error| OpenError::File { path: path.to_owned(), error };
    // The loader reports a pin that can't be opened, and whether rights are missing.
    let Ok(object) = sys::obj_get(path) else { return Ok(()) };
    // The kernel answers a request for a map's description with a program's.
    let kind =
        fs::read_link(format!("/proc/thread-self/fd/{}", object.as_fd().as_raw_fd())).map_err(failed)?;
    if !kind.to_string_lossy().contains("bpf-map") {
        let kind = kind.to_string_lossy().replace("anon_inode:", "");
        return foreign(format!("no map but {}", kind.trim_matches(['[', ']'])));
    }
    let failed = |error| OpenError::Map { map: path.display().to_string(), error };
    let info = MapInfo::from_pin(path).map_err(failed)?;
    let found = Shape {
        kind: info.map_type().map_err(failed)? as u32,
        key: info.key_size(),
        value: info.value_size(),
        flags: info.map_flags(),
    };
    if found == wanted || found.is_replaced_by(wanted) { Ok(()) } else { foreign(found.to_string()) }
}

/// Returns whether a pinned map is of the kind that the object has by that name: false for one that an agent
/// of an earlier layout left, and that [`Resize`](super::resize::Resize) replaces.
pub fn is_of_our_kind(pin: &MapInfo, object: &Object, name: &str) -> bool {
    object.maps.get(name).is_none_or(|map| {
        pin.map_type().is_ok_and(|kind| kind as u32 == map.map_type()) && pin.map_flags() == map.map_flags()
    })
}
