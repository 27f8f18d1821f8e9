//! The sampler-referenced surrogate (MIPU, Eq 6-7) and its derivative with respect to the log-probs.
//!
//! Everything here is plain arithmetic on the sampled tokens of one episode, in f64. The derivative is written out rather than left to
//! automatic differentiation, whose `clamp` and `min` split gradients at ties.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::correction::CorrectionConfig;
use crate::number::{AtLeastOne, ClipWidth, NonNegative, Positive};

/// Log-ratios are cut here before exponentiation: `e^20` is far outside every clip range, and stays finite.
const MAX_LOG_RATIO: f64 = 20.0;

/// The loss of an update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LossConfig {
    /// `eps_low`: the ratio is clipped at `1 - clip_low`. Default 0.2.
    pub clip_low: ClipWidth,
    /// `eps_high`: the ratio is clipped at `1 + clip_high`. Default 0.2 (0.28 is DAPO's clip-higher).
    pub clip_high: ClipWidth,
    /// With a negative advantage the surrogate is at least `dual_clip * A`. Default 1.4 = 1 + 2 eps; none switches it off.
    pub dual_clip: Option<AtLeastOne>,
    /// How tokens and episodes are averaged. Default `seq_mean_token_mean` (the paper's).
    pub aggregation: Aggregation,
    /// KL term against a reference policy. Default none (the paper's coefficient is 1e-3).
    pub kl: Option<KlConfig>,
    /// Entropy of each sampled token's distribution is added to the objective with this factor. Default 0.
    pub entropy_bonus: NonNegative,
    /// What groups without a signal contribute. Default `drop`.
    pub uninformative_groups: UninformativeGroups,
}

impl Default for LossConfig {
    fn default() -> Self {
        Self {
            clip_low: ClipWidth::literal(0.2),
            clip_high: ClipWidth::literal(0.2),
            dual_clip: Some(AtLeastOne::literal(1.4)),
            aggregation: Aggregation::SeqMeanTokenMean,
            kl: None,
            entropy_bonus: NonNegative::literal(0.0),
            uninformative_groups: UninformativeGroups::Drop,
        }
    }
}

/// Average over tokens and episodes of a minibatch. Masked tokens and dropped episodes count in the denominators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Aggregation {
    /// Mean over episodes of the mean over the episode's sampled tokens.
    #[default]
    SeqMeanTokenMean,
    /// Mean over all sampled tokens (DAPO).
    TokenMean,
    /// Sum over tokens, divided by the number of episodes and a constant length (Dr. GRPO).
    SeqSumConst {
        /// The constant, in tokens: usually the longest completion allowed.
        length: Positive,
    },
}

/// KL divergence to a reference policy, estimated on the sampled tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KlConfig {
    /// Estimator. Default k3.
    #[serde(default)]
    pub estimator: KlEstimator,
    /// Factor of the term in the loss.
    pub coefficient: Positive,
}

/// Estimator of KL(pi || reference) on a token; `d = log pi - log reference`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KlEstimator {
    /// `d`.
    K1,
    /// `d^2 / 2`.
    K2,
    /// `e^-d + d - 1`.
    #[default]
    K3,
}

/// What a group whose advantages are all 0 contributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UninformativeGroups {
    /// Nothing: it is left out, denominators included.
    #[default]
    Drop,
    /// Its KL and entropy terms, and its tokens in the denominators.
    Regularize,
}

/// What the loss reads of one episode; slices have one entry per sampled token.
#[derive(Clone, Copy, Debug)]
pub struct EpisodeInputs<'a> {
    /// `log pi_theta`.
    pub current: &'a [f64],
    /// `log pi_k`, frozen.
    pub frozen: &'a [f64],
    /// `log mu`.
    pub sampler: &'a [f64],
    /// Log-probs under the reference, when a KL term is configured.
    pub reference: Option<&'a [f64]>,
    /// Entropy of `pi_theta` at the token.
    pub entropies: &'a [f64],
    /// Advantage of the episode.
    pub advantage: f64,
}

/// Denominators of a minibatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denominators {
    /// Episodes.
    pub episodes: usize,
    /// Sampled tokens.
    pub tokens: usize,
}

/// Sums over tokens that the report needs; ratios are raw, before any truncation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossStats {
    /// Tokens.
    pub tokens: usize,
    /// Tokens with a weight and an advantage other than 0.
    pub active: usize,
    /// Tokens whose weight the correction cut (to its bound or to 0).
    pub truncated: usize,
    /// Tokens at the lower clip (A < 0 and r below).
    pub clip_low: usize,
    /// Tokens at the upper clip (A > 0 and r above).
    pub clip_high: usize,
    /// Tokens at the dual clip.
    pub dual_clip: usize,
    /// Sum of `w = pi_k / mu`.
    pub w: f64,
    /// Sum of `w^2`.
    pub w_squared: f64,
    /// Largest `w`.
    pub w_max: f64,
    /// Sum of `w - log w - 1`.
    pub k3: f64,
    /// Sum of `r = pi_theta / pi_k`.
    pub r: f64,
    /// Largest `r`.
    pub r_max: f64,
    /// Sum of entropies.
    pub entropy: f64,
    /// Sum of the KL estimates.
    pub kl: f64,
}

impl LossStats {
    /// Adds the sums of other tokens.
    pub fn merge(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.active += other.active;
        self.truncated += other.truncated;
        self.clip_low += other.clip_low;
        self.clip_high += other.clip_high;
        self.dual_clip += other.dual_clip;
        self.w += other.w;
        self.w_squared += other.w_squared;
        self.w_max = self.w_max.max(other.w_max);
        self.k3 += other.k3;
        self.r += other.r;
        self.r_max = self.r_max.max(other.r_max);
        self.entropy += other.entropy;
        self.kl += other.kl;
    }
}

/// Loss of one episode and its derivatives, already divided by the denominators.
#[derive(Clone, Debug, PartialEq)]
pub struct EpisodeLoss {
    /// Contribution to the minibatch's loss.
    pub value: f64,
    /// Derivative with respect to each `log pi_theta`.
    pub logprobs: Vec<f64>,
    /// Derivative with respect to each entropy.
    pub entropies: Vec<f64>,
    /// Sums for the report.
    pub stats: LossStats,
}

/// Loss of one episode: `-(w l_dc) + coefficient * KL - bonus * entropy` on each token, aggregated.
///
/// # Panics
/// When the slices differ in length.
pub fn episode_loss(
    config: &LossConfig,
    correction: &CorrectionConfig,
    episode: &EpisodeInputs<'_>,
    denominators: Denominators,
) -> EpisodeLoss {
    let n = episode.current.len();
    let same = [
        episode.frozen.len(),
        episode.sampler.len(),
        episode.entropies.len(),
    ];
    assert!(
        same.iter().all(|&len| len == n),
        "per-token slices differ in length: {n} and {same:?}"
    );
    let scale = match config.aggregation {
        Aggregation::SeqMeanTokenMean => 1.0 / (denominators.episodes.max(1) as f64 * n.max(1) as f64),
        Aggregation::TokenMean => 1.0 / denominators.tokens.max(1) as f64,
        Aggregation::SeqSumConst { length } => 1.0 / (denominators.episodes.max(1) as f64 * length.get()),
    };
    let weights = correction.weights(episode.frozen, episode.sampler, episode.advantage);
    let surrogate = surrogate(config, correction, episode, &weights);
    let mut out = EpisodeLoss {
        value: 0.0,
        logprobs: Vec::with_capacity(n),
        entropies: vec![-config.entropy_bonus.get() * scale; n],
        stats: LossStats {
            tokens: n,
            w_max: 0.0,
            r_max: 0.0,
            ..surrogate.stats
        },
    };
    for t in 0..n {
        let mut value = -surrogate.values[t] - config.entropy_bonus.get() * episode.entropies[t];
        let mut slope = -surrogate.slopes[t];
        if let (Some(kl), Some(reference)) = (&config.kl, episode.reference) {
            let (estimate, kl_slope) = kl_estimate(kl.estimator, episode.current[t] - reference[t]);
            value += kl.coefficient.get() * estimate;
            slope += kl.coefficient.get() * kl_slope;
            out.stats.kl += estimate;
        }
        out.value += scale * value;
        out.logprobs.push(scale * slope);
        record(
            &mut out.stats,
            episode,
            t,
            weights[t],
            correction.is_truncated(weights[t]),
        );
    }
    out
}

fn record(stats: &mut LossStats, episode: &EpisodeInputs<'_>, t: usize, weight: f64, truncated: bool) {
    let gap = episode.frozen[t] - episode.sampler[t];
    let (w, r) = (gap.exp(), (episode.current[t] - episode.frozen[t]).exp());
    stats.active += usize::from(weight > 0.0 && episode.advantage.abs() > 0.0);
    stats.truncated += usize::from(truncated);
    stats.w += w;
    stats.w_squared += w * w;
    stats.w_max = stats.w_max.max(w);
    stats.k3 += gap.exp_m1() - gap;
    stats.r += r;
    stats.r_max = stats.r_max.max(r);
    stats.entropy += episode.entropies[t];
}

/// Value and slope (in `log pi_theta` of the same token) of the weighted surrogate, to be maximised.
struct Surrogate {
    values: Vec<f64>,
    slopes: Vec<f64>,
    stats: LossStats,
}

fn surrogate(
    config: &LossConfig,
    correction: &CorrectionConfig,
    episode: &EpisodeInputs<'_>,
    weights: &[f64],
) -> Surrogate {
    let a = episode.advantage;
    let n = weights.len();
    let base = if matches!(correction, CorrectionConfig::PpoIs) {
        episode.sampler
    } else {
        episode.frozen
    };
    let log_ratio = |t: usize| (episode.current[t] - base[t]).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO);
    let mut out = Surrogate {
        values: vec![0.0; n],
        slopes: vec![0.0; n],
        stats: LossStats::default(),
    };
    match correction {
        CorrectionConfig::Gspo(gspo) => {
            let mean = (0..n).map(log_ratio).sum::<f64>() / n.max(1) as f64;
            let clip = (gspo.clip_low.get(), gspo.clip_high.get());
            let clipped = clipped(
                mean.exp(),
                a,
                clip,
                config.dual_clip.map(AtLeastOne::get),
                &mut out.stats,
                n,
            );
            for (t, &weight) in weights.iter().enumerate() {
                out.values[t] = weight * clipped.value;
                // Every token's ratio is the sequence's, whose slope in one log-prob is s / T; n tokens of the episode share it.
                out.slopes[t] = weight * clipped.slope * mean.exp();
            }
        }
        CorrectionConfig::Cispo(cispo) => {
            for (t, &weight) in weights.iter().enumerate() {
                let cap = 1.0 + cispo.high.get();
                let ratio = log_ratio(t).exp();
                out.stats.clip_high += usize::from(ratio > cap);
                out.values[t] = weight * ratio.min(cap) * a * episode.current[t];
                out.slopes[t] = weight * ratio.min(cap) * a;
            }
        }
        _ => {
            let clip = (config.clip_low.get(), config.clip_high.get());
            for (t, &weight) in weights.iter().enumerate() {
                if weight == 0.0 {
                    continue;
                }
                let ratio = log_ratio(t).exp();
                let clipped = clipped(
                    ratio,
                    a,
                    clip,
                    config.dual_clip.map(AtLeastOne::get),
                    &mut out.stats,
                    1,
                );
                out.values[t] = weight * clipped.value;
                out.slopes[t] = weight * clipped.slope * ratio;
            }
        }
    }
    out
}

struct Clipped {
    value: f64,
    /// Derivative in the ratio.
    slope: f64,
}

/// `l_dc` of MIPU: `min(r A, clip(r) A)`, and with A < 0 at least `dual_clip * A`. On an edge the unclipped branch, with its gradient, holds.
fn clipped(
    ratio: f64,
    a: f64,
    clip: (f64, f64),
    dual_clip: Option<f64>,
    stats: &mut LossStats,
    tokens: usize,
) -> Clipped {
    let bounded = if ratio < 1.0 - clip.0 {
        1.0 - clip.0
    } else if ratio > 1.0 + clip.1 {
        1.0 + clip.1
    } else {
        ratio
    };
    let (plain, cut) = (ratio * a, bounded * a);
    let mut out = if plain <= cut {
        Clipped {
            value: plain,
            slope: a,
        }
    } else {
        Clipped {
            value: cut,
            slope: 0.0,
        }
    };
    if plain > cut {
        if a < 0.0 {
            stats.clip_low += tokens
        } else {
            stats.clip_high += tokens
        }
    }
    if let Some(dual) = dual_clip
        && a < 0.0
        && out.value < dual * a
    {
        stats.dual_clip += tokens;
        out = Clipped {
            value: dual * a,
            slope: 0.0,
        };
    }
    out
}

/// Estimate and its derivative in `log pi`.
fn kl_estimate(estimator: KlEstimator, d: f64) -> (f64, f64) {
    match estimator {
        KlEstimator::K1 => (d, 1.0),
        KlEstimator::K2 => (0.5 * d * d, d),
        KlEstimator::K3 => {
            let bounded = d.max(-MAX_LOG_RATIO);
            (
                (-bounded).exp() + d - 1.0,
                if d < -MAX_LOG_RATIO {
                    1.0
                } else {
                    1.0 - (-bounded).exp()
                },
            )
        }
    }
}

#[cfg(test)]
mod tests;
