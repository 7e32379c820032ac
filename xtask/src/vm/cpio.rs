//! The archive that a kernel unpacks as its initial root: cpio's "newc" format (Linux,
//! driver-api/early-userspace/buffer-format).

use std::collections::BTreeSet;

const DIRECTORY: u32 = 0o040_755;
const EXECUTABLE: u32 = 0o100_755;
const TRAILER: &str = "TRAILER!!!";

/// An archive that grows.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    directories: BTreeSet<String>,
    inode: u32,
}

impl Archive {
    /// Adds an executable file and the directories above it. `path` is absolute.
    pub fn add_file(&mut self, path: &str, content: &[u8]) {
        let path = path.trim_start_matches('/');
        for (end, _) in path.match_indices('/') {
            self.add_directory(path.split_at(end).0);
        }
        self.append(path, EXECUTABLE, content);
    }

    /// Adds a directory unless it is there. The directories above it must be there.
    pub fn add_directory(&mut self, path: &str) {
        let path = path.trim_start_matches('/');
        if self.directories.insert(path.to_owned()) {
            self.append(path, DIRECTORY, &[]);
        }
    }

    /// Returns the complete archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.append(TRAILER, 0, &[]);
        self.bytes
    }

    fn append(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.inode += 1;
        let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        // inode, mode, uid, gid, links, mtime, size, device and its own device (major and minor
        // each), name, checksum
        let fields =
            [self.inode, mode, 0, 0, 1, 0, length(content.len()), 0, 0, 0, 0, length(name.len() + 1), 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive() -> Vec<u8> {
        let mut archive = Archive::default();
        archive.add_file("/init", b"first");
        archive.add_file("/lib/deep/one.so", b"library");
        archive.add_file("/lib/deep/two.so", b"");
        archive.finish()
    }

    #[test]
    fn a_header_is_magic_and_thirteen_fields_and_all_is_aligned() {
        let bytes = archive();
        assert_eq!(&bytes[..14], b"07070100000001");
        assert_eq!(&bytes[14..22], b"000081ed");
        assert_eq!(&bytes[54..62], b"00000005");
        assert_eq!(&bytes[110..116], b"init\0\0");
        assert_eq!(&bytes[116..124], b"first\0\0\0");
        assert_eq!(bytes.len() % 4, 0);
    }

    #[test]
    fn each_directory_occurs_once_and_before_its_files() {
        let names: Vec<_> = entries(&archive()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["init", "lib", "lib/deep", "lib/deep/one.so", "lib/deep/two.so", TRAILER]);
    }

    #[test]
    fn a_file_keeps_its_content() {
        assert!(entries(&archive()).contains(&("lib/deep/one.so".to_owned(), b"library".to_vec())));
    }

    fn entries(mut bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
        let mut entries = Vec::new();
        while !bytes.is_empty() {
            let field = |index: usize| {
                let digits = std::str::from_utf8(&bytes[6 + 8 * index..14 + 8 * index]).unwrap();
                usize::from_str_radix(digits, 16).unwrap()
            };
            let (size, name_size) = (field(6), field(11));
            let start = (110 + name_size).next_multiple_of(4);
            let name = String::from_utf8(bytes[110..110 + name_size - 1].to_vec()).unwrap();
            entries.push((name, bytes[start..start + size].to_vec()));
            bytes = &bytes[(start + size).next_multiple_of(4)..];
        }
        entries
    }
}
