//! Labels and annotations, of which most are dropped while they are read.

use std::collections::BTreeMap;
use std::fmt;

use crate::model::{AGENTS_OS, OS_LABEL};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

/// Annotations that somebody reads: ours, kube-router's, and when an endpoint changed.
const ANNOTATIONS: [&str; 3] =
    ["millrace/", "kube-router.io/", "endpoints.kubernetes.io/last-change-trigger-time"];

/// Labels, all of them: topology labels may have any name.
#[derive(Debug, Default, PartialEq, Eq, Hash, serde::Deserialize)]
pub(super) struct Labels(pub BTreeMap<String, String>);

impl Labels {
    /// What says that a node runs another operating system than ours, and no other label.
    pub fn of_another_system(self) -> Option<Self> {
        let os = self.0.into_iter().find(|(name, os)| name == OS_LABEL && os != AGENTS_OS)?;
        Some(Self(BTreeMap::from([os])))
    }
}

/// Those annotations that somebody reads.
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
