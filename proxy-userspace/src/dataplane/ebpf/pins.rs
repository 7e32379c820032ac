//! The pins of programs, of their arrays of parts and of their constants.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::Path;

use aya::Ebpf;
use aya::maps::{Map, MapInfo};
use proxy_common::part::parts_of;
use tracing::debug;

use super::bpffs::{entries, is_program, remove_tree};
use super::error::OpenError;
use super::hooks::SocketHook;
use super::inventory::maps;
use super::parts;
use super::settings::Sizes;
use super::sys;

/// Whether these programs, their parts and those of sockets are pinned in a directory, and use the pinned maps alone.
/// Programs are pinned after their parts, when those are complete.
pub(super) fn are_usable(directory: &Path, maps: &Path, programs: &[&'static str]) -> bool {
    // Not by the maps' names: to ask for a map by its id takes CAP_SYS_ADMIN, which agents in pods lack.
    let usual = self::maps(&Sizes::default()).map(|(name, _)| maps.join(name));
    let beside = entries(directory).unwrap_or_default().into_iter().filter(|pin| !is_program(pin));
    let pinned = usual.into_iter().chain(beside);
    let Some(pinned): Option<BTreeSet<u32>> =
        pinned.map(|path| MapInfo::from_pin(path).ok().map(|info| info.id())).collect()
    else {
        return false;
    };
    let uses_these = |name: &str| {
        let used = sys::obj_get(&directory.join(name)).and_then(|fd| sys::program_maps(fd.as_fd()));
        used.is_ok_and(|used| used.iter().all(|id| pinned.contains(id)))
    };
    let sockets = SocketHook::ALL.map(|hook| hook.name);
    let parts = programs.iter().copied().flat_map(parts_of).map(|part| part.name);
    programs.iter().copied().chain(sockets).chain(parts).all(uses_these)
}

/// Makes room for other programs in the place of these. Links or filters may run them, so they keep their pins under
/// another name until others take their place: the kernel empties an array of parts with its last pin. Programs are
/// pinned after their parts, so nothing runs what an agent killed before that has left.
pub(super) fn set_aside(directory: &Path, programs: &[&'static str]) -> Result<(), OpenError> {
    if !programs.iter().any(|name| directory.join(name).exists()) {
        return remove_tree(directory, &mut Vec::new());
    }
    let mut aside = directory.to_owned();
    for number in 1_u32.. {
        aside.as_mut_os_string().push(format!("-{number}"));
        if !aside.exists() {
            break;
        }
        directory.clone_into(&mut aside);
    }
    debug!(directory = %directory.display(), "programs can't be taken over");
    std::fs::rename(directory, aside).map_err(|error| OpenError::File { path: directory.to_owned(), error })
}

/// Pins a loaded program.
pub(super) fn add_program(object: &Ebpf, name: &'static str, directory: &Path) -> Result<(), OpenError> {
    let path = directory.join(name);
    let pinned = sys::obj_pin(parts::fd_of(object, name)?.as_fd(), &path);
    pinned.map_err(|error| OpenError::File { path, error })
}

/// Pins the maps that the compiler makes, such as that of the load-time constants, unless those of the same programs
/// are pinned. Their names have dots, which the BPF file system forbids.
pub(super) fn add_sections(object: &Ebpf, directory: &Path) -> Result<(), OpenError> {
    for (name, map) in object.maps() {
        let Some(name) = name.strip_prefix('.') else { continue };
        let path = directory.join(name.replace('.', "_").to_uppercase());
        if let Map::Array(map) = map
            && !path.exists()
        {
            sys::obj_pin(map.fd().as_fd(), &path).map_err(|error| OpenError::File { path, error })?;
        }
    }
    Ok(())
}

/// Removes a pin, if it is there.
pub(super) fn remove(path: &Path) -> Result<(), OpenError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(OpenError::File { path: path.to_owned(), error })
        }
        _ => Ok(()),
    }
}
