//! `millrace top` on a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use millrace::dataplane::Dataplane;
use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;

use crate::support::{Scratch, all, desired, key, port};

/// `millrace top` with a person before it.
struct Session {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
    terminal: OpenptyResult,
}

impl Session {
    fn start(scratch: &Scratch) -> Result<Self> {
        let size = Winsize { ws_row: 24, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
        let terminal = openpty(Some(&size), None)?;
        let stdio = || Ok::<_, std::io::Error>(Stdio::from(terminal.slave.try_clone()?));
        let child = Command::new(env!("CARGO_BIN_EXE_millrace"))
            .args(["top", "-d", "200ms", "--bpffs-path"])
            .arg(&scratch.path)
            .stdin(stdio()?)
            .stdout(stdio()?)
            .stderr(stdio()?)
            .spawn()?;
        let mut reader = File::from(terminal.master.try_clone()?);
        let keyboard = File::from(terminal.master.try_clone()?);
        let (sender, screen) = channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                let Some(shown) = bytes.get(..count) else { return };
                if sender.send(shown.to_vec()).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, keyboard, screen, seen: String::new(), terminal })
    }

    /// Presses keys, and waits until all of these words were shown since.
    fn press(&mut self, keys: &str, words: &[&str]) -> Result<()> {
        self.seen.clear();
        self.keyboard.write_all(keys.as_bytes())?;
        self.wait_for(words)
    }

    fn wait_for(&mut self, words: &[&str]) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(30);
        while !words.iter().all(|word| self.seen.contains(word)) {
            let left = end.saturating_duration_since(Instant::now());
            let bytes = self.screen.recv_timeout(left);
            let bytes = bytes.with_context(|| format!("{words:?} are not all in {:?}", self.seen))?;
            self.seen.push_str(&String::from_utf8_lossy(&bytes));
        }
        Ok(())
    }

    fn is_raw(&self) -> Result<bool> {
        Ok(!tcgetattr(&self.terminal.slave)?.local_flags.contains(LocalFlags::ICANON))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn keys_choose_what_a_terminal_shows_and_it_is_left_as_it_was() -> Result<()> {
    let scratch = Scratch::new();
    let mut dataplane = scratch.open();
    let state = desired([(key("web"), port(1, 1))]);
    ensure!(dataplane.sync(&state, &all(&state)).is_complete());
    let mut session = Session::start(&scratch)?;
    session.wait_for(&["SERVICE", "default/web:http", "[1 services]", "s sort: packets_per_second"])?;
    assert!(session.is_raw()?);
    session.press("2", &["ADDRESS", "[2 backends]", "s sort: connections_per_second"])?;
    session.press("s", &["s sort: active"])?;
    session.press("p", &["[p paused]"])?;
    session.press("4", &["HOOKS", "[4 programs]", "p pause"])?;
    session.press("q", &["\x1b[?1049l"])?;
    assert!(session.child.wait()?.success());
    assert!(!session.is_raw()?);
    Ok(())
}

#[test]
fn an_interrupt_key_ends_it_in_order() -> Result<()> {
    let scratch = Scratch::new();
    let _dataplane = scratch.open();
    let mut session = Session::start(&scratch)?;
    session.wait_for(&["measuring ..."])?;
    session.press("\x03", &["\x1b[?1049l"])?;
    assert!(session.child.wait()?.success() && !session.is_raw()?);
    Ok(())
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() -> Result<()> {
    let scratch = Scratch::new();
    let _dataplane = scratch.open();
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        let mut session = Session::start(&scratch)?;
        session.wait_for(&["measuring ..."])?;
        kill(Pid::from_raw(session.child.id().try_into()?), signal)?;
        session.wait_for(&["\x1b[?1049l"])?;
        assert!(session.child.wait()?.success() && !session.is_raw()?, "{signal}");
    }
    Ok(())
}
