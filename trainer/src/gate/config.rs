//! Which gate judges an update, and how strictly.

use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::number::{NonNegative, Share};

/// The gate, by name: `gate: never`, `gate: { mipu: { c: { start: 1.5e-3, end: 5.0e-4, anneal_steps: 100 } } }`.
///
/// Default: `mipu` with its defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GateConfig {
    /// Eq 9: accept iff `T_hat >= -c_t`.
    Mipu(MipuGate),
    /// Reject only when `T_hat < -c_t` and the permutation p-value is below `alpha`.
    MipuSignificant(SignificantGate),
    /// Reject when mu's validation reward fell by more than the standard error of the difference.
    RewardDrop(RewardDropGate),
    /// Reject at a fixed rate whatever was measured: the control any claim about a gate needs.
    Random(RandomGate),
    /// Accept everything.
    Never,
}

impl Default for GateConfig {
    fn default() -> Self {
        Self::Mipu(MipuGate::default())
    }
}

impl GateConfig {
    /// Runs on every how many attempted steps; `None` when the gate is off.
    pub fn every(&self) -> Option<NonZeroU32> {
        match self {
            Self::Mipu(g) => Some(g.every),
            Self::MipuSignificant(g) => Some(g.every),
            Self::RewardDrop(g) => Some(g.every),
            Self::Random(g) => Some(g.every),
            Self::Never => None,
        }
    }

    /// Whether validation groups are wanted at this attempted step (0-based).
    pub fn due(&self, attempt: u64) -> bool {
        self.every()
            .is_some_and(|every| attempt.is_multiple_of(u64::from(every.get())))
    }

    /// The gate's name in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Mipu(_) => "mipu",
            Self::MipuSignificant(_) => "mipu_significant",
            Self::RewardDrop(_) => "reward_drop",
            Self::Random(_) => "random",
            Self::Never => "never",
        }
    }

    pub(super) fn threshold(&self) -> Option<&Threshold> {
        match self {
            Self::Mipu(g) => Some(&g.c),
            Self::MipuSignificant(g) => Some(&g.c),
            _ => None,
        }
    }

    pub(super) fn on_undefined(&self) -> OnUndefined {
        match self {
            Self::Mipu(g) => g.on_undefined,
            Self::MipuSignificant(g) => g.on_undefined,
            _ => OnUndefined::Accept,
        }
    }
}

const ONE: NonZeroU32 = NonZeroU32::MIN;

/// `mipu`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MipuGate {
    /// Tolerance `c_t`. Default: the paper's, 4e-3 to 1e-3 over 100 attempted steps.
    pub c: Threshold,
    /// Judge every n-th attempted step; the others are accepted unjudged. Default 1.
    pub every: NonZeroU32,
    /// What happens when no group is informative. Default `accept`.
    pub on_undefined: OnUndefined,
}

impl Default for MipuGate {
    fn default() -> Self {
        Self {
            c: Threshold::default(),
            every: ONE,
            on_undefined: OnUndefined::Accept,
        }
    }
}

/// `mipu_significant`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SignificantGate {
    /// As for `mipu`.
    pub c: Threshold,
    /// Level of the one-sided permutation test, in [0, 1]. Default 0.05.
    pub alpha: Share,
    /// As for `mipu`.
    pub every: NonZeroU32,
    /// As for `mipu`.
    pub on_undefined: OnUndefined,
}

impl Default for SignificantGate {
    fn default() -> Self {
        Self {
            c: Threshold::default(),
            alpha: Share::literal(0.05),
            every: ONE,
            on_undefined: OnUndefined::Accept,
        }
    }
}

/// `reward_drop`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RewardDropGate {
    /// Tolerated drop in standard errors of the difference. Default 1.
    pub standard_errors: NonNegative,
    /// As for `mipu`.
    pub every: NonZeroU32,
}

impl Default for RewardDropGate {
    fn default() -> Self {
        Self {
            standard_errors: NonNegative::literal(1.0),
            every: ONE,
        }
    }
}

/// `random`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RandomGate {
    /// Chance that a judged step is rejected, in [0, 1]. Match it to the gate under test. Default 0.1.
    pub reject_rate: Share,
    /// As for `mipu`.
    pub every: NonZeroU32,
}

impl Default for RandomGate {
    fn default() -> Self {
        Self {
            reject_rate: Share::literal(0.1),
            every: ONE,
        }
    }
}

/// What to do with an update when no validation group is informative (all returns of each group equal): the proxy says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnUndefined {
    /// Keep the update: nothing speaks against it.
    #[default]
    Accept,
    /// Roll it back.
    Reject,
    /// Sample more validation groups, at most [`EXTENSIONS`] times, then accept.
    Extend,
}

/// Times a validation set is extended before an undefined proxy is accepted: each round costs as much as the gate itself, and a task mu
/// always (or never) solves stays uninformative however long one samples.
pub const EXTENSIONS: u32 = 2;

/// The tolerance `c_t` of Eq 9, annealed over *attempted* steps or relative to the noise of the statistic.
///
/// Values to start from: the paper anneals 4e-3 to 1e-3 (the default) or 1e-3 to 0 over 100 steps; the quick start's tiny model with an FP8
/// sampler needs 1.5e-3 to 5e-4, since 4e-3 never fires there. A fixed tolerance is inert under mild mismatch and rejects every step
/// under a harsh one; `{ relative: 2 }` follows the noise instead.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "RawThreshold", into = "RawThreshold")]
pub enum Threshold {
    /// `start + min(t, anneal_steps) / anneal_steps * (end - start)`.
    Annealed {
        /// Tolerance of the first attempted step, `>= 0`.
        start: f64,
        /// Tolerance from `anneal_steps` on, `>= 0`.
        end: f64,
        /// Attempted steps from `start` to `end`; 0 is `end` at once.
        anneal_steps: u32,
    },
    /// A multiple of the standard deviation of T_hat under the within-group permutation null.
    Relative(f64),
}

impl Default for Threshold {
    fn default() -> Self {
        Self::Annealed {
            start: 4e-3,
            end: 1e-3,
            anneal_steps: 100,
        }
    }
}

impl Threshold {
    /// `c_t` at attempted step `attempt` (0-based), given the null's standard deviation; `None` when relative to an unknown one.
    pub fn at(&self, attempt: u64, null_sd: Option<f64>) -> Option<f64> {
        match *self {
            Self::Annealed {
                end, anneal_steps: 0, ..
            } => Some(end),
            Self::Annealed {
                start,
                end,
                anneal_steps,
            } => {
                let steps = f64::from(anneal_steps);
                let share = (attempt.min(u64::from(anneal_steps)) as f64) / steps;
                Some(start + share * (end - start))
            }
            Self::Relative(k) => null_sd.map(|sd| k * sd),
        }
    }
}

/// Wire form of [`Threshold`]: `{start, end, anneal_steps}` or `{relative}`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RawThreshold {
    /// Tolerance of the first attempted step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start: Option<f64>,
    /// Tolerance after annealing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end: Option<f64>,
    /// Attempted steps from `start` to `end`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    anneal_steps: Option<u32>,
    /// Multiple of the permutation null's standard deviation, instead of the other three.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    relative: Option<f64>,
}

impl From<Threshold> for RawThreshold {
    fn from(threshold: Threshold) -> Self {
        match threshold {
            Threshold::Annealed {
                start,
                end,
                anneal_steps,
            } => Self {
                start: Some(start),
                end: Some(end),
                anneal_steps: Some(anneal_steps),
                relative: None,
            },
            Threshold::Relative(k) => Self {
                relative: Some(k),
                ..Self::default()
            },
        }
    }
}

impl TryFrom<RawThreshold> for Threshold {
    type Error = String;

    fn try_from(raw: RawThreshold) -> Result<Self, String> {
        let check = |name: &str, value: f64| {
            if value.is_finite() && value >= 0.0 {
                Ok(value)
            } else {
                Err(format!("{name} must be at least 0; got {value}"))
            }
        };
        match (raw.relative, raw.start, raw.end, raw.anneal_steps) {
            (Some(k), None, None, None) => Ok(Self::Relative(check("c.relative", k)?)),
            (Some(_), ..) => {
                Err("c takes either `relative` or `start`, `end` and `anneal_steps`, not both".into())
            }
            (None, Some(start), end, anneal_steps) => Ok(Self::Annealed {
                start: check("c.start", start)?,
                end: check("c.end", end.unwrap_or(start))?,
                anneal_steps: anneal_steps.unwrap_or(100),
            }),
            (None, None, ..) => Err(
                "c needs `start` (with `end` and `anneal_steps`) or `relative`, for example { relative: 2 }"
                    .into(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(yaml: &str) -> Result<GateConfig, String> {
        serde_saphyr::from_str(yaml).map_err(|e| e.to_string())
    }

    #[test]
    fn every_gate_reads_by_name_and_round_trips() {
        for (yaml, name) in [
            ("never", "never"),
            ("mipu: {}", "mipu"),
            (
                "mipu: { c: { start: 1.5e-3, end: 5.0e-4, anneal_steps: 100 }, every: 2, on_undefined: extend }",
                "mipu",
            ),
            ("mipu: { c: { relative: 2.0 } }", "mipu"),
            ("mipu_significant: { alpha: 0.01 }", "mipu_significant"),
            ("reward_drop: { standard_errors: 2 }", "reward_drop"),
            ("random: { reject_rate: 0.25 }", "random"),
        ] {
            let config = parse(yaml).unwrap();
            assert_eq!(config.name(), name);
            let json = serde_json::to_string(&config).unwrap();
            assert_eq!(
                serde_json::from_str::<GateConfig>(&json).unwrap(),
                config,
                "{json}"
            );
        }
    }

    #[test]
    fn mistakes_are_told_in_the_words_of_the_file() {
        for (yaml, told) in [
            ("mipu: { c: { relative: 2, start: 1 } }", "not both"),
            ("mipu: { c: {} }", "c needs `start`"),
            ("mipu: { c: { start: -1 } }", "c.start must be at least 0; got -1"),
            ("mipu_significant: { alpha: 1.5 }", "must be in [0, 1]; got 1.5"),
            ("mipu: { cc: 1 }", "cc"),
            ("mipu: { every: 0 }", "every"),
        ] {
            let error = parse(yaml).unwrap_err();
            assert!(error.contains(told), "{yaml}: {error}");
        }
    }

    #[test]
    fn c_anneals_over_attempted_steps_then_stays() {
        let c = Threshold::default();
        for (attempt, expected) in [(0, 4e-3), (50, 2.5e-3), (100, 1e-3), (1000, 1e-3)] {
            assert!((c.at(attempt, None).unwrap() - expected).abs() < 1e-15);
        }
        let at_once = Threshold::Annealed {
            start: 1.0,
            end: 0.5,
            anneal_steps: 0,
        };
        assert!((at_once.at(0, None).unwrap() - 0.5).abs() < 1e-15);
        assert_eq!(Threshold::Relative(2.0).at(7, None), None);
        assert!((Threshold::Relative(2.0).at(7, Some(3e-4)).unwrap() - 6e-4).abs() < 1e-15);
    }

    #[test]
    fn every_thins_the_gate() {
        let config = parse("mipu: { every: 3 }").unwrap();
        assert_eq!((0..7).filter(|&t| config.due(t)).collect::<Vec<_>>(), [0, 3, 6]);
        assert!(!GateConfig::Never.due(0));
    }
}
