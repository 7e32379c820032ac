//! Adds up the stack of the BPF programs along every chain of calls.
//!
//! A kernel says only that some chain needs too much. The oldest supported kernels refuse programs
//! that newer ones accept. Before Linux 6.4 each function's frame counts in steps of 32 bytes.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use object::{File, Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionKind, SymbolKind};
use rustc_demangle::demangle;

/// The most bytes that all frames of a chain may have together.
pub const LIMIT: u32 = 512;
/// The unit to which a frame's size is rounded up. It is also the least that a frame counts.
const STEP: u32 = 32;

const INSTRUCTION: usize = 8;
/// The frame pointer.
const R10: u8 = 10;
const CALL: u8 = 0x85;
/// The source register of a call of the object's own functions.
const OWN: u8 = 1;
const MOVE: u8 = 0xbf;
const ADD: u8 = 0x07;
const LOAD_WIDE: u8 = 0x18;

/// A chain of calls, with the program first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// The bytes of stack that the chain needs.
    pub bytes: u32,
    /// The functions and their frames, in bytes before rounding up.
    pub frames: Vec<(String, u32)>,
}

/// Returns the deepest chain of each program, by name.
pub fn deepest_chains(elf: &[u8]) -> Result<BTreeMap<String, Chain>> {
    let file = File::parse(elf).context("the BPF object is no ELF file")?;
    let functions = functions(&file)?;
    let mut known = BTreeMap::new();
    let called: Vec<Place> = functions.values().flat_map(|function| function.calls.iter().copied()).collect();
    let programs = functions.iter().filter(|(place, _)| !called.contains(place));
    let chains = programs.map(|(place, function)| {
        let chain = deepest(*place, &functions, &mut known)?;
        Ok((function.name.clone(), chain))
    });
    chains.collect()
}

/// A section's index, and an offset in it.
type Place = (usize, u64);

struct Function {
    name: String,
    /// The bytes of its frame.
    stack: u32,
    calls: Vec<Place>,
}

fn functions(file: &File<'_>) -> Result<BTreeMap<Place, Function>> {
    let mut functions = BTreeMap::new();
    for section in file.sections().filter(|section| section.kind() == SectionKind::Text) {
        let in_section = |symbol: &object::Symbol<'_, '_>| {
            symbol.section_index() == Some(section.index()) && symbol.kind() == SymbolKind::Text
        };
        let named = file
            .symbols()
            .filter(in_section)
            .filter_map(|symbol| Some((symbol.address(), symbol.name().ok()?)));
        let named: BTreeMap<u64, &str> = named.filter(|(_, name)| !name.starts_with("LBB")).collect();
        let data = section.data().context("a section of code can't be read")?;
        let relocated = relocated_calls(file, &section);
        let ends = named.keys().skip(1).copied().chain([data.len() as u64]);
        for ((start, name), end) in named.iter().zip(ends) {
            let code = data
                .get(usize::try_from(*start)?..usize::try_from(end)?)
                .context("a function leaves its section")?;
            let name = format!("{:#}", demangle(name)).replace("millrace_bpf::", "");
            let function = read(name, code, (section.index().0, *start), &relocated);
            functions.insert((section.index().0, *start), function);
        }
    }
    Ok(functions)
}

/// The callee of a call that the linker left to the loader.
#[derive(Clone, Copy)]
enum Callee {
    /// This function.
    Function(Place),
    /// A function of this section; the call has its place.
    In(usize),
}

/// Returns the callees that the linker left to the loader, by the offset of the call.
fn relocated_calls(file: &File<'_>, section: &object::Section<'_, '_>) -> BTreeMap<u64, Callee> {
    let callee = |relocation: &object::Relocation| {
        let RelocationTarget::Symbol(index) = relocation.target() else { return None };
        let symbol = file.symbol_by_index(index).ok()?;
        let section = symbol.section_index()?.0;
        let is_section = symbol.kind() == SymbolKind::Section;
        Some(if is_section { Callee::In(section) } else { Callee::Function((section, symbol.address())) })
    };
    section.relocations().filter_map(|(offset, relocation)| Some((offset, callee(&relocation)?))).collect()
}

/// Reads the calls of a function, and how far below the frame pointer it reaches.
fn read(name: String, code: &[u8], (section, start): Place, relocated: &BTreeMap<u64, Callee>) -> Function {
    let mut function = Function { name, stack: 0, calls: Vec::new() };
    // Registers that are copies of the frame pointer.
    let mut copies = [false; 16];
    for (index, instruction) in code.as_chunks::<INSTRUCTION>().0.iter().enumerate() {
        let [operation, registers, o0, o1, i0, i1, i2, i3] = *instruction;
        let (destination, source) = (registers & 0xf, registers >> 4);
        let offset = i32::from(i16::from_le_bytes([o0, o1]));
        let immediate = i32::from_le_bytes([i0, i1, i2, i3]);
        let at = start + (index * INSTRUCTION) as u64;
        let mut reaches =
            |below: i32| function.stack = function.stack.max(u32::try_from(-below).unwrap_or(0));
        match operation {
            CALL if source == OWN => {
                let behind = (i64::from(immediate) + 1) * INSTRUCTION as i64;
                function.calls.push(match relocated.get(&at) {
                    Some(Callee::Function(place)) => *place,
                    Some(Callee::In(section)) => (*section, behind.cast_unsigned()),
                    None => (section, at.wrapping_add_signed(behind)),
                });
            }
            MOVE => set(&mut copies, destination, source == R10),
            ADD if get(&copies, destination) => {
                reaches(immediate);
                set(&mut copies, destination, false);
            }
            // Stores, then loads.
            _ if matches!(operation & 7, 2 | 3) && destination == R10 => reaches(offset),
            _ if operation & 7 == 1 => {
                if source == R10 {
                    reaches(offset);
                }
                set(&mut copies, destination, false);
            }
            _ if matches!(operation & 7, 4 | 7) || operation == LOAD_WIDE => {
                set(&mut copies, destination, false);
            }
            _ => {}
        }
    }
    function
}

fn get(copies: &[bool], register: u8) -> bool {
    copies.get(usize::from(register)).copied().unwrap_or(false)
}

fn set(copies: &mut [bool], register: u8, value: bool) {
    if let Some(copy) = copies.get_mut(usize::from(register)) {
        *copy = value;
    }
}

fn deepest(
    place: Place,
    functions: &BTreeMap<Place, Function>,
    known: &mut BTreeMap<Place, Chain>,
) -> Result<Chain> {
    if let Some(chain) = known.get(&place) {
        return Ok(chain.clone());
    }
    let function = functions
        .get(&place)
        .with_context(|| format!("a call leads to {place:?}, where no function begins"))?;
    let mut below = Chain::default();
    for call in &function.calls {
        let chain = deepest(*call, functions, known)?;
        if chain.bytes > below.bytes {
            below = chain;
        }
    }
    let own = function.stack.max(1).next_multiple_of(STEP);
    let frames = [(function.name.clone(), function.stack)].into_iter().chain(below.frames).collect();
    let chain = Chain { bytes: own + below.bytes, frames };
    known.insert(place, chain.clone());
    Ok(chain)
}

#[cfg(test)]
mod tests {
    use object::elf::R_BPF_64_32;
    use object::write::{Object, Relocation, SectionId, Symbol, SymbolId, SymbolSection};
    use object::{Architecture, BinaryFormat, Endianness, RelocationFlags, SymbolFlags, SymbolScope};

    use super::*;

    const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];
    const CALL_PLACEHOLDER: [u8; 8] = [CALL, OWN << 4, 0, 0, 0xff, 0xff, 0xff, 0xff];

    /// `*(u64 *)(r10 - below) = r1`.
    fn store(below: i16) -> [u8; 8] {
        let [low, high] = (-below).to_le_bytes();
        [0x7b, 0x1a, low, high, 0, 0, 0, 0]
    }

    /// `r2 = r10; r2 += -below`.
    fn address(below: i32) -> [[u8; 8]; 2] {
        let [i0, i1, i2, i3] = (-below).to_le_bytes();
        [[MOVE, R10 << 4 | 2, 0, 0, 0, 0, 0, 0], [ADD, 2, 0, 0, i0, i1, i2, i3]]
    }

    fn add(object: &mut Object<'_>, section: SectionId, name: &str, code: &[[u8; 8]]) -> SymbolId {
        let code = code.concat();
        let value = object.append_section_data(section, &code, 8);
        object.add_symbol(Symbol {
            name: name.into(),
            value,
            size: code.len() as u64,
            kind: SymbolKind::Text,
            scope: SymbolScope::Linkage,
            weak: false,
            section: SymbolSection::Section(section),
            flags: SymbolFlags::None,
        })
    }

    #[test]
    fn the_deepest_chain_is_that_with_the_largest_frames() {
        let mut object = Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little);
        let section = object.add_section(Vec::new(), b"tc".to_vec(), SectionKind::Text);
        let text = object.add_section(Vec::new(), b".text".to_vec(), SectionKind::Text);
        // `tc_ingress` calls `shallow` by its symbol. `shallow` calls `deep` by its place in the
        // section.
        let program = [store(4), CALL_PLACEHOLDER, EXIT];
        add(&mut object, section, "tc_ingress", &program);
        let [copy, move_down] = address(200);
        // The call is the second of three instructions of `shallow`. It leads to the first one
        // behind them.
        let call_behind = [CALL, OWN << 4, 0, 0, 1, 0, 0, 0];
        let shallow = add(&mut object, text, "shallow", &[store(40), call_behind, EXIT]);
        add(&mut object, text, "deep", &[copy, move_down, EXIT]);
        let flags = RelocationFlags::Elf { r_type: R_BPF_64_32 };
        object.add_relocation(section, Relocation { offset: 8, symbol: shallow, addend: 0, flags }).unwrap();

        let chains = deepest_chains(&object.write().unwrap()).unwrap();
        let frames = [("tc_ingress", 4), ("shallow", 40), ("deep", 200)];
        let frames = frames.map(|(name, stack)| (name.to_owned(), stack)).to_vec();
        assert_eq!(chains, [("tc_ingress".to_owned(), Chain { bytes: 32 + 64 + 224, frames })].into());
    }

    #[test]
    fn a_call_that_leads_nowhere_is_an_error() {
        let mut object = Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little);
        let section = object.add_section(Vec::new(), b"tc".to_vec(), SectionKind::Text);
        let call_itself_within = [CALL, OWN << 4, 0, 0, 0, 0, 0, 0];
        add(&mut object, section, "tc_ingress", &[store(4), call_itself_within, EXIT]);
        let error = deepest_chains(&object.write().unwrap()).unwrap_err().to_string();
        assert!(error.contains("no function begins"), "{error}");
    }
}
