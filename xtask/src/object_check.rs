//! Finds code in the BPF object that compiles and links, but should not be there.
//!
//! - **Panic paths.** The kernel refuses such an object, and its message ("last insn is not an exit
//!   or jmp") does not say why.
//! - **Copies byte by byte.** The verifier walks them again and again, and each packet pays for
//!   them.

use anyhow::{Context, Result};
use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget};

/// Returns the names of symbols and sections that only code with a panic has.
pub fn panic_traces(elf: &[u8]) -> Result<Vec<String>> {
    let file = object::File::parse(elf).context("the BPF object is no ELF file")?;
    let symbols = file.symbols().filter_map(|symbol| symbol.name().ok()).filter(|name| is_panic_symbol(name));
    let sections = file.sections().filter_map(|section| section.name().ok().map(str::to_owned));
    let cold = sections.filter(|name| name.starts_with(".text.unlikely"));
    let mut traces: Vec<_> = symbols.map(str::to_owned).chain(cold).collect();
    traces.sort_unstable();
    traces.dedup();
    Ok(traces)
}

/// Returns the names of the byte loops that some code calls. It is empty if every copy is done in
/// place.
///
/// The symbols are in every object. Only relocations show that code calls them.
pub fn byte_loops(elf: &[u8]) -> Result<Vec<&str>> {
    let file = object::File::parse(elf).context("the BPF object is no ELF file")?;
    let mut names = Vec::new();
    for (_, relocation) in file.sections().flat_map(|section| section.relocations()) {
        if let RelocationTarget::Symbol(index) = relocation.target() {
            names.push(file.symbol_by_index(index)?.name()?);
        }
    }
    names.retain(|name| ["memcpy", "memmove", "memset"].contains(name));
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// Returns whether a symbol belongs to a panic. Both manglings write the module `core::panicking`
/// with its length, and so the functions `*_fail` and `panic_*` of core.
fn is_panic_symbol(name: &str) -> bool {
    ["9panicking", "core::panicking", "panic_bounds_check", "panic_const", "rust_begin_unwind"]
        .iter()
        .any(|trace| name.contains(trace))
}

#[cfg(test)]
mod tests {
    use object::elf::R_BPF_64_32;
    use object::write::{Object, Relocation, SectionId, Symbol, SymbolId, SymbolSection};
    use object::{
        Architecture, BinaryFormat, Endianness, RelocationFlags, SectionKind, SymbolFlags, SymbolKind,
        SymbolScope,
    };

    use super::*;

    fn elf(section: &str, symbol: &str) -> Vec<u8> {
        object_with(section, symbol).0.write().unwrap()
    }

    fn object_with(section: &str, symbol: &str) -> (Object<'static>, SectionId, SymbolId) {
        let mut object = Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little);
        let section = object.add_section(Vec::new(), section.into(), SectionKind::Text);
        object.append_section_data(section, &[0; 16], 8);
        let symbol = object.add_symbol(Symbol {
            name: symbol.into(),
            value: 0,
            size: 16,
            kind: SymbolKind::Text,
            scope: SymbolScope::Linkage,
            weak: false,
            section: SymbolSection::Section(section),
            flags: SymbolFlags::None,
        });
        (object, section, symbol)
    }

    #[test]
    fn an_object_without_panics_leaves_no_trace() {
        assert!(panic_traces(&elf("xdp.frags", "xdp_ingress")).unwrap().is_empty());
    }

    #[test]
    fn a_bounds_check_is_found_in_either_mangling() {
        let v0 = "_RNvNtCs5QSdWC790r4_4core9panicking18panic_bounds_check";
        let legacy = "_ZN4core9panicking5panic17h0123456789abcdefE";
        assert_eq!(panic_traces(&elf(".text", v0)).unwrap(), [v0]);
        assert_eq!(panic_traces(&elf(".text", legacy)).unwrap(), [legacy]);
    }

    #[test]
    fn a_cold_section_is_found() {
        assert_eq!(panic_traces(&elf(".text.unlikely.", "slow")).unwrap(), [".text.unlikely."]);
    }

    #[test]
    fn only_a_byte_loop_that_code_calls_is_found() {
        let (mut object, section, symbol) = object_with(".text", "memset");
        assert!(byte_loops(&object.write().unwrap()).unwrap().is_empty());
        let flags = RelocationFlags::Elf { r_type: R_BPF_64_32 };
        object.add_relocation(section, Relocation { offset: 0, symbol, addend: 0, flags }).unwrap();
        assert_eq!(byte_loops(&object.write().unwrap()).unwrap(), ["memset"]);
    }

    #[test]
    fn bytes_that_are_no_elf_file_are_refused() {
        assert!(panic_traces(b"not an object").unwrap_err().to_string().contains("no ELF file"));
    }
}
