//! Charts as inline SVG: drawn by plotters, themed by the page's style sheet, with a hover title on every point that has something to say.
//!
//! Each [`Color`] is written as its light-theme value; the style sheet replaces it by that value's selector when the reader prefers dark.

use std::fmt::Write as _;

use maud::{Markup, PreEscaped, html};
use plotters::prelude::*;
use plotters::style::Color as _;

use super::axis::{Axis, scaled};

/// Pixel size of a chart before the page scales it.
const SIZE: (u32, u32) = (560, 270);

/// Colours of the page; each has a class in `style.css`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Color {
    Blue,
    Orange,
    Green,
    Red,
    Purple,
    Teal,
    Pink,
    Gray,
}

impl Color {
    /// Order in which series of equal rank are coloured.
    pub(super) const SERIES: [Self; 8] = [
        Self::Blue,
        Self::Orange,
        Self::Green,
        Self::Purple,
        Self::Teal,
        Self::Red,
        Self::Pink,
        Self::Gray,
    ];

    fn rgb(self) -> RGBColor {
        match self {
            Self::Blue => RGBColor(0x25, 0x63, 0xEB),
            Self::Orange => RGBColor(0xD9, 0x77, 0x06),
            Self::Green => RGBColor(0x15, 0x80, 0x3D),
            Self::Red => RGBColor(0xDC, 0x26, 0x26),
            Self::Purple => RGBColor(0x7C, 0x3A, 0xED),
            Self::Teal => RGBColor(0x0E, 0x74, 0x90),
            Self::Pink => RGBColor(0xBE, 0x18, 0x5D),
            Self::Gray => RGBColor(0x6B, 0x72, 0x80),
        }
    }

    /// Its class in the style sheet.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Blue => "blue",
            Self::Orange => "orange",
            Self::Green => "green",
            Self::Red => "red",
            Self::Purple => "purple",
            Self::Teal => "teal",
            Self::Pink => "pink",
            Self::Gray => "gray",
        }
    }
}

const TEXT: RGBColor = RGBColor(0x57, 0x60, 0x6A);
const GRID: RGBColor = RGBColor(0xE6, 0xE9, 0xED);
const AXIS: RGBColor = RGBColor(0xC4, 0xCA, 0xD1);

/// A point; `title` shows on hover.
#[derive(Clone, Debug)]
pub(super) struct Dot {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) title: Option<String>,
}

/// How the points of a layer are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Line,
    /// A thin line, to lead the eye between marks.
    Thin,
    Dashed,
    Dots,
    /// A line with its measured points marked.
    LineDots,
    Crosses,
}

/// A series; without a label it has no entry in the legend.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) label: String,
    pub(super) color: Color,
    pub(super) style: Style,
    pub(super) dots: Vec<Dot>,
}

/// Bars stacked on each other, one colour.
#[derive(Clone, Debug)]
pub(super) struct Bars {
    pub(super) label: String,
    pub(super) color: Color,
    /// `(x from, x to, y from, y to)`.
    pub(super) spans: Vec<(f64, f64, f64, f64)>,
}

/// Pixel position and title of a point to hover.
type Hit = ((i32, i32), String);

/// A chart.
#[derive(Clone, Debug, Default)]
pub(super) struct Plot {
    pub(super) title: String,
    /// How to read it, in a sentence.
    pub(super) about: String,
    pub(super) x_label: &'static str,
    pub(super) log_x: bool,
    pub(super) log_y: bool,
    /// Values the y axis must show.
    pub(super) y_include: Vec<f64>,
    pub(super) bars: Vec<Bars>,
    /// Thin vertical bars `(x, low, high)`: standard errors.
    pub(super) whiskers: Vec<(f64, f64, f64)>,
    pub(super) series: Vec<Series>,
}

impl Plot {
    /// A chart without data yet.
    pub(super) fn new(title: impl Into<String>, about: impl Into<String>, x_label: &'static str) -> Self {
        Self {
            title: title.into(),
            about: about.into(),
            x_label,
            ..Self::default()
        }
    }

    /// Adds a series; one without points is left out.
    pub(super) fn with(
        mut self,
        label: impl Into<String>,
        color: Color,
        style: Style,
        dots: Vec<Dot>,
    ) -> Self {
        if !dots.is_empty() {
            self.series.push(Series {
                label: label.into(),
                color,
                style,
                dots,
            });
        }
        self
    }

    fn is_empty(&self) -> bool {
        self.series.is_empty() && self.bars.is_empty()
    }

    fn range(&self, log: bool, values: impl Iterator<Item = f64>, pad: f64) -> Option<(f64, f64)> {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter_map(|v| scaled(log, v)) {
            low = low.min(value);
            high = high.max(value);
        }
        if low > high {
            return None;
        }
        let spread = if high - low > 1e-12 * high.abs().max(1e-12) {
            high - low
        } else {
            0.5 * high.abs().max(1e-6)
        };
        Some((low - pad * spread, high + pad * spread))
    }

    fn ranges(&self) -> Option<((f64, f64), (f64, f64))> {
        let dots = || self.series.iter().flat_map(|s| &s.dots);
        let spans = || self.bars.iter().flat_map(|b| &b.spans);
        let x = dots().map(|d| d.x).chain(spans().flat_map(|s| [s.0, s.1]));
        let y = dots()
            .map(|d| d.y)
            .chain(spans().flat_map(|s| [s.2, s.3]))
            .chain(self.whiskers.iter().flat_map(|w| [w.1, w.2]))
            .chain(self.y_include.iter().copied());
        let x_pad = if self.bars.is_empty() { 0.02 } else { 0.01 };
        let y = if self.bars.is_empty() {
            self.range(self.log_y, y, 0.06)?
        } else {
            (0.0, self.range(self.log_y, y, 0.05)?.1)
        };
        Some((self.range(self.log_x, x, x_pad)?, y))
    }

    /// The figure: title, legend, SVG, caption.
    pub(super) fn figure(&self) -> Markup {
        let svg = if self.is_empty() { None } else { self.svg() };
        html! {
            figure {
                h3 { (self.title) }
                @if let Some(svg) = svg {
                    ul.legend {
                        @for series in self.series.iter().filter(|s| !s.label.is_empty()) {
                            li { i class={ "key " (series.color.name()) " " (key_class(series.style)) } {} (series.label) }
                        }
                        @for bars in &self.bars { li { i class={ "key bar " (bars.color.name()) } {} (bars.label) } }
                    }
                    (PreEscaped(svg))
                } @else {
                    p.empty { "no data yet" }
                }
                figcaption { (self.about) }
            }
        }
    }

    fn svg(&self) -> Option<String> {
        let (x, y) = self.ranges()?;
        let (x, y) = (
            Axis::new(self.log_x, x, 6, true),
            Axis::new(self.log_y, y, 5, false),
        );
        let mut svg = String::new();
        let hits = self.draw(&mut svg, &x, &y).ok()?;
        let mut overlay = String::new();
        for (at, title) in hits {
            let title = html! { title { (title) } }.into_string();
            let _ = write!(
                overlay,
                "<circle class=\"hit\" cx=\"{}\" cy=\"{}\" r=\"7\">{title}</circle>",
                at.0, at.1
            );
        }
        let label = html! { (self.title) }.into_string();
        let svg = svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{label}\" "), 1);
        let end = svg.rfind("</svg>")?;
        Some(format!("{}{overlay}</svg>", &svg[..end]))
    }

    /// Draws into `svg`; returns pixel positions and titles of the points to hover.
    fn draw(&self, svg: &mut String, x: &Axis, y: &Axis) -> Result<Vec<Hit>, Box<dyn std::error::Error>> {
        let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin_top(10)
            .margin_right(14)
            .x_label_area_size(44)
            .y_label_area_size(60)
            .build_cartesian_2d(x.clone(), y.clone())?;
        // plotters divides by 1.24 for the SVG: 16 gives text of 13 pixels.
        let font = || ("sans-serif", 16).into_font().color(&TEXT);
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(AXIS)
            .label_style(font())
            .axis_desc_style(font())
            .x_desc(self.x_label)
            .draw()?;
        for bars in &self.bars {
            let fill = bars.color.rgb().mix(0.85).filled();
            chart.draw_series(
                bars.spans
                    .iter()
                    .map(|s| Rectangle::new([(s.0, s.2), (s.1, s.3)], fill)),
            )?;
        }
        let whiskers = self
            .whiskers
            .iter()
            .map(|w| PathElement::new([(w.0, w.1), (w.0, w.2)], AXIS.stroke_width(1)));
        chart.draw_series(whiskers)?;
        let mut hits = Vec::new();
        for series in &self.series {
            let color = series.color.rgb();
            let points: Vec<(f64, f64)> = series
                .dots
                .iter()
                .filter_map(|d| Some((x.place(d.x)?, y.place(d.y)?)))
                .collect();
            let width = color.stroke_width(if series.style == Style::Thin { 1 } else { 2 });
            let (line, dots) = match series.style {
                Style::Line | Style::Thin => (true, false),
                Style::LineDots => (true, true),
                Style::Dots => (false, true),
                Style::Dashed => {
                    chart.draw_series(DashedLineSeries::new(points.iter().copied(), 5, 4, width))?;
                    (false, false)
                }
                Style::Crosses => {
                    chart.draw_series(points.iter().map(|p| Cross::new(*p, 4, width)))?;
                    (false, false)
                }
            };
            if line {
                chart.draw_series(LineSeries::new(points.iter().copied(), width))?;
            }
            if dots {
                chart.draw_series(points.iter().map(|p| Circle::new(*p, 3, color.filled())))?;
            }
            for dot in &series.dots {
                if let (Some(title), Some(x), Some(y)) = (&dot.title, x.place(dot.x), y.place(dot.y)) {
                    hits.push((chart.backend_coord(&(x, y)), title.clone()));
                }
            }
        }
        area.present()?;
        drop(chart);
        Ok(hits)
    }
}

fn key_class(style: Style) -> &'static str {
    match style {
        Style::Line | Style::Thin => "line",
        Style::LineDots => "line dotted",
        Style::Dashed => "dashed",
        Style::Dots => "dot",
        Style::Crosses => "cross",
    }
}

/// A number for people: three significant digits, scientific below 0.01 and from 100 000 on.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return "-".into();
    }
    // Rounding noise of axis ticks around zero.
    if size < 1e-14 {
        return "0".into();
    }
    if !(0.01..1e5).contains(&size) {
        let text = format!("{value:.1e}");
        return text.replace(".0e", "e");
    }
    let digits = (2 - size.log10().floor() as i32).clamp(0, 4) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').into()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (1e-18, "0"),
            (0.5, "0.5"),
            (0.9375, "0.938"),
            (12.0, "12"),
            (1234.0, "1234"),
            (1.5e-3, "1.5e-3"),
            (1e-4, "1e-4"),
            (-4.25e-4, "-4.2e-4"),
            (250_000.0, "2.5e5"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn a_chart_of_one_point_or_of_zeros_on_a_log_axis_still_draws() {
        let dot = |y| {
            vec![Dot {
                x: 0.0,
                y,
                title: Some("a < b".into()),
            }]
        };
        let one = Plot::new("one & only", "", "step")
            .with("a", Color::Blue, Style::Line, dot(0.5))
            .figure()
            .into_string();
        assert!(
            one.contains("<svg") && one.contains("a &lt; b") && one.contains("one &amp; only"),
            "{one}"
        );
        let mut zeros = Plot::new("zeros", "", "step").with("a", Color::Blue, Style::Line, dot(0.0));
        zeros.log_y = true;
        assert!(zeros.figure().into_string().contains("no data yet"));
    }
}
