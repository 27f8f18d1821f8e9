//! How per-token gaps add up along an episode: drift, spread, weight collapse.

use serde::{Deserialize, Serialize};

use super::{Scored, Slice, diagnose};
use crate::statistics::{clustered_mean, effective_share, line, mean, sum_squares, variance};

/// Episodes that must reach a horizon for it to enter a fit or a variance: fewer say nothing about a spread.
pub const MIN_ALIVE: usize = 8;

/// Sequence weights outside this range count as lost: the window of sequence-level masks.
pub const WEIGHT_RANGE: (f64, f64) = (0.5, 2.0);

/// Horizons kept in [`AccumulationReport::by_token`]: every one up to this, then a geometric grid.
const DENSE: usize = 32;

/// Mismatch accumulation of one engine against the trainer policy, teacher-forced on the engine's own episodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AccumulationReport {
    /// Engine, for example `fp8 weights + activations`.
    pub label: String,
    /// Episodes that entered.
    pub episodes: usize,
    /// Episodes left out: no generated token, or a gap that is not finite.
    pub left_out: usize,
    /// Generated tokens of the episodes that entered.
    pub tokens: usize,
    /// `S_n` by number of generated tokens `n`.
    pub by_token: Vec<Point>,
    /// `S` after `n` turns.
    pub by_turn: Vec<Point>,
    /// Mean `d` (nats per token), whose multiple is the drift: `-KL(mu || pi)` in expectation.
    pub drift_per_token: f64,
    /// Its standard error over episodes.
    pub drift_per_token_se: Option<f64>,
    /// `Var(S_n) = scale * n^exponent` by token.
    pub fit_by_token: Option<Fit>,
    /// The same by turn.
    pub fit_by_turn: Option<Fit>,
    /// Mismatch of the tokens of each turn, with their mean surprise to compare turns at matched entropy.
    pub turns: Vec<Slice>,
}

/// `S_n` at one horizon.
///
/// Mean and variance are over the episodes that reach `n` (their number shrinks, and they are a selection). The weight statistics are over *all*
/// episodes, each stopped at its own end: `E[e^{S}] = 1` holds exactly for those, and only for those.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Tokens, or turns.
    pub n: usize,
    /// Episodes that reach it.
    pub alive: usize,
    /// Mean `S_n`.
    pub mean: f64,
    /// Its standard error; `None` with fewer than two episodes.
    pub mean_se: Option<f64>,
    /// Unbiased variance of `S_n`; `None` with fewer than two episodes.
    pub variance: Option<f64>,
    /// Mean `e^S` over all episodes; 1 in expectation.
    pub weight_mean: f64,
    /// Its standard error, underestimated when few episodes carry the weight; `None` with fewer than two.
    pub weight_mean_se: Option<f64>,
    /// `1 / mean((w / mean w)^2)` of the sequence weights `e^S`, all episodes.
    pub ess: Option<f64>,
    /// Share of all episodes whose weight lies outside [`WEIGHT_RANGE`].
    pub share_outside: f64,
}

/// Power law `Var(S_n) = scale * n^exponent`, fitted by least squares in log-log on a geometric grid of horizons.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// `2H`: 1 is a random walk, 2 a gap that persists for the whole episode.
    pub exponent: f64,
    /// Delete-one-episode jackknife standard error. The horizons share their episodes, so this is the honest one.
    pub se: f64,
    /// Standard error from the regression's residuals, which takes horizons for independent.
    pub residual_se: Option<f64>,
    /// Variance at `n = 1` on the fitted line.
    pub scale: f64,
    /// First and last horizon in the fit.
    pub range: (usize, usize),
    /// Horizons in the fit.
    pub points: usize,
}

/// Follows `S_n` over the horizon.
///
/// # Panics
/// When an episode's slices differ in length.
pub fn accumulate(label: impl Into<String>, episodes: &[Scored<'_>]) -> AccumulationReport {
    let mut out = AccumulationReport {
        label: label.into(),
        ..AccumulationReport::default()
    };
    let mut kept = Vec::new();
    let (mut by_token, mut by_turn) = (Vec::new(), Vec::new());
    for episode in episodes {
        let gaps: Vec<f64> = episode.gaps().collect();
        if gaps.is_empty() || gaps.iter().any(|d| !d.is_finite()) {
            out.left_out += 1;
            continue;
        }
        let sums: Vec<f64> = gaps
            .iter()
            .scan(0.0, |sum, d| {
                *sum += d;
                Some(*sum)
            })
            .collect();
        let ends = (0..gaps.len()).filter(|&t| episode.turn.get(t + 1) != Some(&episode.turn[t]));
        by_turn.push(ends.map(|t| sums[t]).collect::<Vec<_>>());
        by_token.push(sums);
        kept.push(*episode);
    }
    out.episodes = kept.len();
    out.tokens = by_token.iter().map(Vec::len).sum();
    let totals: Vec<(f64, f64)> = by_token
        .iter()
        .map(|s| (s[s.len() - 1], s.len() as f64))
        .collect();
    if let Some(drift) = clustered_mean(&totals) {
        out.drift_per_token = drift.mean;
        out.drift_per_token_se = drift.se;
    }
    out.by_token = points(&by_token);
    out.by_turn = points(&by_turn);
    out.fit_by_token = fit(&by_token);
    out.fit_by_turn = fit(&by_turn);
    out.turns = diagnose(&kept).by_turn;
    out
}

/// Horizons 1, 2, .. up to [`DENSE`], then steps of about 7 %, ending at `longest`.
fn horizons(longest: usize) -> Vec<usize> {
    let mut out: Vec<usize> = (1..=longest.min(DENSE)).collect();
    let mut n = DENSE;
    while n < longest {
        n = (n + n.div_ceil(15)).min(longest);
        out.push(n);
    }
    out
}

fn longest(paths: &[Vec<f64>]) -> usize {
    paths.iter().map(Vec::len).max().unwrap_or(0)
}

fn points(paths: &[Vec<f64>]) -> Vec<Point> {
    let point = |n: usize| {
        let alive: Vec<f64> = paths.iter().filter_map(|p| p.get(n - 1).copied()).collect();
        let stopped: Vec<f64> = paths.iter().map(|p| p[n.min(p.len()) - 1]).collect();
        let weights: Vec<f64> = stopped.iter().map(|s| s.exp()).collect();
        let outside = weights
            .iter()
            .filter(|w| **w < WEIGHT_RANGE.0 || **w > WEIGHT_RANGE.1)
            .count();
        let spread = variance(&alive);
        Some(Point {
            n,
            alive: alive.len(),
            mean: mean(&alive)?,
            mean_se: spread.map(|v| (v / alive.len() as f64).sqrt()),
            variance: spread,
            weight_mean: mean(&weights)?,
            weight_mean_se: variance(&weights).map(|v| (v / weights.len() as f64).sqrt()),
            ess: effective_share(&stopped),
            share_outside: outside as f64 / paths.len() as f64,
        })
    };
    horizons(longest(paths)).into_iter().filter_map(point).collect()
}

/// Horizons of a fit: 1, 2, 3, 4, 6, 8, 12, 16, ... (about evenly spaced in log n), as far as at least [`MIN_ALIVE`] and half of the episodes go.
fn fit_horizons(paths: &[Vec<f64>]) -> Vec<usize> {
    let need = MIN_ALIVE.max(paths.len().div_ceil(2));
    let next = |n: &usize| {
        Some(if n.is_power_of_two() {
            n + n.div_ceil(2)
        } else {
            n / 3 * 4
        })
    };
    let reached = |n: &usize| paths.iter().filter(|p| p.len() >= *n).count() >= need;
    std::iter::successors(Some(1), next).take_while(reached).collect()
}

fn fit(paths: &[Vec<f64>]) -> Option<Fit> {
    let grid = fit_horizons(paths);
    if grid.len() < 3 {
        return None;
    }
    let x: Vec<f64> = grid.iter().map(|n| (*n as f64).ln()).collect();
    // Per horizon: episodes alive, mean and sum of squares, from which leaving one episode out is a subtraction.
    let alive: Vec<Vec<f64>> = grid
        .iter()
        .map(|n| paths.iter().filter_map(|p| p.get(n - 1).copied()).collect())
        .collect();
    let stats: Vec<(f64, f64, f64)> = alive
        .iter()
        .map(|s| Some((s.len() as f64, mean(s)?, sum_squares(s))))
        .collect::<Option<_>>()?;
    if stats.iter().any(|(.., squares)| *squares <= 0.0) {
        return None;
    }
    let y: Vec<f64> = stats
        .iter()
        .map(|(m, _, squares)| (squares / (m - 1.0)).ln())
        .collect();
    let fitted = line(&x, &y)?;
    let slopes: Vec<f64> = paths
        .iter()
        .filter_map(|path| {
            let y: Vec<f64> = grid
                .iter()
                .zip(&stats)
                .map(|(n, &(m, mean, squares))| match path.get(n - 1) {
                    Some(s) => ((squares - (s - mean).powi(2) * m / (m - 1.0)) / (m - 2.0)).ln(),
                    None => (squares / (m - 1.0)).ln(),
                })
                .collect();
            line(&x, &y).map(|l| l.slope).filter(|slope| slope.is_finite())
        })
        .collect();
    let n = slopes.len() as f64;
    Some(Fit {
        exponent: fitted.slope,
        se: (sum_squares(&slopes) * (n - 1.0) / n).sqrt(),
        residual_se: fitted.slope_se,
        scale: fitted.intercept.exp(),
        range: (grid[0], grid[grid.len() - 1]),
        points: grid.len(),
    })
}
