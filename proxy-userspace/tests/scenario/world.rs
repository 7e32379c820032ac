//! Source, model and plan as in the agent, but without the agent and without a kernel.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use millrace::config::{AgentArgs, Settings};
use millrace::model::{Dirty, Family, Model};
use millrace::node::{AttachTarget, Hook, Link, Topology, Way};
use millrace::source::SourceEvent;
use millrace::source::directory::Catalogue;

use crate::dump::desired;
use crate::maps::Maps;
use crate::script::{Action, Step};

/// This node's name in every case.
const NODE: &str = "node-1";
/// Index of the only uplink.
const UPLINK: u32 = 2;

/// All parts between the manifests and the maps.
pub struct World {
    catalogue: Catalogue,
    model: Model,
    dirty: Dirty,
    problems: BTreeSet<String>,
    topology: Topology,
    maps: Maps,
    /// The changes that the data plane does not have yet.
    unsynced: Dirty,
    now: Duration,
}

#[derive(Parser)]
struct Agent {
    #[command(flatten)]
    args: AgentArgs,
}

impl World {
    pub fn new(flags: &[String]) -> Self {
        let own = ["agent", "--source", "directory:/manifests"].map(str::to_owned);
        let agent = Agent::parse_from(own.iter().chain(flags));
        let settings = Settings::resolve_on(&agent.args, Some(NODE.to_owned())).unwrap();
        let uplink = AttachTarget {
            name: "eth0".to_owned(),
            hooks: BTreeSet::from([Hook::Xdp, Hook::TcIngress]),
            mac: None,
            source_v4: Some([172, 16, 0, 1].into()),
            source_v6: None,
        };
        let topology = Topology { devices: [(UPLINK, uplink)].into(), ..Topology::default() };
        Self {
            catalogue: Catalogue::default(),
            model: Model::new(settings.model),
            dirty: Dirty::default(),
            problems: BTreeSet::new(),
            topology,
            maps: Maps::new(),
            unsynced: Dirty::default(),
            now: Duration::ZERO,
        }
    }

    /// Plays a step. An expectation gets its actual text.
    pub fn play(&mut self, step: &mut Step) {
        let file: Arc<Path> = Path::new(&step.argument).into();
        match step.action {
            Action::File => self.catalogue.update(&file, Ok(step.text.clone().into_bytes())),
            Action::Remove => self.catalogue.remove(&file),
            Action::Addresses => {
                self.topology.addresses = addresses(&step.argument).collect();
                self.model.set_node_addresses(self.topology.addresses.clone());
            }
            Action::Ways => {
                let ways = addresses(&step.argument).map(|target| (target, self.way(target)));
                self.topology.ways = ways.collect();
            }
            Action::Time => self.now += Duration::from_secs(step.argument.parse().unwrap()),
            Action::Expect => step.text = self.expect(&step.argument),
        }
        for event in self.catalogue.take_events() {
            match event {
                SourceEvent::Change(change) => self.model.apply(change),
                SourceEvent::Problem(problem) => {
                    self.problems.insert(format!("{:?}: {problem}", problem.severity));
                }
                SourceEvent::Listed(_) => {}
            }
        }
    }

    /// Returns a dump. Its sort is the word after `expect`.
    fn expect(&mut self, sort: &str) -> String {
        let dirty = self.model.refresh();
        self.dirty.merge(dirty.clone());
        self.unsynced.merge(dirty);
        let problems = self.model.take_problems();
        self.problems.extend(problems.iter().map(|problem| format!("{:?}: {problem}", problem.severity)));
        let text = match sort {
            "desired" => {
                let dirty = std::mem::take(&mut self.dirty);
                desired(self.model.desired(), &dirty, &std::mem::take(&mut self.problems))
            }
            "writes" => {
                self.sync();
                self.maps.take_writes()
            }
            "maps" => {
                self.sync();
                self.maps.dump()
            }
            other => panic!("no such dump: {other}"),
        };
        text + "\n"
    }

    fn sync(&mut self) {
        self.maps.set_topology(&self.topology, self.now);
        self.maps.sync(self.model.desired(), &std::mem::take(&mut self.unsynced), self.now);
    }

    fn way(&self, target: IpAddr) -> Way {
        let mut own = self.topology.addresses.iter();
        let source =
            own.find(|own| Family::of(**own) == Family::of(target)).expect("an address of the family");
        let link = Some(Link { source_mac: [2, 0, 0, 0, 0, 1], destination_mac: [2, 0, 0, 0, 0, 2] });
        Way { source: *source, device: UPLINK, mtu: 1500, link }
    }
}

fn addresses(text: &str) -> impl Iterator<Item = IpAddr> {
    text.split_whitespace().map(|text| text.parse().unwrap())
}
