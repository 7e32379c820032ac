//! Child processes: shown before they run, and one line if they fail.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Prints the command, runs it, and fails unless it succeeds.
pub fn run(command: &mut Command) -> Result<()> {
    eprintln!("+ {}", display(command));
    let status = command.status().with_context(|| format!("can't start {}", program(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", words(command));
    }
    Ok(())
}

/// Returns the standard output of a command that succeeds. Shows nothing.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("can't start {}", program(command)))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed ({}): {}", words(command), output.status, reason.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns whether the command starts and succeeds. Shows nothing.
pub fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Returns the command as a line for a shell, with the variables set for it.
pub fn display(command: &Command) -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    let set = command.get_envs().filter_map(|(name, value)| {
        let value = value?.to_string_lossy();
        let shown = match value.strip_suffix(&path) {
            Some(added) if name == "PATH" => format!("{}$PATH", quote(added)),
            _ => quote(&value),
        };
        Some(format!("{}={shown}", name.to_string_lossy()))
    });
    set.chain([words(command)]).collect::<Vec<_>>().join(" ")
}

fn words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| quote(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

fn program(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

fn quote(word: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_=+./:,@%".contains(character);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\u{1f}', " ").replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_command_can_be_typed() {
        let mut command = Command::new("cargo");
        command.args(["build", "--cfg=a=\"b\""]).env("RUSTC", "/usr/bin/rustc").env_remove("CARGO");
        assert_eq!(display(&command), "RUSTC=/usr/bin/rustc cargo build '--cfg=a=\"b\"'");
    }

    #[test]
    fn a_failing_command_is_named() {
        let error = run(&mut Command::new("false")).unwrap_err();
        assert_eq!(error.to_string(), "`false` failed (exit status: 1)");
    }
}
