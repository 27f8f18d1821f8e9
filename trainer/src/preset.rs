//! Methods of the field by name: `preset: dapo` stands for the settings of its paper, which the resolved configuration spells out.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A published method. Keys that the file sets itself win over the preset's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// GRPO (arXiv 2402.03300): group-normalised advantages, clip 0.2, KL 0.04 to the start, no correction.
    Grpo,
    /// Dr. GRPO (arXiv 2503.20783): no division by the spread, constant length, no KL.
    DrGrpo,
    /// DAPO (arXiv 2503.14476): clip-higher 0.28, token mean, dynamic sampling, cut episodes masked, no KL.
    Dapo,
    /// RLOO (arXiv 2402.14740): leave-one-out baseline, an episode is one action. Its KL penalty is left to `loss.kl`.
    Rloo,
    /// GSPO (arXiv 2507.18071): sequence ratios with clip 3e-4 and 4e-4.
    Gspo,
    /// CISPO (arXiv 2506.13585): the ratio is capped, its token keeps its gradient.
    Cispo,
    /// GRPO with token-level truncated importance sampling, `min(pi / mu, 2)`.
    Tis,
    /// IcePop: GRPO with tokens masked whose `pi / mu` leaves [0.5, 5].
    Icepop,
    /// GRPO with tokens masked whose `pi / mu` exceeds 2.
    Mis,
    /// MIPU (arXiv 2606.29526): truncated sampler-referenced update, dual clip 1.4, KL 1e-3, accept or roll back.
    Mipu,
}

impl Preset {
    /// The sections it sets.
    fn settings(self) -> Value {
        let plain = json!({"clip_low": 0.2, "clip_high": 0.2, "dual_clip": null, "aggregation": "seq_mean_token_mean"});
        let with = |correction: Value| json!({"algorithm": {"advantage": "grpo", "correction": correction, "loss": plain, "gate": "never"}});
        match self {
            Self::Grpo => {
                let mut all = with(json!("none"));
                all["algorithm"]["loss"]["kl"] = json!({"estimator": "k3", "coefficient": 0.04});
                all
            }
            Self::DrGrpo => {
                let mut all = with(json!("none"));
                all["algorithm"]["advantage"] = json!("dr_grpo");
                all["algorithm"]["loss"]["aggregation"] = json!({"seq_sum_const": {"length": 3000.0}});
                all
            }
            Self::Dapo => {
                let mut all = with(json!("none"));
                all["algorithm"]["loss"]["clip_high"] = json!(0.28);
                all["algorithm"]["loss"]["aggregation"] = json!("token_mean");
                all["algorithm"]["overlong"] = json!("mask");
                all["rollout"] = json!({"dynamic_sampling": {}});
                all
            }
            Self::Rloo => {
                let mut all = with(json!("none"));
                all["algorithm"]["advantage"] = json!("rloo");
                all["algorithm"]["loss"]["aggregation"] = json!({"seq_sum_const": {"length": 1.0}});
                all
            }
            Self::Gspo => with(json!({"gspo": {}})),
            Self::Cispo => {
                let mut all = with(json!({"cispo": {}}));
                all["algorithm"]["loss"]["aggregation"] = json!("token_mean");
                all
            }
            Self::Tis => with(json!({"tis": {"w_max": 2.0}})),
            Self::Icepop => with(json!({"mis": {"two_sided": {"low": 0.5, "high": 5.0}}})),
            Self::Mis => with(json!({"mis": {"w_max": 2.0}})),
            Self::Mipu => json!({"algorithm": {
                "advantage": "grpo",
                "correction": {"tis": {"w_max": 2.0}},
                "loss": {
                    "clip_low": 0.2, "clip_high": 0.2, "dual_clip": 1.4, "aggregation": "seq_mean_token_mean",
                    "kl": {"estimator": "k3", "coefficient": 1e-3},
                },
                "gate": {"mipu": {"c": {"start": 4e-3, "end": 1e-3, "anneal_steps": 100}}},
            }}),
        }
    }
}

/// Puts what `preset` of a configuration stands for below what the configuration says itself; returns whether there was one.
pub(crate) fn expand(tree: &mut Value) -> bool {
    // A name that does not exist is the typed reading's to refuse.
    let Ok(Some(preset)) = serde_json::from_value::<Option<Preset>>(tree["preset"].clone()) else {
        return false;
    };
    fill(tree, preset.settings());
    true
}

/// Named choices, of which one replaces the other instead of being merged with it.
const CHOICES: [&str; 4] = ["correction", "gate", "aggregation", "overlong"];

fn fill(tree: &mut Value, defaults: Value) {
    let (Some(tree), Value::Object(defaults)) = (tree.as_object_mut(), defaults) else {
        return;
    };
    for (key, default) in defaults {
        match tree.get_mut(&key) {
            None => {
                tree.insert(key, default);
            }
            Some(own) if own.is_object() && default.is_object() && !CHOICES.contains(&key.as_str()) => {
                fill(own, default);
            }
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AlgorithmSection, RolloutSection};

    const ALL: [Preset; 10] = [
        Preset::Grpo,
        Preset::DrGrpo,
        Preset::Dapo,
        Preset::Rloo,
        Preset::Gspo,
        Preset::Cispo,
        Preset::Tis,
        Preset::Icepop,
        Preset::Mis,
        Preset::Mipu,
    ];

    #[test]
    fn every_preset_is_a_valid_section_and_they_differ() {
        let mut seen = Vec::new();
        for preset in ALL {
            let settings = preset.settings();
            let section: AlgorithmSection = serde_json::from_value(settings["algorithm"].clone()).unwrap();
            if let Some(rollout) = settings.get("rollout") {
                serde_json::from_value::<RolloutSection>(rollout.clone()).unwrap();
            }
            let resolved = serde_json::to_value(section).unwrap();
            assert!(!seen.contains(&resolved), "{preset:?} equals another");
            seen.push(resolved);
        }
    }

    #[test]
    fn what_the_file_says_wins_and_choices_are_not_mixed() {
        let mut tree = json!({"preset": "dapo", "algorithm": {"loss": {"clip_high": 0.25}, "correction": {"tis": {}}, "minibatches": 4}});
        assert!(expand(&mut tree));
        let algorithm = &tree["algorithm"];
        assert_eq!(algorithm["loss"]["clip_high"], 0.25);
        assert_eq!(algorithm["loss"]["aggregation"], "token_mean");
        assert_eq!(algorithm["correction"], json!({"tis": {}}));
        assert_eq!(algorithm["minibatches"], 4);
        assert_eq!(algorithm["overlong"], "mask");
        assert_eq!(tree["rollout"], json!({"dynamic_sampling": {}}));
        let mut tree = json!({"preset": "mipu", "algorithm": {"gate": "never"}});
        expand(&mut tree);
        assert_eq!(tree["algorithm"]["gate"], "never");
        let mut tree = json!({"steps": 3});
        assert!(
            !expand(&mut tree) && tree == json!({"steps": 3, "preset": null}) || tree == json!({"steps": 3})
        );
    }
}
