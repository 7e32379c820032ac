//! The tables of the page.

use super::super::compare::{Change, Comparison};
use super::super::{Better, Environment, Figure, Group};
use super::escape;

/// Returns the machine, the kernel and the commit.
pub fn environment(environment: &Environment) -> String {
    let Environment { cpu, cores, kernel, mitigations, is_virtual, .. } = environment;
    let kind = if *is_virtual { ", a virtual machine" } else { "" };
    let rows = mitigations.iter().map(|(name, state)| row(&[text(name), text(state)]));
    format!(
        "<table>\n{}{}{}</table>\n<details><summary>Mitigations</summary>\n<table>\n{}</table>\n</details>\n",
        row(&[text("Machine"), text(&format!("{cpu}, {cores} processors{kind}"))]),
        row(&[text("Kernel"), text(kernel)]),
        row(&[text("Commit"), text(&environment.commit)]),
        rows.collect::<String>(),
    )
}

/// Returns the facts of a section's run in one line.
pub fn run(environment: &Environment) -> String {
    let Environment { cpu, cores, kernel, commit, .. } = environment;
    escape(&format!("{}; {commit}; {cpu}, {cores} processors; Linux {kernel}", environment.time()))
}

/// Returns all figures of a group.
pub fn figures(group: &Group) -> String {
    let mut keys: Vec<&String> = group.figures.iter().flat_map(|figure| figure.details.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let has_targets = group.figures.iter().any(|figure| figure.target.is_some());
    let mut head = vec![head_text("case"), head_text("of")];
    head.extend(group.axis.as_deref().map(header));
    head.extend(["median", "quartiles", "least", "greatest", "samples"].map(header));
    head.extend(has_targets.then(|| header("target")));
    head.extend(keys.iter().map(|key| header(key)));
    let rows = group.figures.iter().map(|figure| {
        let mut cells = cells(group, figure);
        cells.extend(has_targets.then(|| target(group, figure)));
        let detail =
            |key: &&String| cell(&figure.details.get(*key).map(|value| plain(*value)).unwrap_or_default());
        cells.extend(keys.iter().map(detail));
        row(&cells)
    });
    format!("<table>\n{}{}</table>\n", row(&head), rows.collect::<String>())
}

fn cells(group: &Group, figure: &Figure) -> Vec<String> {
    let (unit, spread) = (group.unit, figure.spread);
    let mut cells = vec![text(&figure.name), text(&figure.subject)];
    cells.extend(group.axis.is_some().then(|| cell(&figure.x.map(plain).unwrap_or_default())));
    cells.push(cell(&unit.exact(spread.median)));
    let others = [
        format!("{} to {}", unit.exact(spread.q1), unit.exact(spread.q3)),
        unit.exact(spread.min),
        unit.exact(spread.max),
    ];
    // A single sample has no spread.
    cells.extend(others.map(|other| cell(if spread.samples > 1 { &other } else { "" })));
    cells.push(cell(&spread.samples.to_string()));
    cells
}

fn target(group: &Group, figure: &Figure) -> String {
    let Some(target) = figure.target else { return cell("") };
    let (is_reached, bound) = match group.better {
        Better::Higher => (figure.spread.median >= target, "at least"),
        Better::Lower | Better::Neither => (figure.spread.median <= target, "at most"),
    };
    let class = if is_reached { "better" } else { "missed" };
    format!("<td class=\"{class}\">{bound} {}</td>", escape(&group.unit.show(target)))
}

/// Returns the section about changes.
pub fn comparison(comparison: &Comparison) -> String {
    let Comparison { changes, compared, added, removed, .. } = comparison;
    let head = ["figure", "before", "now", "change"].map(header);
    let rows = changes.iter().map(change).collect::<String>();
    let table = if changes.is_empty() {
        "<p>No figure changed beyond the noise.</p>\n".to_owned()
    } else {
        format!("<table>\n{}{rows}</table>\n", row(&head))
    };
    let warnings =
        comparison.warnings.iter().map(|warning| format!("<p class=\"missed\">{}</p>\n", escape(warning)));
    format!(
        "<section id=\"changes\">\n<h2>Changes beyond the noise</h2>\n{}<p class=\"note\">{} of {compared} figures \
         changed. A change counts if the quartiles of both runs are apart, and the medians differ by more than \
         their 95 % intervals and the instrument's resolution. New: {}. Gone: {}.</p>\n{table}</section>\n",
        warnings.collect::<String>(),
        changes.len(),
        added.len(),
        removed.len(),
    )
}

fn change(change: &Change) -> String {
    let class = match change.is_better() {
        Some(true) => "better",
        Some(false) => "worse",
        None => "",
    };
    row(&[
        text(&change.label()),
        cell(&change.unit.exact(change.old.median)),
        cell(&change.unit.exact(change.new.median)),
        format!("<td class=\"{class}\">{}</td>", escape(&change.show())),
    ])
}

fn row(cells: &[String]) -> String {
    format!("<tr>{}</tr>\n", cells.concat())
}

fn header(content: &str) -> String {
    format!("<th>{}</th>", escape(content))
}

fn head_text(content: &str) -> String {
    format!("<th class=\"text\">{}</th>", escape(content))
}

fn cell(content: &str) -> String {
    format!("<td>{}</td>", escape(content))
}

fn text(content: &str) -> String {
    format!("<td class=\"text\">{}</td>", escape(content))
}

fn plain(value: f64) -> String {
    let decimals = usize::from(value.fract() != 0.0);
    format!("{value:.decimals$}")
}
