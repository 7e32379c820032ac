//! Keeps one copy of texts that many objects share, such as the names of nodes and zones.

use std::collections::BTreeSet;
use std::sync::Arc;

/// With fewer names than this, unused ones are never searched for.
const MIN_NAMES: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Names {
    known: BTreeSet<Arc<str>>,
    /// The number of names that were in use at the last search.
    used: usize,
}

impl Names {
    /// Returns the shared copy of this text.
    pub fn intern(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.known.get(text) {
            return Arc::clone(known);
        }
        // Nodes come and go. A search each time the number has doubled costs next to nothing.
        if self.known.len() >= MIN_NAMES + 2 * self.used {
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
        let kept = names.intern("node-1");
        assert!(Arc::ptr_eq(&kept, &names.intern("node-1")));
        for number in 0..10_000 {
            names.intern(&format!("gone-{number}"));
            assert!(names.known.len() <= MIN_NAMES + 2);
        }
        assert!(Arc::ptr_eq(&kept, &names.intern("node-1")));
        let held: Vec<_> = (0..1000).map(|number| names.intern(&format!("held-{number}"))).collect();
        assert!(held.iter().all(|name| Arc::ptr_eq(name, &names.intern(name))));
    }
}
