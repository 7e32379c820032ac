//! The part of a document that a run replaces.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// The marks around the part. The first one ends with the command that makes it.
const BEGIN: &str = "<!-- Made by ";
const END: &str = "<!-- The end of the part that is made. -->";

/// Replaces the part of a page between the marks.
pub(crate) fn write(path: &Path, part: &str) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
    let replaced =
        replace(&text, part).with_context(|| format!("the marks are missing in {}", path.display()))?;
    fs::write(path, replaced).with_context(|| format!("can't write {}", path.display()))
}

fn replace(text: &str, part: &str) -> Option<String> {
    let start = text.find(BEGIN)?;
    let (begin, rest) = text.get(start..)?.split_once('\n')?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{}{begin}\n\n{part}\n{END}{after}", text.get(..start)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_have_the_marks_once_and_keep_everything_else() {
        for page in [include_str!("../../../../docs/drill.md"), include_str!("../../../../docs/soak.md")] {
            assert_eq!((page.matches(BEGIN).count(), page.matches(END).count()), (1, 1));
            let replaced = replace(page, "new\n").unwrap();
            assert!(replaced.contains(" -->\n\nnew\n\n"));
            assert_eq!(replace(&replaced, "new\n").unwrap(), replaced);
            assert_eq!(replaced.split(BEGIN).next(), page.split(BEGIN).next());
        }
    }
}
