//! `millrace man`: a manual page for each command.

use std::fs;
use std::io;
use std::path::PathBuf;

use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::ExitStatus;
use super::error::CliError;
use super::output::write_out;

/// System administration tools.
const SECTION: &str = "8";

/// Arguments of `millrace man`.
#[derive(Args, Clone, Debug)]
pub struct ManArgs {
    /// Directory for the pages, which is made if it is missing
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

/// Writes the pages, and prints their paths.
pub fn run(args: &ManArgs, command: Command) -> Result<(), CliError> {
    fs::create_dir_all(&args.directory)?;
    let mut paths = Vec::new();
    for (name, page) in pages(command)? {
        let path = args.directory.join(name);
        fs::write(&path, page)?;
        paths.push(path.display().to_string());
    }
    Ok(write_out(&(paths.join("\n") + "\n"))?)
}

/// Returns the name and the text of each page: one for the program, and one for each command.
fn pages(command: Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let commands: Vec<Command> =
        command.get_subcommands().filter(|one| !one.is_hide_set()).cloned().collect();
    let mut pages = vec![(format!("millrace.{SECTION}"), page(command)?)];
    for command in commands {
        let name = format!("millrace-{}", command.get_name());
        let page =
            page(command.bin_name(format!("millrace {}", &name["millrace-".len()..])).display_name(&name))?;
        pages.push((format!("{name}.{SECTION}"), page));
    }
    Ok(pages)
}

fn page(command: Command) -> io::Result<Vec<u8>> {
    let has_commands = command.get_subcommands().next().is_some();
    let man = Man::new(command).section(SECTION).manual("Millrace").source("millrace");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if has_commands {
        man.render_subcommands_section(&mut text)?;
    }
    exit_statuses().to_writer(&mut text)?;
    Ok(text)
}

fn exit_statuses() -> Roff {
    let mut section = Roff::new();
    section.control("SH", ["EXIT STATUS"]);
    for status in ExitStatus::ALL {
        section.control("TP", []);
        section.text([bold(status.number().to_string())]);
        section.text([roman(status.meaning().replace('`', ""))]);
    }
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_options_and_the_statuses() {
        let command = super::super::command();
        let shown = command.get_subcommands().filter(|one| !one.is_hide_set());
        let names: Vec<String> = shown.map(|one| one.get_name().to_owned()).collect();
        let pages = pages(command).unwrap();
        assert_eq!(pages.len(), names.len() + 1);
        for name in &names {
            let (_, page) = pages.iter().find(|(file, _)| *file == format!("millrace-{name}.8")).unwrap();
            let page = String::from_utf8(page.clone()).unwrap();
            for words in [".TH", "SYNOPSIS", "EXIT STATUS", &format!("millrace {name}").replace('-', "\\-")] {
                assert!(page.contains(words), "{words} is not in the page of {name}");
            }
            for status in ExitStatus::ALL {
                assert!(page.contains(&format!("\\fB{}\\fR", status.number())), "{name} lacks {status:?}");
            }
        }
        let (_, services) = pages.iter().find(|(file, _)| file == "millrace-services.8").unwrap();
        assert!(String::from_utf8_lossy(services).contains("no\\-endpoints"));
    }
}
