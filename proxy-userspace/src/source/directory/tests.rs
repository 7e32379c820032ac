//! Tests of the watch on real directories.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::*;
use crate::model::{Change, Object};
use crate::source::{SourceEvent, Unread};

const BOUND: Duration = Duration::from_secs(20);
/// Shorter than the agent's interval.
const RESCAN: Duration = Duration::from_secs(1);

/// A directory that is removed when it is dropped.
pub(super) struct Directory(pub PathBuf);

impl Directory {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("millrace-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
    pub fn write(&self, file: &str, services: &[(&str, u16)]) {
        fs::write(self.0.join(file), text(services)).unwrap();
    }
    /// Writes as an editor does: into a new file that is then renamed.
    pub fn replace(&self, file: &str, services: &[(&str, u16)]) {
        self.write(".new", services);
        fs::rename(self.0.join(".new"), self.0.join(file)).unwrap();
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(super) fn text(services: &[(&str, u16)]) -> String {
    let mut text = String::new();
    for (name, port) in services {
        write!(
            text,
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{ports: [{{port: {port}}}]}}\n"
        )
        .unwrap();
    }
    text
}

/// The state that an observer of the events has built.
pub(super) struct Observer {
    events: mpsc::Receiver<Batch>,
    batch: VecDeque<SourceEvent>,
    batches: usize,
    pub services: BTreeMap<String, i32>,
    pub problems: Vec<String>,
    listings: Vec<Listing>,
    /// All states so far, the latest last.
    pub history: VecDeque<BTreeMap<String, i32>>,
}

impl Observer {
    /// Begins to watch, and waits for the listing.
    pub async fn of(directory: &Directory) -> Self {
        let (sender, events) = mpsc::channel(4);
        tokio::spawn(watch_every::<Services>(RESCAN, open(directory.0.clone()).unwrap(), sender));
        let mut observer = Self {
            events,
            batch: VecDeque::new(),
            batches: 0,
            services: BTreeMap::new(),
            problems: Vec::new(),
            listings: Vec::new(),
            history: VecDeque::new(),
        };
        while !matches!(observer.next().await, SourceEvent::Listed(_)) {}
        observer
    }
    async fn next(&mut self) -> SourceEvent {
        while self.batch.is_empty() {
            let batch = timeout(BOUND, self.events.recv()).await.expect("an event in time");
            self.batch = batch.expect("a watch that goes on").into();
            self.batches += 1;
        }
        let event = self.batch.pop_front().unwrap();
        match &event {
            SourceEvent::Change(Change::Upsert { object: Object::Service(service), .. }) => {
                let port = service.spec.as_ref().unwrap().ports.as_ref().unwrap()[0].port;
                self.services.insert(service.metadata.name.clone().unwrap(), port);
            }
            SourceEvent::Change(Change::Delete(key)) => {
                self.services.remove(&key.name);
            }
            SourceEvent::Problem(problem) => self.problems.push(problem.to_string()),
            SourceEvent::Listed(listing) => self.listings.push(listing.clone()),
            SourceEvent::Change(_) => {}
        }
        self.history.push_back(self.services.clone());
        event
    }
    pub async fn until_services(&mut self, expected: &[(&str, i32)]) {
        let expected = expected.iter().map(|(name, port)| ((*name).to_owned(), *port)).collect();
        while self.services != expected {
            self.next().await;
        }
    }
    pub async fn until_problem(&mut self, part: &str) {
        while !self.problems.iter().any(|problem| problem.contains(part)) {
            self.next().await;
        }
    }
}

#[tokio::test]
async fn added_changed_renamed_and_removed_files_are_followed() {
    let directory = Directory::new("followed");
    directory.write("a.yaml", &[("a", 1)]);
    directory.write("notes.txt", &[("no", 1)]);
    let mut observer = Observer::of(&directory).await;
    observer.until_services(&[("a", 1)]).await;
    directory.write("b.yml", &[("b", 1), ("c", 1)]);
    observer.until_services(&[("a", 1), ("b", 1), ("c", 1)]).await;
    directory.replace("b.yml", &[("b", 2)]);
    observer.until_services(&[("a", 1), ("b", 2)]).await;
    fs::rename(directory.0.join("b.yml"), directory.0.join("d.yaml")).unwrap();
    fs::remove_file(directory.0.join("a.yaml")).unwrap();
    observer.until_services(&[("b", 2)]).await;
    assert_eq!(observer.problems, [""; 0]);
}

#[tokio::test]
async fn a_removed_and_rewritten_file_takes_nothing_away() {
    let directory = Directory::new("rewritten");
    directory.write("a.yaml", &[("a", 1)]);
    let mut observer = Observer::of(&directory).await;
    fs::remove_file(directory.0.join("a.yaml")).unwrap();
    directory.write("a.yaml", &[("a", 2)]);
    observer.until_services(&[("a", 2)]).await;
    let listed = observer.history.iter().skip_while(|state| state.is_empty());
    assert!(listed.clone().all(|state| state.contains_key("a")), "{:?}", observer.history);
}

#[tokio::test]
async fn a_broken_file_keeps_its_last_good_objects() {
    let directory = Directory::new("broken");
    directory.write("a.yaml", &[("a", 1)]);
    let mut observer = Observer::of(&directory).await;
    fs::write(directory.0.join("a.yaml"), "kind: [").unwrap();
    observer.until_problem("a.yaml: is not YAML").await;
    assert_eq!(observer.services.len(), 1, "kept");
    directory.write("a.yaml", &[("a", 3)]);
    observer.until_services(&[("a", 3)]).await;
    assert_eq!(observer.problems.len(), 1, "{:?}", observer.problems);
}

#[tokio::test]
async fn what_changes_in_one_file_is_told_in_one_go() {
    let directory = Directory::new("together");
    fs::write(directory.0.join("a.yaml"), "kind: [").unwrap();
    let mut observer = Observer::of(&directory).await;
    let begun = observer.batches;
    directory.replace("a.yaml", &[("a", 1), ("b", 1), ("c", 1)]);
    observer.until_services(&[("a", 1), ("b", 1), ("c", 1)]).await;
    directory.replace("a.yaml", &[("b", 2), ("d", 1)]);
    observer.until_services(&[("b", 2), ("d", 1)]).await;
    assert_eq!(observer.batches, begun + 2);
}

#[tokio::test]
async fn a_listing_is_without_the_files_that_could_not_be_read_until_they_can() {
    let directory = Directory::new("unread");
    let path = |name: &str| -> Arc<Path> { directory.0.join(name).into() };
    directory.write("good.yaml", &[("good", 1)]);
    fs::write(path("broken.yaml"), "kind: [").unwrap();
    // A Service with a name, but with an unreadable field.
    let nameable = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: 7}";
    fs::write(path("object.yaml"), nameable).unwrap();
    let mut observer = Observer::of(&directory).await;
    let both = BTreeSet::from(["broken.yaml", "object.yaml"].map(|name| Unread::File(path(name))));
    assert_eq!(observer.listings, [Listing::Without(both)]);

    directory.replace("object.yaml", &[("a", 1)]);
    observer.until_services(&[("a", 1), ("good", 1)]).await;
    directory.replace("broken.yaml", &[("b", 1)]);
    observer.until_services(&[("a", 1), ("b", 1), ("good", 1)]).await;
    while observer.listings.len() < 3 {
        observer.next().await;
    }
    let one = Listing::Without(BTreeSet::from([Unread::File(path("broken.yaml"))]));
    assert_eq!(observer.listings[1..], [one, Listing::Complete]);
}

#[tokio::test]
async fn a_file_that_could_not_be_read_completes_the_listing_by_being_removed() {
    let directory = Directory::new("unread-removed");
    fs::write(directory.0.join("broken.yaml"), "kind: [").unwrap();
    let mut observer = Observer::of(&directory).await;
    assert!(matches!(observer.listings[..], [Listing::Without(_)]));
    fs::remove_file(directory.0.join("broken.yaml")).unwrap();
    while observer.listings.last() != Some(&Listing::Complete) {
        observer.next().await;
    }
}

#[tokio::test]
async fn of_two_copies_the_one_in_the_first_file_counts() {
    let directory = Directory::new("copies");
    directory.write("a.yaml", &[("x", 1)]);
    directory.write("b.yaml", &[("x", 2)]);
    let mut observer = Observer::of(&directory).await;
    observer.until_services(&[("x", 1)]).await;
    observer.until_problem("b.yaml: Service default/x: is in ").await;
    fs::remove_file(directory.0.join("a.yaml")).unwrap();
    observer.until_services(&[("x", 2)]).await;
}

#[tokio::test]
async fn files_mounted_from_a_config_map_are_swapped_at_once() {
    let directory = Directory::new("mounted");
    let version = |name: &str, services: &[(&str, u16)]| {
        fs::create_dir(directory.0.join(name)).unwrap();
        fs::write(directory.0.join(name).join("a.yaml"), text(services)).unwrap();
        std::os::unix::fs::symlink(name, directory.0.join("..data_tmp")).unwrap();
        fs::rename(directory.0.join("..data_tmp"), directory.0.join("..data")).unwrap();
    };
    version("..1", &[("a", 1)]);
    std::os::unix::fs::symlink("..data/a.yaml", directory.0.join("a.yaml")).unwrap();
    let mut observer = Observer::of(&directory).await;
    observer.until_services(&[("a", 1)]).await;
    version("..2", &[("a", 2)]);
    observer.until_services(&[("a", 2)]).await;
}

#[tokio::test]
async fn a_directory_that_disappears_keeps_its_last_state_until_it_returns() {
    let directory = Directory::new("disappears");
    directory.write("a.yaml", &[("a", 1)]);
    let mut observer = Observer::of(&directory).await;
    fs::remove_dir_all(&directory.0).unwrap();
    observer.until_problem("last state is kept").await;
    assert_eq!(observer.services.len(), 1, "kept");
    fs::create_dir(&directory.0).unwrap();
    directory.write("a.yaml", &[("a", 2), ("b", 1)]);
    observer.until_services(&[("a", 2), ("b", 1)]).await;
    observer.until_problem("the directory is back").await;
    directory.write("a.yaml", &[("b", 2)]);
    observer.until_services(&[("b", 2)]).await;
}

#[tokio::test]
async fn a_directory_that_is_missing_at_start_is_an_error_that_names_it() {
    let error = open(PathBuf::from("/nonexistent/manifests")).map(|_| ()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "--source directory:/nonexistent/manifests: No such file or directory (os error 2); takes an existing \
         directory of .yaml, .yml and .json files"
    );
}
