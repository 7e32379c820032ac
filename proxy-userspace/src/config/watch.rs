//! The watch of the file of `--config` while the agent runs.
//!
//! The agent ends when the file changes, as kube-proxy does. Its supervisor starts it again with the new
//! file.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::sleep;
use tracing::warn;

use super::{AgentArgs, Settings};

/// The time between two reads of the file. inotify on the file is not enough, because a ConfigMap changes by
/// a link in another directory.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// The file of the settings, with its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    pub(super) path: PathBuf,
    pub(super) text: Vec<u8>,
    pub(super) args: AgentArgs,
    pub(super) node_name: Option<String>,
}

impl ConfigFile {
    /// Returns the file's path once its content has changed.
    ///
    /// Unusable content is logged and changes nothing. A file that is missing or half-written changes
    /// nothing.
    pub async fn changed(&self) -> PathBuf {
        let mut seen = self.text.clone();
        let mut refused = Vec::new();
        loop {
            sleep(LOOK_INTERVAL).await;
            let Ok(text) = fs::read(&self.path) else { continue };
            let is_whole = text == seen;
            seen = text;
            if !is_whole || seen == self.text || seen == refused {
                continue;
            }
            match Settings::of(&self.args, self.node_name.clone(), Some(&seen)) {
                Ok(_) => return self.path.clone(),
                Err(error) => warn!(%error, "the changed file is not accepted; the agent keeps its settings"),
            }
            refused.clone_from(&seen);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use tokio::time::timeout;

    use super::*;
    use crate::config::file::{API_VERSION, KIND};

    const LONG: Duration = Duration::from_mins(1);

    /// A directory that the test removes at its end.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("millrace-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }
        fn within(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn configuration(mode: &str) -> String {
        format!("apiVersion: {API_VERSION}\nkind: {KIND}\nmode: {mode}\n")
    }

    /// Runs a test in paused time, which advances as soon as all tasks wait for it.
    fn on_paused_time(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(test);
    }

    fn read(path: PathBuf) -> ConfigFile {
        let args = AgentArgs { config: Some(path), ..AgentArgs::default() };
        Settings::resolve_on(&args, Some("host-1".to_owned())).unwrap().config.unwrap()
    }

    #[test]
    fn a_changed_file_is_reported_and_an_unusable_one_is_not() {
        let directory = Directory::new("config");
        let path = directory.within("config.conf");
        fs::write(&path, configuration("ipvs")).unwrap();
        on_paused_time(async {
            let file = read(path.clone());
            timeout(LONG, file.changed()).await.unwrap_err();
            for unusable in ["", "mode: ipvs", &configuration("fast")] {
                fs::write(&path, unusable).unwrap();
                timeout(LONG, file.changed()).await.unwrap_err();
            }
            fs::remove_file(&path).unwrap();
            timeout(LONG, file.changed()).await.unwrap_err();
            fs::write(&path, configuration("ipvs")).unwrap();
            timeout(LONG, file.changed()).await.unwrap_err();
            fs::write(&path, configuration("nftables")).unwrap();
            assert_eq!(timeout(LONG, file.changed()).await, Ok(path.clone()));
        });
    }

    /// The kubelet writes a ConfigMap as a link to a file below another link. It renames a new link over the
    /// other one.
    #[test]
    fn a_changed_config_map_is_reported() {
        let directory = Directory::new("config-map");
        let within = |name: &str| directory.within(name);
        for (version, mode) in [("..1", "ipvs"), ("..2", "nftables")] {
            fs::create_dir(within(version)).unwrap();
            fs::write(within(version).join("config.conf"), configuration(mode)).unwrap();
        }
        symlink("..1", within("..data")).unwrap();
        symlink("..data/config.conf", within("config.conf")).unwrap();
        on_paused_time(async {
            let file = read(within("config.conf"));
            timeout(LONG, file.changed()).await.unwrap_err();
            symlink("..2", within("..data_tmp")).unwrap();
            fs::rename(within("..data_tmp"), within("..data")).unwrap();
            assert_eq!(timeout(LONG, file.changed()).await, Ok(within("config.conf")));
        });
    }
}
