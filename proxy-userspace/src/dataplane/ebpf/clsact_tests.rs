//! The fallback of old kernels, on this one.

use std::thread;

use nix::sched::{CloneFlags, unshare};

use super::*;
use crate::dataplane::ebpf::cleanup;
use crate::dataplane::ebpf::scratch::Scratch;

const LOOPBACK: u32 = 1;

#[test]
fn a_filter_is_attached_replaced_found_by_cleanup_and_detached() {
    let scratch = Scratch::new("clsact");
    let in_namespace = move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let dataplane = scratch.open();
        let links = scratch.path.join("millrace/v1/links");
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
        let cleaned = cleanup(&scratch.path).unwrap();
        assert!(cleaned.removed.contains(&"millrace/v1/links/tc_egress-1".to_owned()), "{cleaned:?}");
        let (device, direction) = place(key).unwrap();
        let left = SchedClassifierLink::attached(&device, direction, PRIORITY, HANDLE, None).unwrap();
        assert!(left.detach().is_err(), "the filter is still there");
    };
    thread::spawn(in_namespace).join().unwrap();
}
