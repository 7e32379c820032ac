//! The control plane on bad input: manifests, settings, requests.
//!
//! It never panics, never takes memory without bound, names each fault once, and keeps what worked.

mod http;
mod manifests;
mod mutate;
mod node;
mod settings;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};
use std::sync::Once;
use std::time::{Duration, Instant};

use crate::memory;
use crate::random::Random;
use crate::rounds::{derived, given_seed, seed_of_now, times_if_long};

/// The longest time for one input. The text has at most some hundred kilobytes.
const LONGEST: Duration = Duration::from_secs(30);

/// Memory that any input may take.
const ROOM: usize = 64 << 20;
/// Memory for each byte of an input.
const ROOM_PER_BYTE: usize = 4096;

/// An input as it was given, for the message of a failure.
#[derive(Default)]
struct Given(RefCell<Vec<String>>);

impl Given {
    /// Notes a part of the input.
    fn note(&self, part: impl Into<String>) {
        self.0.borrow_mut().push(part.into());
    }

    fn bytes(&self) -> usize {
        self.0.borrow().iter().map(String::len).sum()
    }
}

/// Plays inputs, each with a seed of its own. With `MILLRACE_SEED` it plays the input of this seed alone.
fn play(usual: u64, mut one: impl FnMut(&mut Random, &Given)) {
    watch_panics();
    let seed = given_seed().unwrap_or_else(seed_of_now);
    let inputs = if given_seed().is_some() { 1 } else { times_if_long(usual) };
    for index in 0..inputs {
        let (seed, given, start) = (derived(seed, index), Given::default(), Instant::now());
        memory::set_seed(seed);
        let played = || catch_unwind(AssertUnwindSafe(|| one(&mut Random::new(seed), &given)));
        let before = PANICS.get();
        let (done, peak) = memory::peak_of(played);
        let room = ROOM + ROOM_PER_BYTE * given.bytes();
        let fault = match done {
            Err(panic) => Some(("failed".to_owned(), Some(panic))),
            Ok(()) if PANICS.get() != before => Some(("let a task panic".to_owned(), None)),
            Ok(()) if peak > room => Some((format!("took {peak} bytes, more than {room}"), None)),
            Ok(()) if start.elapsed() > LONGEST => Some((format!("took {:?}", start.elapsed()), None)),
            Ok(()) => None,
        };
        memory::set_seed(0);
        if let Some((fault, panic)) = fault {
            let input = given.0.borrow().join("\n--- then\n");
            eprintln!("MILLRACE_SEED={seed} repeats this input alone: it {fault}\ngiven:\n{input}");
            resume_unwind(panic.unwrap_or_else(|| Box::new(fault)));
        }
    }
}

thread_local! {
    /// The panics of this thread, also of tasks that nobody joins.
    static PANICS: Cell<u64> = const { Cell::new(0) };
}

fn watch_panics() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |panic| {
            PANICS.set(PANICS.get() + 1);
            usual(panic);
        }));
    });
}

/// Fails unless a message is one line that a terminal shows as it is.
fn assert_is_one_line(message: &str) {
    assert!(!message.is_empty(), "an empty message");
    assert!(!message.contains(char::is_control), "not one plain line: {message:?}");
}
