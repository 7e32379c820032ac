//! The writer of Markdown tables, and the reader of headings and links.

use std::collections::BTreeMap;

/// Returns a table of these rows. A bar in a cell is escaped.
pub fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let mut text = line(&head) + "|" + &"---|".repeat(head.len()) + "\n";
    for row in rows {
        assert_eq!(row.len(), head.len(), "{row:?}");
        text.push_str(&line(&row));
    }
    text
}

/// Returns text as code, unless it is empty.
pub fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{text}`") }
}

/// Returns plain text with flags, paths, file patterns and annotations as code.
pub fn with_code(text: &str) -> String {
    let words = text.split(' ').map(|word| {
        let core = word.trim_end_matches([',', '.', ';', ':']);
        let is_code = ["--", "*.", "/", "~/"].iter().any(|begin| core.starts_with(begin))
            || core.contains(['/', '_']) && core.starts_with(char::is_lowercase);
        if is_code { format!("`{core}`{}", &word[core.len()..]) } else { word.to_owned() }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Returns the lines outside fenced code, each with its number from 1 on.
pub fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut fence: Option<&str> = None;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        match fence {
            Some(mark) if trimmed.starts_with(mark) => fence = None,
            Some(_) => {}
            None => match ["```", "~~~"].into_iter().find(|mark| trimmed.starts_with(mark)) {
                Some(mark) => fence = Some(mark),
                None => lines.push((index + 1, line)),
            },
        }
    }
    lines
}

/// Returns the line without inline code, because brackets in code are no links.
fn without_code(line: &str) -> String {
    let mut kept = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('`') {
        let ticks = 1 + after.len() - after.trim_start_matches('`').len();
        let mark = "`".repeat(ticks);
        let inside = &after[ticks - 1..];
        kept.push_str(before);
        match inside.split_once(&mark) {
            Some((_, after)) => rest = after,
            None => rest = inside,
        }
    }
    kept + rest
}

/// Returns the targets of all links and images with their lines: inline, by reference, and in HTML.
pub fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (number, line) in prose(text) {
        let line = without_code(line);
        let mut found: Vec<String> = Vec::new();
        for (mark, end) in [("](", ')'), ("href=\"", '"'), ("src=\"", '"')] {
            let targets = line.split(mark).skip(1);
            found.extend(targets.filter_map(|rest| Some(rest.split_once(end)?.0.to_owned())));
        }
        if let Some((label, target)) = line.trim_start().split_once("]: ")
            && label.starts_with('[')
            && !label.contains(' ')
        {
            found.push(target.to_owned());
        }
        let target = |text: &String| {
            let target = text.split_whitespace().next().unwrap_or_default();
            (number, target.trim_start_matches('<').trim_end_matches('>').to_owned())
        };
        links.extend(found.iter().map(target));
    }
    links
}

/// Returns the anchors of a page: those that GitHub makes from headings, and those in HTML.
pub fn anchors(text: &str) -> Vec<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = Vec::new();
    for (_, line) in prose(text) {
        for mark in ["id=\"", "name=\""] {
            let ids = line.split(mark).skip(1).filter_map(|rest| rest.split_once('"'));
            anchors.extend(ids.map(|(id, _)| id.to_owned()));
        }
        let title = line.trim_start_matches('#');
        let level = line.len() - title.len();
        if !(1..=6).contains(&level) || !title.starts_with(' ') {
            continue;
        }
        let slug = slug(title);
        let count = seen.entry(slug.clone()).or_default();
        anchors.push(if *count == 0 { slug } else { format!("{slug}-{count}") });
        *count += 1;
    }
    anchors
}

fn slug(title: &str) -> String {
    // Only the text of a link in a heading remains.
    let mut plain = String::new();
    let mut rest = title.trim();
    while let Some((before, after)) = rest.split_once("](") {
        plain.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    plain.push_str(rest);
    let kept = plain.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect::<String>().to_lowercase()
}

#[test]
fn a_heading_has_the_anchor_that_github_gives_it() {
    let text = "# Direct Server Return\n## `--dsr-encap`\n## What's new, in 2 steps?\n# Direct Server Return\n\
                ```\n# no heading\n```\n#tag\n## [Guide](x.md) and more\n<a id=\"here\"></a>\n";
    let expected = [
        "direct-server-return",
        "--dsr-encap",
        "whats-new-in-2-steps",
        "direct-server-return-1",
        "guide-and-more",
        "here",
    ];
    assert_eq!(anchors(text), expected);
}

#[test]
fn links_are_found_outside_code() {
    let text = "[a](b.md#c) and ![d](e.svg \"title\"), `[no](code)`\n```\n[no](fence)\n```\n[f]: g.md\n<img src=\"h.png\">\n";
    let found: Vec<String> = links(text).into_iter().map(|(_, target)| target).collect();
    assert_eq!(found, ["b.md#c", "e.svg", "g.md", "h.png"]);
}
