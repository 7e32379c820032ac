//! Opening, and what stands in the way.

use std::path::Path;

use millrace::dataplane::Dataplane;
use millrace::dataplane::ebpf::read::{PinnedMaps, ReadError};
use millrace::dataplane::ebpf::{EbpfDataplane, Mark, OpenError, Settings, cleanup};
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::support::{Scratch, all, desired, key, port};

#[test]
fn a_second_agent_on_the_same_directory_is_refused() {
    let scratch = Scratch::new();
    let first = scratch.open();
    let error = EbpfDataplane::open(scratch.settings()).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    assert!(error.to_string().starts_with("another agent is using"), "{error}");
    drop(first);
    drop(scratch.open());
}

#[test]
fn cleanup_is_refused_while_an_agent_runs_and_then_leaves_nothing() {
    let scratch = Scratch::new();
    let dataplane = scratch.open();
    assert!(matches!(cleanup(&scratch.path), Err(OpenError::InUse { .. })));
    drop(dataplane);
    let cleaned = cleanup(&scratch.path).unwrap();
    assert!(cleaned.removed.contains(&"millrace/v4/maps/SERVICES".to_owned()), "{cleaned:?}");
    assert!(!scratch.path.exists(), "the agent made it");
    assert!(matches!(PinnedMaps::open(&scratch.path), Err(ReadError::Absent { .. })));
    assert!(cleanup(&scratch.path).unwrap().removed.is_empty());
}

#[test]
fn an_agent_with_another_layout_keeps_this_one_and_cleanup_out() {
    let scratch = Scratch::new();
    let top = scratch.path.join("millrace");
    std::fs::create_dir_all(&top).unwrap();
    let directory = std::fs::File::open(&top).unwrap();
    let lock = Flock::lock(directory, FlockArg::LockExclusiveNonblock).unwrap();
    let error = EbpfDataplane::open(scratch.settings()).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    assert!(matches!(cleanup(&scratch.path), Err(OpenError::InUse { .. })));
    drop(lock);
    drop(scratch.open());
}

#[test]
fn pins_of_another_network_namespace_are_refused_until_they_are_cleaned_up() {
    let scratch = Scratch::new();
    drop(scratch.open());
    let in_namespace = move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let error = EbpfDataplane::open(scratch.settings()).unwrap_err();
        assert!(matches!(error, OpenError::OtherNamespace { .. }), "{error}");
        assert!(error.to_string().contains("another network namespace"), "{error}");
        cleanup(&scratch.path).unwrap();
        drop(scratch.open());
        drop(scratch.open());
    };
    std::thread::spawn(in_namespace).join().unwrap();
}

#[test]
fn cleanup_leaves_a_directory_in_which_others_have_something() {
    let scratch = Scratch::new();
    drop(scratch.open());
    let other = scratch.path.join("other");
    std::fs::create_dir(&other).unwrap();
    cleanup(&scratch.path).unwrap();
    assert!(!scratch.path.join("millrace").exists());
    std::fs::remove_dir(other).unwrap();
}

#[test]
fn a_pinned_map_keeps_its_size() {
    let scratch = Scratch::new();
    drop(scratch.open());
    let mut settings = scratch.settings();
    settings.sizes.frontends = 128;
    drop(EbpfDataplane::open(settings).unwrap());
    let maps = PinnedMaps::open(&scratch.path).unwrap().status().unwrap().maps;
    let frontends = maps.iter().find(|map| map.name == "FRONTENDS4").unwrap();
    assert_eq!(frontends.entries, 64);
}

#[test]
fn other_settings_load_other_programs_into_the_same_maps() {
    let scratch = Scratch::new();
    let state = desired([(key("web"), port(1, 3))]);
    let mut dataplane = scratch.open();
    dataplane.sync(&state, &all(&state));
    drop(dataplane);
    let programs = || names(&scratch.path.join("millrace/v4/programs"));
    let before = programs();

    let mut settings = scratch.settings();
    settings.mark = Mark { value: 0, mask: 0 };
    let mut dataplane = EbpfDataplane::open(settings).unwrap();
    assert_eq!(programs().len(), 1);
    assert_ne!(programs(), before);
    assert_eq!(dataplane.sync(&state, &all(&state)).writes, 0);
}

fn names(directory: &Path) -> Vec<String> {
    std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn where_no_bpf_file_system_is_mounted_one_is() {
    let path = std::env::temp_dir().join(format!("millrace-bpffs-{}", std::process::id()));
    let scratch = Scratch::new();
    let settings = Settings { bpffs_path: path.clone(), ..scratch.settings() };
    // Of this thread alone: the mount goes with it.
    let in_mount_namespace = move || {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        drop(EbpfDataplane::open(settings).unwrap());
        assert!(PinnedMaps::open(&path).is_ok());
        path
    };
    let path = std::thread::spawn(in_mount_namespace).join().unwrap();
    std::fs::remove_dir(path).unwrap();
}

#[test]
fn a_path_that_is_no_directory_is_named() {
    let scratch = Scratch::new();
    let settings = Settings { bpffs_path: "/proc/version".into(), ..scratch.settings() };
    let error = EbpfDataplane::open(settings).unwrap_err().to_string();
    assert!(error.starts_with("/proc/version"), "{error}");
}
