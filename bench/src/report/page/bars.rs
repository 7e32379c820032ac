//! Horizontal bars, the best first: the median as a bar, the quartiles as a thick line on it, the ends
//! as a thin one.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::super::{Better, Figure, Group, Spread};
use super::look::{AXIS, Area, FAINT, GRID, INK, TARGET, colour, drawing, subjects, text};

/// Pixels of a bar with its gap.
const ROW: u32 = 19;
/// Pixels between rows of several bars.
const GAP: u32 = 8;
/// Pixels for the legend.
const LEGEND: u32 = 24;
/// Tenths of a pixel of a character, on average.
const CHARACTER: usize = 58;
/// Pixels for a label at the end of the axis.
const EDGE: u32 = 36;
/// The most pixels for the names.
const NAMES: u32 = 500;

/// A figure's place, in pixels from the top of the plot.
struct Bar<'a> {
    figure: &'a Figure,
    colour: RGBColor,
    middle: i32,
}

/// Returns the height of a group's picture.
pub fn height(group: &Group) -> u32 {
    let (rows, subjects) = (rows(group), subjects(group).len());
    let legend = if subjects > 1 { LEGEND } else { 0 };
    let bars: u32 = rows.iter().map(|(_, figures)| figures.len() as u32 * ROW + gap(subjects)).sum();
    bars + legend + AXIS
}

/// Draws the picture.
pub fn draw(area: &Area<'_>, group: &Group) -> Result<()> {
    let subjects = subjects(group);
    let area = if subjects.len() > 1 { legend(area, &subjects)? } else { area.clone() };
    let names = names_width(group);
    let (_, height) = area.dim_in_pixel();
    let (rows, least, most) = (rows(group), least(group), most(group));
    let mut chart = ChartBuilder::on(&area)
        .margin_left(names)
        .margin_right(EDGE)
        .x_label_area_size(AXIS)
        .build_cartesian_2d(least..most, 0_f64..f64::from(height - AXIS))
        .map_err(drawing)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_labels(8)
        .x_label_formatter(&|value| group.unit.show(*value))
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(GRID)
        .label_style(text(FAINT, HPos::Center))
        .draw()
        .map_err(drawing)?;
    let mut top = 0;
    for (name, figures) in rows {
        let middle = top + figures.len() as i32 * ROW as i32 / 2;
        let label = Text::new(name.to_owned(), (names as i32 - 8, middle), text(INK, HPos::Right));
        area.draw(&label).map_err(drawing)?;
        for figure in figures {
            let number = subjects.iter().position(|subject| *subject == figure.subject).unwrap_or(0);
            let bar = Bar { figure, colour: colour(number), middle: top + ROW as i32 / 2 };
            let pixel = |value: f64| chart.backend_coord(&(value.clamp(least, most), 0.0)).0;
            bar.draw(&area, group, pixel)?;
            top += ROW as i32;
        }
        top += gap(subjects.len()) as i32;
    }
    Ok(())
}

impl Bar<'_> {
    fn draw(&self, area: &Area<'_>, group: &Group, pixel: impl Fn(f64) -> i32) -> Result<()> {
        let Spread { min, q1, median, q3, max, samples } = self.figure.spread;
        let (middle, half) = (self.middle, ROW as i32 / 2 - 3);
        // A backend's coordinates are those of the whole picture, and so are the area's but for a legend.
        let x = |value| pixel(value) - area.get_pixel_range().0.start;
        let (start, end) = (x(0.0).min(x(median)), x(0.0).max(x(median)));
        let bar =
            Rectangle::new([(start, middle - half), (end, middle + half)], self.colour.mix(0.75).filled());
        area.draw(&bar).map_err(drawing)?;
        if samples > 1 {
            let line = |from, to, width| {
                PathElement::new(vec![(x(from), middle), (x(to), middle)], INK.stroke_width(width))
            };
            area.draw(&line(min, max, 1)).map_err(drawing)?;
            area.draw(&line(q1, q3, 5)).map_err(drawing)?;
        }
        if let Some(target) = self.figure.target {
            let at = x(target);
            let mark = [(at, middle - half - 2), (at, middle + half + 2)];
            area.draw(&PathElement::new(mark.to_vec(), TARGET.stroke_width(2))).map_err(drawing)?;
        }
        let right = [median, max].map(x).into_iter().max().unwrap_or(end);
        // The mark of a target must not cross the value.
        let near = self.figure.target.map(x).filter(|at| (right - 2..right + 70).contains(at));
        let place = (near.unwrap_or(right) + 8, middle);
        let label = Text::new(group.unit.show(median), place, text(INK, HPos::Left));
        area.draw(&label).map_err(drawing)
    }
}

/// Draws the subjects with their colours on top. Returns the area below.
fn legend<'a>(area: &Area<'a>, subjects: &[&str]) -> Result<Area<'a>> {
    let (top, rest) = area.split_vertically(LEGEND);
    let mut left = 8;
    for (number, subject) in subjects.iter().enumerate() {
        let colour = colour(number).mix(0.75).filled();
        top.draw(&Rectangle::new([(left, 5), (left + 12, 17)], colour)).map_err(drawing)?;
        let label = Text::new((*subject).to_owned(), (left + 18, 11), text(INK, HPos::Left));
        top.draw(&label).map_err(drawing)?;
        left += 40 + (subject.chars().count() * CHARACTER / 10) as i32;
    }
    Ok(rest)
}

/// Returns the figures by name, the best row first.
fn rows(group: &Group) -> Vec<(&str, Vec<&Figure>)> {
    let mut rows: Vec<(&str, Vec<&Figure>)> = Vec::new();
    for figure in &group.figures {
        match rows.iter_mut().find(|(name, _)| *name == figure.name) {
            Some((_, figures)) => figures.push(figure),
            None => rows.push((&figure.name, vec![figure])),
        }
    }
    let first = |row: &(&str, Vec<&Figure>)| row.1.first().map_or(0.0, |figure| figure.spread.median);
    match group.better {
        Better::Lower => rows.sort_by(|one, other| first(one).total_cmp(&first(other))),
        Better::Higher => rows.sort_by(|one, other| first(other).total_cmp(&first(one))),
        Better::Neither => {}
    }
    rows
}

const fn gap(subjects: usize) -> u32 {
    if subjects > 1 { GAP } else { 0 }
}

fn names_width(group: &Group) -> u32 {
    let longest = group.figures.iter().map(|figure| figure.name.chars().count()).max().unwrap_or(0);
    ((longest * CHARACTER / 10) as u32 + 16).clamp(80, NAMES)
}

/// Returns the left end of the axis: 0 if no figure is negative.
fn least(group: &Group) -> f64 {
    group.figures.iter().map(|figure| figure.spread.min).fold(0.0, f64::min) * 1.05
}

/// Returns the right end of the axis, with room for a value behind the longest bar.
fn most(group: &Group) -> f64 {
    let ends = |figure: &Figure| figure.spread.max.max(figure.spread.median);
    let most = group.figures.iter().map(ends).fold(0.0, f64::max) * 1.18;
    if most > 0.0 { most } else { 1.0 }
}
