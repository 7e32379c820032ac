//! Virtual services of other software, and a kernel without eBPF.

use std::io;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;

use anyhow::Result;
use millrace_lab::cluster::{Cluster, TARGET_PORT};
use millrace_lab::topology::{Family, cluster_ip, vip};
use millrace_lab::traffic::{Connection, LongConnections, Protocol, ask};

use crate::fixture::{FLAGS, LIMIT, apply_servers, end_agent, listed, output, place, shared, start_agent};

/// Adds an administrator's own virtual service for a pod of node 1, at an address of the node.
fn add_foreign(cluster: &Cluster, number: u8) -> Result<SocketAddr> {
    let address = vip(number).v4;
    let server = SocketAddr::new(cluster.bed().pod("pod-1b")?.addresses().v4.into(), TARGET_PORT).to_string();
    let service = SocketAddr::new(address.into(), 80);
    let text = service.to_string();
    output(cluster, &["ip", "address", "add", &format!("{address}/32"), "dev", "lo"])?;
    output(cluster, &["ipvsadm", "-A", "-t", &text, "-s", "wlc"])?;
    output(cluster, &["ipvsadm", "-a", "-t", &text, "-r", &server, "-m", "-w", "7"])?;
    Ok(service)
}

fn remove_foreign(cluster: &Cluster, service: SocketAddr) -> Result<()> {
    output(cluster, &["ipvsadm", "-D", "-t", &service.to_string()])?;
    output(cluster, &["ip", "address", "delete", &format!("{}/32", service.ip()), "dev", "lo"]).map(drop)
}

/// The exclusion of an address makes no difference, because neither virtual service has an address of ours.
#[test]
fn virtual_services_of_other_software_and_their_clients_are_left_alone() -> Result<()> {
    let mut cluster = shared();
    let excluded = format!("{}/32", vip(41).v4);
    let services = [add_foreign(&cluster, 40)?, add_foreign(&cluster, 41)?];
    let weights = |cluster: &Cluster| {
        let is_theirs = |row: &str| services.iter().any(|service| row.contains(&place(*service)));
        let all = listed(cluster)?.into_iter().filter(|one| is_theirs(&one.service));
        let servers = all.flat_map(|one| one.servers).map(|(server, weight, ..)| (server, weight));
        Ok::<_, anyhow::Error>(servers.collect::<Vec<_>>())
    };
    let before = weights(&cluster)?;
    assert_eq!(before.iter().map(|(_, weight)| *weight).collect::<Vec<_>>(), [7, 7]);
    let open = |service| LongConnections::open(cluster.bed().client(), service, 2, 1);
    let connections = services.map(open);

    // A Service of ours gets an excluded address, and is not served there.
    start_agent(&mut cluster, 1, &[&FLAGS[..], &["--ipvs-exclude-cidrs", &excluded]].concat())?;
    apply_servers(&cluster, 41, &cluster.service("excluded", 41, &["pod-2a"])?.load_balancer(vip(41)))?;
    for service in services {
        assert_eq!(ask(cluster.bed().client(), Protocol::Tcp, service)?.sighting.backend, "pod-1b");
    }
    assert_eq!(weights(&cluster)?, before);
    let address = format!("address={}", vip(41).v4);
    let log = cluster.proxy(1)?.log();
    let warnings = log.lines().filter(|line| {
        line.contains("the address is in --ipvs-exclude-cidrs; not served") && line.contains(&address)
    });
    let warnings = warnings.count();
    assert_eq!(warnings, 2, "each port of the Service is reported once, over TCP and UDP");

    end_agent(&mut cluster, 1)?;
    assert_eq!(weights(&cluster)?, before);
    for connections in connections {
        assert_eq!(connections?.stop()?, 3);
    }
    for service in services {
        remove_foreign(&cluster, service)?;
    }
    start_agent(&mut cluster, 1, &FLAGS)
}

/// Makes every call of bpf(2) fail with ENOSYS, as in a kernel built without it.
fn forbid_bpf() -> io::Result<()> {
    let nothing = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let refuse = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs();
    let number = u32::try_from(libc::SYS_bpf).map_err(io::Error::other)?;
    let mut program = [
        nothing(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter { jt: 0, jf: 1, ..nothing(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number) },
        nothing(libc::BPF_RET | libc::BPF_K, refuse),
        nothing(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which has four instructions.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[test]
fn proxy_mode_auto_on_a_kernel_without_ebpf_serves_by_ipvs() -> Result<()> {
    let cluster = shared();
    let proxy = cluster.proxy(2)?;
    cluster.manifests().put_service(&cluster.service("automatic", 42, &["pod-2a"])?)?;
    let starts = proxy.log().matches("serving as").count();
    let agent = proxy.start_prepared(&["--proxy-mode", "auto"], |command| {
        // SAFETY: the closure makes two system calls and allocates nothing between fork and exec.
        unsafe { command.pre_exec(forbid_bpf) };
    })?;
    proxy.wait_for_start(starts + 1)?;
    let log = proxy.log();
    let reasons = log.lines().filter(|line| {
        line.contains("served by IPVS, since this kernel can't do eBPF") && line.contains("error=")
    });
    assert_eq!(reasons.count(), 1, "{log}");
    assert_eq!(proxy.json("status")?["mode"], "ipvs");
    let metrics = "127.0.0.1:10249".parse()?;
    let page =
        proxy.namespace().run(async move || Connection::open(metrics).await?.get("/proxyMode").await)?;
    assert_eq!(page, "ipvs");
    proxy.wait_until_within(LIMIT, "the service is served", || {
        let answers = Family::ALL.map(|family| {
            ask(proxy.namespace(), Protocol::Tcp, SocketAddr::new(cluster_ip(42).of(family), 80))
        });
        Ok(answers.into_iter().all(|answer| answer.is_ok_and(|answer| answer.sighting.backend == "pod-2a")))
    })?;
    agent.stop()?;
    assert!(proxy.command(&["cleanup"])?.status.success());
    Ok(())
}
