//! The source line of each instruction, by the debug information in the linker's object.

use std::collections::BTreeMap;

use addr2line::gimli::{DwarfSections, EndianSlice, LittleEndian};
use addr2line::{Context as Lines, Location};
use anyhow::{Context, Result};
use object::{
    File, Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget, SectionIndex, SectionKind,
};

use super::instruction::SIZE;

/// The folders whose lines count. Those of the standard library do not.
const OURS: [&str; 2] = ["proxy-ebpf/src/", "proxy-common/src/"];
/// An address in debug information (the kernel's Documentation/bpf/llvm_reloc.rst).
const R_BPF_64_ABS64: u32 = 2;

/// A place in the source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The file, from the workspace's directory.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1.
    pub column: u32,
}

/// The positions of a section's instructions: each holds until the next one. `None` is code of no source line of ours.
pub type Positions = BTreeMap<usize, Option<Position>>;

/// Reads the positions of all instructions by section.
///
/// An instruction of an inlined function of the standard library has the position of the call.
pub fn positions(linked: &[u8]) -> Result<BTreeMap<String, Positions>> {
    let file = File::parse(linked).context("the BPF object is no ELF file")?;
    let sections = DwarfSections::load(|id| relocated(&file, id.name()))?;
    let lines = Lines::from_dwarf(sections.borrow(|bytes| EndianSlice::new(bytes, LittleEndian)))?;
    let mut found = BTreeMap::new();
    for section in file.sections().filter(|section| section.kind() == SectionKind::Text) {
        let start = address(section.index());
        let mut positions = Positions::new();
        for (at, _, _) in lines.find_location_range(start, start + section.size())? {
            let mut frames = lines.find_frames(at).skip_all_loads()?;
            let mut position = None;
            while let (None, Some(frame)) = (&position, frames.next()?) {
                position = frame.location.as_ref().and_then(ours);
            }
            positions.insert((at - start) as usize / SIZE, position);
        }
        found.insert(section.name()?.to_owned(), positions);
    }
    Ok(found)
}

/// Returns the position if it counts.
fn ours(location: &Location<'_>) -> Option<Position> {
    let (file, line) = (location.file?, location.line.filter(|line| *line > 0)?);
    let start = OURS.iter().find_map(|ours| file.find(ours))?;
    Some(Position { file: file.get(start..)?.to_owned(), line, column: location.column.unwrap_or(0) })
}

/// Returns the data of a section, in which each section of code has addresses of its own.
fn relocated(file: &File<'_>, name: &str) -> Result<Vec<u8>> {
    let Some(section) = file.section_by_name(name) else { return Ok(Vec::new()) };
    let mut data = section.data()?.to_vec();
    for (offset, relocation) in section.relocations() {
        let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
        let symbol = file.symbol_by_index(symbol)?;
        let (RelocationFlags::Elf { r_type: R_BPF_64_ABS64 }, Some(target)) =
            (relocation.flags(), symbol.section_index())
        else {
            continue;
        };
        let at = offset as usize;
        let field = data.get_mut(at..at + 8).with_context(|| format!("{name} is too short"))?;
        let inside = u64::from_le_bytes((&*field).try_into()?);
        field.copy_from_slice(&(address(target) + symbol.address() + inside).to_le_bytes());
    }
    Ok(data)
}

/// Returns the first address of a section. In the file, all sections begin at 0.
fn address(section: SectionIndex) -> u64 {
    (section.0 as u64) << 32
}
