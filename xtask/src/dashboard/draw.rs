//! The pictures.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::Value;

use super::prometheus::Series;
use super::text_at;

/// Pixels of one of Grafana's columns and rows.
const COLUMN: f64 = 50.0;
const LINE: f64 = 27.0;
const COLOURS: [&str; 8] =
    ["#3b7dd8", "#d9822b", "#3d9970", "#b5484f", "#7d5ba6", "#8a6d3b", "#4aa3b5", "#6b7280"];
/// The legends below a panel.
const LEGENDS: usize = 8;

/// Returns the picture of a row: its heading, and its panels in their places.
pub fn row(row: &[Value], series: impl Fn(&Value) -> Result<Vec<Series>>) -> Result<String> {
    let number = |panel: &Value, key: &str| {
        panel.pointer(&format!("/gridPos/{key}")).and_then(Value::as_f64).unwrap_or(0.0)
    };
    let top = row.first().map_or(0.0, |panel| number(panel, "y"));
    let bottom = row.iter().map(|panel| number(panel, "y") + number(panel, "h")).fold(0.0, f64::max);
    let (width, height) = (24.0 * COLUMN, (bottom - top) * LINE);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for panel in row {
        let (x, y) = (number(panel, "x") * COLUMN, (number(panel, "y") - top) * LINE);
        let (w, h) = (number(panel, "w") * COLUMN, number(panel, "h") * LINE);
        write!(svg, "<g transform=\"translate({x} {y})\">")?;
        if text_at(panel, "/type") == "row" {
            write!(
                svg,
                "<text x=\"8\" y=\"20\" font-size=\"16\">{}</text>",
                escaped(text_at(panel, "/title"))
            )?;
        } else {
            write!(
                svg,
                "<rect x=\"4\" y=\"4\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#ccc\"/>",
                w - 8.0,
                h - 8.0
            )?;
            write!(
                svg,
                "<text x=\"12\" y=\"20\" font-weight=\"bold\">{}</text>",
                escaped(text_at(panel, "/title"))
            )?;
            self::panel(&mut svg, panel, &series(panel)?, w, h)?;
        }
        svg.push_str("</g>\n");
    }
    Ok(svg + "</svg>\n")
}

fn panel(svg: &mut String, panel: &Value, series: &[Series], w: f64, h: f64) -> Result<()> {
    let unit = text_at(panel, "/fieldConfig/defaults/unit");
    match text_at(panel, "/type") {
        "stat" => {
            let last = series.first().and_then(|one| one.points.last());
            let value = last.map_or_else(|| "no data".to_owned(), |(_, value)| shown(*value, unit));
            write!(
                svg,
                "<text x=\"{}\" y=\"{}\" font-size=\"30\" text-anchor=\"middle\">{value}</text>",
                w / 2.0,
                h * 0.7
            )?;
        }
        "table" => {
            for (index, one) in series.iter().take(8).enumerate() {
                write!(
                    svg,
                    "<text x=\"12\" y=\"{}\">{}</text>",
                    44.0 + 18.0 * precise(index),
                    escaped(&one.name)
                )?;
            }
        }
        _ => lines(
            svg,
            series,
            text_at(panel, "/fieldConfig/defaults/custom/stacking/mode") == "normal",
            unit,
            w,
            h,
        )?,
    }
    Ok(())
}

/// Draws lines, or areas on one another.
fn lines(svg: &mut String, series: &[Series], is_stacked: bool, unit: &str, w: f64, h: f64) -> Result<()> {
    let times = series.iter().flat_map(|one| one.points.iter().map(|(time, _)| *time));
    let (first, last) = times.fold((f64::MAX, f64::MIN), |(low, high), time| (low.min(time), high.max(time)));
    if first > last {
        write!(
            svg,
            "<text x=\"{}\" y=\"{}\" fill=\"#888\" text-anchor=\"middle\">no data</text>",
            w / 2.0,
            h / 2.0
        )?;
        return Ok(());
    }
    let mut below: Vec<(f64, f64)> = Vec::new();
    let mut shapes = Vec::new();
    for one in series {
        let base =
            |time: f64| below.iter().find(|(at, _)| (*at - time).abs() < 0.5).map_or(0.0, |(_, sum)| *sum);
        let upper: Vec<(f64, f64)> = one
            .points
            .iter()
            .map(|(time, value)| (*time, value + if is_stacked { base(*time) } else { 0.0 }))
            .collect();
        let lower: Vec<(f64, f64)> = one.points.iter().map(|(time, _)| (*time, base(*time))).collect();
        if is_stacked {
            below.retain(|(at, _)| !upper.iter().any(|(time, _)| (at - time).abs() < 0.5));
            below.extend(&upper);
        }
        shapes.push((upper, lower));
    }
    let most = shapes.iter().flat_map(|(upper, _)| upper).map(|(_, value)| *value).fold(0.0, f64::max);
    let most = if most > 0.0 { most } else { 1.0 };
    let (left, right, top, bottom) = (70.0, w - 16.0, 34.0, h - 48.0);
    let place = |(time, value): &(f64, f64)| {
        let x = left + (right - left) * (time - first) / (last - first).max(1.0);
        format!("{x:.0},{:.0}", bottom - (bottom - top) * value / most)
    };
    for (share, value) in [(0.0, 0.0), (0.5, most / 2.0), (1.0, most)] {
        let y = bottom - (bottom - top) * share;
        write!(
            svg,
            "<path d=\"M{left} {y:.0}H{right}\" stroke=\"#eee\"/><text x=\"{}\" y=\"{:.0}\" fill=\"#666\" text-anchor=\"end\">{}</text>",
            left - 6.0,
            y + 4.0,
            shown(value, unit)
        )?;
    }
    for (index, (upper, lower)) in shapes.iter().enumerate() {
        let colour = COLOURS.get(index % COLOURS.len()).copied().unwrap_or_default();
        let line: Vec<String> = upper.iter().map(place).collect();
        if is_stacked {
            let back: Vec<String> = lower.iter().rev().map(place).collect();
            write!(
                svg,
                "<polygon points=\"{} {}\" fill=\"{colour}\" fill-opacity=\".3\"/>",
                line.join(" "),
                back.join(" ")
            )?;
        }
        write!(svg, "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"/>", line.join(" "))?;
    }
    write!(
        svg,
        "<text x=\"{right}\" y=\"{}\" fill=\"#666\" text-anchor=\"end\">{:.0} min</text>",
        bottom + 14.0,
        (last - first) / 60.0
    )?;
    legends(svg, series, w, bottom + 14.0)
}

fn legends(svg: &mut String, series: &[Series], w: f64, y: f64) -> Result<()> {
    let (mut x, mut y) = (12.0, y + 2.0);
    for (index, one) in series.iter().take(LEGENDS).enumerate() {
        let wide = 24.0 + 6.6 * precise(one.name.chars().count());
        if x + wide > w - 60.0 {
            (x, y) = (12.0, y + 14.0);
        }
        let colour = COLOURS.get(index % COLOURS.len()).copied().unwrap_or_default();
        write!(
            svg,
            "<rect x=\"{x:.0}\" y=\"{:.0}\" width=\"8\" height=\"8\" fill=\"{colour}\"/><text x=\"{:.0}\" y=\"{y:.0}\">{}</text>",
            y - 8.0,
            x + 12.0,
            escaped(&one.name)
        )?;
        x += wide;
    }
    if series.len() > LEGENDS {
        write!(
            svg,
            "<text x=\"{x:.0}\" y=\"{y:.0}\" fill=\"#666\">and {} more</text>",
            series.len() - LEGENDS
        )?;
    }
    Ok(())
}

/// Returns a value with the prefix and the symbol of Grafana's unit.
fn shown(value: f64, unit: &str) -> String {
    let symbol = match unit {
        "short" => "",
        "percentunit" => return format!("{:.2}%", value * 100.0).replace(".00%", "%"),
        "bytes" => "B",
        "bps" => "b/s",
        "reqps" => "req/s",
        "pps" => "p/s",
        "cps" => "c/s",
        "ops" => "/s",
        other => other,
    };
    let (factor, prefix) = match value.abs() {
        size if size >= 1e9 => (1e-9, "G"),
        size if size >= 1e6 => (1e-6, "M"),
        size if size >= 1e3 && !symbol.is_empty() && unit != "s" => (1e-3, "k"),
        size if size > 0.0 && size < 0.1 && unit == "s" => (1e3, "m"),
        _ => (1.0, ""),
    };
    let scaled = value * factor;
    let digits = if scaled.abs() >= 100.0 { 0 } else { 2 };
    let number = format!("{scaled:.digits$}");
    let number = if digits == 0 { &number } else { number.trim_end_matches('0').trim_end_matches('.') };
    format!("{number} {prefix}{symbol}").trim_end().to_owned()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn precise(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_have_the_symbol_of_their_unit() {
        for (value, unit, expected) in [
            (1234.5, "pps", "1.23 kp/s"),
            (3_250_000.0, "bps", "3.25 Mb/s"),
            (0.0042, "s", "4.2 ms"),
            (0.5, "percentunit", "50%"),
            (3.0, "short", "3"),
            (1200.0, "s", "1200 s"),
            (9500.0, "bps", "9.5 kb/s"),
        ] {
            assert_eq!(shown(value, unit), expected);
        }
    }

    #[test]
    fn a_panel_without_series_says_so_and_areas_stand_on_one_another() {
        let of_type = |kind: &str, mode: &str| {
            json!({"type": kind, "title": "<A>", "gridPos": {"x": 0, "y": 1, "w": 8, "h": 8},
                "fieldConfig": {"defaults": {"unit": "short", "custom": {"stacking": {"mode": mode}}}}})
        };
        let heading = json!({"type": "row", "title": "Nodes", "gridPos": {"x": 0, "y": 0, "w": 24, "h": 1}});
        let empty = row(&[heading.clone(), of_type("timeseries", "none")], |_| Ok(Vec::new())).unwrap();
        assert!(
            empty.contains("no data") && empty.contains("&lt;A&gt;") && empty.contains(">Nodes<"),
            "{empty}"
        );
        let two = |_: &Value| {
            let one = |name: &str| Series { name: name.to_owned(), points: vec![(0.0, 2.0), (60.0, 2.0)] };
            Ok(vec![one("a"), one("b")])
        };
        let stacked = row(&[heading.clone(), of_type("timeseries", "normal")], two).unwrap();
        assert!(stacked.contains(">4</text>") && stacked.matches("<polygon").count() == 2, "{stacked}");
        let beside = row(&[heading, of_type("timeseries", "none")], two).unwrap();
        assert!(beside.contains(">2</text>") && !beside.contains("<polygon"), "{beside}");
    }
}
