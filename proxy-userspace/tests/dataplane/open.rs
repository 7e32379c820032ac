//! Opening the data plane, and its obstacles.

use std::path::Path;

use aya::maps::MapData;
use aya::programs::SchedClassifier;
use millrace::dataplane::ebpf::read::{PinnedMaps, ReadError};
use millrace::dataplane::ebpf::{EbpfDataplane, OpenError, Settings, cleanup};
use millrace::dataplane::{Dataplane, Mark};
use millrace::node::Topology;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use crate::support::{Scratch, all, desired, key, port};

#[test]
fn a_second_agent_on_the_same_directory_is_refused() {
    let scratch = Scratch::new();
    let first = scratch.open();
    let error = EbpfDataplane::open(scratch.settings()).unwrap_err();
    let process = std::process::id();
    assert!(matches!(error, OpenError::InUse { process: Some(holder), .. } if holder == process), "{error}");
    let text = error.to_string();
    assert!(text.starts_with(&format!("another agent (process {process}) is using")), "{text}");
    assert!(!text.contains("--bpffs-path"), "that would make two data planes of one node: {text}");
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
    assert!(cleaned.removed.contains(&"millrace/v9/maps/SERVICES".to_owned()), "{cleaned:?}");
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
fn cleanup_leaves_a_directory_with_files_of_other_software() {
    let scratch = Scratch::new();
    drop(scratch.open());
    let other = scratch.path.join("other");
    std::fs::create_dir(&other).unwrap();
    cleanup(&scratch.path).unwrap();
    assert!(!scratch.path.join("millrace").exists());
    std::fs::remove_dir(other).unwrap();
}

#[test]
fn a_pinned_map_grows_and_does_not_shrink() {
    let scratch = Scratch::new();
    drop(scratch.open());
    let mut settings = scratch.settings();
    settings.sizes.frontends = 128;
    drop(EbpfDataplane::open(settings).unwrap());
    drop(scratch.open());
    let maps = PinnedMaps::open(&scratch.path).unwrap().status().unwrap().maps;
    let frontends = maps.iter().find(|map| map.name == "FRONTENDS4").unwrap();
    assert_eq!(frontends.entries, 128);
}

#[test]
fn other_settings_load_other_programs_into_the_same_maps() {
    let scratch = Scratch::new();
    let state = desired([(key("web"), port(1, 3))]);
    let mut dataplane = scratch.open();
    dataplane.sync(&state, &all(&state));
    drop(dataplane);
    let programs = || names(&scratch.path.join("millrace/v9/programs"));
    let before = programs();

    let mut settings = scratch.settings();
    settings.mark = Mark { value: 0, mask: 0 };
    let mut dataplane = EbpfDataplane::open(settings).unwrap();
    assert_eq!(programs().len(), 2, "links may still run the former programs");
    assert!(dataplane.set_topology(&Topology::default()).is_complete());
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
fn a_missing_bpf_file_system_is_mounted() {
    let path = std::env::temp_dir().join(format!("millrace-bpffs-{}", std::process::id()));
    let scratch = Scratch::new();
    let settings = Settings { bpffs_path: path.clone(), ..scratch.settings() };
    // The mount namespace is this thread's. The mount ends with it.
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
fn a_bpf_file_system_that_was_unmounted_comes_back_with_all_pins() {
    let path = std::env::temp_dir().join(format!("millrace-unmounted-{}", std::process::id()));
    let scratch = Scratch::new();
    let settings = Settings { bpffs_path: path.clone(), ..scratch.settings() };
    let in_mount_namespace = move || {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        let mut dataplane = EbpfDataplane::open(settings).unwrap();
        assert!(dataplane.set_topology(&Topology::default()).is_complete());
        umount2(&path, MntFlags::MNT_DETACH).unwrap();
        assert!(PinnedMaps::open(&path).is_err());
        assert_eq!(dataplane.check().fault, None);
        assert!(PinnedMaps::open(&path).is_ok());
        path
    };
    let path = std::thread::spawn(in_mount_namespace).join().unwrap();
    std::fs::remove_dir(path).unwrap();
}

#[test]
fn a_pin_with_another_shape_is_named_with_both_shapes_and_stays() {
    let scratch = Scratch::new();
    drop(scratch.open());
    let maps = scratch.path.join("millrace/v9/maps");
    let frontends = maps.join("FRONTENDS4");
    let agent = maps.join("AGENT");
    std::fs::remove_file(&frontends).unwrap();
    MapData::from_pin(&agent).unwrap().pin(&frontends).unwrap();
    let error = EbpfDataplane::open(scratch.settings()).unwrap_err();
    assert!(!error.is_of_the_kernel(), "another mode would hide it");
    let text = error.to_string();
    let place = frontends.display().to_string();
    let words = [place.as_str(), "of type array with keys of 4", "of type hash with keys of", "remove it"];
    for word in words {
        assert!(text.contains(word), "{word} is not in {text}");
    }
    assert!(frontends.exists());

    std::fs::remove_file(&frontends).unwrap();
    let programs = std::fs::read_dir(scratch.path.join("millrace/v9/programs")).unwrap().next().unwrap();
    let program = programs.unwrap().path().join("tc_egress");
    SchedClassifier::from_pin(&program).unwrap().pin(&frontends).unwrap();
    let text = EbpfDataplane::open(scratch.settings()).unwrap_err().to_string();
    assert!(text.contains(&place) && text.contains("no map but bpf-prog"), "{text}");
    std::fs::remove_file(&frontends).unwrap();
    drop(scratch.open());
}

#[test]
fn a_path_that_is_no_directory_is_named() {
    let scratch = Scratch::new();
    let settings = Settings { bpffs_path: "/proc/version".into(), ..scratch.settings() };
    let error = EbpfDataplane::open(settings).unwrap_err().to_string();
    assert!(error.starts_with("--bpffs-path /proc/version: is no directory"), "{error}");
}
