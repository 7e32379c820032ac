//! A separate data plane for a test, in a directory that is removed at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use nix::sched::{CloneFlags, unshare};

use super::{EbpfDataplane, Settings, Sizes, cleanup};
use crate::node::{AttachTarget, Hook, Topology};

/// The directory of one test.
pub struct Scratch {
    pub path: PathBuf,
}

impl Scratch {
    pub fn new(name: &str) -> Self {
        Self { path: PathBuf::from(format!("/sys/fs/bpf/millrace-{name}-{}", std::process::id())) }
    }

    pub fn settings(&self) -> Settings {
        let sizes = Sizes { slots: 64, services: 64, flows: 1024, new_flows: 1024, ..Sizes::default() };
        Settings { bpffs_path: self.path.clone(), sizes, ..Settings::default() }
    }

    pub fn open(&self) -> EbpfDataplane {
        EbpfDataplane::open(self.settings()).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = cleanup(&self.path) {
            eprintln!("cleanup: {error}");
        }
        let _ = fs::remove_dir(&self.path);
    }
}

/// Runs a test in a network namespace of its own.
pub fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let within = || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        test();
    };
    std::thread::spawn(within).join().unwrap();
}

/// Returns the topology of a node whose only device is the loopback one.
pub fn loopback() -> Topology {
    let hooks = BTreeSet::from([Hook::TcIngress]);
    let target = AttachTarget { name: "lo".to_owned(), hooks, mac: None, source_v4: None, source_v6: None };
    Topology { devices: BTreeMap::from([(1, target)]), ..Topology::default() }
}

/// Takes CAP_SYS_ADMIN from this thread, as the agents' pods do.
pub fn without_sys_admin() {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    const SYS_ADMIN: u32 = 1 << 21;
    let mut header = Header { version: VERSION_3, pid: 0 };
    // Effective, permitted and inheritable ones, twice 32 bits.
    let mut sets = [[0_u32; 3]; 2];
    // SAFETY: both pointers lead to live memory of the layout of version 3, and 0 is this thread.
    let got = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) };
    assert_eq!(got, 0);
    for set in &mut sets[0] {
        *set &= !SYS_ADMIN;
    }
    // SAFETY: as above.
    let set = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) };
    assert_eq!(set, 0);
}
