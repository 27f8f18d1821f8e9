//! Signs that log-probs are wrong rather than imprecise, and that small gaps will add up.

use serde::{Deserialize, Serialize};

/// Standard errors by which mean `e^d` must leave 1 before it counts as a bug: ratios have heavy tails, so their error is underestimated.
pub const ALARM_STANDARD_ERRORS: f64 = 4.0;

/// Deviations of mean `e^d` from 1 below this are never an alarm: f32 log-probs carry systematic rounding of about 1e-6, whose standard
/// error can be smaller still.
pub const ALARM_FLOOR: f64 = 1e-4;

/// Mean `|S_T|` (nats) from which sequence-level weights are warned about: at ln 2 the typical weight leaves [0.5, 2].
pub const LENGTH_BIAS_WARNING: f64 = std::f64::consts::LN_2;

/// Something the log-probs of a step say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Alarm {
    /// Gaps that are not finite: a bug.
    NonFinite {
        /// How many tokens.
        tokens: usize,
    },
    /// Mean `e^d` is not 1: a bug.
    RatioMean {
        /// Mean over tokens.
        mean: f64,
        /// Its standard error over episodes.
        se: f64,
    },
    /// A small gap times many tokens: sequence-level weights and masks will act on length. A warning.
    LengthBias {
        /// Mean `d` (nats per token).
        gap: f64,
        /// Mean generated tokens of an episode.
        length: f64,
        /// Mean `S_T` (nats).
        total: f64,
    },
}

impl Alarm {
    /// Whether it points at wrong log-probs.
    pub fn is_bug(&self) -> bool {
        !matches!(self, Self::LengthBias { .. })
    }
}

impl std::fmt::Display for Alarm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NonFinite { tokens } => write!(
                f,
                "{tokens} generated tokens have a log-prob that is not finite\nhint: a masked token was scored, or a policy has diverged"
            ),
            Self::RatioMean { mean, se } => write!(
                f,
                "mean pi/mu over sampled tokens is {mean:.5}, expected 1 (off by {:.1} standard errors)\nhint: the recorded log-probs are not those of the sampling distribution: check temperature, top-p and token alignment",
                (mean - 1.0).abs() / se
            ),
            Self::LengthBias { gap, length, total } => write!(
                f,
                "a mean log-prob gap of {gap:.5} over {length:.0} tokens makes a sequence weight of {:.2}\nhint: sequence-level weights and masks will act on length; use a token-level correction",
                total.exp()
            ),
        }
    }
}

/// The alarms of a step.
pub(super) fn raise(
    non_finite: usize,
    ratio: Option<(f64, f64)>,
    gap: f64,
    length: f64,
    total: f64,
) -> Vec<Alarm> {
    let mut alarms = Vec::new();
    if non_finite > 0 {
        alarms.push(Alarm::NonFinite { tokens: non_finite });
    }
    if let Some((mean, se)) = ratio
        && (mean - 1.0).abs() > ALARM_FLOOR.max(ALARM_STANDARD_ERRORS * se)
    {
        alarms.push(Alarm::RatioMean { mean, se });
    }
    if total.abs() > LENGTH_BIAS_WARNING {
        alarms.push(Alarm::LengthBias { gap, length, total });
    }
    alarms
}
