//! The annotations of Services that override flags.

use std::collections::BTreeMap;

use super::problem::{Notes, Topic};
use super::{Algorithm, Forwarding, ModelSettings, Scheduler, check_maglev_size};

/// The prefix of Millrace's own annotations.
const PREFIX: &str = "millrace.dev/";
/// Their former prefix. An annotation with it is taken, with a warning.
const FORMER_PREFIX: &str = "millrace/";

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
    name: "millrace.dev/forwarding",
    values: "dsr or snat",
    flag: "--forwarding",
    effect: "How clients' packets reach backends on other nodes. It wins over kube-router.io/service.dsr.",
};
const ALGORITHM: Annotation = Annotation {
    name: "millrace.dev/algorithm",
    values: "maglev or random",
    flag: "--algorithm",
    effect: "How a backend is chosen. With Direct Server Return it is always Maglev.",
};
const MAGLEV_SIZE: Annotation = Annotation {
    name: "millrace.dev/maglev-size",
    values: "a prime from 3 to 65537",
    flag: "--maglev-table-size",
    effect: "Slots of the Service's Maglev tables.",
};
const ANNOUNCE: Annotation = Annotation {
    name: "millrace.dev/announce",
    values: "l2 or none",
    flag: "--l2-announce",
    effect: "Whether nodes announce the Service's addresses, on their links and by routes. l2 is no more than the flags' ranges say.",
};
const KUBE_ROUTER_DSR: Annotation = Annotation {
    name: "kube-router.io/service.dsr",
    values: "tunnel",
    flag: "--forwarding",
    effect: "Direct Server Return, as millrace.dev/forwarding: dsr.",
};
const KUBE_ROUTER_SCHEDULER: Annotation = Annotation {
    name: "kube-router.io/service.scheduler",
    values: "rr or wrr or lc or wlc or lblc or lblcr or sh or dh or sed or nq or fo or ovf or mh",
    flag: "--ipvs-scheduler",
    effect: "Scheduler of the Service where IPVS serves; without effect where eBPF does.",
};

/// All annotations that the agent reads. Another one with Millrace's prefix, or its former one, is reported as a
/// mistake.
pub const ANNOTATIONS: [Annotation; 6] =
    [FORWARDING, ALGORITHM, MAGLEV_SIZE, ANNOUNCE, KUBE_ROUTER_DSR, KUBE_ROUTER_SCHEDULER];

/// The overrides in one Service's annotations; `None` = the flag decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Overrides {
    pub forwarding: Option<Forwarding>,
    /// Whether `millrace.dev/algorithm` requests Maglev.
    pub maglev: Option<bool>,
    pub maglev_size: Option<u32>,
    /// Whether `millrace.dev/announce` lets nodes announce the addresses.
    pub announce: Option<bool>,
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
    warn_of_names(annotations, notes);
    let get = |annotation: &Annotation| {
        let names = [Some(annotation.name.to_owned()), annotation.former_name()];
        names.into_iter().flatten().find_map(|name| Some((annotations.get(&name)?.as_str(), name)))
    };
    let tunnel = choose(get(&KUBE_ROUTER_DSR), &[("tunnel", Forwarding::Dsr)], notes);
    let words = [("dsr", Forwarding::Dsr), ("snat", Forwarding::Snat)];
    let maglev_size = get(&MAGLEV_SIZE).and_then(|(text, name)| {
        // Text that is no number is out of range like zero.
        let size = check_maglev_size(text.parse().unwrap_or(0));
        size.map_err(|wrong| refuse(&name, text, &wrong.to_string(), notes)).ok()
    });
    let overrides = Overrides {
        forwarding: choose(get(&FORWARDING), &words, notes).or(tunnel),
        maglev: choose(get(&ALGORITHM), &[("maglev", true), ("random", false)], notes),
        maglev_size,
        announce: choose(get(&ANNOUNCE), &[("l2", true), ("none", false)], notes),
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

impl Annotation {
    /// Returns the name that it had before, if it is Millrace's own.
    fn former_name(&self) -> Option<String> {
        Some(format!("{FORMER_PREFIX}{}", self.name.strip_prefix(PREFIX)?))
    }
}

/// Warns of unknown names below our prefixes, and of former names.
fn warn_of_names(annotations: &BTreeMap<String, String>, notes: &mut Notes) {
    let own = || ANNOTATIONS.iter().filter(|annotation| annotation.name.starts_with(PREFIX));
    let is_ours = |name: &&String| name.starts_with(PREFIX) || name.starts_with(FORMER_PREFIX);
    for name in annotations.keys().filter(is_ours) {
        if own().any(|annotation| annotation.name == name) {
            continue;
        }
        let renamed = own().find(|annotation| annotation.former_name().as_ref() == Some(name));
        let message = match renamed.map(|annotation| annotation.name) {
            Some(now) if annotations.contains_key(now) => format!("has no effect beside {now}; remove it"),
            Some(now) => format!("is a former name; it is taken; rename it to {now}"),
            None => {
                let names: Vec<&str> = own().map(|annotation| annotation.name).collect();
                format!("is not known and has no effect; takes {}", names.join(", "))
            }
        };
        notes.warn_about(Topic::Annotation, field(name), message);
    }
}

fn choose<T: Copy>(given: Option<(&str, String)>, words: &[(&str, T)], notes: &mut Notes) -> Option<T> {
    let (text, name) = given?;
    let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    if found.is_none() {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        refuse(&name, text, &format!("takes {}", words.join(" or ")), notes);
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
    use crate::model::{Kind, ObjectKey, Problem};

    /// Returns the overrides, and a line for each warning.
    fn read(given: &[(&str, &str)]) -> (Overrides, Vec<String>) {
        let service =
            ObjectKey { kind: Kind::Service, namespace: "default".to_owned(), name: "web".to_owned() };
        let mut notes = Notes::on(service, None);
        let given = given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let overrides = read_annotations(Some(&given), &ModelSettings::default(), &mut notes);
        let line = |problem: &Problem| {
            assert_eq!(problem.topic, Topic::Annotation);
            problem.to_string().replace("Service default/web: metadata.annotations", "")
        };
        (overrides, notes.problems.iter().map(line).collect())
    }

    #[test]
    fn an_annotation_with_the_former_prefix_is_taken_with_a_warning() {
        let (overrides, said) = read(&[("millrace/forwarding", "dsr"), ("millrace/maglev-size", "251")]);
        assert_eq!((overrides.forwarding, overrides.maglev_size), (Some(Forwarding::Dsr), Some(251)));
        let line = |name| {
            format!("[millrace/{name}]: is a former name; it is taken; rename it to millrace.dev/{name}")
        };
        assert_eq!(said, [line("forwarding"), line("maglev-size")]);
        let (overrides, said) = read(&[("millrace/forwarding", "DSR")]);
        assert_eq!(overrides, Overrides::default());
        let refused =
            r#"[millrace/forwarding]: "DSR" is not accepted; takes dsr or snat; the default is used"#;
        assert_eq!(said, [line("forwarding"), refused.to_owned()]);
    }

    #[test]
    fn of_both_names_the_one_with_the_present_prefix_counts() {
        let (overrides, said) = read(&[("millrace/forwarding", "dsr"), ("millrace.dev/forwarding", "snat")]);
        assert_eq!(overrides.forwarding, Some(Forwarding::Snat));
        assert_eq!(said, ["[millrace/forwarding]: has no effect beside millrace.dev/forwarding; remove it"]);
    }

    #[test]
    fn an_unknown_name_below_either_prefix_is_a_warning_with_the_known_names() {
        let (overrides, said) =
            read(&[("millrace.dev/dsr", "x"), ("millrace/x", "y"), ("millrace.device/x", "")]);
        assert_eq!(overrides, Overrides::default());
        let takes = "is not known and has no effect; takes millrace.dev/forwarding, millrace.dev/algorithm, \
                     millrace.dev/maglev-size, millrace.dev/announce";
        assert_eq!(said, ["millrace.dev/dsr", "millrace/x"].map(|name| format!("[{name}]: {takes}")));
    }

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
