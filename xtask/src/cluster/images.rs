//! The images of a cluster: those that it can't do without, and Millrace's.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::shell;
use crate::command;
use crate::image::{self, Arch, Config, File, Image, Layer, Profile, Variant};
use crate::workspace::Workspace;

/// The time of images whose programs have none.
const CREATED: &str = "1970-01-01T00:00:00Z";

/// Packs all images, unless that was done, and returns their archives.
pub fn ensure(workspace: &Workspace, variant: Variant, programs: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let folder = workspace.target().join("cluster");
    fs::create_dir_all(&folder).with_context(|| format!("can't make {}", folder.display()))?;
    let agnhost = programs.iter().map(|programs| programs.join("agnhost")).find(|path| path.is_file());
    let agnhost = agnhost.context("agnhost was not built")?;
    let pause = folder.join("pause");
    build_pause(workspace, &pause)?;
    Ok(vec![
        pack(&folder.join("pause.tar"), "millrace/pause:1", &pause, &[])?,
        pack(&folder.join("agnhost.tar"), "millrace/agnhost:1", &agnhost, &["pause"])?,
        image::build(workspace, Arch::Amd64, variant, Profile::Quick, &folder)?.archive,
    ])
}

/// Packs the images that Kubernetes' specs name, and returns their archives.
pub fn ensure_e2e(workspace: &Workspace, programs: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let folder = workspace.target().join("cluster");
    let agnhost = programs.iter().map(|programs| programs.join("agnhost")).find(|path| path.is_file());
    let agnhost = agnhost.context("agnhost was not built")?;
    let list = programs.iter().map(|programs| programs.join("e2e.test")).find(|path| path.is_file());
    let list =
        command::output(workspace.command(list.context("the specs were not built")?).arg("--list-images"))?;
    let name = list.lines().find(|name| name.contains("/agnhost:2.6")).context("no spec names agnhost")?;
    let archive = folder.join("agnhost-with-shell.tar");
    if !archive.is_file() {
        let mut files = shell::files(workspace)?;
        files.insert("agnhost".to_owned(), File::program(&agnhost)?);
        let config = Config {
            entry_point: vec!["/agnhost".to_owned()],
            arguments: vec!["pause".to_owned()],
            created: CREATED.to_owned(),
            environment: vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()],
            ..Config::default()
        };
        let image = Image::new(Arch::Amd64, &config, vec![Layer::pack(&files)?]);
        let bytes = image::pack(name, &image, &[])?.bytes;
        fs::write(&archive, bytes).with_context(|| format!("can't write {}", archive.display()))?;
    }
    Ok(vec![archive])
}

/// Packs a static program as an image, unless the archive is newer.
fn pack(archive: &Path, name: &str, program: &Path, arguments: &[&str]) -> Result<PathBuf> {
    let changed = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
    let packed = changed(archive);
    if packed.is_none() || changed(program) >= packed {
        let layer = Layer::pack(&BTreeMap::from([("program".to_owned(), File::program(program)?)]))?;
        let config = Config {
            entry_point: vec!["/program".to_owned()],
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            created: CREATED.to_owned(),
            ..Config::default()
        };
        let image = Image::new(Arch::Amd64, &config, vec![layer]);
        let bytes = image::pack(name, &image, &[])?.bytes;
        fs::write(archive, bytes).with_context(|| format!("can't write {}", archive.display()))?;
    }
    Ok(archive.to_path_buf())
}

fn build_pause(workspace: &Workspace, program: &Path) -> Result<()> {
    if program.is_file() {
        return Ok(());
    }
    let source = workspace.root.join("xtask/src/cluster/pause.c");
    command::run(workspace.command("gcc").args(["-static", "-Os", "-s", "-o"]).arg(program).arg(source))
}
