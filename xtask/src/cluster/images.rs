//! The images of a cluster: those that it can't do without, and Millrace's.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::shell;
use crate::command;
use crate::image::{self, Arch, Config, File, Image, Layer, Profile, Variant};
use crate::setup;
use crate::workspace::Workspace;

/// The time of images whose programs have none.
const CREATED: &str = "1970-01-01T00:00:00Z";

/// Packs all images, unless that was done, and returns their archives.
pub fn ensure(workspace: &Workspace, variant: Variant, programs: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let folder = workspace.target().join("cluster");
    fs::create_dir_all(&folder).with_context(|| format!("can't make {}", folder.display()))?;
    let agnhost = find(programs, "agnhost")?;
    let pause = folder.join("pause");
    build_pause(workspace, &pause)?;
    Ok(vec![
        pack(&folder.join("pause.tar"), &["millrace/pause:1"], &pause, &[])?,
        pack(&folder.join("agnhost.tar"), &["millrace/agnhost:1"], &agnhost, &["pause"])?,
        millrace(workspace, variant)?,
    ])
}

/// Packs the agent's image, and returns its archive.
pub(super) fn millrace(workspace: &Workspace, variant: Variant) -> Result<PathBuf> {
    let folder = workspace.target().join("cluster");
    Ok(image::build(workspace, Arch::Amd64, variant, Profile::Quick, &folder)?.archive)
}

/// Images of Kubernetes' specs that one image with a shell and agnhost stands for.
const STANDS_FOR: [&str; 6] =
    ["agnhost", "busybox", "distroless-iptables", "glibc-dns-testing", "nginx", "pause"];
/// The image with a program of its own.
const REGRESSION: &str = "regression-issue-74839";

/// Packs the images that Kubernetes' specs name, and returns their archives.
pub fn ensure_e2e(workspace: &Workspace, programs: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let folder = workspace.target().join("cluster");
    fs::create_dir_all(&folder).with_context(|| format!("can't make {}", folder.display()))?;
    let listed = command::output(workspace.command(find(programs, "e2e.test")?).arg("--list-images"))?;
    let is_public = |name: &&str| name.starts_with("registry.k8s.io/");
    let listed: Vec<&str> = listed.lines().filter(is_public).collect();
    let named = |short: &str| {
        let ending = format!("/{short}:");
        listed.iter().copied().filter(move |name| name.contains(&ending)).collect::<Vec<_>>()
    };
    Ok(vec![
        pack_shell(workspace, &folder.join("shell.tar"), &STANDS_FOR.map(named).concat(), programs)?,
        pack(&folder.join("regression.tar"), &named(REGRESSION), &find(programs, REGRESSION)?, &[])?,
        pack(
            &folder.join("coredns.tar"),
            &["millrace/coredns:1"],
            &find(programs, "coredns")?,
            &["-conf", "/etc/coredns/Corefile"],
        )?,
    ])
}

/// Returns the path of a program that was built.
fn find(programs: &[PathBuf], name: &str) -> Result<PathBuf> {
    let found = programs.iter().map(|programs| programs.join(name)).find(|path| path.is_file());
    found.with_context(|| format!("{name} was not built"))
}

/// Packs agnhost with the programs of a shell, unless that was done.
fn pack_shell(
    workspace: &Workspace,
    archive: &Path,
    names: &[&str],
    programs: &[PathBuf],
) -> Result<PathBuf> {
    if !archive.is_file() {
        let mut files = shell::files(workspace)?;
        files.insert("agnhost".to_owned(), File::program(&find(programs, "agnhost")?)?);
        for (path, source) in setup::agnhost_data(workspace)? {
            files.insert(path, File::Data(fs::read(source)?));
        }
        write(archive, names, &files, &["/agnhost", "pause"])?;
    }
    Ok(archive.to_path_buf())
}

/// Packs a static program as an image, unless the archive is newer.
fn pack(archive: &Path, names: &[&str], program: &Path, arguments: &[&str]) -> Result<PathBuf> {
    let changed = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
    let packed = changed(archive);
    if packed.is_none() || changed(program) >= packed {
        let files = BTreeMap::from([("program".to_owned(), File::program(program)?)]);
        write(archive, names, &files, &[&["/program"], arguments].concat())?;
    }
    Ok(archive.to_path_buf())
}

/// Writes the archive of an image of these files. `words` are the entry point and its arguments.
pub(super) fn write(
    archive: &Path,
    names: &[&str],
    files: &BTreeMap<String, File>,
    words: &[&str],
) -> Result<()> {
    let mut words = words.iter().map(|word| (*word).to_owned());
    let config = Config {
        entry_point: words.next().into_iter().collect(),
        arguments: words.collect(),
        environment: vec![image::PATH.to_owned()],
        created: CREATED.to_owned(),
        ..Config::default()
    };
    let image = Image::new(Arch::Amd64, &config, vec![Layer::pack(files)?]);
    let bytes = image::pack(names, &image, &[])?.bytes;
    fs::write(archive, bytes).with_context(|| format!("can't write {}", archive.display()))
}

fn build_pause(workspace: &Workspace, program: &Path) -> Result<()> {
    if program.is_file() {
        return Ok(());
    }
    let source = workspace.root.join("xtask/src/cluster/pause.c");
    command::run(workspace.command("gcc").args(["-static", "-Os", "-s", "-o"]).arg(program).arg(source))
}
