//! The `stochastic` knobs as they are written.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ByteCount, NonNegative, Probability};

/// Randomness of the environment; every draw is a function of the episode's seed and the turn.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Stochastic {
    /// Chance that a tool call is not run and answers `failure_text`. Default 0.
    pub tool_failure: Probability,
    /// What a failed tool answers. Default `busy`.
    pub failure_text: String,
    /// Virtual latency of a tool call: reported, never waited for. Default none.
    pub latency_ms: Option<Latency>,
    /// Chance that a letter or digit of an observation is replaced by another one. Default 0.
    pub observation_noise: Probability,
    /// Chance that the end of an observation is lost. Default none.
    pub truncation: Option<Truncation>,
}

/// The loss of an observation's end; what is cut is marked `...`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Truncation {
    /// Chance for each observation.
    pub probability: Probability,
    /// Bytes that are left, the mark included.
    pub keep_bytes: ByteCount,
}

impl Default for Stochastic {
    fn default() -> Self {
        let valid = "a default lies in its range";
        Self {
            tool_failure: Probability::try_from(0.0).expect(valid),
            failure_text: "busy".to_owned(),
            latency_ms: None,
            observation_noise: Probability::try_from(0.0).expect(valid),
            truncation: None,
        }
    }
}

/// A normal distribution cut at 0, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// Mean.
    pub mean: NonNegative,
    /// Standard deviation. Default 0.
    #[serde(default = "super::zero")]
    pub sd: NonNegative,
}
