//! The file system of an image, packed into one layer.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use flate2::{Compression, GzBuilder};
use tar::{EntryType, Header};

use super::blob::{self, Blob};

/// Every container runtime takes it. Older ones do not take zstd.
const MEDIA_TYPE: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// A file of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum File {
    /// A program or a shared library: everyone may run it.
    Program(Vec<u8>),
    /// Data: everyone may read it.
    Data(Vec<u8>),
    /// A symbolic link, with its target.
    Link(String),
}

impl File {
    /// Reads a program of this machine.
    pub fn program(path: &Path) -> Result<Self> {
        std::fs::read(path).map(Self::Program).with_context(|| format!("can't read {}", path.display()))
    }
}

/// A packed layer.
#[derive(Debug)]
pub struct Layer {
    /// The compressed archive.
    pub blob: Blob,
    /// The digest of the archive before compression, by which an image's configuration names the layer.
    pub diff_id: String,
}

impl Layer {
    /// Packs files, which are named by their path without a leading slash.
    ///
    /// The same files give the same bytes: paths are sorted, directories come before their content,
    /// and all belong to user 0 and have time 0.
    pub fn pack(files: &BTreeMap<String, File>) -> Result<Self> {
        let mut archive = Archive::default();
        for path in files.keys() {
            archive.add_parents(path)?;
            let Some(file) = files.get(path) else { continue };
            archive.add(path, file)?;
        }
        let archive = archive.finish()?;
        let diff_id = blob::digest(&archive);
        // Time 0, no name and no operating system: none of them may change the digest.
        let mut gzip = GzBuilder::new().write(Vec::new(), Compression::best());
        gzip.write_all(&archive)?;
        Ok(Self { blob: Blob::new(MEDIA_TYPE, gzip.finish()?), diff_id })
    }
}

/// A tar archive whose headers have only what does not depend on the machine.
pub struct Archive {
    tar: tar::Builder<Vec<u8>>,
    directories: Vec<String>,
}

impl Default for Archive {
    fn default() -> Self {
        Self { tar: tar::Builder::new(Vec::new()), directories: Vec::new() }
    }
}

impl Archive {
    /// Adds the directories above a path, unless they are there.
    pub fn add_parents(&mut self, path: &str) -> Result<()> {
        if path.starts_with('/') || path.split('/').any(|part| matches!(part, "" | "." | "..")) {
            bail!("{path:?} can't be packed: a path in an image has no leading slash, no `.` and no `..`");
        }
        for (end, _) in path.match_indices('/') {
            let directory = format!("{}/", &path[..end]);
            if !self.directories.contains(&directory) {
                self.append(EntryType::Directory, 0o755, &directory, &[])?;
                self.directories.push(directory);
            }
        }
        Ok(())
    }

    /// Adds a file.
    pub fn add(&mut self, path: &str, file: &File) -> Result<()> {
        match file {
            File::Program(bytes) => self.append(EntryType::Regular, 0o755, path, bytes),
            File::Data(bytes) => self.append(EntryType::Regular, 0o644, path, bytes),
            File::Link(target) => {
                let mut header = header(EntryType::Symlink, 0o777, 0);
                let added = self.tar.append_link(&mut header, path, target);
                added.with_context(|| format!("can't pack {path}"))
            }
        }
    }

    /// Returns the archive.
    pub fn finish(self) -> Result<Vec<u8>> {
        Ok(self.tar.into_inner()?)
    }

    fn append(&mut self, kind: EntryType, mode: u32, path: &str, bytes: &[u8]) -> Result<()> {
        let mut header = header(kind, mode, bytes.len() as u64);
        let added = self.tar.append_data(&mut header, path, bytes);
        added.with_context(|| format!("can't pack {path}"))
    }
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn files(order: [&str; 3]) -> BTreeMap<String, File> {
        let file = |path: &str| match path {
            "usr/sbin/nft" => File::Program(b"program".to_vec()),
            "lib/libc.so" => File::Link("libc.so.6".to_owned()),
            _ => File::Data(b"licence".to_vec()),
        };
        order.map(|path| (path.to_owned(), file(path))).into_iter().collect()
    }

    const ORDER: [&str; 3] = ["usr/sbin/nft", "lib/libc.so", "usr/share/copyright"];
    const OTHER_ORDER: [&str; 3] = ["usr/share/copyright", "usr/sbin/nft", "lib/libc.so"];

    #[test]
    fn the_same_files_give_the_same_layer() {
        let first = Layer::pack(&files(ORDER)).unwrap();
        let second = Layer::pack(&files(OTHER_ORDER)).unwrap();
        assert_eq!(first.blob.digest, second.blob.digest);
        assert_eq!(first.blob.bytes, second.blob.bytes);
        let mut others = files(ORDER);
        others.insert("usr/share/copyright".to_owned(), File::Data(b"another".to_vec()));
        assert_ne!(Layer::pack(&others).unwrap().diff_id, first.diff_id);
    }

    #[test]
    fn a_layer_has_the_files_their_directories_and_nothing_of_the_machine() {
        let layer = Layer::pack(&files(ORDER)).unwrap();
        let mut archive = Vec::new();
        flate2::read::GzDecoder::new(layer.blob.bytes.as_slice()).read_to_end(&mut archive).unwrap();
        assert_eq!(layer.diff_id, blob::digest(&archive));
        // RFC 1952, section 2.3: the flags say that there is no name, then come four bytes of a time.
        assert_eq!(
            layer.blob.bytes.get(3..8),
            Some([0; 5].as_slice()),
            "the compression has no name and no time"
        );
        let mut found = Vec::new();
        for entry in tar::Archive::new(archive.as_slice()).entries().unwrap() {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!(
                (header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap()),
                (0, 0, 0),
                "of the superuser, at time 0"
            );
            assert_eq!(header.username().unwrap(), Some(""));
            found.push(format!("{:o} {}", header.mode().unwrap(), entry.path().unwrap().display()));
        }
        let expected = [
            "755 lib/",
            "777 lib/libc.so",
            "755 usr/",
            "755 usr/sbin/",
            "755 usr/sbin/nft",
            "755 usr/share/",
            "644 usr/share/copyright",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_path_that_leaves_the_image_is_refused() {
        for path in ["/etc/passwd", "../passwd", "usr/../passwd", "usr//passwd"] {
            let files = BTreeMap::from([(path.to_owned(), File::Data(Vec::new()))]);
            let error = Layer::pack(&files).unwrap_err().to_string();
            assert!(error.contains("can't be packed"), "{error}");
        }
    }
}
