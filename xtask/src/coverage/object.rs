//! The object with probes: its code, and everything that names a place in the code.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use object::build::elf::{Builder, Relocation, SectionData, SectionId, SymbolId};
use object::elf::{
    R_BPF_64_32, R_BPF_64_64, SHF_ALLOC, SHF_EXECINSTR, SHF_WRITE, SHT_PROGBITS, STB_LOCAL, STT_SECTION,
};

use super::btf::{self, Strings};
use super::instruction::{Instruction, SIZE};
use super::rewrite::{Rewritten, rewrite};

/// The section with a byte for each probe. The loader makes a map of it, and the lab reads that map by this name.
pub const PROBES: &str = ".data.coverage";

/// An object with probes.
pub struct Instrumented {
    /// The ELF file.
    pub elf: Vec<u8>,
    /// Each section's code, by name.
    pub sections: BTreeMap<String, Rewritten>,
    /// The number of probes.
    pub probes: usize,
    /// The functions that programs for packets reach: their sections and first instructions.
    reached: BTreeMap<String, Functions>,
}

/// The functions of a section, and whether a program for packets calls each.
type Functions = BTreeMap<usize, bool>;

/// The sections of the programs for packets. The tests run no others.
const PACKETS: [&str; 2] = ["classifier", "xdp.frags"];

/// Returns whether a program is for devices without Ethernet frames. `BPF_PROG_TEST_RUN` makes no such packets.
fn is_bare(program: &[u8]) -> bool {
    program.starts_with(b"l3_") || program.ends_with(b"_l3")
}

impl Instrumented {
    /// Returns whether an instruction belongs to a program for packets, or to a function that one calls.
    pub fn is_for_packets(&self, section: &str, at: usize) -> bool {
        let functions = self.reached.get(section);
        functions
            .and_then(|functions| functions.range(..=at).next_back())
            .is_some_and(|(_, reached)| *reached)
    }
}

/// A section of code before the change.
struct Code {
    name: String,
    instructions: Vec<Instruction>,
    entries: BTreeSet<usize>,
    /// The functions that a test can run.
    programs: BTreeSet<usize>,
    /// The relocated instructions.
    relocated: BTreeSet<usize>,
}

/// Puts probes into an object without debug information.
pub fn instrument(elf: &[u8]) -> Result<Instrumented> {
    let mut object = Builder::read(elf).context("the BPF object is no ELF file")?;
    let code = code(&object)?;
    let (mut done, mut probes) = (BTreeMap::new(), 0);
    for (id, code) in &code {
        let is_relocated = |at: usize| code.relocated.contains(&at);
        let rewritten = rewrite(&code.instructions, &code.entries, is_relocated, probes)
            .with_context(|| format!("section {}", code.name))?;
        probes += rewritten.loads.len();
        done.insert(section_index(*id), rewritten);
    }
    let reached = reached(&object, &code)?;
    let symbol = add_map(&mut object, probes);
    relocate(&mut object, &mut done, symbol)?;
    move_symbols(&mut object, &done)?;
    let names: BTreeMap<&str, usize> =
        code.iter().map(|(id, code)| (code.name.as_str(), section_index(*id))).collect();
    move_functions(&mut object, |section, at| {
        let rewritten = done.get(names.get(section)?)?;
        rewritten.entry.get(at).copied()
    })?;
    for (id, _) in &code {
        let rewritten = done.get(&section_index(*id)).context("a section of code is lost")?;
        let bytes: Vec<u8> = rewritten.code.iter().flat_map(|one| one.encode()).collect();
        object.sections.get_mut(*id).data = SectionData::Data(bytes.into());
    }
    let mut elf = Vec::new();
    object.write(&mut elf).context("can't write the BPF object")?;
    let sections =
        code.iter().filter_map(|(id, code)| Some((code.name.clone(), done.remove(&section_index(*id))?)));
    Ok(Instrumented { elf, sections: sections.collect(), probes, reached })
}

/// Returns the functions that programs for packets reach.
fn reached(object: &Builder<'_>, code: &[(SectionId, Code)]) -> Result<BTreeMap<String, Functions>> {
    let all: BTreeMap<usize, &Code> = code.iter().map(|(id, code)| (section_index(*id), code)).collect();
    let mut calls: BTreeMap<(usize, usize), Vec<(usize, usize)>> = BTreeMap::new();
    for (id, code) in code {
        let relocated: BTreeMap<usize, Relocation> =
            relocations(object, *id).map(|one| (one.r_offset as usize / SIZE, one)).collect();
        let own = code.instructions.iter().enumerate().filter(|(_, one)| one.is_own_call());
        for (at, call) in own {
            let behind = |from: usize| from.checked_add_signed(call.immediate as isize);
            let symbol = relocated.get(&at).and_then(|one| one.symbol);
            let target = match symbol.map(|symbol| object.symbols.get(symbol)) {
                None => behind(at + 1).map(|to| (section_index(*id), to)),
                Some(symbol) => symbol.section.and_then(|section| {
                    let start = symbol.st_value as usize / SIZE;
                    let to = if symbol.st_type() == STT_SECTION { behind(1)? } else { start };
                    Some((section_index(section), to))
                }),
            };
            let caller = code.entries.range(..=at).next_back().context("a call is in no function")?;
            let target = target.context("a call leads nowhere")?;
            calls.entry((section_index(*id), *caller)).or_default().push(target);
        }
    }
    let programs = all.iter().flat_map(|(id, code)| code.programs.iter().map(|program| (*id, *program)));
    let mut due: Vec<(usize, usize)> = programs.collect();
    let mut reached = BTreeSet::new();
    while let Some(function) = due.pop() {
        if reached.insert(function) {
            due.extend(calls.get(&function).into_iter().flatten());
        }
    }
    let functions =
        |id: usize, code: &Code| code.entries.iter().map(|at| (*at, reached.contains(&(id, *at)))).collect();
    Ok(all.iter().map(|(id, code)| (code.name.clone(), functions(*id, code))).collect())
}

fn section_index(section: SectionId) -> usize {
    object::build::Id::index(&section)
}

fn code(object: &Builder<'_>) -> Result<Vec<(SectionId, Code)>> {
    let mut found = Vec::new();
    for section in &object.sections {
        let SectionData::Data(data) = &section.data else { continue };
        if section.sh_flags & u64::from(SHF_EXECINSTR) == 0 || data.is_empty() {
            continue;
        }
        let (chunks, rest) = data.as_chunks::<SIZE>();
        ensure!(rest.is_empty(), "section {} has half an instruction", section.name);
        let instructions = chunks.iter().map(|bytes| Instruction::decode(*bytes)).collect();
        // Labels in the middle of a function have no size.
        let symbols = object.symbols.iter();
        let functions: BTreeMap<usize, bool> = symbols
            .filter(|symbol| symbol.section == Some(section.id()) && symbol.st_size > 0)
            .map(|symbol| (symbol.st_value as usize / SIZE, is_bare(&symbol.name)))
            .collect();
        let name = section.name.to_string();
        let is_run = PACKETS.contains(&name.as_str());
        let mut code = Code {
            name,
            instructions,
            entries: functions.keys().copied().collect(),
            programs: functions.iter().filter(|(_, bare)| is_run && !**bare).map(|(at, _)| *at).collect(),
            relocated: BTreeSet::new(),
        };
        for relocation in relocations(object, section.id()) {
            code.relocated.insert(relocation.r_offset as usize / SIZE);
        }
        found.push((section.id(), code));
    }
    Ok(found)
}

fn relocations(object: &Builder<'_>, of: SectionId) -> impl Iterator<Item = Relocation> {
    let sections = object.sections.iter().filter(move |section| section.sh_info_section == Some(of));
    sections
        .filter_map(|section| match &section.data {
            SectionData::Relocation(relocations) => Some(relocations.clone()),
            _ => None,
        })
        .flatten()
}

/// Adds the map of the probes. Returns the symbol of its section.
fn add_map(object: &mut Builder<'_>, probes: usize) -> SymbolId {
    let section = object.sections.add();
    section.name = PROBES.as_bytes().into();
    section.sh_type = SHT_PROGBITS;
    section.sh_flags = u64::from(SHF_ALLOC | SHF_WRITE);
    section.sh_addralign = 8;
    section.data = SectionData::Data(vec![0; probes].into());
    let section = section.id();
    let symbol = object.symbols.add();
    symbol.section = Some(section);
    symbol.set_st_info(STB_LOCAL, STT_SECTION);
    symbol.id()
}

/// Moves the relocations with their instructions, and adds one for each probe.
fn relocate(object: &mut Builder<'_>, done: &mut BTreeMap<usize, Rewritten>, probes: SymbolId) -> Result<()> {
    let mut calls = Vec::new();
    let symbols: BTreeMap<usize, (u8, Option<usize>)> = object
        .symbols
        .iter()
        .map(|one| (symbol_index(one.id()), (one.st_type(), one.section.map(section_index))))
        .collect();
    for section in &mut object.sections {
        let of = section.sh_info_section.map(section_index);
        let (Some(of), SectionData::Relocation(relocations)) = (of, &mut section.data) else { continue };
        let Some(rewritten) = done.get(&of) else { continue };
        for relocation in relocations.iter_mut() {
            let old = relocation.r_offset as usize / SIZE;
            let new = *rewritten.moved.get(old).context("a relocation is behind its section")?;
            relocation.r_offset = (new * SIZE) as u64;
            let Some(symbol) = relocation.symbol else { continue };
            let (kind, section) =
                *symbols.get(&symbol_index(symbol)).context("a relocation has no symbol")?;
            let target = section.filter(|section| done.contains_key(section));
            ensure!(
                target.is_none() || relocation.r_type == R_BPF_64_32,
                "the code takes the address of a function, which is not supported"
            );
            // With the symbol of a whole section, the call itself has the place.
            if let Some(target) = target.filter(|_| kind == STT_SECTION) {
                calls.push((of, new, target));
            }
        }
        relocations.extend(rewritten.loads.iter().map(|load| Relocation {
            r_offset: (*load * SIZE) as u64,
            symbol: Some(probes),
            r_type: R_BPF_64_64,
            r_addend: 0,
        }));
    }
    for (of, at, target) in calls {
        let call = done.get(&of).and_then(|rewritten| rewritten.code.get(at)).context("a call is lost")?;
        let old = usize::try_from(i64::from(call.immediate) + 1)?;
        let new = done
            .get(&target)
            .and_then(|rewritten| rewritten.entry.get(old))
            .context("a call leads nowhere")?;
        let immediate = i32::try_from(*new)? - 1;
        let call =
            done.get_mut(&of).and_then(|rewritten| rewritten.code.get_mut(at)).context("a call is lost")?;
        call.immediate = immediate;
    }
    Ok(())
}

fn symbol_index(symbol: SymbolId) -> usize {
    object::build::Id::index(&symbol)
}

fn move_symbols(object: &mut Builder<'_>, done: &BTreeMap<usize, Rewritten>) -> Result<()> {
    for symbol in &mut object.symbols {
        let Some(rewritten) = symbol.section.and_then(|section| done.get(&section_index(section))) else {
            continue;
        };
        let place = |old: u64| match rewritten.entry.get(old as usize / SIZE) {
            Some(new) => Ok((new * SIZE) as u64),
            None if old as usize / SIZE == rewritten.entry.len() => Ok((rewritten.code.len() * SIZE) as u64),
            None => Err(anyhow::anyhow!("a symbol is behind its section")),
        };
        if symbol.st_type() == STT_SECTION {
            continue;
        }
        let (start, end) = (place(symbol.st_value)?, place(symbol.st_value + symbol.st_size)?);
        symbol.st_value = start;
        symbol.st_size = end - start;
    }
    Ok(())
}

/// Moves the descriptions of functions, which the verifier compares with the code.
fn move_functions(object: &mut Builder<'_>, place: impl Fn(&str, usize) -> Option<usize>) -> Result<()> {
    let data = |name: &str| {
        let section = object.sections.iter().find(|section| section.name.to_string() == name);
        match section.map(|section| &section.data) {
            Some(SectionData::Data(data)) => Ok(data.to_vec()),
            _ => Err(anyhow::anyhow!("the BPF object has no section {name}")),
        }
    };
    let (strings, mut descriptions) = (Strings::read(&data(btf::BTF)?)?, data(btf::BTF_EXT)?);
    btf::move_functions(&mut descriptions, &strings, place)?;
    let section = object.sections.iter_mut().find(|section| section.name.to_string() == btf::BTF_EXT);
    section.context("no section .BTF.ext")?.data = SectionData::Data(descriptions.into());
    Ok(())
}
