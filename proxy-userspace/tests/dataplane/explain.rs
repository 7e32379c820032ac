//! `millrace explain` on a node: the incidents of operators in its words, and no trace of it in the maps.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use aya::maps::{MapData, MapInfo, MapType};
use millrace::dataplane::Dataplane;
use millrace::dataplane::ebpf::read::PinnedMaps;
use millrace::dataplane::ebpf::{EbpfDataplane, SocketLb};
use millrace::model::{Desired, Frontend, FrontendKind, List, Protocol, Scope, ServicePort};
use millrace::node::{AttachTarget, Hook, Topology};
use proxy_common::verdict::Program;
use serde_json::Value;

use crate::attach::in_namespace;
use crate::sockets::{Group, settings};
use crate::support::{Scratch, all, closed, desired, dsr, key, port};

/// Runs `millrace explain` in this network namespace; returns status, standard output and standard error.
pub fn explain(scratch: &Scratch, words: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.arg("explain").args(words.split(' ')).arg("--bpffs-path").arg(&scratch.path);
    let output = command.output().expect("millrace runs");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    (output.status.code().expect("an exit status"), text(&output.stdout), text(&output.stderr))
}

/// A Service without endpoints, one with policy Local and endpoints elsewhere, one with source ranges, one that is
/// well, one with Direct Server Return, and one whose endpoint has no route from here.
fn shop() -> Desired {
    let none = ServicePort { has_any: false, ..port(2, 0) };
    let external = Frontend {
        address: SocketAddr::from(([192, 0, 2, 3], 80)),
        scope: Scope::External,
        kind: FrontendKind::LoadBalancer,
        list: List::Local,
    };
    let mut local = port(3, 2);
    local.endpoints.retain(|_, endpoint| !endpoint.local);
    local.cluster = Some(local.endpoints.keys().copied().collect());
    local.local = Some(BTreeSet::new());
    local.frontends = BTreeSet::from([external]);
    let mut far = port(6, 2);
    far.endpoints.retain(|_, endpoint| !endpoint.local);
    far.cluster = Some(far.endpoints.keys().copied().collect());
    let datagrams = ServicePort { protocol: Protocol::Udp, ..port(1, 2) };
    desired([
        (key("web"), port(1, 1)),
        (key("dns"), datagrams),
        (key("none"), none),
        (key("local"), local),
        (key("ranged"), closed(port(4, 1), &["10.0.0.0/8", "203.0.113.0/24"])),
        (key("dsr"), dsr(5, 1)),
        (key("far"), far),
    ])
}

pub fn topology(hooks: &[Hook]) -> Topology {
    let index = nix::net::if_::if_nametoindex("eth0").expect("eth0");
    let target = AttachTarget {
        name: "eth0".to_owned(),
        hooks: hooks.iter().copied().collect(),
        mac: None,
        source_v4: Some([192, 0, 2, 100].into()),
        source_v6: None,
    };
    let addresses = BTreeSet::from([[172, 16, 0, 1].into()]);
    Topology { devices: BTreeMap::from([(index, target)]), addresses, ..Topology::default() }
}

/// Runs a test beside a data plane with the Services of [`shop`].
fn beside(name: &str, hooks: &'static [Hook], test: fn(&Scratch) -> Result<()>) -> Result<()> {
    in_namespace(name, async move || {
        let scratch = Scratch::new();
        let mut dataplane = scratch.open();
        let state = shop();
        assert!(dataplane.sync(&state, &all(&state)).is_complete());
        assert!(dataplane.set_topology(&topology(hooks)).is_complete());
        test(&scratch)
    })
}

#[track_caller]
pub fn assert_lines(output: &(i32, String, String), status: i32, lines: &[&str]) {
    let (code, text, errors) = output;
    assert_eq!(*code, status, "{text}{errors}");
    for line in lines {
        assert!(text.lines().any(|one| one == *line), "{line:?} is no line of:\n{text}{errors}");
    }
}

#[test]
fn each_incident_is_answered_in_its_own_words() -> Result<()> {
    beside("explain-words", &[Hook::TcIngress], |scratch| {
        assert_lines(
            &explain(scratch, "198.51.100.7:40000 192.0.2.1:80"),
            0,
            &[
                "packet      TCP 198.51.100.7:40000 > 192.0.2.1:80, SYN, 40 bytes, in by eth0 (tc_ingress)",
                " 1 vip      192.0.2.1 is a Service's external or load balancer address  [VIPS, PEERS, ADDRESS_FILTER]",
                " 2 frontend default/web:http LoadBalancer, external, snat  [FRONTENDS4]",
                " 3 client   198.51.100.7 is outside the cluster  [SOURCE_RANGES4]",
                " 4 source   all clients are admitted",
                " 5 flow     none: the connection is new to this node  [FLOWS4, FLOWS_NEW4]",
                " 6 affinity none asked for",
                " 7 list     Cluster: 1 endpoint, random, 1 slot  [SERVICES, SELECTION]",
                "verdict     served_local -> 10.0.1.1:8080",
                "leaves as   198.51.100.7:40000 > 10.0.1.1:8080",
                "checked     programs agree (tc_ingress)",
            ],
        );
        assert_lines(
            &explain(scratch, "default/none"),
            0,
            &[
                "verdict     DROP no_endpoint: default/none:http has no usable endpoint",
                "checked     programs agree (tc_ingress)",
                "try         kubectl -n default get endpointslices -l kubernetes.io/service-name=none -o wide",
            ],
        );
        assert_lines(
            &explain(scratch, "local"),
            0,
            &[
                "verdict     DROP no_local_endpoint: externalTrafficPolicy is Local, and all endpoints of \
                 default/local:http are on other nodes",
                "checked     programs agree (tc_ingress)",
            ],
        );
        assert_lines(
            &explain(scratch, "198.51.100.7 192.0.2.4:80"),
            0,
            &[
                "verdict     DROP source_refused: 198.51.100.7 is in none of loadBalancerSourceRanges (10.0.0.0/8, \
                 203.0.113.0/24)",
                "checked     programs agree (tc_ingress)",
                "try         kubectl -n default get service ranged -o jsonpath='{.spec.loadBalancerSourceRanges}'",
            ],
        );
        assert_lines(
            &explain(scratch, "203.0.113.5 ranged"),
            0,
            &[" 4 source   loadBalancerSourceRanges admit it (10.0.0.0/8, 203.0.113.0/24)  [SOURCE_RANGES4]"],
        );
        assert_lines(
            &explain(scratch, "192.0.2.1:81"),
            0,
            &[
                "verdict     not_ours: 192.0.2.1 has 80/TCP (default/web:http), 80/UDP (default/dns:http)",
                "checked     programs agree (tc_ingress)",
            ],
        );
        assert_lines(
            &explain(scratch, "192.0.2.9:80"),
            0,
            &[
                "verdict     not_ours: 192.0.2.9 is neither a Service's address nor this node's",
                "checked     programs agree (tc_ingress)",
            ],
        );
        Ok(())
    })
}

#[test]
fn an_explanation_is_a_document_and_names_what_it_can_not_do() -> Result<()> {
    beside("explain-json", &[Hook::TcIngress], |scratch| {
        let (status, text, errors) = explain(scratch, "web -o json");
        assert_eq!(status, 0, "{errors}");
        let document: Value = serde_json::from_str(&text)?;
        assert_eq!(
            (&document["kind"], &document["apiVersion"]),
            (&"ExplanationList".into(), &"millrace.dev/v1alpha1".into())
        );
        let item = &document["items"][0];
        assert_eq!(
            (&item["reason"], &item["agree"], &item["drop"]),
            (&"served_local".into(), &true.into(), &false.into())
        );
        assert_eq!(item["programs"][0]["steps"][1]["step"], "frontend");
        assert_eq!(item["programs"][0]["left"]["destination"], "10.0.1.1:8080");

        assert_lines(&explain(scratch, "web --maps-only"), 0, &["checked     by the maps alone: not asked"]);
        let (_, text, _) = explain(scratch, "web --dry-run-only");
        assert!(!text.contains("frontend") && text.contains("programs agree"), "{text}");
        // TC would send the first part of the packet for real.
        let (_, text, _) = explain(scratch, "192.0.2.1:80 --proto udp --size 2000");
        assert!(text.contains("verdict     s"), "{text}");

        let (status, _, errors) = explain(scratch, "default/wep");
        assert_eq!(
            (status, errors.as_str()),
            (3, "millrace: no Service matches \"default/wep\"; nearest: default/web\n")
        );
        let (status, _, errors) = explain(scratch, "web --in eth9");
        assert_eq!(status, 3);
        assert_eq!(errors, "millrace: no program takes packets from eth9; devices with programs: eth0\n");
        let (status, _, errors) = explain(scratch, "fd00::1 192.0.2.1:80");
        assert_eq!(status, 2);
        assert!(errors.starts_with("millrace: FROM: \"fd00::1\" is not accepted"), "{errors}");
        Ok(())
    })
}

#[test]
fn xdp_hands_over_and_tc_decides() -> Result<()> {
    beside("explain-xdp", &[Hook::Xdp, Hook::TcIngress], |scratch| {
        let near = explain(scratch, "web");
        assert_lines(
            &near,
            0,
            &["verdict     served_local -> 10.0.1.1:8080", "checked     programs agree (xdp_ingress)"],
        );
        // A packet that may be cut is not run in TC: it could leave the node.
        let agreed = "checked     programs agree (xdp_ingress, tc_ingress)";
        let then = "then        handed_to_tc by xdp_ingress";
        let far = explain(scratch, "far --df");
        assert_lines(
            &far,
            0,
            &[then, "verdict     DROP no_way: the kernel's route to the backend decides", agreed],
        );
        Ok(())
    })
}

/// Connects a process of the control group; returns its complaint.
fn connect(group: &Group, to: &str) -> String {
    let (address, port) = to.split_once(':').expect("address and port");
    let join = format!("echo $$ > {}/cgroup.procs", group.0.display());
    let script = format!("{join} && exec timeout 2 bash -c ': <>/dev/tcp/{address}/{port}'");
    let output = Command::new("bash").args(["-c", &script]).output().expect("bash");
    String::from_utf8(output.stderr).expect("text")
}

/// Returns the counters of `cg_connect4`, by reason.
fn calls(scratch: &Scratch) -> Result<BTreeMap<String, u64>> {
    let counters = PinnedMaps::open(&scratch.path)?.counters()?;
    let of_calls = counters.into_iter().filter(|view| view.program == Program::CgConnect4.name());
    Ok(of_calls.map(|view| (view.reason.into_owned(), view.packets)).collect())
}

#[test]
fn the_hooks_decide_about_real_calls_as_the_walk_says() -> Result<()> {
    in_namespace("explain-calls", async move || {
        let (scratch, group) = (Scratch::new(), Group::new("explain"));
        let mut dataplane = EbpfDataplane::open(settings(&scratch, &group, SocketLb::All, false))?;
        let state = shop();
        assert!(dataplane.sync(&state, &all(&state)).is_complete());
        assert!(dataplane.set_topology(&topology(&[Hook::TcIngress])).is_complete());
        for (to, service, complaint) in [
            ("192.0.2.1:80", "web", "unreachable"),
            ("192.0.2.2:80", "none", "refused"),
            ("192.0.2.4:80", "ranged", "unreachable"),
            ("192.0.2.1:81", "192.0.2.1:81", "unreachable"),
        ] {
            let (status, text, errors) = explain(&scratch, &format!("{service} --from-host -o json"));
            assert_eq!(status, 0, "{errors}");
            let said = serde_json::from_str::<Value>(&text)?["items"][0]["reason"].clone();
            let before = calls(&scratch)?;
            let heard = connect(&group, to);
            let after = calls(&scratch)?;
            let moved: Vec<_> =
                after.iter().filter(|(reason, count)| before.get(reason.as_str()) != Some(count)).collect();
            assert!(
                matches!(moved.as_slice(), [(reason, _)] if said == reason.as_str()),
                "{said}: {moved:?} {heard}"
            );
            assert!(heard.contains(complaint), "{service}: {heard}");
        }
        assert_lines(
            &explain(&scratch, "web --from-host"),
            0,
            &[
                "call        connect to 192.0.2.1:80 by TCP, of a process of the node (cg_connect4)",
                "verdict     connected -> 10.0.1.1:8080",
                "checked     by the maps alone: the kernel runs hooks of sockets for real calls only",
            ],
        );
        assert_lines(
            &explain(&scratch, "none --from-pod"),
            0,
            &[
                "call        connect to 192.0.2.2:80 by TCP, of a process of a pod (cg_connect4)",
                " 1 frontend default/none:http LoadBalancer, internal, snat  [FRONTENDS4]",
                " 2 source   all clients are admitted",
                " 3 affinity none asked for",
                " 4 list     Cluster: no endpoint  [SERVICES, SELECTION]",
                "verdict     DROP no_endpoint: default/none:http has no usable endpoint; connect fails with ECONNREFUSED",
                "checked     by the maps alone: the kernel runs hooks of sockets for real calls only",
            ],
        );
        Ok(())
    })
}

#[test]
fn programs_of_another_build_are_not_run() -> Result<()> {
    beside("explain-build", &[Hook::TcIngress], |scratch| {
        let serving =
            std::fs::read_dir(scratch.root().join("programs"))?.next().expect("a directory")?.path();
        std::fs::rename(serving.join("tc_egress"), serving.join("tc_ingress"))?;
        let other = "checked     by the maps alone: the programs on this node are those of another build; run the \
                     `millrace` of the agent that loaded them";
        assert_lines(&explain(scratch, "web"), 0, &["verdict     served_local -> 10.0.1.1:8080", other]);
        Ok(())
    })
}

#[test]
fn no_map_of_the_node_changes_by_an_explanation() -> Result<()> {
    beside("explain-still", &[Hook::TcIngress], |scratch| {
        let maps = scratch.root().join("maps");
        let before = dump(&maps)?;
        assert!(before.len() > 50 && before["COUNTERS"].len() > 100, "{}", before.len());
        for words in [
            "web",
            "dns",
            "none",
            "local",
            "ranged",
            "dsr",
            "192.0.2.1:81",
            "web --flags A",
            "web --state new",
        ] {
            let (status, text, errors) = explain(scratch, words);
            assert!(status == 0 && text.contains("programs agree"), "{words}: {text}{errors}");
        }
        let after = dump(&maps)?;
        for (name, entries) in &before {
            assert!(after.get(name) == Some(entries), "{name} has changed");
        }
        assert_eq!(before.len(), after.len(), "no map was pinned");
        Ok(())
    })
}

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Returns all entries of all pinned maps, as bytes.
fn dump(directory: &Path) -> Result<BTreeMap<String, Entries>> {
    let mut maps = BTreeMap::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let (map, info) = (MapData::from_pin(&path)?, MapInfo::from_pin(&path)?);
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        maps.insert(name.to_owned(), entries(map.fd().as_fd(), &info)?);
    }
    Ok(maps)
}

fn entries(map: BorrowedFd<'_>, info: &MapInfo) -> Result<Entries> {
    const LOOKUP: i64 = 1;
    const NEXT_KEY: i64 = 4;
    let value_bytes = match info.map_type()? {
        MapType::PerCpuArray | MapType::PerCpuHash | MapType::LruPerCpuHash => {
            info.value_size().next_multiple_of(8) as usize * aya::util::nr_cpus().unwrap_or(1)
        }
        _ => info.value_size() as usize,
    };
    let (mut entries, mut last): (Entries, Option<Vec<u8>>) = (Vec::new(), None);
    loop {
        let mut key = vec![0; info.key_size() as usize];
        let from = last.as_ref().map_or(0, |key| key.as_ptr() as u64);
        if !element(NEXT_KEY, map, from, key.as_mut_ptr() as u64)? {
            entries.sort_unstable();
            return Ok(entries);
        }
        let mut value = vec![0; value_bytes];
        if element(LOOKUP, map, key.as_ptr() as u64, value.as_mut_ptr() as u64)? {
            entries.push((key.clone(), value));
        }
        last = Some(key);
    }
}

/// Runs a command of bpf(2) about an element; returns false if there is none.
fn element(command: i64, map: BorrowedFd<'_>, key: u64, value: u64) -> Result<bool> {
    let attr: [u64; 4] = [u64::from(map.as_raw_fd().cast_unsigned()), key, value, 0];
    // SAFETY: the attributes are those of an element, and the callers' memory has the map's sizes.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_ptr(), size_of_val(&attr)) };
    match (result, std::io::Error::last_os_error()) {
        (0.., _) => Ok(true),
        (_, error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        (_, error) => Err(error.into()),
    }
}
