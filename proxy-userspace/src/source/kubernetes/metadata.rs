//! Labels and annotations. Most annotations are dropped during parsing.

use std::collections::BTreeMap;
use std::fmt;

use crate::model::{AGENTS_OS, EXCLUDE_LABEL, OS_LABEL};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

/// Prefixes of the annotations that are read: Millrace's, its former one, kube-router's, and the time when
/// an endpoint changed.
const ANNOTATIONS: [&str; 4] =
    ["millrace.dev/", "millrace/", "kube-router.io/", "endpoints.kubernetes.io/last-change-trigger-time"];

/// All labels: topology labels may have any name.
#[derive(Debug, Default, PartialEq, Eq, Hash, serde::Deserialize)]
pub(super) struct Labels(pub BTreeMap<String, String>);

impl Labels {
    /// Returns only the labels that matter of another node: one that names an operating system other than the agent's, and
    /// the one that keeps clients away.
    pub fn of_another_node(self) -> Option<Self> {
        let matters =
            |name: &str, value: &str| name == OS_LABEL && value != AGENTS_OS || name == EXCLUDE_LABEL;
        let kept: BTreeMap<_, _> = self.0.into_iter().filter(|(name, value)| matters(name, value)).collect();
        (!kept.is_empty()).then_some(Self(kept))
    }
}

/// The annotations that are read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Annotations(pub BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Kept;

        impl<'de> Visitor<'de> for Kept {
            type Value = Annotations;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("annotations")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Annotations, A::Error> {
                let mut kept = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if ANNOTATIONS.iter().any(|start| name.starts_with(start)) {
                        kept.insert(name, map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Annotations(kept))
            }
        }

        deserializer.deserialize_map(Kept)
    }
}
