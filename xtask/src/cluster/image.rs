//! Container images of single programs, as OCI archives. No Docker and no registry takes part.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::command;
use crate::workspace::Workspace;

/// An image with programs and the libraries that they need.
#[derive(Debug)]
pub struct Image {
    /// The full name, with registry and tag.
    pub name: &'static str,
    /// The files of this machine, and their paths in the image.
    pub programs: Vec<(PathBuf, &'static str)>,
    /// The entry point.
    pub entry_point: &'static [&'static str],
    /// The arguments without others.
    pub command: &'static [&'static str],
}

impl Image {
    /// Packs the image into an archive in a folder, unless that is newer than all its programs.
    pub fn pack(&self, workspace: &Workspace, folder: &Path) -> Result<PathBuf> {
        let short = self.name.rsplit(['/']).next().unwrap_or(self.name).replace(':', "-");
        let archive = folder.join(format!("{short}.tar"));
        if self.is_older_than(&archive) {
            return Ok(archive);
        }
        let scratch = folder.join(&short);
        if scratch.exists() {
            fs::remove_dir_all(&scratch)?;
        }
        self.fill(workspace, &scratch.join("root"))?;
        let layout = scratch.join("layout");
        fs::create_dir_all(layout.join("blobs/sha256"))?;
        let layer = scratch.join("layer.tar");
        tar(workspace, &scratch.join("root"), &layer)?;
        let layer = add_blob(workspace, &layout, &layer)?;
        let config = json!({
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": self.entry_point, "Cmd": self.command,
                "Env": ["PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
        });
        let config = self.add_json(workspace, &layout, &config)?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": with(config, "mediaType", "application/vnd.oci.image.config.v1+json"),
            "layers": [with(layer, "mediaType", "application/vnd.oci.image.layer.v1.tar")],
        });
        let manifest = self.add_json(workspace, &layout, &manifest)?;
        let manifest = with(manifest, "mediaType", "application/vnd.oci.image.manifest.v1+json");
        let name = json!({"io.containerd.image.name": self.name});
        let index = json!({"schemaVersion": 2, "manifests": [with(manifest, "annotations", name)]});
        fs::write(layout.join("index.json"), index.to_string())?;
        fs::write(layout.join("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}).to_string())?;
        tar(workspace, &layout, &archive)?;
        fs::remove_dir_all(&scratch)?;
        Ok(archive)
    }

    fn is_older_than(&self, archive: &Path) -> bool {
        let changed = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
        let packed = changed(archive);
        packed.is_some() && self.programs.iter().all(|(program, _)| changed(program) < packed)
    }

    /// Copies the programs and their shared libraries.
    fn fill(&self, workspace: &Workspace, root: &Path) -> Result<()> {
        for (program, path) in &self.programs {
            let target = root.join(path);
            copy(program, &target)?;
            // Debug information is most of a debug build.
            let _ = command::succeeds(workspace.command("strip").arg(&target));
            for library in libraries(workspace, program) {
                copy(&library, &root.join(library.strip_prefix("/").unwrap_or(&library)))?;
            }
        }
        fs::create_dir_all(root.join("tmp"))?;
        Ok(())
    }

    fn add_json(&self, workspace: &Workspace, layout: &Path, value: &Value) -> Result<Value> {
        let path = layout.with_file_name("blob.json");
        fs::write(&path, value.to_string())?;
        add_blob(workspace, layout, &path)
    }
}

/// Returns the shared libraries of a program, with the loader. A static program has none.
fn libraries(workspace: &Workspace, program: &Path) -> Vec<PathBuf> {
    let listing = command::output(workspace.command("ldd").arg(program)).unwrap_or_default();
    listing.lines().filter_map(library).collect()
}

/// Returns the path in a line of ldd: `name => path (address)` or `path (address)`.
fn library(line: &str) -> Option<PathBuf> {
    let line = line.split_once("=> ").map_or(line, |(_, path)| path);
    line.split_whitespace().next().filter(|path| path.starts_with('/')).map(PathBuf::from)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    fs::copy(from, to).map(drop).with_context(|| format!("can't copy {} into an image", from.display()))
}

fn tar(workspace: &Workspace, folder: &Path, archive: &Path) -> Result<()> {
    let mut tar = workspace.command("tar");
    tar.args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--create"]);
    tar.arg("--file").arg(archive).arg("--directory").arg(folder).arg(".");
    command::output(&mut tar).map(drop)
}

/// Moves a file among the blobs and returns its descriptor, without a media type.
fn add_blob(workspace: &Workspace, layout: &Path, file: &Path) -> Result<Value> {
    let sum = command::output(workspace.command("sha256sum").arg(file))?;
    let sum = sum.split_whitespace().next().context("sha256sum printed nothing")?;
    let size = fs::metadata(file)?.len();
    fs::rename(file, layout.join("blobs/sha256").join(sum))?;
    Ok(json!({"digest": format!("sha256:{sum}"), "size": size}))
}

/// Returns an object with one more field.
fn with(mut object: Value, field: &str, value: impl Into<Value>) -> Value {
    object[field] = value.into();
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_the_loader_are_found_in_the_output_of_ldd() {
        let lines = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                     \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f3a)\n\
                     \t/lib64/ld-linux-x86-64.so.2 (0x00007f3b)\n\tnot a dynamic executable\n";
        let found: Vec<PathBuf> = lines.lines().filter_map(library).collect();
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(found, expected.map(PathBuf::from));
    }
}
