//! The functions of a source file, by their lines.

use std::path::Path;

use anyhow::{Context, Result};
use proc_macro2::Span;
use syn::visit::{self, Visit};
use syn::{Block, Ident};

/// The functions of a file. An inner one comes after the one around it.
#[derive(Debug, Default)]
pub struct Functions {
    found: Vec<(usize, usize, String)>,
}

impl Functions {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
        Self::of(&text).with_context(|| format!("can't parse {}", path.display()))
    }

    fn of(text: &str) -> Result<Self> {
        let mut functions = Self::default();
        functions.visit_file(&syn::parse_file(text)?);
        Ok(functions)
    }

    /// Returns the name of the innermost function around a line.
    pub fn around(&self, line: u32) -> Option<&str> {
        let line = line as usize;
        let around = self.found.iter().rev().find(|(first, last, _)| (*first..=*last).contains(&line));
        around.map(|(_, _, name)| name.as_str())
    }

    fn add(&mut self, name: &Ident, block: &Block) {
        let line = |span: Span| span.start().line;
        let last = block.brace_token.span.close().end().line;
        self.found.push((line(name.span()), last, name.to_string()));
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(&item.sig.ident, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.sig.ident, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.add(&item.sig.ident, block);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_belongs_to_the_innermost_function() {
        let text = "impl A {\n    fn outer() {\n        fn inner() {\n        }\n        x();\n    }\n}\nfn after() {}\n";
        let functions = Functions::of(text).unwrap();
        let around = [1, 2, 3, 4, 5, 7, 8].map(|line| functions.around(line).unwrap_or("-"));
        assert_eq!(around, ["-", "outer", "inner", "inner", "outer", "-", "after"]);
    }
}
