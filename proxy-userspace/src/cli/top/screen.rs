//! `millrace top` on a terminal: the last interval, and keys to choose what it shows.

use std::io::{self, IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::execute;
use crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::{Interval, Reading, TopArgs, View, programs};
use crate::cli::error::CliError;
use crate::cli::output::CLEAR;

/// Lines above the rows: the node and the titles.
const LINES_ABOVE: u16 = 2;
/// Lines below the rows: an empty one, and the keys.
const LINES_BELOW: u16 = 2;
/// Time to the first interval of a view that was chosen.
const FIRST: Duration = Duration::from_secs(1);
/// Time between two looks for a signal. None of them interrupts the wait for keys.
const SIGNALS: Duration = Duration::from_millis(200);
const MEASURING: &str = "measuring ...\n";

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    End,
    View(View),
    /// The next column to the right sorts, or to the left.
    Sort {
        to_right: bool,
    },
    Pause,
    /// The terminal has another size.
    Redraw,
}

/// A terminal that shows one text at a time and gives each key at once. Dropped, it is as before.
struct Screen {
    out: io::Stdout,
}

impl Screen {
    fn open() -> io::Result<Self> {
        enable_raw_mode()?;
        let mut screen = Self { out: io::stdout() };
        execute!(screen.out, EnterAlternateScreen)?;
        Ok(screen)
    }

    fn show(&mut self, text: &str, keys: &str) -> io::Result<()> {
        // In this mode a line feed does not go back to the first column.
        let text = format!("{CLEAR}{text}\n{keys}").replace('\n', "\r\n");
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = execute!(self.out, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

/// Returns the next wish; `None` when the time is over.
fn wish_until(end: Instant, is_ended: &AtomicBool) -> io::Result<Option<Wish>> {
    loop {
        if is_ended.load(Ordering::Relaxed) {
            return Ok(Some(Wish::End));
        }
        let left = end.saturating_duration_since(Instant::now());
        if !event::poll(left.min(SIGNALS))? {
            if left > SIGNALS {
                continue;
            }
            return Ok(None);
        }
        let wish = match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => wish_of(key),
            Event::Resize(..) => Some(Wish::Redraw),
            _ => None,
        };
        if wish.is_some() {
            return Ok(wish);
        }
    }
}

fn wish_of(key: KeyEvent) -> Option<Wish> {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char('c' | 'd') if is_control => Wish::End,
        KeyCode::Char('q') | KeyCode::Esc => Wish::End,
        KeyCode::Char('s') | KeyCode::Right => Wish::Sort { to_right: true },
        KeyCode::Char('S') | KeyCode::Left => Wish::Sort { to_right: false },
        KeyCode::Char('p' | ' ') => Wish::Pause,
        KeyCode::Char(number) => {
            let place = usize::try_from(number.to_digit(10)?.checked_sub(1)?).ok()?;
            Wish::View(*View::value_variants().get(place)?)
        }
        _ => return None,
    })
}

/// Whether a person looks at the output and can press keys.
pub fn is_there() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// What the screen shows.
struct State {
    args: TopArgs,
    /// The reading before the last one; none at first.
    before: Option<Reading>,
    now: Reading,
    is_paused: bool,
    /// Why a view can't be shown; in the place of the keys until the next reading.
    complaint: Option<String>,
    /// While it is open, the kernel measures programs.
    _measured: Option<OwnedFd>,
}

/// Shows rates until a person ends it.
pub fn run(args: &TopArgs) -> Result<(), CliError> {
    let mut state = State::of(args.clone())?;
    // A process that a signal ended at once would leave the terminal as it is now.
    let is_ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&is_ended)).map_err(failed)?;
    }
    let mut screen = Screen::open().map_err(failed)?;
    let mut end = Instant::now() + args.delay.min(FIRST);
    loop {
        screen.show(&state.text()?, &state.last_line()).map_err(failed)?;
        match wish_until(end, &is_ended).map_err(failed)? {
            Some(Wish::End) => return Ok(()),
            Some(Wish::View(view)) if view != state.args.view => {
                match State::of(TopArgs { view, by: None, ..state.args.clone() }) {
                    Ok(other) => state = other,
                    // A view may take rights that the others do not.
                    Err(error) => state.complaint = Some(error.to_string()),
                }
                end = Instant::now() + args.delay.min(FIRST);
            }
            Some(Wish::Sort { to_right }) => state.sort(to_right),
            Some(Wish::Pause) => state.is_paused = !state.is_paused,
            Some(Wish::View(_) | Wish::Redraw) => {}
            None => {
                if !state.is_paused {
                    state.read()?;
                }
                end = Instant::now() + args.delay;
            }
        }
    }
}

fn failed(error: io::Error) -> CliError {
    CliError::Kernel { action: "use the terminal", error }
}

impl State {
    fn of(args: TopArgs) -> Result<Self, CliError> {
        let measured = (args.view == View::Programs).then(programs::measure).transpose()?;
        Ok(Self {
            now: args.read()?,
            args,
            before: None,
            is_paused: false,
            complaint: None,
            _measured: measured,
        })
    }

    fn read(&mut self) -> Result<(), CliError> {
        self.complaint = None;
        self.before = Some(std::mem::replace(&mut self.now, self.args.read()?));
        Ok(())
    }

    /// Returns the table, with as many rows as fit.
    fn text(&self) -> Result<String, CliError> {
        let Some(before) = &self.before else { return Ok(MEASURING.to_owned()) };
        let (columns, lines) = extent(size().ok());
        let fitting = lines.saturating_sub(LINES_ABOVE + LINES_BELOW).max(1);
        let args = TopArgs { rows: self.args.rows.min(fitting), once: true, ..self.args.clone() };
        let text = args.text(&Interval::between(before, &self.now))?;
        Ok(cut(&text, columns, lines.saturating_sub(LINES_BELOW)))
    }

    /// Returns the last line, which must not wrap.
    fn last_line(&self) -> String {
        let line = self.complaint.clone().unwrap_or_else(|| self.keys());
        let (width, _) = extent(size().ok());
        line.chars().take(width.into()).collect()
    }

    /// Returns the line about the keys.
    fn keys(&self) -> String {
        let views = View::value_variants().iter().zip(1..).map(|(view, number)| {
            let name = view.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
            if *view == self.args.view { format!("[{number} {name}]") } else { format!("{number} {name}") }
        });
        let views = views.collect::<Vec<_>>().join(" ");
        let pause = if self.is_paused { "[p paused]" } else { "p pause" };
        format!("{views}  q end  {pause}  s sort: {}", self.column())
    }

    /// Returns the key of the column that sorts.
    fn column(&self) -> &str {
        self.args.by.as_deref().unwrap_or(self.args.view.main())
    }

    /// Sorts by the next column.
    fn sort(&mut self, to_right: bool) {
        let columns = self.args.view.columns();
        let is_sorting = |key: &&str| key.eq_ignore_ascii_case(self.column());
        let place = columns.iter().position(is_sorting).unwrap_or_default();
        let next = if to_right { place + 1 } else { place + columns.len() - 1 };
        self.args.by = columns.get(next % columns.len()).map(|key| (*key).to_owned());
    }
}

/// Returns the columns and lines of a terminal. A serial console says that it has none.
fn extent(size: Option<(u16, u16)>) -> (u16, u16) {
    size.filter(|(columns, lines)| *columns > 0 && *lines > 0).unwrap_or((u16::MAX, u16::MAX))
}

/// Cuts a text to the terminal's size. A row may have several lines, and a line that wraps would scroll the first one
/// away.
fn cut(text: &str, columns: u16, lines: u16) -> String {
    let line = |line: &str| line.chars().take(columns.into()).chain(['\n']).collect::<String>();
    text.lines().take(lines.into()).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::reading;
    use super::*;
    use crate::cli::argument::parsed;

    fn key(code: KeyCode) -> Option<Wish> {
        wish_of(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn keys_choose_views_columns_and_the_end() {
        assert_eq!(key(KeyCode::Char('3')), Some(Wish::View(View::Drops)));
        assert_eq!(key(KeyCode::Char('5')), None);
        assert_eq!(key(KeyCode::Char('0')), None);
        assert_eq!(key(KeyCode::Char('q')), Some(Wish::End));
        assert_eq!(key(KeyCode::Char('c')), None);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(wish_of(interrupt), Some(Wish::End), "no signal comes in this mode");
    }

    #[test]
    fn a_text_is_never_larger_than_the_terminal() {
        let text = "node1: rates of 2.0 s\nHOOKS\nétage/tc_ingress\n  one more\neth1/tc_ingress\n";
        assert_eq!(cut(text, 80, 24), text);
        assert_eq!(cut(text, 7, 4), "node1: \nHOOKS\nétage/t\n  one m\n");
        assert_eq!(cut(text, 0, 0), "");
    }

    #[test]
    fn the_sorting_column_goes_round() {
        let args: TopArgs = parsed("--view drops");
        let mut state =
            State { args, before: None, now: reading(), is_paused: false, complaint: None, _measured: None };
        let mut sort = |to_right| {
            state.sort(to_right);
            state.column().to_owned()
        };
        assert_eq!([sort(true), sort(true), sort(false)], ["packets", "reason", "packets"]);
        assert_eq!(
            state.keys(),
            "1 services 2 backends [3 drops] 4 programs  q end  p pause  s sort: packets"
        );
        assert_eq!(state.text().unwrap(), MEASURING);
    }
}
