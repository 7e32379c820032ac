//! Measures how deep YAML nests brackets, without parsing it.
//!
//! The YAML reader takes time that grows with the square of the depth: 100,000 brackets take many
//! seconds. This look takes one pass. It skips text that may hold brackets: quoted strings, block
//! scalars, comments and plain text.

/// Brackets that may be open at one time. Kubernetes objects nest a dozen levels.
pub(super) const DEEPEST: usize = 1_000;

/// Returns whether more than [`DEEPEST`] brackets are open at some place of one document.
pub(super) fn is_too_deep(text: &[u8]) -> bool {
    let mut scan = Scan::default();
    text.split(|byte| *byte == b'\n').any(|line| scan.is_too_deep(line))
}

/// The state after the lines so far.
#[derive(Debug, Default)]
struct Scan {
    open: usize,
    /// The quote that ends the string in which a line begins.
    quote: Option<u8>,
    /// The block scalar that a line may belong to: lines deeper than its column do.
    block: Option<Block>,
}

/// The column of the node that a block scalar belongs to.
#[derive(Clone, Copy, Debug)]
enum Block {
    Document,
    Column(usize),
}

impl Scan {
    fn is_too_deep(&mut self, line: &[u8]) -> bool {
        let indent = line.iter().take_while(|byte| **byte == b' ').count();
        let is_blank = line.trim_ascii().is_empty();
        if is_marker(line) {
            *self = Self::default();
        } else if let Some(block) = self.block {
            let is_text = match block {
                Block::Document => true,
                Block::Column(column) => is_blank || indent > column,
            };
            if is_text {
                return false;
            }
            self.block = None;
        }
        self.scan(line)
    }

    fn scan(&mut self, line: &[u8]) -> bool {
        let mut node = Node::of(line);
        let (mut before, mut at) = (b' ', start(line));
        while let Some(byte) = line.get(at).copied() {
            let next = line.get(at + 1).copied().unwrap_or(b' ');
            let is_first = before.is_ascii_whitespace() || b"[{,:".contains(&before);
            match (self.quote, byte) {
                // An escaped character, or a doubled quote.
                (Some(b'"'), b'\\') => at += 1,
                (Some(b'\''), b'\'') if next == b'\'' => at += 1,
                (Some(quote), _) if quote == byte => self.quote = None,
                (None, b'"' | b'\'') if is_first => self.quote = Some(byte),
                (None, b'#') if before.is_ascii_whitespace() => return false,
                (None, b'[' | b'{') if self.open > 0 || node.begins => self.open += 1,
                (None, b']' | b'}') => self.open = self.open.saturating_sub(1),
                (None, b'|' | b'>') if self.open == 0 && node.begins => {
                    self.block = Some(node.parent(at));
                    return false;
                }
                _ => {}
            }
            if self.open > DEEPEST {
                return true;
            }
            node.pass(byte, next);
            (before, at) = (byte, at + 1);
        }
        false
    }
}

/// The position in a line. Brackets open a collection only where a node begins.
#[derive(Debug)]
struct Node {
    begins: bool,
    /// Whether this is inside a tag or an anchor; the node begins after it.
    in_property: bool,
    /// The column of the last dash before the first node; below it that of the first node.
    dash: Option<usize>,
    first: usize,
}

impl Node {
    fn of(line: &[u8]) -> Self {
        let (mut first, mut dash) = (start(line), None);
        while let Some(byte) = line.get(first) {
            match byte {
                b' ' => {}
                b'-' if line.get(first + 1).is_none_or(|next| *next == b' ') => dash = Some(first),
                _ => break,
            }
            first += 1;
        }
        Self { begins: true, in_property: false, dash, first }
    }

    /// Returns the node that a block scalar at column `at` belongs to.
    fn parent(&self, at: usize) -> Block {
        match self.dash {
            _ if at > self.first => Block::Column(self.first),
            Some(dash) => Block::Column(dash),
            None => Block::Document,
        }
    }

    fn pass(&mut self, byte: u8, next: u8) {
        let is_indicator = b":-?".contains(&byte) && next.is_ascii_whitespace();
        self.in_property = match byte {
            b'!' | b'&' if self.begins => true,
            b' ' => false,
            _ => self.in_property,
        };
        let goes_on = byte.is_ascii_whitespace() || self.in_property;
        self.begins = is_indicator && (byte == b':' || self.begins) || goes_on && self.begins;
    }
}

/// Returns the first column of a line's nodes: one may follow the marker of its document.
fn start(line: &[u8]) -> usize {
    if is_marker(line) { 3 } else { 0 }
}

/// Returns whether a line begins or ends a document.
fn is_marker(line: &[u8]) -> bool {
    let rest = line.strip_prefix(b"---").or(line.strip_prefix(b"..."));
    rest.is_some_and(|rest| rest.first().is_none_or(u8::is_ascii_whitespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: usize = DEEPEST + 1;

    fn too_deep(text: &str) -> bool {
        is_too_deep(text.as_bytes())
    }

    #[test]
    fn brackets_that_open_collections_count() {
        for bracket in ["[", "{", "[\n", "- [", "[a, ", "{a: ", "{'a]': ", "[ # ]\n", "[\"]\", "] {
            assert!(too_deep(&bracket.repeat(MANY)), "{bracket:?}");
            assert!(!too_deep(&bracket.repeat(DEEPEST)), "{bracket:?}");
            for front in
                ["a: ", "- ", "- a: ", "--- ", "!!seq ", "a: &b ", "a: |\n  text\nb: ", "- |\n  [\n- "]
            {
                assert!(too_deep(&format!("{front}{}", bracket.repeat(MANY))), "{front:?} {bracket:?}");
            }
        }
    }

    #[test]
    fn brackets_that_are_closed_or_belong_to_another_document_do_not_count() {
        assert!(!too_deep(&"[{}]".repeat(100_000)));
        assert!(!too_deep(&"a: [\n---\n".repeat(MANY)));
    }

    #[test]
    fn brackets_in_text_do_not_count() {
        let (escape, quoted) = ("\\e[31m ".repeat(MANY), "[".repeat(MANY));
        for text in [
            format!("a: \"{escape}\""),
            format!("a: \"\\\"{quoted}\""),
            format!("a: 'it''s {quoted}'"),
            format!("a: \"\n  {quoted}\n  \""),
            format!("# {quoted}"),
            format!("a: b {quoted}"),
            format!("a: don't\nb: c{quoted}"),
            format!("a: |\n  {quoted}\n\n  {quoted}\nb: c"),
            format!("- a: >-\n    {quoted}\n  b: c"),
            format!("- |\n  {quoted}\n- c"),
            format!("--- |\n{quoted}\n"),
            "a: b [c\n".repeat(MANY),
        ] {
            assert!(!too_deep(&text), "{}", &text[..text.len().min(60)]);
        }
    }
}
