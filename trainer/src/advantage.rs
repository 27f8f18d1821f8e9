//! Advantages: how much better than its group an episode did.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Spread below which a group says nothing about which episode was better.
pub const MIN_STD: f64 = 1e-6;

/// Estimator of the advantage of an episode with return `R` in a group of `n` episodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AdvantageConfig {
    /// `(R - mean) / (std + 1e-6)`, std with `n - 1` (GRPO, arXiv 2402.03300). The default.
    #[default]
    Grpo,
    /// `R - mean` (Dr. GRPO, arXiv 2503.20783).
    DrGrpo,
    /// `n / (n - 1) (R - mean)`: the baseline is the mean of the others (RLOO, arXiv 2402.14740).
    Rloo,
    /// `R - mean`, then whitened over the tokens of the batch (REINFORCE++ with baseline, arXiv 2501.03262).
    ReinforcePp,
}

/// Why a group gives no signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Uninformative {
    /// Fewer than two scored episodes.
    TooSmall,
    /// All returns are equal.
    NoSpread,
    /// A return is not finite.
    NonFinite,
}

/// Advantages of the episodes of one group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupAdvantages {
    /// One per episode; all 0 when the group is uninformative.
    pub values: Vec<f64>,
    /// Set when the group gives no signal.
    pub uninformative: Option<Uninformative>,
}

/// Advantages inside one group, from its returns (episodes without a sampled token are left out by the caller).
///
/// For [`AdvantageConfig::ReinforcePp`] these still have to be [`whiten`]ed over the batch. In an informative group they sum to 0.
pub fn group_advantages(config: AdvantageConfig, returns: &[f64]) -> GroupAdvantages {
    let n = returns.len() as f64;
    let none = |why| GroupAdvantages {
        values: vec![0.0; returns.len()],
        uninformative: Some(why),
    };
    if returns.iter().any(|r| !r.is_finite()) {
        return none(Uninformative::NonFinite);
    }
    if returns.len() < 2 {
        return none(Uninformative::TooSmall);
    }
    let mean = returns.iter().sum::<f64>() / n;
    let std = (returns.iter().map(|r| (r - mean) * (r - mean)).sum::<f64>() / (n - 1.0)).sqrt();
    if !std.is_finite() {
        return none(Uninformative::NonFinite);
    }
    if std <= MIN_STD {
        return none(Uninformative::NoSpread);
    }
    let scale = match config {
        AdvantageConfig::Grpo => 1.0 / (std + 1e-6),
        AdvantageConfig::DrGrpo | AdvantageConfig::ReinforcePp => 1.0,
        AdvantageConfig::Rloo => n / (n - 1.0),
    };
    GroupAdvantages {
        values: returns.iter().map(|r| (r - mean) * scale).collect(),
        uninformative: None,
    }
}

/// Shifts and scales advantages so that over all tokens of the batch their mean is 0 and their standard deviation 1.
///
/// `tokens[i]` is the number of sampled tokens of episode `i`. Without spread the values are only centred.
pub fn whiten(values: &mut [f64], tokens: &[usize]) {
    let total: f64 = tokens.iter().map(|&t| t as f64).sum();
    if total <= 0.0 {
        return;
    }
    let weighted = |f: &dyn Fn(f64) -> f64| {
        values
            .iter()
            .zip(tokens)
            .map(|(&a, &t)| f(a) * t as f64)
            .sum::<f64>()
            / total
    };
    let mean = weighted(&|a| a);
    let std = weighted(&|a| (a - mean) * (a - mean)).sqrt();
    let scale = if std > MIN_STD { 1.0 / (std + 1e-8) } else { 1.0 };
    for value in values {
        *value = (*value - mean) * scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [AdvantageConfig; 4] = [
        AdvantageConfig::Grpo,
        AdvantageConfig::DrGrpo,
        AdvantageConfig::Rloo,
        AdvantageConfig::ReinforcePp,
    ];

    fn close(got: &[f64], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        assert!(
            got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-12),
            "{got:?} != {want:?}"
        );
    }

    #[test]
    fn hand_computed_group() {
        // Returns 1, 0, 0, 1: mean 1/2, std_{n-1} = sqrt(1/3).
        let returns = [1.0, 0.0, 0.0, 1.0];
        let std = (1.0f64 / 3.0).sqrt();
        let a = 0.5 / (std + 1e-6);
        close(
            &group_advantages(AdvantageConfig::Grpo, &returns).values,
            &[a, -a, -a, a],
        );
        close(
            &group_advantages(AdvantageConfig::DrGrpo, &returns).values,
            &[0.5, -0.5, -0.5, 0.5],
        );
        let b = 2.0 / 3.0;
        close(
            &group_advantages(AdvantageConfig::Rloo, &returns).values,
            &[b, -b, -b, b],
        );
    }

    #[test]
    fn trap_07_one_valid_reward_gives_zero_not_nan() {
        for config in ALL {
            for (returns, why) in [
                (vec![1.0], Uninformative::TooSmall),
                (vec![], Uninformative::TooSmall),
                (vec![0.3, 0.3, 0.3], Uninformative::NoSpread),
                (vec![0.0, f64::NAN], Uninformative::NonFinite),
                (vec![0.0, f64::INFINITY, 1.0], Uninformative::NonFinite),
                (vec![-1e308, 1e308, 1e308], Uninformative::NonFinite),
            ] {
                let got = group_advantages(config, &returns);
                assert_eq!(got.uninformative, Some(why), "{returns:?}");
                assert!(got.values.iter().all(|a| *a == 0.0) && got.values.len() == returns.len());
            }
        }
    }

    #[test]
    fn rloo_is_the_return_minus_the_mean_of_the_others() {
        let returns = [0.25, 1.0, -0.5, 2.0, 0.0];
        let got = group_advantages(AdvantageConfig::Rloo, &returns).values;
        let sum: f64 = returns.iter().sum();
        let want: Vec<f64> = returns.iter().map(|r| r - (sum - r) / 4.0).collect();
        close(&got, &want);
    }

    #[test]
    fn whitening_counts_tokens() {
        let mut values = vec![1.0, -1.0];
        whiten(&mut values, &[30, 10]);
        let mean = (30.0 * values[0] + 10.0 * values[1]) / 40.0;
        let var = (30.0 * values[0] * values[0] + 10.0 * values[1] * values[1]) / 40.0;
        assert!(mean.abs() < 1e-12 && (var - 1.0).abs() < 1e-6);
        whiten(&mut [], &[]);
    }

    proptest! {
        #[test]
        fn advantages_sum_to_zero_in_a_group(returns in prop::collection::vec(-10.0f64..10.0, 0..20)) {
            for config in ALL {
                let got = group_advantages(config, &returns);
                prop_assert!(got.values.iter().sum::<f64>().abs() < 1e-9);
                prop_assert!(got.values.iter().all(|a| a.is_finite()));
            }
        }

        #[test]
        fn order_follows_the_returns(returns in prop::collection::vec(-10.0f64..10.0, 2..10)) {
            for config in ALL {
                let got = group_advantages(config, &returns).values;
                for i in 1..returns.len() {
                    prop_assert!((got[i] - got[i - 1]) * (returns[i] - returns[i - 1]) >= 0.0);
                }
            }
        }
    }
}
