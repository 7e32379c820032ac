//! The fallback of old kernels, on this one.

use std::fs;
use std::path::PathBuf;
use std::process::id;
use std::thread;

use nix::sched::{CloneFlags, unshare};

use super::*;
use crate::dataplane::ebpf::{EbpfDataplane, Settings, Sizes, cleanup};

const LOOPBACK: u32 = 1;

#[test]
fn a_filter_is_attached_replaced_found_by_cleanup_and_detached() {
    let path = PathBuf::from(format!("/sys/fs/bpf/millrace-clsact-{}", id()));
    let settings = Settings {
        bpffs_path: path.clone(),
        sizes: Sizes { slots: 64, services: 64, flows: 64, new_flows: 64, ..Sizes::default() },
        ..Settings::default()
    };
    let in_namespace = move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let dataplane = EbpfDataplane::open(settings).unwrap();
        let links = path.join("millrace/v1/links");
        let program = dataplane.programs.directory.join("tc_egress");
        let key = LinkKey { kind: LinkKind::TcEgress, device: LOOPBACK };
        for _ in 0..2 {
            attach(key, &program, &links).unwrap();
            assert!(is_marked(key, &links));
        }
        detach(key, &links).unwrap();
        assert!(!is_marked(key, &links));
        attach(key, &program, &links).unwrap();
        drop(dataplane);
        let cleaned = cleanup(&path).unwrap();
        assert!(cleaned.removed.contains(&"millrace/v1/links/tc_egress-1".to_owned()), "{cleaned:?}");
        let (device, direction) = place(key).unwrap();
        let left = SchedClassifierLink::attached(&device, direction, PRIORITY, HANDLE, None).unwrap();
        assert!(left.detach().is_err(), "the filter is still there");
        fs::remove_dir(&path).unwrap();
    };
    thread::spawn(in_namespace).join().unwrap();
}
