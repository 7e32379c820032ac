//! The page: one HTML file with the pictures in it, without scripts.

mod bars;
mod chart;
mod lines;
mod look;
mod tables;

use anyhow::{Context, Result};

use super::compare::Comparison;
use super::{Environment, Group, Report, Section};

const STYLE: &str = include_str!("style.css");

/// Returns the page of a report.
pub fn render(report: &Report, comparison: Option<&Comparison>) -> Result<String> {
    let mut body = header(report);
    if let Some(comparison) = comparison {
        body += &tables::comparison(comparison);
    }
    for section in &report.sections {
        body += &render_section(section).with_context(|| format!("the section {}", section.id))?;
    }
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Millrace: benchmarks</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n\
         </body>\n</html>\n"
    ))
}

fn header(report: &Report) -> String {
    let links = report
        .sections
        .iter()
        .map(|section| format!("<a href=\"#{}\">{}</a>", escape(&section.id), escape(&section.title)));
    let links = links.collect::<Vec<_>>().join(" ");
    let environment = shared_environment(report).map(tables::environment).unwrap_or_default();
    format!(
        "<header>\n<h1>Millrace: benchmarks</h1>\n{environment}<nav>{links}</nav>\n\
         <p class=\"key\"><svg width=\"120\" height=\"16\" aria-hidden=\"true\"><rect x=\"0\" y=\"2\" width=\"70\" \
         height=\"12\" fill=\"#0072b2\" opacity=\"0.75\"/><path d=\"M50 8H95\" stroke=\"#222b38\"/>\
         <path d=\"M60 8H80\" stroke=\"#222b38\" stroke-width=\"5\"/><path d=\"M110 1V15\" stroke=\"#d02f2f\" \
         stroke-width=\"2\"/></svg> A bar is the median. The thick line joins the quartiles, the thin line the \
         least and the greatest sample. A red mark is the value to reach. The best is first.</p>\n</header>\n"
    )
}

/// Returns the environment of all sections, if it is one.
fn shared_environment(report: &Report) -> Option<&Environment> {
    let first = &report.sections.first()?.environment;
    report.sections.iter().all(|section| section.environment.is_like(first)).then_some(first)
}

fn render_section(section: &Section) -> Result<String> {
    let mut html = format!(
        "<section id=\"{}\">\n<h2>{}</h2>\n<p class=\"method\">{}</p>\n<p class=\"run\">{}</p>\n",
        escape(&section.id),
        escape(&section.title),
        escape(&section.method),
        tables::run(&section.environment),
    );
    for group in &section.groups {
        html += &render_group(group)?;
    }
    if !section.left_out.is_empty() {
        let items = section
            .left_out
            .iter()
            .map(|left_out| format!("<li>{}: {}</li>\n", escape(&left_out.what), escape(&left_out.why)));
        html = html + "<h3>Not measured</h3>\n<ul>\n" + &items.collect::<String>() + "</ul>\n";
    }
    Ok(html + "</section>\n")
}

fn render_group(group: &Group) -> Result<String> {
    let picture = chart::draw(group).with_context(|| group.title.clone())?;
    Ok(format!(
        "<h3>{} <small>{}</small></h3>\n<figure>{picture}</figure>\n<details><summary>All figures</summary>\n{}\
         </details>\n",
        escape(&group.title),
        escape(group.direction()),
        tables::figures(group),
    ))
}

/// Returns text that HTML does not read as marks.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::{Figure, MILLRACE, Unit};
    use super::*;

    fn report() -> Report {
        let mut section = Section::new("packets", "What a packet <costs>", "Method & more.");
        let mut bars = Group::new("Bars", Unit::Nanoseconds);
        bars.add(Figure::new("slow", MILLRACE, &[90.0, 95.0, 99.0]).unwrap().target(60.0));
        bars.add(Figure::new("fast", MILLRACE, &[40.0, 41.0, 43.0]).unwrap());
        bars.add(Figure::new("fast", "Katran", &[50.0, 51.0, 52.0]).unwrap());
        let mut lines = Group::new("Lines", Unit::PerSecond).over("Services");
        for (x, rate) in [(1.0, 900.0), (100.0, 800.0), (10_000.0, 700.0)] {
            lines.add(Figure::new("rate", MILLRACE, &[rate, rate + 5.0]).unwrap().at(x));
        }
        section.add(bars);
        section.add(lines);
        section.leave_out("IPVS", "this kernel has none");
        Report::new(vec![section])
    }

    #[test]
    fn the_page_is_one_file_with_every_figure() {
        let page = render(&report(), None).unwrap();
        for part in
            ["What a packet &lt;costs&gt;", "Method &amp; more.", "41 ns", "Katran", "IPVS", "Services"]
        {
            assert!(page.contains(part), "{part}");
        }
        assert_eq!(page.matches("<svg ").count(), 3, "the key and two pictures");
        for outside in ["src=", "<script", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        let bars = page.find("\nfast\n").unwrap();
        assert!(bars < page.find("\nslow\n").unwrap(), "the best is first");
    }
}
