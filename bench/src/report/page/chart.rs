//! The picture of a group: bars, or lines if the figures have a place on an axis.

use anyhow::Result;
use plotters::prelude::*;

use super::super::Group;
use super::look::{WIDTH, drawing};
use super::{bars, lines};

/// Returns the picture as SVG.
pub fn draw(group: &Group) -> Result<String> {
    let mut svg = String::new();
    let height = if group.axis.is_some() { lines::HEIGHT } else { bars::height(group) };
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        if group.axis.is_some() {
            lines::draw(&area, group)?;
        } else {
            bars::draw(&area, group)?;
        }
        area.present().map_err(drawing)?;
    }
    Ok(svg.replacen("<svg ", "<svg role=\"img\" ", 1))
}
