//! Maps of another size: an agent that starts with other settings, or with more Services than its maps have
//! room for, puts new maps in the place of the pinned ones. Connections go on.
//!
//! The programs are loaded anew, with new maps. Then the entries are copied, and the links get the new programs.
//! Only an agent writes most maps, and none is at work. But the programs write FLOWS, so AGENT_HOLD keeps
//! connections out of it from the copy on until no link runs a former program. FLOWS_NEW, which is not replaced,
//! serves new connections until then.
//!
//! The directory with the pins of the former maps says how far an agent was that was killed:
//!
//! 1. `former-maps`: no link uses the new maps. The next agent drops them and begins again.
//! 2. `leaving-maps`: links may use either. The next agent copies what the new maps lack, and renews the links.
//! 3. `replaced-maps`: no link uses them. The next agent removes them.

use std::cell::Cell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aya::maps::MapInfo;
use aya_obj::Object;
use proxy_common::config::AGENT_HOLD;
use proxy_common::flow::{FLOW_CLOSING, FLOW_FIN_BACKEND, FLOW_FIN_CLIENT, Flow, FlowKey};
use proxy_common::{Addr4, Addr6, Address};
use tracing::{info, warn};

use super::bpffs::{entries, remove_tree};
use super::error::OpenError;
use super::grace_period::GracePeriod;
use super::inventory::{indexed_as, is_chosen, maps};
use super::layout::Layout;
use super::map;
use super::mapped::{Access, MappedArray};
use super::maps::Table;
use super::object::OBJECT;
use super::raw_map::{RawMap, bytes_of};
use super::settings::Sizes;
use super::{now, pins, shape};

/// The time that connections stay out of FLOWS if nobody says more. It is begun anew while entries are copied.
const HOLD: Duration = Duration::from_secs(30);
/// The rest of that time with which it begins anew.
const HOLD_REST: Duration = Duration::from_secs(20);

/// The replacement of some maps.
#[derive(Debug)]
pub struct Resize {
    layout: Layout,
    names: Vec<&'static str>,
    /// Where the pins of the former maps are.
    former: PathBuf,
    /// When the hold ends.
    held_until: Cell<Duration>,
}

impl Resize {
    /// Tidies up after an agent that was killed. Returns its replacement if links may use both maps.
    pub fn unfinished(layout: &Layout) -> Result<Option<Self>, OpenError> {
        remove_tree(&layout.replaced_maps(), &mut Vec::new())?;
        let former = layout.former_maps();
        for pin in entries(&former)? {
            let Some(name) = pin.file_name() else { continue };
            let place = layout.maps().join(name);
            pins::remove(&place)?;
            rename(&pin, &place)?;
        }
        remove_tree(&former, &mut Vec::new())?;
        let leaving = layout.leaving_maps();
        let names = maps(&Sizes::default()).map(|(name, _)| name);
        let names: Vec<_> = names.into_iter().filter(|name| leaving.join(name).exists()).collect();
        let resize = Self { layout: layout.clone(), names, former: leaving, held_until: Cell::default() };
        if resize.has_flows() {
            resize.hold()?;
        }
        Ok((!resize.names.is_empty()).then_some(resize))
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
                size.is_some_and(|size| entries < size || is_chosen(name) && entries > size)
                    || !shape::is_of_our_kind(&pinned, &object, name)
            })
        };
        let names = wanted.iter().map(|(name, _)| *name);
        let mut names: Vec<_> =
            names.filter(|name| is_outgrown(name) || is_outgrown(indexed_as(name))).collect();
        if names.is_empty() {
            return Ok(None);
        }
        // FLOWS comes last, so that connections wait for its copy alone.
        names.sort_by_key(|name| is_chosen(name));
        let former = layout.former_maps();
        fs::create_dir_all(&former).map_err(|error| OpenError::File { path: former.clone(), error })?;
        for name in &names {
            rename(&layout.maps().join(name), &former.join(name))?;
        }
        info!(maps = names.join(", "), "maps get another size; connections go on");
        Ok(Some(Self { layout: layout.clone(), names, former, held_until: Cell::default() }))
    }

    /// Whether an earlier agent has begun it. Links may then run programs with either maps.
    pub fn is_continued(&self) -> bool {
        self.former == self.layout.leaving_maps()
    }

    /// Whether the programs write one of the maps all the time.
    pub fn has_flows(&self) -> bool {
        self.names.iter().any(|name| is_chosen(name))
    }

    /// Copies the entries into the new maps. From here on no connection moves to FLOWS, until
    /// [`finish`](Self::finish). The links may get the new programs next.
    pub fn copy(&mut self) -> Result<(), OpenError> {
        // An earlier agent had these copies whole, and the new programs may have written them since.
        let others = self.names.iter().copied().filter(|name| !self.is_continued() && !is_chosen(name));
        for name in others {
            let (former, _) = map::open(&self.former, name)?;
            let (new, _) = map::open(&self.layout.maps(), name)?;
            RawMap::of(name, &new)?.copy_all(&RawMap::of(name, &former)?)?;
        }
        if self.has_flows() {
            self.hold()?;
            wait_for_programs()?;
            self.copy_flows::<Addr4>("FLOWS4", "FLOWS_NEW4")?;
            self.copy_flows::<Addr6>("FLOWS6", "FLOWS_NEW6")?;
            self.hold()?;
        }
        if !self.is_continued() {
            rename(&self.former, &self.layout.leaving_maps())?;
            self.former = self.layout.leaving_maps();
        }
        Ok(())
    }

    /// Forgets the former maps, once no link runs a program that uses them. `is_first` is whether no earlier agent
    /// had begun.
    pub fn finish(self, is_first: bool) -> Result<(), OpenError> {
        let replaced = self.layout.replaced_maps();
        if self.has_flows() {
            self.hold()?;
            wait_for_programs()?;
            // Between the holds of two agents, connections came that the former map does not have.
            if is_first {
                self.catch_up::<Addr4>("FLOWS4")?;
                self.catch_up::<Addr6>("FLOWS6")?;
            }
        }
        rename(&self.former, &replaced)?;
        if self.has_flows() {
            self.hold_until(Duration::ZERO)?;
        }
        remove_tree(&replaced, &mut Vec::new())
    }

    fn hold(&self) -> Result<(), OpenError> {
        self.hold_until(now() + HOLD)
    }

    /// Begins the time anew, if it ends soon.
    fn hold_on(&self) -> Result<(), OpenError> {
        if now() + HOLD_REST < self.held_until.get() { Ok(()) } else { self.hold() }
    }

    fn hold_until(&self, until: Duration) -> Result<(), OpenError> {
        self.held_until.set(until);
        let agent: MappedArray = map::mapped(&self.layout.maps(), "AGENT", Access::Write)?;
        if !agent.store(AGENT_HOLD, until.as_secs()) {
            // An AGENT with too little room is not adopted.
            warn!("map AGENT has no room for AGENT_HOLD; some connections may end while FLOWS is replaced");
        }
        Ok(())
    }

    fn copy_flows<A: Address>(&self, name: &'static str, embryos: &'static str) -> Result<(), OpenError> {
        if !self.names.contains(&name) {
            return Ok(());
        }
        let former: FlowTable<A> = Table::open(&self.former, name)?;
        let new: FlowTable<A> = Table::open(&self.layout.maps(), name)?;
        let embryos: FlowTable<A> = Table::open(&self.layout.maps(), embryos)?;
        let mut copy =
            Copy { former: &former, into: RawMap::of(name, new.data())?, copied: 0, refused: None };
        let is_held = |table: &FlowTable<A>, key| table.get(&key).is_ok_and(|flow| flow.is_some());
        let may_lack_room = new.entries() < former.entries();
        let (mut entries, mut failed) = (Vec::new(), None);
        former.for_each(|key, flow| {
            failed = self.hold_on().err();
            // Programs with the new map may know better by now.
            let is_known = self.is_continued() && (is_held(&new, key) || is_held(&embryos, key));
            if may_lack_room && !is_known {
                entries.push((flow.last_seen, key));
            } else if !is_known {
                copy.put(&key, &flow);
            }
            failed.is_none()
        })?;
        failed.map_or(Ok(()), Err)?;
        entries.sort_unstable_by_key(|(last_seen, _)| std::cmp::Reverse(*last_seen));
        for (_, key) in entries {
            self.hold_on()?;
            if !is_held(&new, key) {
                copy.put_with_twin(&key);
            }
        }
        info!(map = name, copied = copy.copied, "flow entries copied");
        if let Some((error, refused)) = copy.refused {
            let size = new.entries();
            warn!(map = name, refused, size, %error, "the new map has no room for some flow entries; connections may end");
        }
        Ok(())
    }

    /// Does what former programs have done to the entries since the copy: they removed some, and closed some.
    fn catch_up<A: Address>(&self, name: &'static str) -> Result<(), OpenError> {
        if !self.names.contains(&name) {
            return Ok(());
        }
        let former: FlowTable<A> = Table::open(&self.former, name)?;
        let mut new: FlowTable<A> = Table::open(&self.layout.maps(), name)?;
        let (mut gone, mut closed, mut failed) = (Vec::new(), Vec::new(), None);
        new.for_each(|key, flow| {
            failed = self.hold_on().err();
            match former.get(&key) {
                // A new program makes the other entry of a connection anew if it is missing.
                Ok(None) if former.get(&flow.twin(&key)).is_ok_and(|twin| twin.is_none()) => gone.push(key),
                Ok(Some(before)) if has_seen_more(&before, &flow) => closed.push((key, before)),
                _ => {}
            }
            failed.is_none()
        })?;
        failed.map_or(Ok(()), Err)?;
        // An entry that is not there any more needs neither.
        for key in gone {
            let _ = new.remove(&key);
        }
        for (key, before) in closed {
            // The new programs go on writing it.
            if let Some(flow) = new.get(&key).ok().flatten().filter(|flow| has_seen_more(&before, flow)) {
                let state = if before.state == FLOW_CLOSING { FLOW_CLOSING } else { flow.state };
                let flags = flow.flags | before.flags & FINS;
                let _ = new.replace(&key, &Flow { state, flags, ..flow });
            }
            self.hold_on()?;
        }
        Ok(())
    }
}

const FINS: u8 = FLOW_FIN_CLIENT | FLOW_FIN_BACKEND;

type FlowTable<A> = Table<FlowKey<A>, Flow<A>>;

/// The copy of one map of flows.
struct Copy<'a, A: Address> {
    former: &'a FlowTable<A>,
    into: RawMap,
    copied: usize,
    /// The first refusal, and the number of all.
    refused: Option<(OpenError, usize)>,
}

impl<A: Address> Copy<'_, A> {
    fn put(&mut self, key: &FlowKey<A>, flow: &Flow<A>) {
        let (key, flow) = (bytes_of(key), bytes_of(flow));
        // Memory that lacked for so long is not back for the next one.
        let put = match self.refused {
            None => self.into.insert(&key, &flow),
            Some(_) => self.into.insert_within(1, &key, &flow),
        };
        match put {
            Ok(()) => self.copied += 1,
            Err(error) => {
                let (first, count) = self.refused.take().unwrap_or((error, 0));
                self.refused = Some((first, count + 1));
            }
        }
    }

    /// Copies both entries of a connection, as they are by now.
    fn put_with_twin(&mut self, key: &FlowKey<A>) {
        let Some(flow) = self.former.get(key).ok().flatten() else { return };
        let twin_key = flow.twin(key);
        if let Some(twin) = self.former.get(&twin_key).ok().flatten() {
            self.put(&twin_key, &twin);
        }
        self.put(key, &flow);
    }
}

/// Whether a former program has seen an end of a connection that the new ones have not.
fn has_seen_more<A: Address>(former: &Flow<A>, new: &Flow<A>) -> bool {
    let is_closed = former.state == FLOW_CLOSING && new.state != FLOW_CLOSING;
    former.last_seen >= new.last_seen && (is_closed || former.flags & FINS & !new.flags != 0)
}

fn wait_for_programs() -> Result<(), OpenError> {
    let waited = GracePeriod::new().and_then(|period| period.wait());
    waited.map_err(|error| OpenError::MapIo { map: "a map to wait for the programs", error })
}

fn rename(from: &Path, to: &Path) -> Result<(), OpenError> {
    fs::rename(from, to).map_err(|error: io::Error| OpenError::File { path: from.to_owned(), error })
}
