//! Maps of another size: an agent that starts with other settings, or with more Services than its maps have
//! room for, puts new maps in the place of the pinned ones. Connections go on.
//!
//! The pins of the former maps move to a directory of their own, and the programs are loaded anew, with new
//! maps. The links still run the former programs meanwhile. Then the entries are copied, and the links get the
//! new programs. Only an agent writes most maps, and none is at work. But the programs write FLOWS, so AGENT_HOLD
//! keeps connections out of it from the copy on until no link runs a former program. FLOWS_NEW, which is not
//! replaced, serves new connections until then.
//!
//! The directory of former maps says how far an agent was that was killed on the way. A map without a new one
//! goes back to its place. Else the next agent copies again.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use aya::maps::MapInfo;
use aya_obj::Object;
use proxy_common::config::AGENT_HOLD;
use proxy_common::flow::{Flow, FlowKey};
use proxy_common::{Addr4, Addr6, Address};
use tracing::{info, warn};

use super::bpffs::remove_tree;
use super::error::OpenError;
use super::grace_period::GracePeriod;
use super::inventory::{indexed_as, maps};
use super::layout::Layout;
use super::map;
use super::mapped::{Access, MappedArray};
use super::maps::Table;
use super::object::OBJECT;
use super::raw_map::RawMap;
use super::settings::Sizes;
use super::{now, shape};

/// The longest time that connections stay out of FLOWS. It takes a second to copy some millions of entries.
const HOLD: Duration = Duration::from_secs(30);

/// The replacement of some maps.
#[derive(Debug)]
pub struct Resize {
    layout: Layout,
    names: Vec<&'static str>,
    /// Whether an earlier agent was killed on the way. Some links may run programs with the new maps.
    is_continued: bool,
}

impl Resize {
    /// Returns the replacement that a killed agent has left, if it had new maps.
    pub fn unfinished(layout: &Layout) -> Result<Option<Self>, OpenError> {
        let mut names = Vec::new();
        for (name, _) in maps(&Sizes::default()) {
            let (former, pin) = (layout.former_maps().join(name), layout.maps().join(name));
            if !former.exists() {
                continue;
            }
            if pin.exists() {
                names.push(name);
            } else {
                rename(&former, &pin)?;
            }
        }
        Ok((!names.is_empty()).then(|| Self { layout: layout.clone(), names, is_continued: true }))
    }

    /// Moves the pins of all maps aside that have another size than the wanted one, or another kind. The next
    /// load of programs makes new ones.
    ///
    /// More room than the Services need is no fault, except in FLOWS: the operator chooses its size.
    pub fn begin(layout: &Layout, sizes: &Sizes) -> Result<Option<Self>, OpenError> {
        let object = Object::parse(OBJECT).map_err(|error| OpenError::Object(error.into()))?;
        let wanted = maps(sizes);
        let is_outgrown = |name: &str| {
            let size = wanted.iter().find(|(other, _)| *other == name).and_then(|(_, size)| *size);
            MapInfo::from_pin(layout.maps().join(name)).is_ok_and(|pinned| {
                let entries = pinned.max_entries();
                let is_chosen = matches!(name, "FLOWS4" | "FLOWS6");
                size.is_some_and(|size| entries < size || is_chosen && entries > size)
                    || !shape::is_of_our_kind(&pinned, &object, name)
            })
        };
        let names: Vec<_> = wanted.iter().map(|(name, _)| *name).collect();
        let names: Vec<_> = names.into_iter().filter(|name| is_outgrown(indexed_as(name))).collect();
        if names.is_empty() {
            return Ok(None);
        }
        let former = layout.former_maps();
        fs::create_dir_all(&former).map_err(|error| OpenError::File { path: former.clone(), error })?;
        for name in &names {
            rename(&layout.maps().join(name), &former.join(name))?;
        }
        info!(maps = names.join(", "), "maps get another size; connections go on");
        Ok(Some(Self { layout: layout.clone(), names, is_continued: false }))
    }

    /// Whether an earlier agent has begun it. Links may then run programs with maps that lack entries.
    pub const fn is_continued(&self) -> bool {
        self.is_continued
    }

    /// Copies the entries into the new maps. From here on no connection moves to FLOWS, until
    /// [`finish`](Self::finish).
    pub fn copy(&self) -> Result<(), OpenError> {
        if self.has_flows() {
            self.hold(now() + HOLD)?;
            wait_for_programs()?;
        }
        for name in self.names.iter().copied() {
            match name {
                "FLOWS4" => self.copy_flows::<Addr4>(name)?,
                "FLOWS6" => self.copy_flows::<Addr6>(name)?,
                _ => {
                    let (former, _) = map::open(&self.layout.former_maps(), name)?;
                    let (new, _) = map::open(&self.layout.maps(), name)?;
                    RawMap::of(name, &new)?.copy_all(&RawMap::of(name, &former)?)?;
                }
            }
        }
        Ok(())
    }

    /// Forgets the former maps, once no link runs a program that uses them.
    pub fn finish(self) -> Result<(), OpenError> {
        if self.has_flows() {
            wait_for_programs()?;
            // What a former program has removed since the copy. After the end of an earlier hold, connections came that
            // the former map does not have.
            if !self.is_continued {
                self.remove_gone::<Addr4>("FLOWS4")?;
                self.remove_gone::<Addr6>("FLOWS6")?;
            }
            self.hold(Duration::ZERO)?;
        }
        remove_tree(&self.layout.former_maps(), &mut Vec::new())
    }

    fn has_flows(&self) -> bool {
        self.names.iter().any(|name| matches!(*name, "FLOWS4" | "FLOWS6"))
    }

    fn hold(&self, until: Duration) -> Result<(), OpenError> {
        let agent: MappedArray = map::mapped(&self.layout.maps(), "AGENT", Access::Write)?;
        if !agent.store(AGENT_HOLD, until.as_secs()) {
            // An AGENT with too little room is not adopted.
            warn!("map AGENT has no room for AGENT_HOLD; some connections may end while FLOWS is replaced");
        }
        Ok(())
    }

    fn former_flows<A: Address>(&self, name: &'static str) -> Result<FlowTables<A>, OpenError> {
        let former = Table::open(&self.layout.former_maps(), name)?;
        Ok((former, Table::open(&self.layout.maps(), name)?))
    }

    fn copy_flows<A: Address>(&self, name: &'static str) -> Result<(), OpenError> {
        let (former, mut new) = self.former_flows::<A>(name)?;
        let mut entries = Vec::new();
        let mut copied = 0_usize;
        let may_lack_room = new.entries() < former.entries();
        let mut refused = 0_usize;
        former.for_each(|key, flow| {
            if may_lack_room {
                entries.push((flow.last_seen, key));
            } else if new.insert(&key, &flow).is_ok() {
                copied += 1;
            } else {
                refused += 1;
            }
            true
        })?;
        if may_lack_room {
            let kept = keep_latest(&former, &mut new, entries);
            (copied, refused) = (kept.copied, kept.refused);
        }
        info!(map = name, copied, "flow entries copied");
        if refused > 0 {
            warn!(
                map = name,
                refused,
                size = new.entries(),
                "flow entries found no room in the smaller map, those without a packet for longest; some of \
                 their connections may end"
            );
        }
        Ok(())
    }

    /// Removes the entries that the former map has no more.
    fn remove_gone<A: Address>(&self, name: &'static str) -> Result<(), OpenError> {
        if !self.names.contains(&name) {
            return Ok(());
        }
        let (former, new) = self.former_flows::<A>(name)?;
        let mut gone = BTreeSet::new();
        new.for_each(|key, _| {
            if former.get(&key).is_ok_and(|flow| flow.is_none()) {
                gone.insert(raw_bytes(&key));
            }
            true
        })?;
        let raw = RawMap::of(name, new.data())?;
        gone.iter().try_for_each(|key| raw.remove(key))
    }
}

/// A former map and the new one.
type FlowTables<A> = (Table<FlowKey<A>, Flow<A>>, Table<FlowKey<A>, Flow<A>>);

/// The outcome of copying entries into a smaller map.
#[derive(Debug, Default, PartialEq, Eq)]
struct Kept {
    copied: usize,
    refused: usize,
}

/// Copies the connections with the latest packets, both entries of each.
fn keep_latest<A: Address>(
    former: &Table<FlowKey<A>, Flow<A>>,
    new: &mut Table<FlowKey<A>, Flow<A>>,
    mut entries: Vec<(u32, FlowKey<A>)>,
) -> Kept {
    let mut kept = Kept::default();
    entries.sort_unstable_by_key(|(last_seen, _)| std::cmp::Reverse(*last_seen));
    for (_, key) in entries {
        if new.get(&key).ok().flatten().is_some() {
            continue;
        }
        let Some(flow) = former.get(&key).ok().flatten() else { continue };
        let twin_key = flow.twin(&key);
        let twin = former.get(&twin_key).ok().flatten().map(|twin| (twin_key, twin));
        for (key, flow) in twin.into_iter().chain([(key, flow)]) {
            if new.insert(&key, &flow).is_ok() {
                kept.copied += 1;
            } else {
                kept.refused += 1;
            }
        }
    }
    kept
}

fn raw_bytes<A: Address>(key: &FlowKey<A>) -> Vec<u8> {
    super::raw_map::bytes_of(key)
}

fn wait_for_programs() -> Result<(), OpenError> {
    let waited = GracePeriod::new().and_then(|period| period.wait());
    waited.map_err(|error| OpenError::MapIo { map: "a map to wait for the programs", error })
}

fn rename(from: &Path, to: &Path) -> Result<(), OpenError> {
    fs::rename(from, to).map_err(|error| OpenError::File { path: from.to_owned(), error })
}
