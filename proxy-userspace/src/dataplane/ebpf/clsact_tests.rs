//! The fallback for old kernels, on this kernel.

use std::thread;

use nix::sched::{CloneFlags, unshare};

use super::*;
use crate::dataplane::ebpf::cleanup;
use crate::dataplane::ebpf::scratch::Scratch;

const LOOPBACK: u32 = 1;

/// Runs a test in its own network namespace, with the path of a `tc_egress` and the directory of
/// links.
fn in_namespace(name: &str, test: impl FnOnce(&Scratch, &Path, &Path) + Send + 'static) {
    let scratch = Scratch::new(name);
    let in_namespace = move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let program = scratch.open().programs.directory.join("tc_egress");
        test(&scratch, &program, &scratch.path.join("millrace/v9/links"));
    };
    thread::spawn(in_namespace).join().unwrap();
}

const KEY: LinkKey = LinkKey { kind: LinkKind::TcEgress, device: LOOPBACK };

/// Removes the filter behind the agent's back; returns whether there was one.
fn remove_filter() -> bool {
    let (device, direction) = filter(KEY, Path::new("/")).unwrap().place().unwrap();
    let ours = SchedClassifierLink::attached(&device, direction, PRIORITY, HANDLE, None).unwrap();
    ours.detach().is_ok()
}

#[test]
fn a_filter_is_attached_replaced_found_by_cleanup_and_detached() {
    in_namespace("clsact", |scratch, program, links| {
        for is_new in [true, false] {
            assert_eq!(attach(KEY, program, links).unwrap(), is_new);
            assert!(is_marked(KEY, links));
        }
        detach(KEY, links).unwrap();
        assert!(!is_marked(KEY, links));
        attach(KEY, program, links).unwrap();
        let cleaned = cleanup(&scratch.path).unwrap();
        assert!(cleaned.removed.contains(&"millrace/v9/links/tc_egress-1".to_owned()), "{cleaned:?}");
        assert!(!remove_filter(), "the filter is still there");
    });
}

#[test]
fn a_filter_whose_marker_is_missing_is_taken_over_and_found_by_cleanup() {
    in_namespace("clsact-marker", |scratch, program, links| {
        attach(KEY, program, links).unwrap();
        fs::remove_dir(marker(KEY, links)).unwrap();
        assert!(!attach(KEY, program, links).unwrap(), "it is replaced");
        cleanup(&scratch.path).unwrap();
        assert!(!remove_filter(), "the filter is still there");
    });
}

#[test]
fn a_filter_removed_by_another_process_is_attached_again_or_forgotten() {
    in_namespace("clsact-removed", |scratch, program, links| {
        attach(KEY, program, links).unwrap();
        assert!(remove_filter());
        assert!(attach(KEY, program, links).unwrap(), "it is new");
        assert!(remove_filter());
        let cleaned = cleanup(&scratch.path).unwrap();
        assert!(cleaned.removed.contains(&"millrace/v9/maps/SERVICES".to_owned()), "{cleaned:?}");
        assert!(!scratch.path.join("millrace").exists());
    });
}

#[test]
fn a_marker_without_clsact_qdisc_keeps_cleanup_from_nothing() {
    in_namespace("clsact-none", |scratch, _, links| {
        fs::create_dir(marker(KEY, links)).unwrap();
        cleanup(&scratch.path).unwrap();
        assert!(!scratch.path.join("millrace").exists());
    });
}

#[test]
fn a_filter_whose_device_is_gone_is_forgotten() {
    in_namespace("clsact-gone", |scratch, program, links| {
        let gone = LinkKey { kind: LinkKind::TcEgress, device: 4242 };
        assert_eq!(attach(gone, program, links).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        fs::create_dir(marker(gone, links)).unwrap();
        detach(gone, links).unwrap();
        assert!(!is_marked(gone, links));
        fs::create_dir(marker(gone, links)).unwrap();
        cleanup(&scratch.path).unwrap();
        assert!(!scratch.path.join("millrace").exists());
    });
}

#[test]
fn a_filter_of_layout_1_gets_our_program_and_our_marker() {
    in_namespace("clsact-migrate", |scratch, program, links| {
        assert!(attach(KEY, program, links).unwrap());
        let [former, ours] = ["millrace/v1", "millrace/v9"].map(|root| scratch.path.join(root));
        fs::rename(&ours, &former).unwrap();
        let first = ["AFFINITY4", "AFFINITY6", "SOURCE_RANGES4", "SOURCE_RANGES6"];
        for map in first.into_iter().chain([
            "ANNOUNCED",
            "ANSWERS",
            "DEVICES",
            "DEVICE_MACS",
            "FRAGMENTS4",
            "FRAGMENTS6",
            "HELD",
            "HOPS4",
            "HOPS6",
            "ICMP_SOURCES",
            "ICMP_TOTAL",
            "VIPS",
            "ADDRESS_FILTER",
            "KEYS4",
            "KEYS6",
            "LINKS",
            "SCRATCH4",
            "SNAT_FULL",
            "SCRATCH6",
            "NARROWED",
            "BUFFER",
            "SOCK_REV4",
            "SOCK_REV6",
            "SOCK_TCP4",
            "SOCK_TCP6",
            "NODE_FLOWS4",
            "NODE_FLOWS6",
            "NODE_PORTS",
        ]) {
            fs::remove_file(former.join("maps").join(map)).unwrap();
        }
        drop(scratch.open());
        assert!(!former.exists() && is_marked(KEY, links));
        assert!(remove_filter(), "it was never gone");
    });
}

#[test]
fn programs_of_pods_are_filters_too() {
    in_namespace("clsact-pods", |_, program, links| {
        for kind in [LinkKind::TcPodIn, LinkKind::TcPodOut] {
            let key = LinkKey { kind, device: LOOPBACK };
            assert!(attach(key, program, links).unwrap());
            assert!(!attach(key, program, links).unwrap(), "it is there");
            detach(key, links).unwrap();
            assert!(!is_marked(key, links));
            assert!(attach(key, program, links).unwrap(), "it was gone");
        }
    });
}
