//! An agent without the right to do its work.

use std::thread;

use millrace::dataplane::ebpf::{EbpfDataplane, OpenError};

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

/// Of this thread only: that is how the kernel keeps them.
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
