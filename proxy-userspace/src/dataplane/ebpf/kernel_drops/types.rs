//! The kernel's description of its own types (BTF): offsets of fields, and names of numbers.
//!
//! The format is that of Documentation/bpf/btf.rst. aya reads it, too, but hands neither out.

use std::ops::Range;

/// The file of the running kernel.
pub const PATH: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xeb9f;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
/// The bit in a type's information that says that offsets hold the size of a bit field, too.
const HAS_BIT_FIELDS: u32 = 1 << 31;
/// Nameless members in each other, and names for a type behind each other. The kernel has fewer.
const DEEPEST: u32 = 32;

/// All types of the kernel.
#[derive(Debug)]
pub struct KernelTypes {
    bytes: Vec<u8>,
    /// Each type's place in `bytes`. The index is its number less one: type 0 is `void`.
    types: Vec<usize>,
    strings: Range<usize>,
}

/// A member of a struct: its place in bits, and the number of its type.
type Member = (u32, u32);

impl KernelTypes {
    /// Reads a description, in this machine's byte order; `None` if it is none.
    pub fn parse(bytes: Vec<u8>) -> Option<Self> {
        let mut found = Self { bytes, types: Vec::new(), strings: 0..0 };
        let start = found.half(0)?;
        if start != MAGIC {
            return None;
        }
        let header = size(found.word(4)?);
        let place = |at: usize| Some(header + size(found.word(at)?));
        let (types, strings) = (place(8)?, place(16)?);
        let types = types..types + size(found.word(12)?);
        let strings = strings..strings + size(found.word(20)?);
        if types.end > found.bytes.len() || strings.end > found.bytes.len() {
            return None;
        }
        let mut at = types.start;
        while at < types.end {
            found.types.push(at);
            at += 12 + extra_bytes(found.word(at + 4)?)?;
        }
        found.strings = strings;
        Some(found)
    }

    /// Returns the offset in bytes of a field, such as `ns` and then `inum` in `net`; `None` if there is none.
    pub fn offset(&self, structure: &str, path: &[&str]) -> Option<u32> {
        let mut holder = self.named(STRUCT, structure)?;
        let mut bits = 0;
        for field in path {
            let (within, of) = self.member(holder, field, DEEPEST)?;
            bits += within;
            holder = self.resolve(of)?;
        }
        Some(bits / 8)
    }

    /// Returns the numbers and names of an `enum`; none if there is no such one.
    pub fn numbers(&self, name: &str) -> Vec<(u32, String)> {
        let Some(at) = self.named(ENUM, name) else { return Vec::new() };
        let entry = |index: usize| {
            let entry = at + 12 + index * 8;
            Some((self.word(entry + 4)?, self.string(self.word(entry)?)?.to_owned()))
        };
        (0..self.count(at)).filter_map(entry).collect()
    }

    /// Finds a member by its name, also within members without a name.
    fn member(&self, holder: usize, name: &str, depth: u32) -> Option<Member> {
        let depth = depth.checked_sub(1)?;
        let information = self.word(holder + 4)?;
        (0..self.count(holder)).find_map(|index| {
            let entry = holder + 12 + index * 12;
            let (of, place) = (self.word(entry + 4)?, self.word(entry + 8)?);
            let bits = if information & HAS_BIT_FIELDS == 0 { place } else { place & 0x00ff_ffff };
            match self.string(self.word(entry)?)? {
                "" => self.member(self.resolve(of)?, name, depth).map(|(within, of)| (bits + within, of)),
                own if own == name => Some((bits, of)),
                _ => None,
            }
        })
    }

    /// Returns the place of a type behind its other names and qualifiers.
    fn resolve(&self, number: u32) -> Option<usize> {
        let mut number = number;
        for _ in 0..DEEPEST {
            let at = *self.types.get(size(number).checked_sub(1)?)?;
            match kind(self.word(at + 4)?) {
                // Typedef, volatile, const, restrict and type tag.
                8..=11 | 18 => number = self.word(at + 8)?,
                _ => return Some(at),
            }
        }
        None
    }

    fn named(&self, wanted: u32, name: &str) -> Option<usize> {
        self.types.iter().copied().find(|at| {
            let is_wanted = self.word(at + 4).is_some_and(|information| kind(information) == wanted);
            is_wanted && self.word(*at).and_then(|offset| self.string(offset)) == Some(name)
        })
    }

    /// The number of members of the type at a place; 0 for one that has none.
    fn count(&self, at: usize) -> usize {
        let information = self.word(at + 4).unwrap_or(0);
        if matches!(kind(information), STRUCT | UNION | ENUM) { size(information & 0xffff) } else { 0 }
    }

    fn string(&self, offset: u32) -> Option<&str> {
        let rest = self.bytes.get(self.strings.start + size(offset)..self.strings.end)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        str::from_utf8(rest.get(..end)?).ok()
    }

    fn word(&self, at: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(*self.bytes.get(at..)?.first_chunk()?))
    }

    fn half(&self, at: usize) -> Option<u16> {
        Some(u16::from_ne_bytes(*self.bytes.get(at..)?.first_chunk()?))
    }
}

const fn kind(information: u32) -> u32 {
    information >> 24 & 0x1f
}

const fn size(word: u32) -> usize {
    word as usize
}

/// Returns the bytes behind the first twelve of a type; `None` for a kind that is not known.
const fn extra_bytes(information: u32) -> Option<usize> {
    let count = size(information & 0xffff);
    Some(match kind(information) {
        // Integer, variable and declaration tag.
        1 | 14 | 17 => 4,
        // Pointer, forward declaration, other names and qualifiers, function, floating point and type tag.
        2 | 7..=12 | 16 | 18 => 0,
        // Array.
        3 => 12,
        // Function prototype, and enum.
        ENUM | 13 => count * 8,
        // Struct, union, section and enum of 64 bits.
        STRUCT | UNION | 15 | 19 => count * 12,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types that are being written.
    #[derive(Default)]
    struct Written {
        types: Vec<u32>,
        strings: Vec<u8>,
    }

    impl Written {
        fn name(&mut self, name: &str) -> u32 {
            let at = u32::try_from(self.strings.len()).unwrap();
            self.strings.extend(name.bytes());
            self.strings.push(0);
            at
        }

        fn add(&mut self, name: &str, information: u32, size: u32, rest: &[u32]) {
            let name = self.name(name);
            self.types.extend([name, information, size]);
            self.types.extend(rest);
        }

        fn bytes(self) -> Vec<u8> {
            let (types, strings) = (u32::try_from(self.types.len() * 4).unwrap(), self.strings.len());
            let header = [24, 0, types, types, u32::try_from(strings).unwrap()];
            let mut bytes = Vec::from(MAGIC.to_ne_bytes());
            bytes.extend([1, 0]);
            bytes.extend(header.iter().chain(&self.types).flat_map(|word| word.to_ne_bytes()));
            bytes.extend(self.strings);
            bytes
        }
    }

    #[test]
    fn fields_are_found_behind_nameless_members_other_names_and_qualifiers() {
        let mut written = Written::default();
        written.name("");
        let [a, b, c] = ["a", "b", "c"].map(|name| written.name(name));
        written.add("number", 1 << 24, 4, &[32]);
        // 2: struct inner { number a; number b; }
        written.add("inner", STRUCT << 24 | 2, 8, &[a, 1, 0, b, 1, 32]);
        // 3: const inner, 4: typedef of it.
        written.add("", 10 << 24, 2, &[]);
        written.add("inner_t", 8 << 24, 3, &[]);
        // 5: union { number a; inner_t c; }
        written.add("", UNION << 24 | 2, 8, &[a, 1, 0, c, 4, 0]);
        // 6: struct outer { number b : 4 at bit 3; union; }
        written.add("outer", HAS_BIT_FIELDS | STRUCT << 24 | 2, 16, &[b, 1, 4 << 24 | 3, 0, 5, 64]);
        let [one, two] = ["SKB_ONE", "SKB_TWO"].map(|name| written.name(name));
        written.add("reason", ENUM << 24 | 2, 4, &[one, 1, two, 0x2_0000]);
        let types = KernelTypes::parse(written.bytes()).unwrap();

        assert_eq!(types.offset("inner", &["b"]), Some(4));
        assert_eq!(types.offset("outer", &["a"]), Some(8));
        assert_eq!(types.offset("outer", &["b"]), Some(0));
        assert_eq!(types.offset("outer", &["c", "b"]), Some(12));
        assert_eq!(types.offset("outer", &["d"]), None);
        assert_eq!(types.offset("number", &["a"]), None, "it is no struct");
        let numbers = [(1, "SKB_ONE".to_owned()), (0x2_0000, "SKB_TWO".to_owned())];
        assert_eq!(types.numbers("reason"), numbers);
        assert_eq!(types.numbers("other"), []);
    }

    #[test]
    fn a_description_that_is_cut_off_or_none_is_refused_or_gives_nothing() {
        let mut written = Written::default();
        let name = written.name("");
        written.add("inner", STRUCT << 24 | 1, 8, &[name, 1, 0]);
        let bytes = written.bytes();
        for length in 0..bytes.len() {
            assert!(KernelTypes::parse(bytes[..length].to_vec()).is_none(), "{length} bytes");
        }
        let mut other = bytes.clone();
        other[0] ^= 1;
        assert!(KernelTypes::parse(other).is_none());
        // The nameless member is of its own struct.
        assert_eq!(KernelTypes::parse(bytes).unwrap().offset("inner", &["a"]), None);
    }
}
