//! What a Service's annotations say instead of the flags.

use std::collections::BTreeMap;

use super::problem::{Notes, Topic};
use super::{Algorithm, Forwarding, ModelSettings, Scheduler, check_maglev_size};

/// What all of ours begin with.
const PREFIX: &str = "millrace/";
const FORWARDING: &str = "millrace/forwarding";
const ALGORITHM: &str = "millrace/algorithm";
const MAGLEV_SIZE: &str = "millrace/maglev-size";
/// All of ours: another one is a slip of the pen.
const OURS: [&str; 3] = [FORWARDING, ALGORITHM, MAGLEV_SIZE];
const KUBE_ROUTER_DSR: &str = "kube-router.io/service.dsr";
const KUBE_ROUTER_SCHEDULER: &str = "kube-router.io/service.scheduler";

/// What the annotations of one Service say; `None` = nothing, the flag decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Overrides {
    pub forwarding: Option<Forwarding>,
    /// Whether `millrace/algorithm` asks for Maglev.
    pub maglev: Option<bool>,
    pub maglev_size: Option<u32>,
    /// Only IPVS has schedulers.
    pub scheduler: Option<Scheduler>,
}

impl Overrides {
    pub fn forwarding(&self, settings: &ModelSettings) -> Forwarding {
        self.forwarding.unwrap_or(settings.forwarding)
    }
    /// Every director must choose the same backend without asking another: DSR is always Maglev.
    pub fn algorithm(&self, settings: &ModelSettings) -> Algorithm {
        if self.forwarding(settings) == Forwarding::Dsr || self.maglev.unwrap_or(settings.maglev) {
            Algorithm::Maglev(self.maglev_size.unwrap_or(settings.maglev_size))
        } else {
            Algorithm::Random
        }
    }
    /// Whether `random` was asked for and can't be given.
    pub fn contradicts(&self, settings: &ModelSettings) -> bool {
        self.maglev == Some(false) && self.forwarding(settings) == Forwarding::Dsr
    }
}

pub(super) fn read_annotations(
    annotations: Option<&BTreeMap<String, String>>,
    settings: &ModelSettings,
    notes: &mut Notes,
) -> Overrides {
    let Some(annotations) = annotations else {
        return Overrides::default();
    };
    for name in annotations.keys().filter(|name| name.starts_with(PREFIX) && !OURS.contains(&name.as_str())) {
        let message = format!("is not known and has no effect; takes {}", OURS.join(", "));
        notes.warn_about(Topic::Annotation, field(name), message);
    }
    let get = |name: &'static str| annotations.get(name).map(|value| (name, value.as_str()));
    let tunnel = choose(get(KUBE_ROUTER_DSR), &[("tunnel", Forwarding::Dsr)], notes);
    let words = [("dsr", Forwarding::Dsr), ("snat", Forwarding::Snat)];
    let maglev_size = get(MAGLEV_SIZE).and_then(|(name, text)| {
        // What is no number at all is as far out of range as zero.
        let size = check_maglev_size(text.parse().unwrap_or(0));
        size.map_err(|wrong| refuse(name, text, &wrong.to_string(), notes)).ok()
    });
    let overrides = Overrides {
        forwarding: choose(get(FORWARDING), &words, notes).or(tunnel),
        maglev: choose(get(ALGORITHM), &[("maglev", true), ("random", false)], notes),
        maglev_size,
        scheduler: choose(get(KUBE_ROUTER_SCHEDULER), &Scheduler::words(), notes),
    };
    if overrides.contradicts(settings) {
        notes.warn_about(Topic::Annotation, field(ALGORITHM), "random can't be had with DSR; maglev is used");
    }
    overrides
}

fn choose<T: Copy>(given: Option<(&'static str, &str)>, words: &[(&str, T)], notes: &mut Notes) -> Option<T> {
    let (name, text) = given?;
    let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    if found.is_none() {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        refuse(name, text, &format!("takes {}", words.join(" or ")), notes);
    }
    found
}

fn refuse(name: &str, text: &str, takes: &str, notes: &mut Notes) {
    notes.warn_about(
        Topic::Annotation,
        field(name),
        format!("{text:?} is not accepted; {takes}; the default is used"),
    );
}

fn field(name: &str) -> String {
    format!("metadata.annotations[{name}]")
}
