//! What becomes of episodes that ran out of room before they ended.

use mipu_agent::Trajectory;
use mipu_envs::StopReason;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::number::Positive;

/// Treatment of episodes that were cut by their turn or token limit (DAPO, arXiv 2503.14476, section 3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Overlong {
    /// They are episodes like any other. The default.
    #[default]
    Keep,
    /// Their returns count in their group, their tokens are not trained on.
    Mask,
    /// Length costs: nothing up to `max_tokens - buffer` sampled tokens, then linearly up to 1 at `max_tokens` and beyond.
    Penalty(LengthPenalty),
}

/// Soft punishment of long episodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LengthPenalty {
    /// Sampled tokens that cost a whole reward.
    pub max_tokens: Positive,
    /// Sampled tokens before that in which the cost rises.
    pub buffer: Positive,
}

impl Overlong {
    /// The return that advantages are computed from.
    pub fn ret(&self, trajectory: &Trajectory) -> f64 {
        trajectory.ret() - self.cost(trajectory.tokens.sampled_len())
    }

    /// What an episode of `sampled` tokens is charged, in [0, 1].
    pub fn cost(&self, sampled: usize) -> f64 {
        match self {
            Self::Keep | Self::Mask => 0.0,
            Self::Penalty(LengthPenalty { max_tokens, buffer }) => {
                let free = max_tokens.get() - buffer.get();
                ((sampled as f64 - free) / buffer.get()).clamp(0.0, 1.0)
            }
        }
    }

    /// Whether the episode's tokens are left out of the loss.
    pub fn masks(&self, stop: StopReason) -> bool {
        matches!(self, Self::Mask) && matches!(stop, StopReason::MaxTurns | StopReason::MaxTokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_rises_over_the_buffer() {
        let rule = Overlong::Penalty(LengthPenalty {
            max_tokens: Positive::literal(100.0),
            buffer: Positive::literal(20.0),
        });
        for (tokens, cost) in [(0, 0.0), (80, 0.0), (85, 0.25), (90, 0.5), (100, 1.0), (500, 1.0)] {
            assert!((rule.cost(tokens) - cost).abs() < 1e-12, "{tokens}");
        }
        assert!(!rule.masks(StopReason::MaxTokens) && Overlong::Keep.cost(500).abs() < 1e-12);
        assert!(Overlong::Mask.masks(StopReason::MaxTurns) && !Overlong::Mask.masks(StopReason::Answered));
        assert!(!Overlong::Keep.masks(StopReason::MaxTokens));
    }
}
