//! The socket hooks: attached to a control group, given other programs, removed.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use aya::programs::links::{FdLink, PinnedLink};
use millrace::dataplane::Dataplane;
use millrace::dataplane::ebpf::read::PinnedMaps;
use millrace::dataplane::ebpf::{EbpfDataplane, Settings, SocketLb, Sockets, cgroup, cleanup};
use millrace::node::Topology;

use crate::support::Scratch;

/// A control group without processes, removed at the end.
pub struct Group(pub PathBuf);

impl Group {
    pub fn new(name: &str) -> Self {
        let path = cgroup::mounted().unwrap().join(format!("millrace-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

pub fn settings(scratch: &Scratch, group: &Group, lb: SocketLb, bind_protection: bool) -> Settings {
    let cgroup = Some(group.0.clone());
    Settings { sockets: Sockets { lb, bind_protection, cgroup }, ..scratch.settings() }
}

/// Returns the ids of each hook's link and program, by the hook's name.
fn hooks(scratch: &Scratch) -> Result<BTreeMap<String, (u32, u32)>> {
    let attached = PinnedMaps::open(&scratch.path)?.status()?.attached;
    let of = |hook: &str, program: u32| {
        let pin = scratch.root().join("links").join(hook);
        let link = FdLink::from(PinnedLink::from_pin(pin)?).info()?.id();
        Ok((hook.to_owned(), (link, program)))
    };
    attached.iter().map(|view| of(&view.hook, view.program_id)).collect()
}

fn serve(settings: Settings) -> Result<EbpfDataplane> {
    let mut dataplane = EbpfDataplane::open(settings)?;
    let report = dataplane.set_topology(&Topology::default());
    assert!(report.is_complete(), "{report:?}");
    Ok(dataplane)
}

#[test]
fn links_stay_when_the_agent_goes_and_get_the_programs_of_the_next_one() -> Result<()> {
    let (scratch, group) = (Scratch::new(), Group::new("stay"));
    drop(serve(settings(&scratch, &group, SocketLb::All, true))?);
    let first = hooks(&scratch)?;
    assert_eq!(first.len(), 11);
    assert!(first.contains_key("cg_getpeername6"));

    let mut same = serve(settings(&scratch, &group, SocketLb::All, true))?;
    assert_eq!(hooks(&scratch)?, first);
    assert_eq!(same.set_topology(&Topology::default()).writes, 0, "there is nothing left to do");
    drop(same);

    drop(serve(settings(&scratch, &group, SocketLb::Host, true))?);
    let second = hooks(&scratch)?;
    for (hook, (link, program)) in &first {
        assert_eq!(second[hook].0, *link, "{hook}: the link is the same");
        assert_ne!(second[hook].1, *program, "{hook}: the program has changed");
    }
    Ok(())
}

#[test]
fn unwanted_hooks_are_detached_and_another_group_gets_its_own_links() -> Result<()> {
    let (scratch, group, other) = (Scratch::new(), Group::new("former"), Group::new("other"));
    drop(serve(settings(&scratch, &group, SocketLb::All, true))?);
    let first = hooks(&scratch)?;
    drop(serve(settings(&scratch, &group, SocketLb::All, false))?);
    assert_eq!(hooks(&scratch)?.len(), 9, "all but those of bind");
    drop(serve(settings(&scratch, &other, SocketLb::All, false))?);
    assert_ne!(hooks(&scratch)?["cg_connect4"].0, first["cg_connect4"].0);
    drop(serve(settings(&scratch, &other, SocketLb::Off, false))?);
    assert!(hooks(&scratch)?.is_empty());
    Ok(())
}

#[test]
fn cleanup_detaches_hooks_and_a_pin_that_somebody_removed_is_made_again() -> Result<()> {
    let (scratch, group) = (Scratch::new(), Group::new("cleanup"));
    let mut dataplane = serve(settings(&scratch, &group, SocketLb::All, true))?;
    assert_eq!(dataplane.check().fault, None);
    let before = hooks(&scratch)?;
    fs::remove_file(scratch.root().join("links/cg_connect6"))?;
    assert_eq!(dataplane.check().fault, None);
    assert_eq!(hooks(&scratch)?, before, "the same link");
    drop(dataplane);
    let cleaned = cleanup(&scratch.path)?;
    assert!(cleaned.removed.iter().any(|removed| removed.ends_with("/links/cg_connect6")), "{cleaned:?}");
    Ok(())
}

#[test]
fn a_wrong_control_group_is_a_failure_and_everything_else_is_served() -> Result<()> {
    let scratch = Scratch::new();
    let sockets = Sockets { lb: SocketLb::All, bind_protection: false, cgroup: Some("/proc".into()) };
    let mut dataplane = EbpfDataplane::open(Settings { sockets, ..scratch.settings() })?;
    let failures = dataplane.set_topology(&Topology::default()).failures;
    let texts: Vec<String> = failures.iter().map(ToString::to_string).collect();
    assert!(
        texts.iter().any(|text| text.contains("/proc: is no directory of a cgroup2 file system")),
        "{texts:?}"
    );
    assert!(failures.iter().all(|failure| !failure.is_fatal()));
    Ok(())
}
