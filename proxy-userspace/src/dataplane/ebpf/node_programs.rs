//! The programs that serve on this node, whatever agent has loaded them, and their load-time constants.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use aya::maps::MapData;
use object::{Object, ObjectSection, ObjectSymbol};
use proxy_common::config::{TAKES_FOU, TAKES_IPIP, global};
use proxy_common::timeouts::Limits;

use super::bpffs::{entries, is_program};
use super::error::OpenError;
use super::layout::Layout;
use super::link::LinkKey;
use super::object::OBJECT;
use super::raw_map::RawMap;
use super::sys;

/// The map with the load-time constants.
const CONSTANTS: &str = ".rodata";
/// Its pin, beside the programs. To open a map by its id takes CAP_SYS_ADMIN, which agents in pods lack.
const CONSTANTS_PIN: &str = "RODATA";

/// The load-time constants of the node's programs: words by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeConstants(BTreeMap<String, Vec<u32>>);

impl NodeConstants {
    /// Returns constants with these words; the others are 0.
    pub fn of<'a>(words: impl IntoIterator<Item = (&'a str, Vec<u32>)>) -> Self {
        Self(words.into_iter().map(|(name, words)| (name.to_owned(), words)).collect())
    }

    /// Returns the words of all constants, by name.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &[u32])> {
        self.0.iter().map(|(name, words)| (name.as_str(), words.as_slice()))
    }

    /// Returns a constant of one word; see [`global`].
    #[must_use]
    pub fn word(&self, name: &str) -> u32 {
        self.words(name).first().copied().unwrap_or(0)
    }

    /// Returns the words of a constant; none if there is no such constant.
    #[must_use]
    pub fn words(&self, name: &str) -> &[u32] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// Whether a port, in network byte order, may be that of a reply to SNAT.
    #[must_use]
    pub fn is_snat_port(&self, port: u16) -> bool {
        let above = u32::from(u16::from_be(port)).wrapping_sub(self.word(global::SNAT_REPLY_FIRST));
        above < self.word(global::SNAT_REPLY_COUNT)
    }

    /// Whether the node decapsulates packets in IP.
    #[must_use]
    pub fn takes_ipip(&self) -> bool {
        self.word(global::DSR_TAKES) & TAKES_IPIP != 0
    }

    /// Whether the node decapsulates packets in UDP.
    #[must_use]
    pub fn takes_fou(&self) -> bool {
        self.word(global::DSR_TAKES) & TAKES_FOU != 0
    }

    /// Returns the limits of a flow entry, by [`Flow::limits_index`](proxy_common::flow::Flow::limits_index).
    #[must_use]
    pub fn limits(&self, index: usize) -> Limits {
        match self.words(global::FLOW_LIMITS).get(index * 2..index * 2 + 2) {
            Some([expiry, renewal]) => Limits { expiry: *expiry, renewal: *renewal },
            _ => Limits::default(),
        }
    }
}

/// The directory of the programs that serve on this node.
///
/// It is the one whose programs are attached, or else the only one. `None` if there are no programs.
pub fn directory(layout: &Layout) -> Result<Option<PathBuf>, OpenError> {
    let mut directories = entries(&layout.programs())?;
    let attached = attached_programs(layout)?;
    let serving = directories.iter().position(|directory| has_one_of(directory, &attached));
    if let Some(index) = serving {
        return Ok(Some(directories.swap_remove(index)));
    }
    // A name with a number is that of programs that were set aside.
    let is_aside = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().contains('-'));
    directories.sort_by_key(|path| !is_aside(path));
    Ok(directories.pop())
}

/// Whether one of these programs is pinned in a directory.
fn has_one_of(directory: &Path, programs: &BTreeSet<u32>) -> bool {
    let pins = entries(directory).unwrap_or_default();
    let ids = pins.iter().filter(|pin| is_program(pin));
    let mut ids = ids.filter_map(|pin| sys::obj_get(pin).and_then(|fd| sys::program_id(fd.as_fd())).ok());
    ids.any(|id| programs.contains(&id))
}

/// Returns the kernel's ids of the programs of the pinned links.
fn attached_programs(layout: &Layout) -> Result<BTreeSet<u32>, OpenError> {
    let links = entries(&layout.links())?;
    let names = |path: &&PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| LinkKey::parse(name).is_some())
    };
    let links = links.iter().filter(names).filter(|path| !path.is_dir());
    Ok(links
        .filter_map(|path| sys::obj_get(path).and_then(|link| sys::link_info(link.as_fd())).ok())
        .map(|info| info.program_id)
        .collect())
}

/// Reads the load-time constants of the programs in a directory. Their object must be this build's.
pub fn constants_in(directory: &Path) -> Result<NodeConstants, OpenError> {
    let missing = || OpenError::NoConstants { path: directory.to_owned() };
    let map = MapData::from_pin(directory.join(CONSTANTS_PIN)).map_err(|_| missing())?;
    let values = RawMap::of(CONSTANTS, &map)?.get(&0_u32.to_ne_bytes())?.ok_or_else(missing)?;
    places()
        .map(|(name, start, size)| {
            let bytes = values.get(start..start + size).ok_or_else(missing)?;
            let words = bytes.as_chunks().0.iter().copied().map(u32::from_ne_bytes);
            Ok((name.to_owned(), words.collect()))
        })
        .collect::<Result<_, _>>()
        .map(NodeConstants)
}

/// Returns name, offset and size of each load-time constant in the map of this build's object.
fn places() -> impl Iterator<Item = (&'static str, usize, usize)> {
    let file = object::File::parse(OBJECT).ok();
    let section =
        file.as_ref().and_then(|file| file.section_by_name(CONSTANTS)).map(|section| section.index());
    let found: Vec<_> = file
        .iter()
        .flat_map(Object::symbols)
        .filter(|symbol| symbol.section_index() == section && section.is_some())
        .filter_map(|symbol| {
            let name = NAMES.into_iter().find(|name| symbol.name() == Ok(name))?;
            Some((name, usize::try_from(symbol.address()).ok()?, usize::try_from(symbol.size()).ok()?))
        })
        .collect();
    found.into_iter()
}

/// The names of all load-time constants.
const NAMES: [&str; 20] = [
    global::FLOW_LIMITS,
    global::MARK_VALUE,
    global::MARK_MASK,
    global::REJECT_UNKNOWN,
    global::TC_DECAP_FLAGS,
    global::SNAT_PORT_FIRST,
    global::SNAT_PORT_COUNT,
    global::SNAT_REPLY_FIRST,
    global::SNAT_REPLY_COUNT,
    global::FIB_SOURCE,
    global::DSR_FOU,
    global::DSR_TAKES,
    global::DSR_POD,
    global::OUTER_PREFIX4,
    global::OUTER_MASK4,
    global::OUTER_PREFIX6,
    global::OUTER_MASK6,
    global::OUTER_SPREAD,
    global::SHARE,
    global::SOCKET_NODE_ONLY,
];
