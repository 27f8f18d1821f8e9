//! Learning rate as a pure function of the step.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::number::Share;

/// Shape of the learning rate over a run: `lr * warmup(step) * decay(step)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleConfig {
    /// Steps over which the factor rises linearly to 1; the first step has `1 / warmup_steps`. Default 0.
    pub warmup_steps: u64,
    /// Decay after that. Default constant.
    pub decay: Decay,
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self {
            warmup_steps: 0,
            decay: Decay::Constant,
        }
    }
}

/// Decay of the learning rate from 1 to `floor` over the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Decay {
    /// No decay.
    #[default]
    Constant,
    /// Straight line.
    Linear {
        /// Factor at the end of the run, in `[0, 1]`.
        floor: Share,
    },
    /// Half a cosine.
    Cosine {
        /// Factor at the end of the run, in `[0, 1]`.
        floor: Share,
    },
}

impl ScheduleConfig {
    /// Factor on the learning rate at `step` (the first is 0) of `total_steps`; after the last step it stays at the floor.
    pub fn factor(&self, step: u64, total_steps: u64) -> f64 {
        let warmup = match self.warmup_steps {
            0 => 1.0,
            steps => ((step + 1) as f64 / steps as f64).min(1.0),
        };
        let progress = (step as f64 / total_steps.max(1) as f64).min(1.0);
        let decay = match self.decay {
            Decay::Constant => 1.0,
            Decay::Linear { floor } => 1.0 - (1.0 - floor.get()) * progress,
            Decay::Cosine { floor } => {
                floor.get() + (1.0 - floor.get()) * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos())
            }
        };
        warmup * decay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_computed_factors() {
        let floor = Share::literal(0.5);
        let linear = ScheduleConfig {
            warmup_steps: 5,
            decay: Decay::Linear { floor },
        };
        let cosine = ScheduleConfig {
            warmup_steps: 0,
            decay: Decay::Cosine {
                floor: Share::literal(0.05),
            },
        };
        for (config, step, want) in [
            (ScheduleConfig::default(), 7, 1.0),
            (linear, 0, 0.2),
            (linear, 4, 0.98),
            (linear, 50, 0.75),
            (linear, 100, 0.5),
            (linear, 1000, 0.5),
            (cosine, 0, 1.0),
            (cosine, 50, 0.525),
            (cosine, 100, 0.05),
        ] {
            assert!(
                (config.factor(step, 100) - want).abs() < 1e-12,
                "{config:?} at {step}"
            );
        }
        assert!((ScheduleConfig::default().factor(0, 0) - 1.0).abs() < 1e-12);
    }
}
