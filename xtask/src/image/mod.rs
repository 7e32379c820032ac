//! Container images, without Docker: a static program, packed so that every runtime takes it.

mod again;
mod archive;
mod binary;
mod blob;
mod crates;
mod elf;
mod layer;
mod licences;
mod packages;
mod platform;
mod sbom;
mod source;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use self::archive::{Artifact, pack_all};
pub use self::archive::{Config, Image, pack};
pub use self::binary::{Profile, check_source};
pub use self::layer::{File, Layer};
use self::packages::Nft;
pub use self::platform::{Arch, Variant};
use self::source::{Source, VERSION};
use crate::setup::{self, Need};
use crate::workspace::Workspace;

/// The entry point.
const PROGRAM: &str = "millrace";
/// Its place in the image.
pub const PROGRAM_PATH: &str = "usr/local/bin/millrace";
/// Where Debian has licences.
const LICENCES_PATH: &str = "usr/share/doc/millrace/copyright";
/// That of Debian's images. `kubectl exec` looks for programs there.
pub const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const DESCRIPTION: &str = "A service proxy for Kubernetes on XDP and TC";

/// Arguments of `cargo xtask image`.
#[derive(clap::Args)]
pub struct Args {
    /// Architecture; `all` also packs both into one archive
    #[arg(long, default_value = "amd64")]
    arch: Archs,
    /// Variant: `ebpf` is the program alone, `ipvs` has the program nft too, which IPVS mode runs
    #[arg(long, default_value = "ebpf")]
    variant: Variants,
    /// Folder for the archives [default: target/image]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Build each image once more, from a clone of the last commit, and fail if its digest differs
    #[arg(long)]
    again: bool,
}

/// The values of `--arch`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Archs {
    Amd64,
    Arm64,
    All,
}

impl Archs {
    fn list(self) -> &'static [Arch] {
        match self {
            Self::Amd64 => &[Arch::Amd64],
            Self::Arm64 => &[Arch::Arm64],
            Self::All => &Arch::ALL,
        }
    }
}

/// The values of `--variant`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Variants {
    Ebpf,
    Ipvs,
    All,
}

impl Variants {
    fn list(self) -> &'static [Variant] {
        match self {
            Self::Ebpf => &[Variant::Ebpf],
            Self::Ipvs => &[Variant::Ipvs],
            Self::All => &Variant::ALL,
        }
    }
}

/// An archive with an image.
#[derive(Debug)]
pub struct Built {
    /// The file.
    pub archive: PathBuf,
    /// The image's name, with its tag.
    pub name: String,
    /// The digest of the image's manifest, or of the index of several.
    pub digest: String,
}

/// An image and the documents about it.
struct Assembled {
    image: Image,
    sbom: Vec<u8>,
    debug: PathBuf,
}

impl Assembled {
    fn sbom(&self, arch: Arch) -> Artifact {
        let title = format!("{PROGRAM}-{VERSION}-{}.cdx.json", arch.name());
        Artifact::new(sbom::MEDIA_TYPE, self.sbom.clone(), &title, &self.image)
    }
}

/// `cargo xtask image`: builds the program and packs it for each architecture and variant.
pub fn image(workspace: &Workspace, args: &Args) -> Result<()> {
    let folder = args.output.clone().unwrap_or_else(|| workspace.target().join("image"));
    for variant in args.variant.list() {
        build_all(workspace, args, *variant, &folder)?;
    }
    Ok(())
}

/// Builds the static program alone.
pub fn program(workspace: &Workspace, arch: Arch, profile: Profile) -> Result<PathBuf> {
    setup::ensure(workspace, &[Need::Build, Need::Image])?;
    Ok(binary::build(workspace, arch, profile)?.program)
}

/// Builds the image of one architecture and packs it into an archive in a folder.
pub fn build(
    workspace: &Workspace,
    arch: Arch,
    variant: Variant,
    profile: Profile,
    folder: &Path,
) -> Result<Built> {
    let source = Source::read(workspace)?;
    save(&assemble(workspace, &source, arch, variant, profile)?, arch, variant, folder)
}

/// Builds the images of architectures: an archive for each, and one with all if there are several.
fn build_all(workspace: &Workspace, args: &Args, variant: Variant, folder: &Path) -> Result<()> {
    // Commits may come during a build.
    let source = Source::read(workspace)?;
    if args.again && source.is_dirty() {
        bail!("files differ from the last commit, which --again builds anew; commit them first");
    }
    let mut assembled = Vec::new();
    for arch in args.arch.list() {
        let one = assemble(workspace, &source, *arch, variant, Profile::Shipped)?;
        let built = save(&one, *arch, variant, folder)?;
        show(&built)?;
        if args.again {
            again::check(workspace, &source, *arch, variant, &built)?;
        }
        assembled.push((*arch, one));
    }
    if assembled.len() > 1 {
        show(&save_all(&assembled, variant, folder)?)?;
    }
    Ok(())
}

fn assemble(
    workspace: &Workspace,
    source: &Source,
    arch: Arch,
    variant: Variant,
    profile: Profile,
) -> Result<Assembled> {
    setup::ensure(workspace, &[Need::Build, Need::Image])?;
    let binary = binary::build(workspace, arch, profile)?;
    let nft = match variant {
        Variant::Ebpf => Nft::default(),
        Variant::Ipvs => packages::nft(workspace, arch)?,
    };
    let crates = crates::read(workspace, arch)?;
    let licences = File::Data(licences::text(workspace, &crates)?.into_bytes());
    let program = File::program(&binary.program)?;
    let program = BTreeMap::from([(PROGRAM_PATH.to_owned(), program), (LICENCES_PATH.to_owned(), licences)]);
    let sbom = sbom::write(workspace, arch, source, crates, &nft.packages)?;
    let mut layers = vec![Layer::pack(&program)?];
    if !nft.files.is_empty() {
        layers.push(Layer::pack(&nft.files)?);
    }
    let config = Config {
        entry_point: vec![PROGRAM.to_owned()],
        environment: vec![PATH.to_owned()],
        labels: source.labels(PROGRAM, DESCRIPTION),
        created: source.created.clone(),
        ..Config::default()
    };
    Ok(Assembled { image: Image::new(arch, &config, layers), sbom, debug: binary.debug })
}

/// Writes the archive, and beside it the SBOM and the debug information.
fn save(assembled: &Assembled, arch: Arch, variant: Variant, folder: &Path) -> Result<Built> {
    let name = image_name(variant);
    let packed = pack(&[&name], &assembled.image, &[assembled.sbom(arch)])?;
    let stem = format!("{}-{}", file_stem(variant), arch.name());
    let archive = write(folder, &format!("{stem}.tar"), &packed.bytes)?;
    write(folder, &format!("{stem}.cdx.json"), &assembled.sbom)?;
    // The program is the same in all variants.
    let debug = folder.join(format!("{PROGRAM}-{VERSION}-{}.debug", arch.name()));
    fs::copy(&assembled.debug, &debug).with_context(|| format!("can't write {}", debug.display()))?;
    Ok(Built { archive, name, digest: packed.digest })
}

/// Writes the archive with all architectures.
fn save_all(assembled: &[(Arch, Assembled)], variant: Variant, folder: &Path) -> Result<Built> {
    let name = image_name(variant);
    let images: Vec<&Image> = assembled.iter().map(|(_, one)| &one.image).collect();
    let sboms: Vec<Artifact> = assembled.iter().map(|(arch, one)| one.sbom(*arch)).collect();
    let packed = pack_all(&name, &images, &sboms)?;
    let archive = write(folder, &format!("{}.tar", file_stem(variant)), &packed.bytes)?;
    Ok(Built { archive, name, digest: packed.digest })
}

/// Returns the name of an image: `millrace:0.1.0`, `millrace:0.1.0-ipvs`.
fn image_name(variant: Variant) -> String {
    format!("{PROGRAM}:{VERSION}{}", variant.suffix())
}

fn file_stem(variant: Variant) -> String {
    format!("{PROGRAM}-{VERSION}{}", variant.suffix())
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> Result<PathBuf> {
    let path = folder.join(name);
    fs::create_dir_all(folder).with_context(|| format!("can't create {}", folder.display()))?;
    // A file that stays the same keeps its time, by which a running cluster knows its images.
    if !fs::read(&path).is_ok_and(|before| before == bytes) {
        fs::write(&path, bytes).with_context(|| format!("can't write {}", path.display()))?;
    }
    Ok(path)
}

fn show(built: &Built) -> Result<()> {
    let size = fs::metadata(&built.archive)?.len();
    println!("{} {}", built.name, built.digest);
    println!("  {} ({}.{} MB)", built.archive.display(), size / 1_000_000, size / 100_000 % 10);
    Ok(())
}
