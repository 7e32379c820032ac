//! One source file: its modules, the names they import and the paths they mention.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, Item, ItemMod, ItemUse, Lit, Meta, UseTree};

/// The segments of a path, without arguments.
pub type Segments = Vec<String>;

/// A module as its file writes it.
#[derive(Debug, Default)]
pub struct Module {
    /// Modules with a body in this file.
    pub inline: BTreeMap<String, Module>,
    /// Modules with a file of their own, and the value of `#[path]`.
    pub declared: BTreeMap<String, Option<String>>,
    /// Names that a `use` brings into the module, each with the path behind it.
    pub imported: BTreeMap<String, Segments>,
    /// Paths that a `use` ends in `*`.
    pub globs: Vec<Segments>,
    /// Items that the module defines.
    pub defined: BTreeSet<String>,
    /// Every path of two or more segments, and every `use`.
    pub mentions: Vec<Mention>,
}

/// A path and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mention {
    /// The path.
    pub path: Segments,
    /// The line, from 1.
    pub line: usize,
}

impl Module {
    /// Reads a file's text. Test code is left out: items under `#[cfg(test)]` and modules named after tests.
    pub fn parse(text: &str) -> Result<Self> {
        let file = syn::parse_file(text).context("not a Rust source")?;
        Ok(Self::of(&file.items))
    }

    fn of(items: &[Item]) -> Self {
        let mut reader = Reader::default();
        for item in items {
            reader.visit_item(item);
        }
        reader.module
    }
}

#[derive(Default)]
struct Reader {
    module: Module,
    /// How many blocks of code surround the item: their items belong to no module.
    depth: usize,
}

impl Reader {
    fn declare(&mut self, item: &ItemMod) {
        let name = item.ident.to_string();
        if is_test_name(&name) {
            return;
        }
        match &item.content {
            Some((_, items)) => {
                self.module.inline.insert(name, Module::of(items));
            }
            None => {
                self.module.declared.insert(name, path_attribute(&item.attrs));
            }
        }
    }

    fn import(&mut self, tree: &UseTree, path: &mut Segments) {
        match tree {
            UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.import(&part.tree, path);
                path.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, path)),
            UseTree::Name(leaf) => self.name(&leaf.ident, &leaf.ident, path),
            UseTree::Rename(leaf) => self.name(&leaf.ident, &leaf.rename, path),
            UseTree::Glob(star) => {
                self.mention(path.clone(), star.star_token.spans.first().map_or(0, |span| span.start().line));
                self.module.globs.push(path.clone());
            }
        }
    }

    fn name(&mut self, leaf: &syn::Ident, alias: &syn::Ident, path: &Segments) {
        let itself = leaf == "self";
        let mut full = path.clone();
        if !itself {
            full.push(leaf.to_string());
        }
        let alias = if itself && alias == "self" { full.last().cloned() } else { Some(alias.to_string()) };
        if let Some(alias) = alias {
            self.module.imported.entry(alias).or_insert_with(|| full.clone());
        }
        self.mention(full, leaf.span().start().line);
    }

    fn mention(&mut self, path: Segments, line: usize) {
        self.module.mentions.push(Mention { path, line });
    }

    /// Finds paths in a macro's arguments, which are tokens and no syntax yet.
    fn scan(&mut self, tokens: TokenStream) {
        let mut path: Segments = Vec::new();
        let (mut line, mut colons) = (0, 0);
        for token in tokens {
            match token {
                TokenTree::Ident(ident) if colons == 2 && !path.is_empty() => {
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Ident(ident) => {
                    self.finish(&mut path, line);
                    (line, colons) = (ident.span().start().line, 0);
                    path.push(ident.to_string());
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.finish(&mut path, line);
                    self.scan(group.stream());
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => self.finish(&mut path, line),
            }
        }
        self.finish(&mut path, line);
    }

    fn finish(&mut self, path: &mut Segments, line: usize) {
        let path = std::mem::take(path);
        if path.len() > 1 {
            self.mention(path, line);
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_test_only(attributes(item)) {
            return;
        }
        if self.depth == 0
            && let Some(name) = defined(item)
        {
            self.module.defined.insert(name);
        }
        match item {
            Item::Mod(module) => self.declare(module),
            Item::Use(ItemUse { tree, .. }) => self.import(tree, &mut Vec::new()),
            _ => {
                self.depth += 1;
                visit::visit_item(self, item);
                self.depth -= 1;
            }
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test_only(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if let [first, _, ..] = segments.as_slice()
            && first != "Self"
            && let Some(start) = path.segments.first()
        {
            let line = start.ident.span().start().line;
            self.mention(segments, line);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        self.visit_path(&invocation.path);
        self.scan(invocation.tokens.clone());
    }

    /// Attributes name derives and lints, which are no modules of ours.
    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    /// `pub(in path)` opens a name to an ancestor and uses nothing of it.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

/// `tests`, `x_tests` and `test_x` hold tests also where no attribute says so.
fn is_test_name(name: &str) -> bool {
    name == "tests" || name.ends_with("_tests")
}

/// Whether an item is compiled for tests alone: `#[cfg(test)]`, also as a part of `all(...)`.
fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && matches!(&attribute.meta, Meta::List(list) if requires_test(list.tokens.clone()))
    })
}

fn requires_test(tokens: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    match tokens.as_slice() {
        [TokenTree::Ident(word)] => word == "test",
        [TokenTree::Ident(word), TokenTree::Group(group)] if word == "all" => {
            let parts: Vec<TokenTree> = group.stream().into_iter().collect();
            parts
                .split(|part| matches!(part, TokenTree::Punct(comma) if comma.as_char() == ','))
                .any(|part| requires_test(part.iter().cloned().collect()))
        }
        _ => false,
    }
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn defined(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}
