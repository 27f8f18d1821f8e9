//! Corrections for the gap between the sampler `mu` and the trainer `pi_k` that scored the same tokens.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::number::{ClipWidth, NonNegative, Positive};

/// What is done about `w = pi_k / mu`. Raw statistics of `w` are always taken before any truncation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum CorrectionConfig {
    /// Weight 1 (plain GRPO).
    None,
    /// No weight; the clipped ratio is `pi_theta / mu` itself.
    PpoIs,
    /// Weight `w`, unbounded.
    VanillaIs,
    /// Weight `min(w, w_max)`. The default, with `w_max` 2 on each token.
    Tis(Tis),
    /// Weight `1[w <= w_max]`, or `w` inside `two_sided` and 0 outside.
    Mis(Mis),
    /// Drops an episode whose `prod w` is outside the bounds.
    SeqMis(SequenceBounds),
    /// Drops an episode whose `(prod w)^(1/T)` is outside the bounds.
    GeoMis(GeometricBounds),
    /// Drops an episode whose mean `w - log w - 1` is above the bound.
    K3Rs(K3Bound),
    /// Drops an episode with a negative advantage whose mean `log mu - log pi_k` is above the bound.
    Opsm(LogGapBound),
    /// The ratio of a token is that of its sequence, `exp(mean log r)`, with its own clip range (arXiv 2507.18071).
    Gspo(Gspo),
    /// `-sg(min(r, 1 + high)) A log pi`: every token keeps its gradient (arXiv 2506.13585).
    Cispo(Cispo),
}

/// Truncated importance sampling.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tis {
    /// Largest weight. Default 2.
    pub w_max: Positive,
    /// Weight of a token, or of its whole sequence (then 5 is usual for `w_max`). Default token.
    pub level: Level,
}

/// What a weight belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// `pi_k(y_t) / mu(y_t)`.
    #[default]
    Token,
    /// The product over the sequence.
    Sequence,
}

/// Masked importance sampling.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Mis {
    /// Largest weight that keeps its token; unused with `two_sided`. Default 2.
    pub w_max: Positive,
    /// IcePop: `w` itself inside these bounds, 0 outside. Default off; 0.5 and 5 are usual.
    pub two_sided: Option<Bounds>,
}

/// A closed interval of weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// Lower bound.
    pub low: Positive,
    /// Upper bound.
    pub high: Positive,
}

/// Bounds of a sequence's weight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SequenceBounds {
    /// Lower bound. Default 0.5.
    pub low: Positive,
    /// Upper bound. Default 2.
    pub high: Positive,
}

/// Bounds of the geometric mean of a sequence's weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GeometricBounds {
    /// Lower bound. Default 0.99.
    pub low: Positive,
    /// Upper bound. Default 1.01.
    pub high: Positive,
}

/// Bound of a sequence's mean k3.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct K3Bound {
    /// Largest mean k3 (nats). Default 0.01.
    pub max: NonNegative,
}

/// Bound of a sequence's mean log gap.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LogGapBound {
    /// Largest mean `log mu - log pi_k` (nats). Default 0.01.
    pub delta: NonNegative,
}

/// Clip range of the sequence ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Gspo {
    /// Lower half-width. Default 3e-4.
    pub clip_low: ClipWidth,
    /// Upper half-width. Default 4e-4.
    pub clip_high: ClipWidth,
}

/// Cap of the constant ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Cispo {
    /// Largest ratio is `1 + high`. Default 4.
    pub high: NonNegative,
}

impl Default for CorrectionConfig {
    fn default() -> Self {
        Self::Tis(Tis::default())
    }
}

impl Default for Tis {
    fn default() -> Self {
        Self {
            w_max: Positive::literal(2.0),
            level: Level::Token,
        }
    }
}

impl Default for Mis {
    fn default() -> Self {
        Self {
            w_max: Positive::literal(2.0),
            two_sided: None,
        }
    }
}

impl Default for SequenceBounds {
    fn default() -> Self {
        Self {
            low: Positive::literal(0.5),
            high: Positive::literal(2.0),
        }
    }
}

impl Default for GeometricBounds {
    fn default() -> Self {
        Self {
            low: Positive::literal(0.99),
            high: Positive::literal(1.01),
        }
    }
}

impl Default for K3Bound {
    fn default() -> Self {
        Self {
            max: NonNegative::literal(0.01),
        }
    }
}

impl Default for LogGapBound {
    fn default() -> Self {
        Self {
            delta: NonNegative::literal(0.01),
        }
    }
}

impl Default for Gspo {
    fn default() -> Self {
        Self {
            clip_low: ClipWidth::literal(3e-4),
            clip_high: ClipWidth::literal(4e-4),
        }
    }
}

impl Default for Cispo {
    fn default() -> Self {
        Self {
            high: NonNegative::literal(4.0),
        }
    }
}

impl CorrectionConfig {
    /// Whether a weight made by [`Self::weights`] was cut: set to 0, or to `w_max`.
    pub fn is_truncated(&self, weight: f64) -> bool {
        weight <= 0.0 || matches!(self, Self::Tis(tis) if weight >= tis.w_max.get())
    }

    /// The weight of each sampled token of an episode, a constant of the update.
    ///
    /// - `frozen`: log-probs under `pi_k`; `sampler`: under `mu`; same length, nats.
    /// - `advantage`: of the episode; only its sign matters, and only to [`CorrectionConfig::Opsm`].
    pub fn weights(&self, frozen: &[f64], sampler: &[f64], advantage: f64) -> Vec<f64> {
        let gaps = || frozen.iter().zip(sampler).map(|(pi, mu)| pi - mu);
        let length = frozen.len().max(1) as f64;
        // The product of ratios is the exponential of the sum of their logarithms, not the sum of exponentials.
        let sum: f64 = gaps().sum();
        let keep = |kept: bool| vec![f64::from(u8::from(kept)); frozen.len()];
        match *self {
            Self::None | Self::PpoIs | Self::Gspo(_) | Self::Cispo(_) => keep(true),
            Self::VanillaIs => gaps().map(f64::exp).collect(),
            Self::Tis(Tis {
                w_max,
                level: Level::Token,
            }) => gaps().map(|d| d.exp().min(w_max.get())).collect(),
            Self::Tis(Tis {
                w_max,
                level: Level::Sequence,
            }) => vec![sum.exp().min(w_max.get()); frozen.len()],
            Self::Mis(Mis {
                w_max,
                two_sided: None,
            }) => gaps()
                .map(|d| if d.exp() <= w_max.get() { 1.0 } else { 0.0 })
                .collect(),
            Self::Mis(Mis {
                two_sided: Some(Bounds { low, high }),
                ..
            }) => gaps()
                .map(f64::exp)
                .map(|w| {
                    if (low.get()..=high.get()).contains(&w) {
                        w
                    } else {
                        0.0
                    }
                })
                .collect(),
            Self::SeqMis(SequenceBounds { low, high }) => keep((low.get()..=high.get()).contains(&sum.exp())),
            Self::GeoMis(GeometricBounds { low, high }) => {
                keep((low.get()..=high.get()).contains(&(sum / length).exp()))
            }
            Self::K3Rs(K3Bound { max }) => {
                keep(gaps().map(|d| d.exp_m1() - d).sum::<f64>() / length <= max.get())
            }
            Self::Opsm(LogGapBound { delta }) => keep(!(advantage < 0.0 && -sum / length > delta.get())),
        }
    }
}
