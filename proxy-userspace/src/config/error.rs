//! A value that is not accepted, and its place: a flag, or a field of the file.

use std::error::Error as _;
use std::fmt::Display;

use clap::error::{ContextKind, ContextValue};

use crate::model::plain_line;

/// A wrong value of a flag or of a field of the file. One plain line, for standard error and status 2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", plain_line(origin), plain_line(message))]
pub struct ConfigError {
    /// The flag with its dashes, or the file and the path of the field.
    pub origin: String,
    /// The value, and the accepted values.
    pub message: String,
}

impl ConfigError {
    /// Returns the error of the flag whose value is refused, by one of our parsers or because it is none of
    /// the flag's words; `None` for clap's other errors.
    #[must_use]
    pub fn of_flag(error: &clap::Error) -> Option<Self> {
        let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return None };
        // clap writes an argument as `--flag <VALUE>`, as `--flag[=<VALUE>]` with an optional value, and as
        // `[VALUE]...` without a flag.
        let flag = argument.trim_start_matches('[').split([' ', '=', '[', ']']).next()?;
        let by_parser = error.source().and_then(|source| source.downcast_ref::<Refused>()).cloned();
        Some(by_parser.or_else(|| by_words(error))?.at(flag))
    }
}

fn by_words(error: &clap::Error) -> Option<Refused> {
    match (error.get(ContextKind::InvalidValue)?, error.get(ContextKind::ValidValue)?) {
        // Empty text stands for a missing value, which clap explains.
        (ContextValue::String(given), ContextValue::Strings(words)) if !given.is_empty() => {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            Some(Refused::none_of(&words, given))
        }
        _ => None,
    }
}

/// The refusal of a value: the text, and what is accepted. The parsers of flags return it to clap.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(String);

impl Refused {
    /// Returns the refusal of a text in favour of what the flag or field takes.
    #[must_use]
    pub fn new(given: &str, takes: impl Display) -> Self {
        Self::because(given, format_args!("takes {takes}"))
    }

    /// Returns the refusal of a text that is none of the words.
    pub(super) fn none_of(words: &[&str], given: &str) -> Self {
        match words.split_last() {
            Some((last, others)) if !others.is_empty() => {
                Self::new(given, format_args!("{} or {last}", others.join(", ")))
            }
            _ => Self::new(given, words.concat()),
        }
    }

    /// Does the same as [`new`](Self::new) with a reason that says by itself what is taken.
    pub(super) fn because(given: &str, why: impl Display) -> Self {
        Self(format!("{given:?} is not accepted; {why}"))
    }

    /// Adds the flag, or the file and the field.
    pub(super) fn at(self, origin: impl Into<String>) -> ConfigError {
        ConfigError { origin: origin.into(), message: self.0 }
    }
}
