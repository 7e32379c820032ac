//! What a program or a shared library asks of the machine that runs it.

use anyhow::{Context, Result, bail};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Architecture, Endianness, Object, elf};

use super::platform::Arch;

/// The demands of an ELF file.
#[derive(Debug, PartialEq, Eq)]
pub struct Demands {
    /// Its architecture.
    pub arch: Arch,
    /// The dynamic loader, if it has one.
    pub interpreter: Option<String>,
    /// The names of the shared libraries.
    pub needed: Vec<String>,
}

/// Reads the demands of an ELF file.
pub fn read(bytes: &[u8]) -> Result<Demands> {
    let file = ElfFile64::<Endianness>::parse(bytes).context("it is no ELF file of 64 bits")?;
    let arch = match file.architecture() {
        Architecture::X86_64 => Arch::Amd64,
        Architecture::Aarch64 => Arch::Arm64,
        other => bail!("images are built for x86_64 and aarch64, not for {other:?}"),
    };
    let endian = file.endian();
    let mut interpreter = None;
    for segment in file.elf_header().program_headers(endian, bytes)? {
        if let Some(name) = segment.interpreter(endian, bytes)? {
            interpreter = Some(String::from_utf8_lossy(name).into_owned());
        }
    }
    let dynamic = file.elf_dynamic_table()?;
    let mut needed = Vec::new();
    for entry in dynamic.iter().filter(|entry| entry.tag == elf::DT_NEEDED) {
        needed.push(String::from_utf8_lossy(dynamic.string(entry)?).into_owned());
    }
    Ok(Demands { arch, interpreter, needed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_libraries_names_its_loader_and_the_c_library() {
        let program = std::fs::read("/bin/sh").unwrap();
        let found = read(&program).unwrap();
        assert!(found.interpreter.as_deref().is_some_and(|loader| loader.contains("ld-linux")), "{found:?}");
        assert!(found.needed.iter().any(|library| library == "libc.so.6"), "{found:?}");
    }

    #[test]
    fn a_script_has_no_demands() {
        assert_eq!(read(b"#!/bin/sh\n").unwrap_err().to_string(), "it is no ELF file of 64 bits");
    }
}
