//! The annotations of Services that override flags.

use std::collections::BTreeMap;

use super::problem::{Notes, Topic};
use super::{Algorithm, Forwarding, ModelSettings, Scheduler, check_maglev_size};

/// The prefix of Millrace's own annotations.
const PREFIX: &str = "millrace/";

/// An annotation of a Service that the agent reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// The name, prefix included.
    pub name: &'static str,
    /// The accepted values, in words.
    pub values: &'static str,
    /// The flag that decides for Services without the annotation.
    pub flag: &'static str,
    /// The effect on the Service.
    pub effect: &'static str,
}

const FORWARDING: Annotation = Annotation {
    name: "millrace/forwarding",
    values: "dsr or snat",
    flag: "--forwarding",
    effect: "How clients' packets reach backends on other nodes. It wins over kube-router.io/service.dsr.",
};
const ALGORITHM: Annotation = Annotation {
    name: "millrace/algorithm",
    values: "maglev or random",
    flag: "--algorithm",
    effect: "How a backend is chosen. With Direct Server Return it is always Maglev.",
};
const MAGLEV_SIZE: Annotation = Annotation {
    name: "millrace/maglev-size",
    values: "a prime from 3 to 65537",
    flag: "--maglev-table-size",
    effect: "Slots of the Service's Maglev tables.",
};
const KUBE_ROUTER_DSR: Annotation = Annotation {
    name: "kube-router.io/service.dsr",
    values: "tunnel",
    flag: "--forwarding",
    effect: "Direct Server Return, as millrace/forwarding: dsr.",
};
const KUBE_ROUTER_SCHEDULER: Annotation = Annotation {
    name: "kube-router.io/service.scheduler",
    values: "rr or wrr or lc or wlc or lblc or lblcr or sh or dh or sed or nq or fo or ovf or mh",
    flag: "--ipvs-scheduler",
    effect: "Scheduler of the Service where IPVS serves; without effect where eBPF does.",
};

/// All annotations that the agent reads. Another one with Millrace's prefix is reported as a mistake.
pub const ANNOTATIONS: [Annotation; 5] =
    [FORWARDING, ALGORITHM, MAGLEV_SIZE, KUBE_ROUTER_DSR, KUBE_ROUTER_SCHEDULER];

/// The overrides in one Service's annotations; `None` = the flag decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Overrides {
    pub forwarding: Option<Forwarding>,
    /// Whether `millrace/algorithm` requests Maglev.
    pub maglev: Option<bool>,
    pub maglev_size: Option<u32>,
    /// Only IPVS has schedulers.
    pub scheduler: Option<Scheduler>,
}

impl Overrides {
    pub fn forwarding(&self, settings: &ModelSettings) -> Forwarding {
        self.forwarding.unwrap_or(settings.forwarding)
    }
    /// Returns the algorithm. DSR always uses Maglev: all directors must choose the same backend
    /// without talking to each other.
    pub fn algorithm(&self, settings: &ModelSettings) -> Algorithm {
        if self.forwarding(settings) == Forwarding::Dsr || self.maglev.unwrap_or(settings.maglev) {
            Algorithm::Maglev(self.maglev_size.unwrap_or(settings.maglev_size))
        } else {
            Algorithm::Random
        }
    }
    /// Returns whether `random` is requested together with DSR.
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
    let own =
        ANNOTATIONS.map(|annotation| annotation.name).into_iter().filter(|name| name.starts_with(PREFIX));
    let own: Vec<&str> = own.collect();
    for name in annotations.keys().filter(|name| name.starts_with(PREFIX) && !own.contains(&name.as_str())) {
        let message = format!("is not known and has no effect; takes {}", own.join(", "));
        notes.warn_about(Topic::Annotation, field(name), message);
    }
    let get = |annotation: &Annotation| {
        annotations.get(annotation.name).map(|value| (annotation.name, value.as_str()))
    };
    let tunnel = choose(get(&KUBE_ROUTER_DSR), &[("tunnel", Forwarding::Dsr)], notes);
    let words = [("dsr", Forwarding::Dsr), ("snat", Forwarding::Snat)];
    let maglev_size = get(&MAGLEV_SIZE).and_then(|(name, text)| {
        // Text that is no number is out of range like zero.
        let size = check_maglev_size(text.parse().unwrap_or(0));
        size.map_err(|wrong| refuse(name, text, &wrong.to_string(), notes)).ok()
    });
    let overrides = Overrides {
        forwarding: choose(get(&FORWARDING), &words, notes).or(tunnel),
        maglev: choose(get(&ALGORITHM), &[("maglev", true), ("random", false)], notes),
        maglev_size,
        scheduler: choose(get(&KUBE_ROUTER_SCHEDULER), &Scheduler::words(), notes),
    };
    if overrides.contradicts(settings) {
        notes.warn_about(
            Topic::Annotation,
            field(ALGORITHM.name),
            "random does not work with DSR; maglev is used",
        );
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Kind, ObjectKey};

    #[test]
    fn each_annotation_takes_the_values_that_the_reference_page_names() {
        let service =
            ObjectKey { kind: Kind::Service, namespace: "default".to_owned(), name: "web".to_owned() };
        for annotation in ANNOTATIONS {
            let read = |value: &str| {
                let mut notes = Notes::on(service.clone(), None);
                let given = BTreeMap::from([(annotation.name.to_owned(), value.to_owned())]);
                let overrides = read_annotations(Some(&given), &ModelSettings::default(), &mut notes);
                (overrides, format!("{notes:?}"))
            };
            let (overrides, notes) = read("nonsense");
            assert_eq!(overrides, Overrides::default(), "{annotation:?}");
            assert!(notes.contains(&format!("takes {}", annotation.values)), "{annotation:?}: {notes}");
            let values = annotation.values.split(" or ").filter(|value| !value.contains(' '));
            for value in values.chain(annotation.values.rsplit_once(" to ").map(|(_, last)| last)) {
                assert_ne!(read(value).0, Overrides::default(), "{annotation:?}: {value}");
            }
        }
    }
}
