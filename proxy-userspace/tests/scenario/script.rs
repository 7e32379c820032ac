//! The text of a case, taken apart and put together again.
//!
//! ```text
//! The topic of this case.
//! flags: --forwarding dsr
//!
//! --- file web.yaml          the file now has this text
//! --- remove web.yaml        the file is gone
//! --- addresses 192.0.2.1    addresses on this node's devices
//! --- ways 192.0.2.2         other nodes' addresses with a resolved way
//! --- time 10                seconds that pass
//! --- expect desired         the desired state, its changes, and new problems
//! --- expect writes          the writes of the data plane, in order
//! --- expect maps            the content of the maps
//! ```

use std::fmt;

/// A case.
pub struct Script {
    /// Lines before the first step, flags included.
    preamble: String,
    /// Flags of the agent.
    pub flags: Vec<String>,
    pub steps: Vec<Step>,
}

/// A step: an action with its object, and the text below it.
pub struct Step {
    pub action: Action,
    pub argument: String,
    pub text: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Action {
    File,
    Remove,
    Addresses,
    Ways,
    Time,
    Expect,
}

const ACTIONS: [(&str, Action); 6] = [
    ("file", Action::File),
    ("remove", Action::Remove),
    ("addresses", Action::Addresses),
    ("ways", Action::Ways),
    ("time", Action::Time),
    ("expect", Action::Expect),
];

impl Script {
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut script = Self { preamble: String::new(), flags: Vec::new(), steps: Vec::new() };
        for line in text.split_inclusive('\n') {
            if let Some(title) = line.strip_prefix("--- ") {
                let (word, argument) = title.trim_end().split_once(' ').unwrap_or((title.trim_end(), ""));
                let known = ACTIONS.iter().find(|(name, _)| *name == word);
                let (_, action) = *known.ok_or_else(|| format!("no such step: {word}"))?;
                script.steps.push(Step { action, argument: argument.to_owned(), text: String::new() });
            } else if let Some(step) = script.steps.last_mut() {
                step.text.push_str(line);
            } else {
                if let Some(flags) = line.strip_prefix("flags:") {
                    script.flags = flags.split_whitespace().map(str::to_owned).collect();
                }
                script.preamble.push_str(line);
            }
        }
        Ok(script)
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.preamble)?;
        for step in &self.steps {
            let word = ACTIONS.iter().find(|(_, action)| *action == step.action).map_or("", |(name, _)| name);
            writeln!(f, "{}", format!("--- {word} {}", step.argument).trim_end())?;
            f.write_str(&step.text)?;
        }
        Ok(())
    }
}
