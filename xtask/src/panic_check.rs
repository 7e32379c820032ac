//! Finds panic paths in the BPF object. Such an object compiles and links, but the kernel refuses it, and its message
//! ("last insn is not an exit or jmp") does not say why.

use anyhow::{Context, Result};
use object::{Object, ObjectSection, ObjectSymbol};

/// Names of symbols and sections that are there only if some code can panic; empty if none can.
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

/// Both manglings of `core::panicking` and of core's `*_fail` and `panic_*` functions write the module with its length.
fn is_panic_symbol(name: &str) -> bool {
    ["9panicking", "core::panicking", "panic_bounds_check", "panic_const", "rust_begin_unwind"]
        .iter()
        .any(|trace| name.contains(trace))
}

#[cfg(test)]
mod tests {
    use object::write::{Object, Symbol, SymbolSection};
    use object::{Architecture, BinaryFormat, Endianness, SectionKind, SymbolFlags, SymbolKind, SymbolScope};

    use super::*;

    fn elf(section: &str, symbol: &str) -> Vec<u8> {
        let mut object = Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little);
        let section = object.add_section(Vec::new(), section.into(), SectionKind::Text);
        object.append_section_data(section, &[0; 16], 8);
        object.add_symbol(Symbol {
            name: symbol.into(),
            value: 0,
            size: 16,
            kind: SymbolKind::Text,
            scope: SymbolScope::Linkage,
            weak: false,
            section: SymbolSection::Section(section),
            flags: SymbolFlags::None,
        });
        object.write().unwrap()
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
    fn what_is_no_elf_file_is_refused() {
        assert!(panic_traces(b"not an object").unwrap_err().to_string().contains("no ELF file"));
    }
}
