//! The part of a document that a run replaces.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// The mark before a part. The command that makes the part follows.
const BEGIN: &str = "<!-- Made by ";
/// The mark after each part.
const END: &str = "<!-- The end of the part that is made. -->";

/// Replaces the part of a page that a command makes.
pub(crate) fn write(path: &Path, command: &str, part: &str) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
    let replaced = replace(&text, command, part)
        .with_context(|| format!("the marks of `{command}` are missing in {}", path.display()))?;
    fs::write(path, replaced).with_context(|| format!("can't write {}", path.display()))
}

fn replace(text: &str, command: &str, part: &str) -> Option<String> {
    let start = text.find(&format!("{BEGIN}`{command}`"))?;
    let (begin, rest) = text.get(start..)?.split_once('\n')?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{}{begin}\n\n{part}\n{END}{after}", text.get(..start)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: [(&str, &[&str]); 2] = [
        (
            include_str!("../../../../docs/drill.md"),
            &["cargo xtask drill --write", "cargo xtask drill --upgrade --write"],
        ),
        (include_str!("../../../../docs/soak.md"), &["cargo xtask soak --write"]),
    ];

    #[test]
    fn the_pages_have_the_marks_of_each_part_once_and_keep_everything_else() {
        for (page, commands) in PAGES {
            assert_eq!(
                (page.matches(BEGIN).count(), page.matches(END).count()),
                (commands.len(), commands.len())
            );
            for command in commands {
                let replaced = replace(page, command, "new\n").unwrap();
                let (before, after) = replaced.split_once(" -->\n\nnew\n\n").unwrap();
                assert!(page.starts_with(before) && page.ends_with(after), "{command}");
                assert_eq!(replace(&replaced, command, "new\n").unwrap(), replaced);
            }
        }
    }
}
