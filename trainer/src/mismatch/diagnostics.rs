//! Mismatch of one step: totals, by turn, by position.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Scored;
use super::alarm::{Alarm, raise};
use crate::metrics::{Key, keys};
use crate::statistics::{clustered_mean, effective_share, mean, pearson, quantile_sorted};

/// Most position buckets of [`Diagnostics::by_position`]; longer episodes are cut into this many spans of equal width.
pub const POSITION_BUCKETS: usize = 64;

/// Raw mismatch of one step's episodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Diagnostics {
    /// Episodes with at least one generated token.
    pub episodes: usize,
    /// Generated tokens that entered.
    pub tokens: usize,
    /// Generated tokens left out because a log-prob was not finite.
    pub non_finite: usize,
    /// Over all tokens; `None` without any.
    pub totals: Option<Totals>,
    /// By turn index, turns without tokens left out.
    pub by_turn: Vec<Slice>,
    /// By position among an episode's generated tokens.
    pub by_position: Vec<Slice>,
    /// What is wrong, or will go wrong.
    pub alarms: Vec<Alarm>,
}

/// Mismatch over all tokens of a step; `d = log pi - log mu`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Mean `-d`: unbiased for KL(mu || pi), can be negative.
    pub k1: f64,
    /// Mean `d^2 / 2`.
    pub k2: f64,
    /// Mean `e^d - d - 1`: unbiased for KL(mu || pi), never negative.
    pub k3: f64,
    /// Mean `|d|`.
    pub abs_logp_diff_mean: f64,
    /// Largest `|d|`.
    pub abs_logp_diff_max: f64,
    /// 99th percentile of `|d|` (linear interpolation).
    pub abs_logp_diff_p99: f64,
    /// Mean `e^d`.
    pub ratio_mean: f64,
    /// Its standard error, episodes being the independent units; `None` with fewer than two.
    pub ratio_mean_se: Option<f64>,
    /// Mean `e^|d|`.
    pub mult_prob_error: f64,
    /// Mean `|p_pi - p_mu|`.
    pub prob_diff_mean: f64,
    /// Largest `|p_pi - p_mu|`.
    pub prob_diff_max: f64,
    /// Pearson r of `p_pi` and `p_mu`; `None` when either is constant.
    pub prob_pearson: Option<f64>,
    /// Mean `e^{2d} - 1`.
    pub chi2_token: f64,
    /// Mean over episodes of `e^{2 sum d} - 1`.
    pub chi2_seq: f64,
    /// `1 / mean((w / mean w)^2)` of token weights.
    pub ess: Option<f64>,
    /// The same of sequence weights.
    pub ess_seq: Option<f64>,
    /// Mean over episodes of mean `-d`.
    pub log_ppl_diff: f64,
}

/// Mismatch over a span of turns or positions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// First index, 0-based.
    pub from: usize,
    /// Last index, inclusive.
    pub to: usize,
    /// Tokens in the span.
    pub tokens: usize,
    /// Mean `d`.
    pub gap_mean: f64,
    /// Mean `|d|`.
    pub abs_logp_diff_mean: f64,
    /// Mean `e^d - d - 1`.
    pub k3: f64,
    /// Mean `e^d`.
    pub ratio_mean: f64,
    /// Mean `-log mu` of the sampled tokens: an entropy estimate, to compare spans at matched entropy.
    pub surprise_mean: f64,
}

/// `e^d - d - 1` without cancellation for small `d`.
pub(super) fn k3(d: f64) -> f64 {
    if d.abs() < 1e-3 {
        d * d * (0.5 + d * (1.0 / 6.0 + d / 24.0))
    } else {
        d.exp_m1() - d
    }
}

/// Running sums of a span.
#[derive(Clone, Copy, Default)]
struct Span {
    tokens: usize,
    gap: f64,
    abs: f64,
    k3: f64,
    ratio_minus_one: f64,
    surprise: f64,
}

impl Span {
    fn add(&mut self, d: f64, sampler_logprob: f64) {
        self.tokens += 1;
        self.gap += d;
        self.abs += d.abs();
        self.k3 += k3(d);
        self.ratio_minus_one += d.exp_m1();
        self.surprise -= sampler_logprob;
    }

    fn close(self, from: usize, to: usize) -> Slice {
        let n = self.tokens as f64;
        Slice {
            from,
            to,
            tokens: self.tokens,
            gap_mean: self.gap / n,
            abs_logp_diff_mean: self.abs / n,
            k3: self.k3 / n,
            ratio_mean: 1.0 + self.ratio_minus_one / n,
            surprise_mean: self.surprise / n,
        }
    }
}

/// Measures the mismatch of a step.
///
/// Means over tokens pool all episodes. Averaging per-episode means of `e^d` instead would be biased when length and gap go together, while
/// the pooled sum has expectation 1 per token even though episodes stop at random (`e^{d_t} - 1` sums to a martingale).
///
/// # Panics
/// When an episode's slices differ in length.
pub fn diagnose(episodes: &[Scored<'_>]) -> Diagnostics {
    let longest = episodes
        .iter()
        .map(|e| e.sampler_logprobs.len())
        .max()
        .unwrap_or(0);
    let width = longest.div_ceil(POSITION_BUCKETS).max(1);
    let mut out = Diagnostics::default();
    let mut by_turn: BTreeMap<usize, Span> = BTreeMap::new();
    let mut by_position: BTreeMap<usize, Span> = BTreeMap::new();
    let (mut gaps, mut p_pi, mut p_mu) = (Vec::new(), Vec::new(), Vec::new());
    let (mut clusters, mut sums, mut means) = (Vec::new(), Vec::new(), Vec::new());
    for episode in episodes.iter().filter(|e| !e.sampler_logprobs.is_empty()) {
        out.episodes += 1;
        let (mut sum, mut ratio_minus_one, mut kept) = (0.0, 0.0, 0usize);
        for (position, d) in episode.gaps().enumerate() {
            if !d.is_finite() {
                out.non_finite += 1;
                continue;
            }
            let mu = f64::from(episode.sampler_logprobs[position]);
            kept += 1;
            sum += d;
            ratio_minus_one += d.exp_m1();
            gaps.push(d);
            p_mu.push(mu.exp());
            p_pi.push((mu + d).exp());
            by_turn
                .entry(episode.turn[position].into())
                .or_default()
                .add(d, mu);
            by_position.entry(position / width).or_default().add(d, mu);
        }
        if kept > 0 {
            clusters.push((ratio_minus_one, kept as f64));
            means.push(-sum / kept as f64);
        }
        if kept == episode.sampler_logprobs.len() {
            sums.push(sum);
        }
    }
    out.tokens = gaps.len();
    out.by_turn = by_turn
        .into_iter()
        .map(|(turn, span)| span.close(turn, turn))
        .collect();
    out.by_position = by_position
        .into_iter()
        .map(|(b, span)| span.close(b * width, ((b + 1) * width).min(longest) - 1))
        .collect();
    out.totals = totals(&gaps, &p_pi, &p_mu, &clusters, &sums, &means);
    let gap = mean(&gaps).unwrap_or(0.0);
    let length = out.tokens as f64 / out.episodes.max(1) as f64;
    let ratio = out
        .totals
        .as_ref()
        .and_then(|t| Some((t.ratio_mean, t.ratio_mean_se?)));
    out.alarms = raise(out.non_finite, ratio, gap, length, mean(&sums).unwrap_or(0.0));
    out
}

/// `sums` holds `S_T` of the episodes without gaps that are not finite; `means` the mean `-d` of each episode.
fn totals(
    gaps: &[f64],
    p_pi: &[f64],
    p_mu: &[f64],
    clusters: &[(f64, f64)],
    sums: &[f64],
    means: &[f64],
) -> Option<Totals> {
    let over = |f: &dyn Fn(f64) -> f64| mean(&gaps.iter().map(|d| f(*d)).collect::<Vec<_>>());
    let mut sorted: Vec<f64> = gaps.iter().map(|d| d.abs()).collect();
    sorted.sort_by(f64::total_cmp);
    let prob_diff: Vec<f64> = p_pi.iter().zip(p_mu).map(|(a, b)| (a - b).abs()).collect();
    let ratio = clustered_mean(clusters)?;
    Some(Totals {
        k1: over(&|d| -d)?,
        k2: over(&|d| d * d / 2.0)?,
        k3: over(&k3)?,
        abs_logp_diff_mean: over(&f64::abs)?,
        abs_logp_diff_max: *sorted.last()?,
        abs_logp_diff_p99: quantile_sorted(&sorted, 0.99)?,
        ratio_mean: 1.0 + ratio.mean,
        ratio_mean_se: ratio.se,
        mult_prob_error: over(&|d| d.abs().exp())?,
        prob_diff_mean: mean(&prob_diff)?,
        prob_diff_max: prob_diff.iter().copied().fold(0.0, f64::max),
        prob_pearson: pearson(p_pi, p_mu),
        chi2_token: over(&|d| (2.0 * d).exp_m1())?,
        chi2_seq: mean(&sums.iter().map(|s| (2.0 * s).exp_m1()).collect::<Vec<_>>()).unwrap_or(f64::NAN),
        ess: effective_share(gaps),
        ess_seq: effective_share(sums),
        log_ppl_diff: mean(means)?,
    })
}

impl Diagnostics {
    /// The flat `mismatch/...` values for `metrics.jsonl`.
    pub fn metrics(&self) -> Vec<(Key, f64)> {
        let mut out = vec![
            (keys::MISMATCH_NON_FINITE, self.non_finite as f64),
            (
                keys::MISMATCH_ALARM,
                f64::from(u8::from(self.alarms.iter().any(Alarm::is_bug))),
            ),
        ];
        let Some(t) = &self.totals else { return out };
        out.extend([
            (keys::MISMATCH_K1, t.k1),
            (keys::MISMATCH_K2, t.k2),
            (keys::MISMATCH_K3, t.k3),
            (keys::MISMATCH_ABS_LOGP_DIFF_MEAN, t.abs_logp_diff_mean),
            (keys::MISMATCH_ABS_LOGP_DIFF_MAX, t.abs_logp_diff_max),
            (keys::MISMATCH_ABS_LOGP_DIFF_P99, t.abs_logp_diff_p99),
            (keys::MISMATCH_RATIO_MEAN, t.ratio_mean),
            (keys::MISMATCH_MULT_PROB_ERROR, t.mult_prob_error),
            (keys::MISMATCH_PROB_DIFF_MEAN, t.prob_diff_mean),
            (keys::MISMATCH_PROB_DIFF_MAX, t.prob_diff_max),
            (keys::MISMATCH_CHI2_TOKEN, t.chi2_token),
            (keys::MISMATCH_CHI2_SEQ, t.chi2_seq),
            (keys::MISMATCH_LOG_PPL_DIFF, t.log_ppl_diff),
        ]);
        let optional = [
            (keys::MISMATCH_RATIO_MEAN_SE, t.ratio_mean_se),
            (keys::MISMATCH_PROB_PEARSON, t.prob_pearson),
            (keys::MISMATCH_ESS, t.ess),
            (keys::MISMATCH_ESS_SEQ, t.ess_seq),
        ];
        out.extend(
            optional
                .into_iter()
                .filter_map(|(key, value)| Some((key, value?))),
        );
        out.extend(
            self.by_turn
                .iter()
                .filter_map(|slice| Some((keys::k3_turn(slice.from)?, slice.k3))),
        );
        out
    }
}
