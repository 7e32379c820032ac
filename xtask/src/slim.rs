//! Removes from the BPF object what only people read: debug information, and the source line of
//! each instruction (decision 103).
//!
//! Agents carry the object. Their loader copies all its lines once for each function: some 300 MB,
//! which stay with the process. The verifier's messages then have no source lines. Load the linked
//! object to see them.

use anyhow::{Context, Result, ensure};
use object::build::elf::{Builder, SectionData};
use object::elf::SHT_STRTAB;

/// The section with the descriptions of functions, which the verifier wants, and of lines behind
/// them.
const BTF_EXT: &str = ".BTF.ext";
/// Offsets in that section's header (`struct btf_ext_header` of libbpf). Each field has four bytes.
const HEADER_LENGTH: usize = 4;
const FUNCTIONS_OFFSET: usize = 8;
const FUNCTIONS_LENGTH: usize = 12;
const LINES_OFFSET: usize = 16;
const LINES_LENGTH: usize = 20;
const CORE_OFFSET: usize = 24;
const CORE_LENGTH: usize = 28;

/// Returns the object without debug information and lines.
pub fn slim(elf: &[u8]) -> Result<Vec<u8>> {
    let mut object = Builder::read(elf).context("the BPF object is no ELF file")?;
    for section in &mut object.sections {
        let name = section.name.to_string();
        let described = name.strip_prefix(".rel").unwrap_or(&name);
        // Loaders need no relocations for the descriptions of instructions.
        section.delete = described.starts_with(".debug_") || name == format!(".rel{BTF_EXT}");
        if let (BTF_EXT, SectionData::Data(data)) = (name.as_str(), &mut section.data) {
            *data = without_lines(data)?.into();
        }
    }
    // LLVM keeps the names of sections among those of symbols.
    if !object.sections.iter().any(|section| matches!(section.data, SectionData::SectionString)) {
        let names = object.sections.add();
        names.name = b".shstrtab"[..].into();
        names.sh_type = SHT_STRTAB;
        names.data = SectionData::SectionString;
    }
    let mut slimmed = Vec::new();
    object.write(&mut slimmed).context("can't write the BPF object")?;
    Ok(slimmed)
}

fn without_lines(section: &[u8]) -> Result<Vec<u8>> {
    let word = |at: usize| {
        let bytes = section.get(at..at + 4).context(".BTF.ext is too short")?;
        Ok::<_, anyhow::Error>(u32::from_le_bytes(bytes.try_into()?) as usize)
    };
    let functions_end = word(FUNCTIONS_OFFSET)? + word(FUNCTIONS_LENGTH)?;
    ensure!(word(LINES_OFFSET)? >= functions_end, ".BTF.ext has lines before functions");
    ensure!(word(CORE_LENGTH)? == 0, ".BTF.ext has relocations, which slimming would lose");
    let end = word(HEADER_LENGTH)? + functions_end;
    let mut kept = section.get(..end).context(".BTF.ext is too short")?.to_vec();
    for (at, value) in [(LINES_OFFSET, functions_end), (LINES_LENGTH, 0), (CORE_OFFSET, functions_end)] {
        let word = kept.get_mut(at..at + 4).context(".BTF.ext is too short")?;
        word.copy_from_slice(&u32::try_from(value)?.to_le_bytes());
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use object::write::Object;
    use object::{Architecture, BinaryFormat, Endianness, ObjectSection, SectionKind};

    use super::*;

    /// A header of 32 bytes, 8 bytes of functions, 12 of lines.
    fn btf_ext(core_length: u32) -> Vec<u8> {
        let words = [0x0001_eb9f, 32, 0, 8, 8, 12, 20, core_length];
        let header = words.into_iter().flat_map(u32::to_le_bytes);
        header.chain([0xff; 8]).chain([0xee; 12]).collect()
    }

    fn elf(sections: &[(&str, &[u8])]) -> Vec<u8> {
        let mut object = Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little);
        for (name, data) in sections {
            let section = object.add_section(Vec::new(), (*name).into(), SectionKind::Other);
            object.append_section_data(section, data, 8);
        }
        object.write().unwrap()
    }

    #[test]
    fn debug_information_and_lines_are_removed() {
        let code = [7; 16];
        let slimmed = slim(&elf(&[("xdp", &code), (".debug_info", &code), (BTF_EXT, &btf_ext(0))])).unwrap();
        let file = object::File::parse(&*slimmed).unwrap();
        let section = |name: &str| {
            let section = object::Object::section_by_name(&file, name)?;
            Some(section.data().unwrap().to_vec())
        };
        assert_eq!(section("xdp").unwrap(), code);
        assert_eq!(section(".debug_info"), None);
        let mut expected = btf_ext(0);
        expected[LINES_LENGTH] = 0;
        expected[CORE_OFFSET] = 8;
        assert_eq!(section(BTF_EXT).unwrap(), expected[..40]);
    }

    #[test]
    fn a_section_that_slimming_would_break_is_refused() {
        let error = slim(&elf(&[(BTF_EXT, &btf_ext(4))])).unwrap_err();
        assert!(error.to_string().contains("relocations"), "{error:#}");
        let error = slim(&elf(&[(BTF_EXT, &[0; 12])])).unwrap_err();
        assert!(error.to_string().contains("too short"), "{error:#}");
    }
}
