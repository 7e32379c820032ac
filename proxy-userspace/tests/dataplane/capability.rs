//! An agent without the right to do its work.

use std::thread;

use millrace::dataplane::ebpf::read::PinnedMaps;
use millrace::dataplane::ebpf::{EbpfDataplane, OpenError, cleanup};

use crate::support::Scratch;

#[test]
fn missing_capabilities_are_named() {
    let scratch = Scratch::new();
    let settings = scratch.settings();
    let unprivileged = thread::spawn(move || {
        drop_capabilities();
        EbpfDataplane::open(settings).map(drop)
    });
    let error = unprivileged.join().unwrap().unwrap_err();
    assert!(matches!(error, OpenError::Capability { .. }), "{error}");
    let text = error.to_string();
    assert!(text.starts_with("missing CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN: run as root"), "{text}");
    assert!(!scratch.path.exists(), "nothing was touched");
}

#[test]
fn an_error_about_unreadable_maps_names_the_needed_capabilities() {
    let scratch = Scratch::new();
    drop(scratch.open());
    let path = scratch.path.clone();
    let unprivileged = move || {
        become_nobody();
        let read = PinnedMaps::open(&path).map(drop).unwrap_err().to_string();
        (read, cleanup(&path).unwrap_err().to_string())
    };
    let (read, removed) = thread::spawn(unprivileged).join().unwrap();
    assert!(read.ends_with("can't be read: run as root, or with CAP_BPF (and CAP_NET_ADMIN)"), "{read}");
    assert!(removed.ends_with("run as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN"), "{removed}");
    assert!(PinnedMaps::open(&scratch.path).is_ok(), "nothing was removed");
}

/// Changes this thread only. The C library's setresuid would change all threads.
fn become_nobody() {
    const NOBODY: u32 = 65534;
    // SAFETY: setresuid(2) takes three numbers.
    let result = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Changes this thread only, as the kernel does.
fn drop_capabilities() {
    #[repr(C)]
    struct Header {
        version: u32,
        thread: i32,
    }
    #[repr(C)]
    #[derive(Default)]
    struct Sets {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    // _LINUX_CAPABILITY_VERSION_3, which takes two words of each set.
    let header = Header { version: 0x2008_0522, thread: 0 };
    let none = [Sets::default(), Sets::default()];
    // SAFETY: capset(2) reads a header and two sets, which outlive the call.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}
