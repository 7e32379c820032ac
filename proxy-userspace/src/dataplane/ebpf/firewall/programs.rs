//! The programs of the firewall: loaded, or taken over from an earlier agent.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use aya::maps::MapInfo;
use aya::programs::SchedClassifier;
use aya::{Ebpf, EbpfLoader};
use tracing::info;

use super::super::bpffs::{entries, remove_tree};
use super::super::error::OpenError;
use super::super::object::POLICY_OBJECT;
use super::super::parts;
use super::super::program::Program;
use super::super::sys;
use super::maps::MAPS;
use super::side::Side;
use crate::model::fnv1a;

/// The programs of this build.
#[derive(Debug)]
pub struct Programs {
    /// In the order of their attachment.
    pub loaded: Vec<(Side, Program)>,
    /// The directory of their pins.
    pub directory: PathBuf,
}

impl Programs {
    /// Opens the programs. Those of an earlier agent are taken over if they are the same and use the pinned maps.
    pub fn open(maps: &Path, directory: &Path) -> Result<Self, OpenError> {
        let directory = ours(directory);
        if !are_usable(maps, &directory) {
            load(maps, &directory)?;
        }
        let open = |side: Side| Ok((side, Program::open(&directory, side.program())?));
        let loaded = Side::ALL.into_iter().map(open).collect::<Result<_, OpenError>>()?;
        Ok(Self { loaded, directory })
    }
}

fn are_usable(maps: &Path, directory: &Path) -> bool {
    let pinned: Option<BTreeSet<u32>> =
        MAPS.iter().map(|(name, _)| Some(MapInfo::from_pin(maps.join(name)).ok()?.id())).collect();
    let Some(pinned) = pinned else { return false };
    Side::ALL.iter().all(|side| {
        let used = sys::obj_get(&directory.join(side.program())).and_then(|fd| sys::program_maps(fd.as_fd()));
        used.is_ok_and(|used| used.iter().all(|id| pinned.contains(id)))
    })
}

/// Removes the programs of other builds, which nothing runs any more.
pub fn remove_former(directory: &Path) -> Result<(), OpenError> {
    let ours = ours(directory);
    for other in entries(directory)?.into_iter().filter(|path| *path != ours) {
        remove_tree(&other, &mut Vec::new())?;
    }
    Ok(())
}

fn load(maps: &Path, directory: &Path) -> Result<(), OpenError> {
    let mut loader = EbpfLoader::new();
    for (name, size) in MAPS {
        if let Some(size) = size {
            loader.map_max_entries(name, size);
        }
        loader.map_pin_path(name, maps.join(name));
    }
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| OpenError::File { path, error }
    };
    std::fs::create_dir_all(directory).map_err(failed(directory))?;
    let mut object = loader.load(POLICY_OBJECT).map_err(OpenError::Object)?;
    let unknown = object
        .maps()
        .map(|(name, _)| name)
        .find(|name| !name.starts_with('.') && !MAPS.iter().any(|(known, _)| known == name));
    if let Some(name) = unknown {
        return Err(OpenError::UnknownMap { map: name.to_owned() });
    }
    for side in Side::ALL {
        let name = side.program();
        load_program(&mut object, side)?;
        let path = directory.join(name);
        // An agent killed between two pins left one.
        super::super::pins::remove(&path)?;
        sys::obj_pin(parts::fd_of(&object, name)?.as_fd(), &path).map_err(failed(&path))?;
    }
    info!(programs = Side::ALL.map(Side::program).join(", "), "programs loaded");
    Ok(())
}

/// Loads the program of a side into the kernel.
pub(super) fn load_program(object: &mut Ebpf, side: Side) -> Result<(), OpenError> {
    let name = side.program();
    let program = object.program_mut(name).ok_or(OpenError::NoProgram { program: name })?;
    let program: &mut SchedClassifier = program.try_into().map_err(|error| OpenError::load(name, error))?;
    program.load().map_err(|error| OpenError::load(name, error))
}

/// Returns the directory of this build's programs: FNV-1a over the object.
pub(super) fn ours(directory: &Path) -> PathBuf {
    directory.join(format!("{:016x}", fnv1a(POLICY_OBJECT.iter().copied())))
}
