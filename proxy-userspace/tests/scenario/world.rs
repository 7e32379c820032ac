//! Source and model as the agent has them, without the agent.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use clap::Parser;
use millrace::config::{AgentArgs, Settings};
use millrace::model::{Dirty, Model};
use millrace::source::SourceEvent;
use millrace::source::directory::Catalogue;

use crate::dump::desired;
use crate::script::{Action, Step};

/// This node's name in every case.
const NODE: &str = "node-1";

/// Everything between the manifests and the desired state.
pub struct World {
    catalogue: Catalogue,
    model: Model,
    dirty: Dirty,
    problems: BTreeSet<String>,
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
        Self {
            catalogue: Catalogue::default(),
            model: Model::new(settings.model),
            dirty: Dirty::default(),
            problems: BTreeSet::new(),
        }
    }

    /// Takes a step; that of an expectation gets the text that should stand below it.
    pub fn play(&mut self, step: &mut Step) {
        let file: Arc<Path> = Path::new(&step.argument).into();
        match step.action {
            Action::File => self.catalogue.update(&file, Ok(step.text.clone().into_bytes())),
            Action::Remove => self.catalogue.remove(&file),
            Action::Addresses => {
                let addresses = step.argument.split_whitespace().map(|text| text.parse().unwrap());
                self.model.set_node_addresses(addresses.collect());
            }
            Action::Expect => step.text = self.expect(&step.argument),
        }
        for event in self.catalogue.take_events() {
            match event {
                SourceEvent::Change(change) => self.model.apply(change),
                SourceEvent::Problem(problem) => {
                    self.problems.insert(format!("{:?}: {problem}", problem.severity));
                }
                SourceEvent::Listed => {}
            }
        }
    }

    /// Each sort of dump is a word after `expect`.
    fn expect(&mut self, sort: &str) -> String {
        self.dirty.merge(self.model.refresh());
        let problems = self.model.take_problems();
        self.problems.extend(problems.iter().map(|problem| format!("{:?}: {problem}", problem.severity)));
        match sort {
            "desired" => {
                let dirty = std::mem::take(&mut self.dirty);
                desired(self.model.desired(), &dirty, &std::mem::take(&mut self.problems))
            }
            other => panic!("no such dump: {other}"),
        }
    }
}
