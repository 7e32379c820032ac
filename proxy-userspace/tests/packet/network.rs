//! A network for the few runs in which a program asks the kernel for a route.

use std::fs::File;
use std::net::IpAddr;

use ipnet::IpNet;
use millrace_lab::net::{Netlink, write_sysctl};

/// Runs a check in a thread with a network namespace of its own, which ends with it.
pub fn in_an_empty_namespace(check: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            check();
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Makes the thread's namespace a router with one wire, on which all nodes are neighbours.
pub fn connect_to_nodes(own: IpAddr) {
    for name in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        write_sysctl(name, "1").unwrap();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let netlink = Netlink::open().unwrap();
        let namespace = File::open("/proc/thread-self/ns/net").unwrap();
        netlink.add_veth("wire", "far-end", &namespace).await.unwrap();
        for device in ["lo", "wire", "far-end"] {
            netlink.set_up(device).await.unwrap();
        }
        let prefix = if own.is_ipv4() { 24 } else { 64 };
        netlink.add_address("wire", IpNet::new(own, prefix).unwrap()).await.unwrap();
    });
}
