//! The look of pictures: sizes, colours, text.

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::super::{Group, MILLRACE};

/// The width of a picture. The page makes it narrower if it has to.
pub const WIDTH: u32 = 1080;
/// Pixels of text.
pub const FONT: u32 = 12;
/// Room for the axis below the plot.
pub const AXIS: u32 = 28;

/// Dark text, and lines that mark a spread.
pub const INK: RGBColor = RGBColor(0x22, 0x2b, 0x38);
/// The axis and its labels.
pub const FAINT: RGBColor = RGBColor(0x6b, 0x75, 0x84);
/// Lines of the grid.
pub const GRID: RGBColor = RGBColor(0xe3, 0xe7, 0xec);
/// A value to reach.
pub const TARGET: RGBColor = RGBColor(0xd0, 0x2f, 0x2f);
/// Colours that differ for all eyes (Okabe and Ito), in the order of the subjects.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x8a, 0x8f, 0x98),
];

/// A drawing area of a picture.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Returns the subjects of a group: Millrace, then others in the order of their appearance.
pub fn subjects(group: &Group) -> Vec<&str> {
    let mut subjects: Vec<&str> = Vec::new();
    for figure in &group.figures {
        if !subjects.contains(&figure.subject.as_str()) {
            subjects.push(&figure.subject);
        }
    }
    subjects.sort_by_key(|subject| *subject != MILLRACE);
    subjects
}

/// Returns the colour of a subject or series by its number.
pub fn colour(number: usize) -> RGBColor {
    COLOURS.get(number % COLOURS.len()).copied().unwrap_or(INK)
}

/// Returns a text style.
pub fn text(colour: RGBColor, horizontal: HPos) -> TextStyle<'static> {
    ("sans-serif", FONT).into_font().color(&colour).pos(Pos::new(horizontal, VPos::Center))
}

/// Returns an error that does not borrow the picture.
#[allow(clippy::needless_pass_by_value, reason = "the form that `map_err` wants")]
pub fn drawing<E: std::error::Error + Send + Sync>(error: DrawingAreaErrorKind<E>) -> anyhow::Error {
    anyhow!("can't draw: {error}")
}
