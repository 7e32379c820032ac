//! Tests of the places of files, and of the ways in which files get there.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, symlink};

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::libc::O_TMPFILE;
use nix::unistd::linkat;

use super::tests::{Directory, Observer, text};

#[tokio::test]
async fn a_file_that_is_linked_into_place_is_read() {
    let (directory, elsewhere) = (Directory::new("linked"), Directory::new("linked-from"));
    let mut observer = Observer::of(&directory).await;
    // The file then has one name, as a new file has.
    elsewhere.write("a", &[("a", 1)]);
    fs::hard_link(elsewhere.0.join("a"), directory.0.join("a.yaml")).unwrap();
    fs::remove_file(elsewhere.0.join("a")).unwrap();
    observer.until_services(&[("a", 1)]).await;

    let mut file = OpenOptions::new().write(true).custom_flags(O_TMPFILE).open(&directory.0).unwrap();
    file.write_all(text(&[("b", 1)]).as_bytes()).unwrap();
    let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(AT_FDCWD, nameless.as_str(), AT_FDCWD, &directory.0.join("b.yaml"), AtFlags::AT_SYMLINK_FOLLOW)
        .unwrap();
    observer.until_services(&[("a", 1), ("b", 1)]).await;
    assert_eq!(observer.problems, [""; 0]);
}

#[tokio::test]
async fn a_link_follows_its_file_elsewhere() {
    let (directory, elsewhere) = (Directory::new("follows"), Directory::new("followed-there"));
    elsewhere.write("a", &[("a", 1)]);
    symlink(elsewhere.0.join("a"), directory.0.join("a.yaml")).unwrap();
    let mut observer = Observer::of(&directory).await;
    observer.until_services(&[("a", 1)]).await;
    elsewhere.write("a", &[("a", 2)]);
    observer.until_services(&[("a", 2)]).await;
    elsewhere.replace("a", &[("a", 3)]);
    observer.until_services(&[("a", 3)]).await;
    fs::remove_file(elsewhere.0.join("a")).unwrap();
    observer.until_services(&[]).await;
}

#[tokio::test]
async fn folders_below_are_read_and_followed() {
    let directory = Directory::new("below");
    let path = |name: &str| directory.0.join(name);
    fs::create_dir_all(path("old/deep")).unwrap();
    fs::create_dir(path(".git")).unwrap();
    directory.write("old/deep/a.yaml", &[("a", 1)]);
    directory.write(".git/no.yaml", &[("no", 1)]);
    // A circle of links, or a second path to the same folder, is not read again.
    symlink(".", path("circle")).unwrap();
    symlink("old", path("other")).unwrap();
    let mut observer = Observer::of(&directory).await;
    observer.until_services(&[("a", 1)]).await;

    directory.write("old/deep/a.yaml", &[("a", 2)]);
    observer.until_services(&[("a", 2)]).await;
    fs::create_dir_all(path("new/deep")).unwrap();
    directory.write("new/deep/b.yaml", &[("b", 1)]);
    observer.until_services(&[("a", 2), ("b", 1)]).await;
    fs::rename(path("new"), path("moved")).unwrap();
    directory.write("moved/deep/b.yaml", &[("b", 2)]);
    observer.until_services(&[("a", 2), ("b", 2)]).await;
    fs::remove_dir_all(path("moved")).unwrap();
    observer.until_services(&[("a", 2)]).await;
    assert_eq!(observer.problems, [""; 0]);
}

#[tokio::test]
async fn a_link_that_goes_takes_nothing_along_that_has_another_name() {
    let (directory, elsewhere) = (Directory::new("links"), Directory::new("links-to"));
    fs::create_dir(directory.0.join("real")).unwrap();
    directory.write("real/a.yaml", &[("a", 1)]);
    elsewhere.write("b.yaml", &[("b", 1)]);
    symlink("real", directory.0.join("link")).unwrap();
    symlink(&elsewhere.0, directory.0.join("one")).unwrap();
    symlink(&elsewhere.0, directory.0.join("two")).unwrap();
    let mut observer = Observer::of(&directory).await;
    observer.until_services(&[("a", 1), ("b", 1)]).await;
    let listed = observer.history.len();
    fs::remove_file(directory.0.join("link")).unwrap();
    fs::remove_file(directory.0.join("one")).unwrap();
    directory.write("real/a.yaml", &[("a", 2)]);
    elsewhere.write("b.yaml", &[("b", 2)]);
    observer.until_services(&[("a", 2), ("b", 2)]).await;
    let mut seen = observer.history.iter().skip(listed);
    assert!(seen.all(|state| state.len() == 2), "{:?}", observer.history);
    assert_eq!(observer.problems, [""; 0]);
}

#[tokio::test]
async fn a_folder_below_that_is_moved_keeps_its_services() {
    let directory = Directory::new("moved");
    fs::create_dir(directory.0.join("a")).unwrap();
    directory.write("a/a.yaml", &[("a", 1)]);
    let mut observer = Observer::of(&directory).await;
    fs::rename(directory.0.join("a"), directory.0.join("b")).unwrap();
    directory.write("b/b.yaml", &[("b", 1)]);
    observer.until_services(&[("a", 1), ("b", 1)]).await;
    directory.write("b/a.yaml", &[("a", 2)]);
    observer.until_services(&[("a", 2), ("b", 1)]).await;
    let read = observer.history.iter().skip_while(|state| state.is_empty());
    assert!(read.clone().all(|state| state.contains_key("a")), "{:?}", observer.history);
    assert_eq!(observer.problems, [""; 0]);
}

#[tokio::test]
async fn a_file_that_is_moved_to_and_fro_is_no_copy_of_itself() {
    let directory = Directory::new("to-and-fro");
    directory.write("a.yaml", &[("a", 1)]);
    let mut observer = Observer::of(&directory).await;
    let (a, z) = (directory.0.join("a.yaml"), directory.0.join("z.yaml"));
    for round in 2..40 {
        fs::rename(&a, &z).unwrap();
        fs::rename(&z, &a).unwrap();
        directory.write("round.yaml", &[("round", round)]);
        observer.until_services(&[("a", 1), ("round", i32::from(round))]).await;
    }
    assert_eq!(observer.problems, [""; 0]);
}

#[tokio::test]
async fn objects_of_another_kind_are_one_line() {
    let directory = Directory::new("foreign");
    let secret = |name: &str| format!("---\napiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\n");
    let many: String = (0..3).map(|number| secret(&format!("s{number}"))).collect();
    for (file, text) in [("a.yaml", &many), ("b.yaml", &many), ("c.yaml", &secret("last"))] {
        fs::write(directory.0.join(file), text).unwrap();
    }
    directory.write("d.yaml", &[("d", 1)]);
    let mut observer = Observer::of(&directory).await;
    observer.until_services(&[("d", 1)]).await;
    let takes = "takes v1 Service, discovery.k8s.io/v1 EndpointSlice, v1 Node and lists of them";
    let file = directory.0.join("a.yaml");
    assert_eq!(
        observer.problems,
        [format!(
            "{}: document 1: kind: v1 Secret \"s0\" and 6 more of this kind, in 3 files, are not read; {takes}",
            file.display()
        )]
    );
}
