//! Lines over a size, one for each name and subject, with the quartiles as whiskers.

use anyhow::Result;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::super::{Figure, Group, MILLRACE};
use super::look::{AXIS, Area, FAINT, GRID, INK, colour, drawing, text};

/// The height of a picture.
pub const HEIGHT: u32 = 380;
/// Room for the names at the right end of the lines.
const NAMES: u32 = 260;
/// Room for the labels of the vertical axis.
const VALUES: u32 = 90;

type Series<'a> = (String, Vec<(f64, &'a Figure)>);

/// Draws the picture. An axis is logarithmic if its ends are far apart.
pub fn draw(area: &Area<'_>, group: &Group) -> Result<()> {
    let series = series(group);
    let places = series.iter().flat_map(|(_, points)| points.iter().map(|(x, _)| *x));
    let across = Ends::of(places);
    let values = group.figures.iter().flat_map(|figure| [figure.spread.q1, figure.spread.q3]);
    let up = Ends::of(values);
    let (x, y) = (across.first..across.last * 1.02, up.first * 0.8..up.last * 1.15);
    let from_zero = |ends: &Ends, last: f64| ends.first.min(0.0)..if last > 0.0 { last } else { 1.0 };
    match (across.is_wide(10.0), up.is_wide(50.0)) {
        (true, true) => plot(area, group, &series, x.log_scale(), y.log_scale()),
        (true, false) => plot(area, group, &series, x.log_scale(), from_zero(&up, y.end)),
        (false, true) => plot(area, group, &series, from_zero(&across, x.end), y.log_scale()),
        (false, false) => plot(area, group, &series, from_zero(&across, x.end), from_zero(&up, y.end)),
    }
}

/// The least and the greatest value of an axis.
struct Ends {
    first: f64,
    last: f64,
}

impl Ends {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let start = Self { first: f64::INFINITY, last: f64::NEG_INFINITY };
        values.fold(start, |ends, value| Self { first: ends.first.min(value), last: ends.last.max(value) })
    }

    /// Returns whether the last value is more than so many times the first one.
    fn is_wide(&self, times: f64) -> bool {
        self.first > 0.0 && self.last / self.first > times
    }
}

fn plot<X, Y>(area: &Area<'_>, group: &Group, series: &[Series<'_>], across: X, up: Y) -> Result<()>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64> + Ranged<ValueType = f64>,
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64> + Ranged<ValueType = f64>,
{
    let mut chart = ChartBuilder::on(area)
        .margin_top(10)
        .margin_right(NAMES)
        .x_label_area_size(AXIS + 18)
        .y_label_area_size(VALUES)
        .build_cartesian_2d(across, up)
        .map_err(drawing)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(FAINT)
        .x_desc(group.axis.clone().unwrap_or_default())
        .x_label_formatter(&|value| super::super::Unit::Count.show(*value))
        .y_label_formatter(&|value| group.unit.show(*value))
        .label_style(("sans-serif", super::look::FONT).into_font().color(&FAINT))
        .draw()
        .map_err(drawing)?;
    let mut labels: Vec<(i32, i32, String, RGBColor)> = Vec::new();
    for (number, (name, points)) in series.iter().enumerate() {
        let colour = colour(number);
        let path: Vec<(f64, f64)> = points.iter().map(|(x, figure)| (*x, figure.spread.median)).collect();
        let end = path.last().map(|last| chart.backend_coord(last));
        chart.draw_series([PathElement::new(path.clone(), colour.stroke_width(2))]).map_err(drawing)?;
        chart.draw_series(path.iter().map(|at| Circle::new(*at, 4, colour.filled()))).map_err(drawing)?;
        let whisker = |(x, figure): &(f64, &Figure)| {
            PathElement::new(vec![(*x, figure.spread.q1), (*x, figure.spread.q3)], INK.stroke_width(3))
        };
        chart.draw_series(points.iter().map(whisker)).map_err(drawing)?;
        labels.extend(end.map(|(x, y)| (x, y, name.clone(), colour)));
    }
    write_names(area, labels)
}

/// Writes the names at the ends of the lines, one below the other.
fn write_names(area: &Area<'_>, mut labels: Vec<(i32, i32, String, RGBColor)>) -> Result<()> {
    labels.sort_by_key(|(_, y, ..)| *y);
    let mut free = 0;
    for (x, y, name, colour) in labels {
        let place = y.max(free);
        free = place + 16;
        area.draw(&Text::new(name, (x + 12, place), text(colour, HPos::Left))).map_err(drawing)?;
    }
    Ok(())
}

/// Returns the figures by name and subject, in the order of the axis.
fn series(group: &Group) -> Vec<Series<'_>> {
    let is_alone = group.figures.iter().all(|figure| figure.subject == MILLRACE);
    let mut series: Vec<Series<'_>> = Vec::new();
    for figure in &group.figures {
        let name =
            if is_alone { figure.name.clone() } else { format!("{}, {}", figure.subject, figure.name) };
        let point = (figure.x.unwrap_or(0.0), figure);
        match series.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push(point),
            None => series.push((name, vec![point])),
        }
    }
    for (_, points) in &mut series {
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    series
}
