//! The programs, images and manifests that a cluster is made of.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The variable with the folders of the programs, separated by colons.
const PROGRAMS: &str = "MILLRACE_CLUSTER_PROGRAMS";
/// The variable with the archives of the images, separated by colons.
const IMAGES: &str = "MILLRACE_CLUSTER_IMAGES";
/// The variable with the directory of all clusters' states.
const STATE: &str = "MILLRACE_CLUSTER_STATE";

/// The places of everything that a cluster needs.
#[derive(Clone, Debug)]
pub struct Assets {
    /// The folders of the programs.
    folders: Vec<PathBuf>,
    /// The archives of the images.
    pub images: Vec<PathBuf>,
    /// The directory of all clusters' states.
    pub state: PathBuf,
    /// The program `millrace-lab`, which is the first process of each machine.
    pub init: PathBuf,
}

impl Assets {
    /// Returns the assets that the environment names. `init` is the program `millrace-lab`.
    pub fn from_environment(init: PathBuf) -> Result<Self> {
        let list = |name: &str| -> Result<Vec<PathBuf>> {
            let value = env::var_os(name).with_context(|| missing(name))?;
            Ok(env::split_paths(&value).collect())
        };
        Ok(Self { folders: list(PROGRAMS)?, images: list(IMAGES)?, state: Self::state()?, init })
    }

    /// Returns the directory of all clusters' states.
    pub fn state() -> Result<PathBuf> {
        env::var_os(STATE).map(PathBuf::from).with_context(|| missing(STATE))
    }

    /// Returns a text that changes with the images.
    pub(super) fn fingerprint(&self) -> String {
        let changed = |image: &Path| fs::metadata(image).and_then(|found| found.modified()).ok();
        let lines = self.images.iter().map(|image| format!("{} {:?}", image.display(), changed(image)));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Returns the path of a program.
    pub(super) fn program(&self, name: &str) -> Result<PathBuf> {
        let found = self.folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
        found.with_context(|| format!("no folder of {PROGRAMS} has {name}; `cargo xtask setup --cluster`"))
    }

    /// Returns the PATH of processes in the cluster.
    pub(super) fn search_path(&self) -> String {
        let own = self.folders.iter().map(|folder| folder.display().to_string());
        let usual = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
        own.chain(usual.map(str::to_owned)).collect::<Vec<_>>().join(":")
    }

    /// Returns the folder of the repository.
    #[must_use]
    pub fn repository() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    /// Returns the folder of the agent's chart.
    pub(super) fn chart() -> PathBuf {
        Self::repository().join("manifests/charts/millrace")
    }
}

fn missing(name: &str) -> String {
    format!("{name} is not set: `cargo xtask cluster` and `cargo xtask test --layer cluster` set it")
}
