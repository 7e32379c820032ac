//! The part of BTF that names places in the code: the functions.

use anyhow::{Context, Result, bail};

/// The section with types and strings.
pub const BTF: &str = ".BTF";
/// The section with functions.
pub const BTF_EXT: &str = ".BTF.ext";

/// Offsets in the headers (`struct btf_header`, and `struct btf_ext_header` of libbpf).
const HEADER_LENGTH: usize = 4;
const FUNCTIONS: usize = 8;
const STRINGS: usize = 16;

/// The strings of BTF.
pub struct Strings(Vec<u8>);

impl Strings {
    /// Reads them from the section `.BTF`.
    pub fn read(btf: &[u8]) -> Result<Self> {
        let start = word(btf, HEADER_LENGTH)? + word(btf, STRINGS)?;
        Ok(Self(btf.get(start..).context(".BTF has no strings")?.to_vec()))
    }

    fn at(&self, offset: usize) -> Result<&str> {
        let bytes = self.0.get(offset..).context("a string is behind .BTF")?;
        let end = bytes.iter().position(|byte| *byte == 0).context("a string has no end")?;
        Ok(std::str::from_utf8(bytes.get(..end).unwrap_or_default())?)
    }
}

/// A record of `.BTF.ext`: the name of its section, and its place in `.BTF.ext`.
struct Record<'a> {
    section: &'a str,
    at: usize,
}

/// Gives each function its new place: `place` has that of an instruction of a section.
pub fn move_functions(
    descriptions: &mut [u8],
    strings: &Strings,
    place: impl Fn(&str, usize) -> Option<usize>,
) -> Result<()> {
    for Record { section, at } in records(descriptions, strings)? {
        let old = word(descriptions, at)? / 8;
        let new = place(section, old).with_context(|| format!("a function of {section} has no code"))?;
        let field = descriptions.get_mut(at..at + 4).context(".BTF.ext is too short")?;
        field.copy_from_slice(&u32::try_from(new * 8)?.to_le_bytes());
    }
    Ok(())
}

/// Returns the records of the functions.
fn records<'a>(descriptions: &[u8], strings: &'a Strings) -> Result<Vec<Record<'a>>> {
    let mut at = word(descriptions, HEADER_LENGTH)? + word(descriptions, FUNCTIONS)?;
    let end = at + word(descriptions, FUNCTIONS + 4)?;
    let mut found = Vec::new();
    if at == end {
        return Ok(found);
    }
    let size = word(descriptions, at)?;
    at += 4;
    while at < end {
        let (section, count) = (strings.at(word(descriptions, at)?)?, word(descriptions, at + 4)?);
        at += 8;
        found.extend((0..count).map(|number| Record { section, at: at + number * size }));
        at += count * size;
    }
    if at != end || size < 8 {
        bail!(".BTF.ext has an unknown form");
    }
    Ok(found)
}

fn word(bytes: &[u8], at: usize) -> Result<usize> {
    let bytes = bytes.get(at..at + 4).context("BTF is too short")?;
    Ok(u32::from_le_bytes(bytes.try_into()?) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Strings "" and "tc".
    fn strings() -> Strings {
        let header = [0x0001_eb9f, 24, 0, 0, 0, 4];
        let bytes = header.into_iter().flat_map(u32::to_le_bytes).chain(*b"\0tc\0");
        Strings::read(&bytes.collect::<Vec<u8>>()).unwrap()
    }

    /// A function at instruction 2 of "tc".
    fn descriptions() -> Vec<u8> {
        let header = [0x0001_eb9f, 32, 0, 20, 20, 0, 20, 0];
        let functions = [8, 1, 1, 16, 7];
        header.into_iter().chain(functions).flat_map(u32::to_le_bytes).collect()
    }

    #[test]
    fn a_function_moves_with_its_code() {
        let mut moved = descriptions();
        let place = |section: &str, at: usize| (section == "tc").then_some(at + 100);
        move_functions(&mut moved, &strings(), place).unwrap();
        let mut expected = descriptions();
        expected[44..48].copy_from_slice(&816_u32.to_le_bytes());
        assert_eq!(moved, expected);
        assert!(move_functions(&mut moved, &strings(), |_, _| None).is_err());
        assert!(move_functions(&mut moved[..44], &strings(), place).is_err());
    }
}
