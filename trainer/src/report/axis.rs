//! Axes: where ticks lie and how they are written.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// An axis in drawing units (log10 of the value on a logarithmic one).
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    pub(super) log: bool,
    pub(super) range: (f64, f64),
    /// Ticks in drawing units with their labels, increasing.
    pub(super) ticks: Vec<(f64, String)>,
}

impl Axis {
    /// An axis over `range` (drawing units) with about `count` ticks; `whole` keeps them on integers.
    pub(super) fn new(log: bool, range: (f64, f64), count: usize, whole: bool) -> Self {
        let decades = range.1 - range.0;
        let ticks = match log {
            true if decades >= 3.0 => decade_ticks(range, count),
            true if decades >= 1.4 => mantissa_ticks(range, &[1, 3]),
            true if decades >= 0.7 => mantissa_ticks(range, &[1, 2, 5]),
            true => {
                // Under half a decade a logarithmic axis is nearly linear, and so are its ticks.
                let values = linear_ticks((10f64.powf(range.0), 10f64.powf(range.1)), count, whole);
                values
                    .into_iter()
                    .filter(|(v, _)| *v > 0.0)
                    .map(|(v, label)| (v.log10(), label))
                    .collect()
            }
            false => linear_ticks(range, count, whole),
        };
        Self { log, range, ticks }
    }

    /// A value in drawing units; `None` where the axis has no place for it.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        scaled(self.log, value)
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let share = (value - self.range.0) / (self.range.1 - self.range.0);
        from + (f64::from(to - from) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            vec![]
        } else {
            self.ticks.iter().map(|(at, _)| *at).collect()
        }
    }

    fn range(&self) -> Range<f64> {
        self.range.0..self.range.1
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, at: &f64) -> String {
        let near = self
            .ticks
            .iter()
            .min_by(|a, b| (a.0 - at).abs().total_cmp(&(b.0 - at).abs()));
        near.map(|(_, label)| label.clone()).unwrap_or_default()
    }
}

/// A value on its axis: log10 on a logarithmic one (where nothing at or below zero exists).
pub(super) fn scaled(log: bool, value: f64) -> Option<f64> {
    let value = if log {
        (value > 0.0).then(|| value.log10())?
    } else {
        value
    };
    value.is_finite().then_some(value)
}

/// Multiples of 1, 2 or 5 times a power of ten, written with the digits that tell them apart.
fn linear_ticks((low, high): (f64, f64), count: usize, whole: bool) -> Vec<(f64, String)> {
    let raw = (high - low) / count.max(1) as f64;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|m| m * power)
        .into_iter()
        .find(|s| *s >= raw * 0.999)
        .unwrap_or(10.0 * power);
    let step = if whole { step.max(1.0).round() } else { step };
    let largest = low.abs().max(high.abs());
    let (first, last) = (
        (low / step - 1e-9).ceil() as i64,
        (high / step + 1e-9).floor() as i64,
    );
    (first..=last)
        .map(|k| k as f64 * step)
        .map(|v| (v, label(v, step, largest)))
        .collect()
}

fn label(value: f64, step: f64, largest: f64) -> String {
    let exponent = |v: f64| v.abs().log10().floor() as i32;
    if value.abs() < step * 1e-6 {
        return "0".into();
    }
    if (0.01..1e5).contains(&largest) {
        return format!("{value:.*}", (-exponent(step * 1.0001)).max(0) as usize);
    }
    // Digits after the point that the step still changes.
    let digits = (exponent(value * 1.0001) - exponent(step * 1.0001)).max(0) as usize;
    format!("{value:.digits$e}")
}

/// Powers of ten, thinned to about `count`.
fn decade_ticks((low, high): (f64, f64), count: usize) -> Vec<(f64, String)> {
    let (first, last) = (low.ceil() as i32, high.floor() as i32);
    let every = ((last - first) as usize + 1).div_ceil(count + 2);
    (first..=last)
        .step_by(every)
        .map(|e| (f64::from(e), power(1, e)))
        .collect()
}

/// The given multiples of powers of ten.
fn mantissa_ticks((low, high): (f64, f64), mantissas: &[i32]) -> Vec<(f64, String)> {
    let decades = low.floor() as i32..=high.floor() as i32;
    let all = decades.flat_map(|e| {
        mantissas
            .iter()
            .map(move |&m| (f64::from(m).log10() + f64::from(e), power(m, e)))
    });
    all.filter(|(at, _)| (low..=high).contains(at)).collect()
}

fn power(mantissa: i32, exponent: i32) -> String {
    match exponent {
        0..=4 => format!("{}", i64::from(mantissa) * 10i64.pow(exponent as u32)),
        -2..=-1 => format!(
            "{:.*}",
            -exponent as usize,
            f64::from(mantissa) * 10f64.powi(exponent)
        ),
        _ => format!("{mantissa}e{exponent}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_distinct() {
        let labels = |log: bool, range: (f64, f64), whole: bool| -> String {
            let axis = Axis::new(log, range, 5, whole);
            axis.ticks
                .into_iter()
                .map(|(_, label)| label)
                .collect::<Vec<_>>()
                .join(" ")
        };
        for (log, range, whole, expected) in [
            (false, (-0.8, 40.8), true, "0 10 20 30 40"),
            (false, (-0.1, 2.1), true, "0 1 2"),
            (false, (0.53, 1.02), false, "0.6 0.7 0.8 0.9 1.0"),
            (false, (0.9988, 1.0009), false, "0.9990 0.9995 1.0000 1.0005"),
            (false, (-0.0024, 0.0016), false, "-2e-3 -1e-3 0 1e-3"),
            (
                false,
                (0.0010, 0.0012),
                false,
                "1.00e-3 1.05e-3 1.10e-3 1.15e-3 1.20e-3",
            ),
            (true, (-6.2, -0.9), false, "1e-6 1e-5 1e-4 1e-3 0.01 0.1"),
            (true, (-2.1, -0.4), false, "0.01 0.03 0.1 0.3"),
            (true, (-2.1, -0.9), false, "0.01 0.02 0.05 0.1"),
            (true, (-3.45, -3.1), false, "4e-4 5e-4 6e-4 7e-4"),
            (true, (-0.1, 2.5), true, "1 3 10 30 100 300"),
        ] {
            assert_eq!(labels(log, range, whole), expected, "{range:?}");
        }
    }
}
