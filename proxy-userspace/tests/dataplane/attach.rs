//! Attaching to devices of namespaces.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use aya::programs::links::{FdLink, PinnedLink};
use millrace::dataplane::ebpf::read::{AttachedView, FailuresView, PinnedMaps};
use millrace::dataplane::ebpf::{EbpfDataplane, XdpMode, cleanup, others};
use millrace::dataplane::{Dataplane, Mark, SyncFailure, SyncReport};
use millrace::model::Dirty;
use millrace::node::{AttachTarget, Hook, Link, Topology, Way};
use millrace_lab::net::{Namespace, Netlink};

use crate::support::{Scratch, all, desired, key, port};

/// Runs a test in a namespace with a device `eth0`, whose peer is in another one.
pub fn in_namespace(name: &str, test: impl AsyncFnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let namespace = Namespace::create(name)?;
    let peer = Namespace::create(&format!("{name}-peer"))?;
    let file = peer.file()?;
    namespace.run(async move || {
        let netlink = Netlink::open()?;
        netlink.add_veth("eth0", "eth0", &file).await?;
        netlink.set_up("eth0").await?;
        test().await
    })
}

pub fn topology(device: &str) -> Topology {
    let index = nix::net::if_::if_nametoindex(device).unwrap();
    let hooks = BTreeSet::from([Hook::Xdp, Hook::TcIngress, Hook::TcEgress]);
    let target = AttachTarget {
        name: device.to_owned(),
        hooks,
        mac: None,
        source_v4: Some([192, 0, 2, 1].into()),
        source_v6: None,
    };
    Topology { devices: BTreeMap::from([(index, target)]), ..Topology::default() }
}

pub fn attached(scratch: &Scratch) -> Vec<AttachedView> {
    PinnedMaps::open(&scratch.path).unwrap().status().unwrap().attached
}

fn modes(scratch: &Scratch) -> Vec<(&'static str, &'static str)> {
    let constant = |word: &Cow<'static, str>| match word {
        Cow::Borrowed(word) => *word,
        Cow::Owned(word) => panic!("{word} was read from somewhere"),
    };
    attached(scratch).iter().map(|view| (constant(&view.hook), constant(&view.mode))).collect()
}

#[test]
fn programs_stay_attached_without_an_agent_and_are_taken_over_as_they_are() -> Result<()> {
    in_namespace("attach-stay", async || {
        let scratch = Scratch::new();
        let mut dataplane = scratch.open();
        let report = dataplane.set_topology(&topology("eth0"));
        assert!(report.is_complete(), "{report:?}");
        assert_eq!(report.writes, 3);
        assert_eq!(dataplane.set_topology(&topology("eth0")).writes, 0);
        let before = attached(&scratch);
        assert_eq!(modes(&scratch), [("tc_egress", "tcx"), ("tc_ingress", "tcx"), ("xdp", "native")]);
        drop(dataplane);
        assert_eq!(attached(&scratch), before);

        let mut restarted = scratch.open();
        assert_eq!(restarted.set_topology(&topology("eth0")).writes, 0);
        assert_eq!(attached(&scratch), before);
        Ok(())
    })
}

#[test]
fn programs_of_another_data_plane_are_seen_with_their_pins_or_without() -> Result<()> {
    in_namespace("attach-others", async || {
        let (ours, theirs) = (Scratch::new(), Scratch::new());
        let mut dataplane = ours.open();
        assert!(dataplane.set_topology(&topology("eth0")).is_complete());
        let seen = |scratch: &Scratch| {
            let views = others(&scratch.path).into_iter().filter(|other| other.device == "eth0");
            views.map(|other| (other.bpffs_path, other.hook)).collect::<Vec<_>>()
        };
        assert_eq!(seen(&ours), []);
        let expected = |hooks: &[&str]| -> Vec<_> {
            hooks.iter().map(|hook| (Some(ours.path.clone()), (*hook).to_owned())).collect()
        };
        assert_eq!(seen(&theirs), expected(&["tc_egress", "tc_ingress", "xdp_native"]));
        drop(dataplane);
        assert_eq!(
            seen(&theirs),
            expected(&["tc_egress", "tc_ingress", "xdp_native"]),
            "they outlive their agent"
        );
        cleanup(&ours.path)?;
        assert_eq!(seen(&theirs), []);

        // The pins are removed, as for a container with its own BPF file system. Only the kernel
        // knows the links.
        let mut dataplane = ours.open();
        assert!(dataplane.set_topology(&topology("eth0")).is_complete());
        let links = ours.path.join("millrace/v9/links");
        let held = ["tc_ingress", "tc_egress"].map(|hook| {
            let path = links.join(format!("{hook}-{}", nix::net::if_::if_nametoindex("eth0").unwrap()));
            let link = FdLink::from(PinnedLink::from_pin(&path).unwrap());
            std::fs::remove_file(&path).unwrap();
            link
        });
        let expected = [(None, "tc_egress".to_owned()), (None, "tc_ingress".to_owned())];
        assert_eq!(seen(&theirs)[..2], expected);
        drop(held);
        Ok(())
    })
}

#[test]
fn a_pods_device_has_programs_of_its_own_until_it_is_an_uplink_or_cleaned_up() -> Result<()> {
    in_namespace("attach-pod", async || {
        let scratch = Scratch::new();
        let mut dataplane = scratch.open();
        let mut pods = topology("eth0");
        for target in pods.devices.values_mut() {
            target.hooks = BTreeSet::from([Hook::TcPodIn, Hook::TcPodOut]);
        }
        let of_pods = [("tc_pod_in", "tcx"), ("tc_pod_out", "tcx")];
        assert_eq!(dataplane.set_topology(&pods).writes, 2, "nothing translated by SNAT leaves there");
        assert_eq!(modes(&scratch), of_pods);
        assert_eq!(dataplane.check().fault, None);
        dataplane.set_topology(&topology("eth0"));
        assert_eq!(modes(&scratch), [("tc_egress", "tcx"), ("tc_ingress", "tcx"), ("xdp", "native")]);
        dataplane.set_topology(&pods);
        assert_eq!(modes(&scratch), of_pods);
        drop(dataplane);
        let cleaned = cleanup(&scratch.path)?;
        let links = cleaned.removed.iter().filter(|path| path.contains("/links/tc_pod_"));
        assert_eq!(links.count(), 2, "{cleaned:?}");
        Ok(())
    })
}

#[test]
fn another_program_takes_the_place_of_the_old_one_in_the_same_link() -> Result<()> {
    in_namespace("attach-swap", async || {
        let scratch = Scratch::new();
        let mut dataplane = scratch.open();
        dataplane.set_topology(&topology("eth0"));
        let before = attached(&scratch);
        drop(dataplane);
        let settings =
            millrace::dataplane::ebpf::Settings { mark: Mark { value: 0, mask: 0 }, ..scratch.settings() };
        let mut upgraded = EbpfDataplane::open(settings)?;
        assert_eq!(attached(&scratch), before, "the old programs run until the new ones are wanted");
        assert_eq!(upgraded.set_topology(&topology("eth0")).writes, 3);
        for (old, new) in before.iter().zip(attached(&scratch)) {
            assert_ne!(old.program_id, new.program_id);
        }
        Ok(())
    })
}

#[test]
fn a_device_whose_driver_has_no_xdp_is_served_by_tc() -> Result<()> {
    in_namespace("attach-tc", async || {
        let scratch = Scratch::new();
        let mut dataplane = scratch.open();
        let report = dataplane.set_topology(&topology("lo"));
        assert!(report.is_complete(), "{report:?}");
        assert_eq!(modes(&scratch), [("tc_egress", "tcx"), ("tc_ingress", "tcx")]);
        drop(dataplane);

        let settings = millrace::dataplane::ebpf::Settings { xdp: XdpMode::Native, ..scratch.settings() };
        let report = EbpfDataplane::open(settings)?.set_topology(&topology("lo"));
        let [SyncFailure::Device(failure)] = &report.failures[..] else { panic!("{report:?}") };
        assert!(failure.starts_with("no XDP on lo: the driver has no XDP"), "{failure}");
        assert!(failure.ends_with("tc_ingress serves it"), "{failure}");

        let settings = millrace::dataplane::ebpf::Settings { xdp: XdpMode::Generic, ..scratch.settings() };
        EbpfDataplane::open(settings)?.set_topology(&topology("lo"));
        assert_eq!(modes(&scratch)[2], ("xdp", "generic"));

        let settings = millrace::dataplane::ebpf::Settings { xdp: XdpMode::Off, ..scratch.settings() };
        assert_eq!(EbpfDataplane::open(settings)?.set_topology(&topology("lo")).writes, 1);
        assert_eq!(modes(&scratch), [("tc_egress", "tcx"), ("tc_ingress", "tcx")]);
        Ok(())
    })
}

#[test]
fn the_program_of_xdp_is_loaded_once_a_device_may_have_it() -> Result<()> {
    in_namespace("attach-off", async || {
        let scratch = Scratch::new();
        let with =
            |xdp| EbpfDataplane::open(millrace::dataplane::ebpf::Settings { xdp, ..scratch.settings() });
        let pinned = || -> Result<bool> {
            let mut directories = std::fs::read_dir(scratch.root().join("programs"))?;
            let directory = directories.next().context("no programs are pinned")??;
            Ok(directory.path().join("xdp_ingress").exists())
        };
        let mut dataplane = with(XdpMode::Off)?;
        assert!(dataplane.set_topology(&topology("eth0")).is_complete());
        assert_eq!(modes(&scratch), [("tc_egress", "tcx"), ("tc_ingress", "tcx")]);
        assert!(!pinned()?);
        drop(dataplane);
        let mut dataplane = with(XdpMode::Auto)?;
        let mut without = topology("eth0");
        for target in without.devices.values_mut() {
            target.hooks.remove(&Hook::Xdp);
        }
        assert!(dataplane.set_topology(&without).is_complete());
        assert_eq!(modes(&scratch), [("tc_egress", "tcx"), ("tc_ingress", "tcx")]);
        assert!(!pinned()?);
        assert!(dataplane.set_topology(&topology("eth0")).is_complete());
        assert_eq!(modes(&scratch)[2], ("xdp", "native"));
        assert!(pinned()?);
        assert_eq!(dataplane.check().fault, None);
        drop(dataplane);
        let mut dataplane = with(XdpMode::Off)?;
        assert!(dataplane.set_topology(&topology("eth0")).is_complete());
        assert_eq!(modes(&scratch), [("tc_egress", "tcx"), ("tc_ingress", "tcx")]);
        assert_eq!(dataplane.check().fault, None);
        Ok(())
    })
}

#[test]
fn one_failed_uplink_is_a_failure_of_the_device_and_all_of_them_a_failure_of_the_node() -> Result<()> {
    in_namespace("attach-none", async || {
        let scratch = Scratch::new();
        let mut dataplane = scratch.open();
        let both = Topology {
            devices: topology("lo").devices.into_iter().chain(topology("eth0").devices).collect(),
            ..Topology::default()
        };
        // A link that can't be pinned is not kept. A directory takes its place here.
        let places: Vec<_> = both
            .devices
            .keys()
            .map(|index| scratch.root().join(format!("links/tc_egress-{index}")))
            .collect();
        let concerns =
            |report: &SyncReport| report.failures.iter().map(SyncFailure::concern).collect::<Vec<_>>();
        std::fs::create_dir(&places[0])?;
        assert_eq!(concerns(&dataplane.set_topology(&both)), ["device"]);

        dataplane.set_topology(&Topology::default());
        std::fs::create_dir(&places[1])?;
        let report = dataplane.set_topology(&both);
        assert_eq!(concerns(&report), ["device", "device", "node"]);
        assert_eq!(
            report.failures[2].to_string(),
            "no Service is served: the programs can't be attached to any uplink (lo, eth0)"
        );

        dataplane.sync(&desired([]), &Dirty::default());
        let failures = PinnedMaps::open(&scratch.path)?.status()?.failures;
        assert_eq!(failures, FailuresView { node: 1, device: 2, ..FailuresView::default() });

        std::fs::remove_dir(&places[1])?;
        assert_eq!(concerns(&dataplane.set_topology(&both)), ["device"]);
        std::fs::remove_dir(&places[0])?;
        assert!(dataplane.set_topology(&both).is_complete());
        dataplane.sync(&desired([]), &Dirty::default());
        assert_eq!(PinnedMaps::open(&scratch.path)?.status()?.failures, FailuresView::default());
        Ok(())
    })
}

#[test]
fn tc_serves_a_device_with_another_xdp_program() -> Result<()> {
    in_namespace("attach-busy", async || {
        let (other, scratch) = (Scratch::new(), Scratch::new());
        let mut first = other.open();
        first.set_topology(&topology("eth0"));
        let mut second = scratch.open();
        let report = second.set_topology(&topology("eth0"));
        assert!(report.is_complete(), "{report:?}");
        assert_eq!(modes(&scratch), [("tc_egress", "tcx"), ("tc_ingress", "tcx")]);
        first.set_topology(&Topology::default());
        assert_eq!(second.set_topology(&topology("eth0")).writes, 1, "the place is free now");
        Ok(())
    })
}

#[test]
fn a_device_that_vanished_leaves_no_pin_behind() -> Result<()> {
    in_namespace("attach-gone", async || {
        let scratch = Scratch::new();
        let mut dataplane = scratch.open();
        let wanted = topology("eth0");
        dataplane.set_topology(&wanted);
        Netlink::open()?.delete_link("eth0").await?;
        assert!(attached(&scratch).is_empty());
        let report = dataplane.set_topology(&wanted);
        assert!(report.is_complete(), "told too late that it is gone: {report:?}");
        let report = dataplane.set_topology(&Topology::default());
        assert!(report.is_complete(), "{report:?}");
        let links = std::fs::read_dir(scratch.root().join("links"))?;
        assert_eq!(links.count(), 0);
        Ok(())
    })
}

#[test]
fn a_removed_pin_is_restored_or_forgotten() -> Result<()> {
    in_namespace("attach-pin", async || {
        let scratch = Scratch::new();
        let mut dataplane = scratch.open();
        let wanted = topology("eth0");
        dataplane.set_topology(&wanted);
        let index = *wanted.devices.keys().next().unwrap();
        let remove_pins = || {
            for hook in ["tc_egress", "tc_ingress", "xdp_native"] {
                std::fs::remove_file(scratch.root().join(format!("links/{hook}-{index}"))).unwrap();
            }
        };
        remove_pins();
        assert!(attached(&scratch).is_empty());
        // A link without references is detached some time later.
        let deadline = Instant::now() + Duration::from_secs(10);
        while attached(&scratch).len() < 3 {
            assert!(Instant::now() < deadline, "{:?}", attached(&scratch));
            dataplane.set_topology(&wanted);
        }
        let report = dataplane.set_topology(&wanted);
        assert!(report.is_complete() && report.writes == 0, "{report:?}");

        remove_pins();
        let report = dataplane.set_topology(&Topology::default());
        assert!(report.is_complete(), "{report:?}");
        Ok(())
    })
}

#[test]
fn a_way_is_resolved_by_the_topology_and_knows_whether_its_device_has_xdp() -> Result<()> {
    in_namespace("attach-ways", async || {
        let scratch = Scratch::new();
        let mut dataplane = scratch.open();
        let state = desired([(key("web"), port(1, 2))]);
        dataplane.sync(&state, &all(&state));
        let target = IpAddr::from([172, 16, 0, 2]);
        let mut topology = topology("eth0");
        let device = *topology.devices.keys().next().unwrap();
        let link = Some(Link { source_mac: [2, 0, 0, 0, 0, 1], destination_mac: [2, 0, 0, 0, 0, 2] });
        let way = Way { source: IpAddr::from([172, 16, 0, 1]), device, mtu: 1500, link };
        topology.ways.insert(target, way);
        dataplane.set_topology(&topology);
        assert_eq!(dataplane.set_topology(&topology).writes, 0);

        let maps = PinnedMaps::open(&scratch.path)?;
        let [view] = &maps.ways()?[..] else { panic!("one way") };
        assert_eq!((view.target, view.resolved, view.xdp, view.mtu), (target, true, true, 1500));
        assert_eq!(view.destination_mac, "02:00:00:00:00:02");

        topology.ways.clear();
        assert_eq!(dataplane.set_topology(&topology).writes, 1);
        let [view] = &maps.ways()?[..] else { panic!("one way") };
        assert_eq!((view.resolved, view.source), (false, None));
        Ok(())
    })
}
