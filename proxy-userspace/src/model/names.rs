//! Text that many objects share, such as the names of nodes and zones: kept once.

use std::collections::BTreeSet;
use std::sync::Arc;

/// Fewer names than this are never looked through for those that nobody uses any more.
const FEW: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Names {
    known: BTreeSet<Arc<str>>,
    /// How many of them were in use when that was last looked at.
    used: usize,
}

impl Names {
    /// The one copy of this text.
    pub fn share(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.known.get(text) {
            return Arc::clone(known);
        }
        // Nodes come and go: looked at each time their number has doubled, old names cost next to nothing.
        if self.known.len() >= FEW + 2 * self.used {
            self.known.retain(|name| Arc::strong_count(name) > 1);
            self.used = self.known.len();
        }
        let new: Arc<str> = text.into();
        self.known.insert(Arc::clone(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_text_is_kept_once_and_what_nobody_uses_is_forgotten() {
        let mut names = Names::default();
        let kept = names.share("node-1");
        assert!(Arc::ptr_eq(&kept, &names.share("node-1")));
        for number in 0..10_000 {
            names.share(&format!("gone-{number}"));
            assert!(names.known.len() <= FEW + 2);
        }
        assert!(Arc::ptr_eq(&kept, &names.share("node-1")));
        let held: Vec<_> = (0..1000).map(|number| names.share(&format!("held-{number}"))).collect();
        assert!(held.iter().all(|name| Arc::ptr_eq(name, &names.share(name))));
    }
}
