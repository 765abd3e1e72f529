//! Charts as SVG text, to stand in a page: the page's style sheet gives texts their colour and font.

use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind};
use plotters::prelude::{
    ChartBuilder, Color as _, IntoDrawingArea as _, IntoFont as _, LineSeries, RGBColor, Rectangle,
    SVGBackend, ShapeStyle,
};

use super::axis::Axis;
use crate::SimError;

/// Width and height. Plotters draws at whole numbers; a page shows it at half of that or less, so that lines are smooth.
const SIZE: (u32, u32) = (900, 540);

/// Size of the texts there.
pub(super) const TEXT: f64 = 29.0;

/// Room for labels at the left and at the bottom, and for the end of the last label at the right.
const LEFT: u32 = 128;
const BOTTOM: u32 = 88;
const RIGHT: u32 = 36;

/// Width of what is inside of the axes.
pub(super) const INSIDE: i32 = (SIZE.0 - LEFT - RIGHT) as i32;

/// Colours that can be told from each other and read on white and on black. With more arms they begin again.
pub(super) const COLOURS: [(u8, u8, u8); 8] = [
    (59, 130, 196),
    (224, 123, 43),
    (58, 157, 93),
    (209, 73, 91),
    (142, 107, 191),
    (42, 157, 157),
    (160, 120, 70),
    (128, 128, 128),
];

/// Lines, or bars, of several arms.
#[derive(Debug)]
pub(super) struct Chart {
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) marks: Vec<Mark>,
}

/// What is drawn of an arm.
#[derive(Debug)]
pub(super) enum Mark {
    /// A line through points.
    Line {
        /// Which arm's colour.
        arm: usize,
        /// A faint one goes with another.
        faint: bool,
        /// In the units of the axes.
        points: Vec<(f64, f64)>,
    },
    /// A bar from zero.
    Bar {
        /// Which arm's colour.
        arm: usize,
        /// From where to where it stands.
        x: (f64, f64),
        /// How high it is.
        y: f64,
    },
}

impl Mark {
    /// The points that it needs room for.
    pub(super) fn points(&self) -> Vec<(f64, f64)> {
        match self {
            Self::Line { points, .. } => points.clone(),
            Self::Bar { x, y, .. } => vec![(x.0, 0.0), (x.1, *y)],
        }
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

type DrawError = DrawingAreaErrorKind<std::io::Error>;

impl Chart {
    /// As an SVG element.
    ///
    /// # Errors
    /// What plotters says.
    pub(super) fn svg(&self) -> Result<String, SimError> {
        let mut text = String::new();
        {
            let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            self.draw(&area).map_err(|e| SimError::Chart(e.to_string()))?;
        }
        // Inside a page the name of the language goes without saying, and the style sheet says how wide it is.
        let head = format!(r#"width="{}" height="{}" viewBox"#, SIZE.0, SIZE.1);
        Ok(text.replacen(&head, "viewBox", 1).replacen(r#" xmlns="http://www.w3.org/2000/svg""#, "", 1))
    }

    fn draw(&self, area: &Area<'_>) -> Result<(), DrawError> {
        let mut chart = ChartBuilder::on(area)
            .margin_top(20)
            .margin_right(RIGHT)
            .x_label_area_size(BOTTOM)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        let grey = RGBColor(128, 128, 128);
        let label = ("sans-serif", TEXT).into_font();
        chart
            .configure_mesh()
            .bold_line_style(grey.mix(0.25))
            .light_line_style(grey.mix(0.0))
            .axis_style(ShapeStyle { color: grey.mix(0.9), filled: false, stroke_width: 2 })
            .label_style(label.clone())
            .axis_desc_style(label)
            .x_label_formatter(&|value| self.x.label(*value))
            .y_label_formatter(&|value| self.y.label(*value))
            .x_desc(self.x.name.clone())
            .y_desc(self.y.name.clone())
            .draw()?;
        // What is faint lies below.
        for faint in [true, false] {
            for mark in &self.marks {
                match mark {
                    Mark::Line { arm, faint: is, points } if *is == faint => {
                        let (alpha, stroke_width) = if faint { (0.4, 2) } else { (1.0, 4) };
                        let style =
                            ShapeStyle { color: colour(*arm).mix(alpha), filled: false, stroke_width };
                        chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
                    }
                    Mark::Bar { arm, x, y } if !faint => {
                        let corners = [(x.0, 0.0), (x.1, *y)];
                        let style = colour(*arm).filled();
                        chart.draw_series(std::iter::once(Rectangle::new(corners, style)))?;
                    }
                    _ => {}
                }
            }
        }
        area.present()
    }
}

fn colour(arm: usize) -> RGBColor {
    let (r, g, b) = COLOURS[arm % COLOURS.len()];
    RGBColor(r, g, b)
}
