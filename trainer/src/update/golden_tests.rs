//! Against PyTorch and transformers: `tests/golden/make_update.py` made the numbers, in float64.

use std::sync::Arc;

use candle_core::Device;
use mipu_agent::{Group, ModelConfig, PROMPT_TURN, Tokens, Weights};
use serde::Deserialize;
use serde_json::Value;

use super::*;
use crate::loss::{KlConfig, KlEstimator};
use crate::number::{AtLeastOne, ClipWidth, Decay, NonNegative, Positive};
use crate::optim::OptimConfig;
use crate::testing::trajectory;

#[derive(Deserialize)]
struct Recorded {
    ids: Vec<u32>,
    loss_mask: Vec<bool>,
    #[serde(default)]
    logprobs: Vec<f64>,
    #[serde(default)]
    entropies: Vec<f64>,
    #[serde(default)]
    sampler_logprobs: Vec<f32>,
    #[serde(default)]
    reward: Option<f64>,
}

impl Recorded {
    fn tokens(&self) -> Tokens {
        let mut out = Tokens::default();
        for (t, (&id, &sampled)) in self.ids.iter().zip(&self.loss_mask).enumerate() {
            if sampled {
                out.push_sampled(&[id], &[self.sampler_logprobs.get(t).copied().unwrap_or(-1.0)], 0);
            } else {
                out.push_context(&[id], PROMPT_TURN);
            }
        }
        out
    }
}

fn weights(golden: &Value, key: &str) -> Weights {
    let config: ModelConfig = serde_json::from_value(golden["config"].clone()).unwrap();
    let tensors = config
        .tensor_shapes()
        .into_iter()
        .map(|(name, shape)| {
            let tensor = &golden[key][&name];
            assert_eq!(
                serde_json::from_value::<Vec<usize>>(tensor["shape"].clone()).unwrap(),
                shape,
                "{name}"
            );
            let values: Vec<f64> = serde_json::from_value(tensor["values"].clone()).unwrap();
            (
                name,
                shape,
                Arc::new(values.into_iter().map(|v| v as f32).collect()),
            )
        })
        .collect();
    Weights {
        config: Arc::new(config),
        tensors,
    }
}

fn policy(golden: &Value, key: &str) -> TrainerPolicy {
    TrainerPolicy::from_weights(&weights(golden, key), &Device::Cpu).unwrap()
}

#[track_caller]
fn close(got: f64, want: f64, tolerance: f64, what: &str) {
    assert!(
        (got - want).abs() <= tolerance * (1.0 + want.abs()),
        "{what}: {got} but PyTorch says {want}"
    );
}

#[test]
fn logprobs_and_entropies_equal_those_of_transformers() {
    for (family, golden) in [
        ("llama", include_str!("../../tests/golden/forward_llama.json")),
        ("qwen2", include_str!("../../tests/golden/forward_qwen2.json")),
        ("qwen3", include_str!("../../tests/golden/forward_qwen3.json")),
    ] {
        let golden: Value = serde_json::from_str(golden).unwrap();
        let policy = policy(&golden, "weights");
        let temperature = golden["temperature"].as_f64().unwrap();
        let recorded: Vec<Recorded> = serde_json::from_value(golden["episodes"].clone()).unwrap();
        let tokens: Vec<Tokens> = recorded.iter().map(Recorded::tokens).collect();
        let scored = score(&policy, &tokens.iter().collect::<Vec<_>>(), temperature).unwrap();
        let packed = Packed::new(
            &tokens
                .iter()
                .map(|t| crate::batch::Episode::new(0, t, policy.config()).unwrap())
                .collect::<Vec<_>>(),
        );
        let stats = &crate::policy::evaluate(&policy, std::slice::from_ref(&packed), temperature).unwrap()[0];
        for ((want, scored), entropies) in recorded.iter().zip(scored).zip(packed.split(&stats.entropies)) {
            assert_eq!(scored.len(), want.logprobs.len());
            for t in 0..scored.len() {
                close(
                    f64::from(scored[t]),
                    want.logprobs[t],
                    3e-6,
                    &format!("{family}: log-prob"),
                );
                close(
                    entropies[t],
                    want.entropies[t],
                    3e-6,
                    &format!("{family}: entropy"),
                );
            }
        }
    }
}

#[test]
fn a_whole_update_equals_that_of_torch() {
    let golden: Value = serde_json::from_str(include_str!("../../tests/golden/update.json")).unwrap();
    let setting = |key: &str| golden["settings"][key].as_f64().unwrap();
    let positive = |key: &str| Positive::try_from(setting(key)).unwrap();
    let config = |epochs: usize| AlgorithmConfig {
        loss: LossConfig {
            clip_low: ClipWidth::try_from(setting("clip_low")).unwrap(),
            clip_high: ClipWidth::try_from(setting("clip_high")).unwrap(),
            dual_clip: Some(AtLeastOne::try_from(setting("dual_clip")).unwrap()),
            kl: Some(KlConfig {
                estimator: KlEstimator::K3,
                coefficient: positive("kl_coefficient"),
            }),
            entropy_bonus: NonNegative::try_from(setting("entropy_bonus")).unwrap(),
            ..LossConfig::default()
        },
        epochs: NonZeroUsize::new(epochs).unwrap(),
        // Small enough that gradients are accumulated over several micro-batches.
        micro_batch_tokens: NonZeroUsize::new(20).unwrap(),
        ..AlgorithmConfig::default()
    };
    let optim_config = OptimConfig {
        beta1: Decay::try_from(setting("beta1")).unwrap(),
        beta2: Decay::try_from(setting("beta2")).unwrap(),
        eps: positive("eps"),
        weight_decay: NonNegative::try_from(setting("weight_decay")).unwrap(),
        max_grad_norm: Some(positive("max_grad_norm")),
        ..OptimConfig::default()
    };
    let recorded: Vec<Vec<Recorded>> = serde_json::from_value(golden["groups"].clone()).unwrap();
    let groups: Vec<Group> = recorded
        .iter()
        .enumerate()
        .map(|(k, episodes)| Group {
            task_id: format!("g{k}"),
            trajectories: episodes
                .iter()
                .enumerate()
                .map(|(i, e)| trajectory(&format!("g{k}"), i, e.tokens(), e.reward.unwrap_or(f64::NAN)))
                .collect(),
            unscored: Vec::new(),
        })
        .collect();
    let reference = policy(&golden, "reference");
    let context = UpdateContext {
        seed: 1,
        attempt: 0,
        lr: setting("lr"),
        temperature: golden["temperature"].as_f64().unwrap(),
        reference: Some(&reference),
    };

    let pi = policy(&golden, "weights");
    let mut report = UpdateReport::default();
    let batch = prepare(&pi, &groups, &config(1), &mut report).unwrap();
    let advantages: Vec<f64> = serde_json::from_value(golden["advantages"].clone()).unwrap();
    let got: Vec<f64> = batch.iter().flatten().map(|s| s.advantage).collect();
    assert_eq!(got.len(), advantages.len());
    got.iter()
        .zip(&advantages)
        .for_each(|(g, w)| close(*g, *w, 1e-12, "advantage"));

    let mut batch = batch;
    let all: Vec<usize> = (0..batch.len()).collect();
    prepare::freeze(&pi, &mut batch, &all, &config(1), &context).unwrap();
    let minibatch = minibatch_gradients(&pi, &mut batch, &all, &config(1), &context).unwrap();
    for ((name, _), got) in pi.vars().iter().zip(&minibatch.gradients.values) {
        let want: Vec<f64> =
            serde_json::from_value(golden["first_gradient"][name]["values"].clone()).unwrap();
        assert_eq!(got.len(), want.len());
        got.iter()
            .zip(want)
            .for_each(|(g, w)| close(f64::from(*g), w, 5e-6, &format!("gradient of {name}")));
    }

    for (epochs, step) in [(1, 0), (2, 1)] {
        let mut pi = policy(&golden, "weights");
        let mut optim = AdamW::new(&pi, optim_config);
        let report = update(&mut pi, &mut optim, &groups, &config(epochs), &context).unwrap();
        let want = |step: usize, key: &str| golden["steps"][step][key].as_f64().unwrap();
        let mean = (0..epochs).map(|s| want(s, "loss")).sum::<f64>() / epochs as f64;
        close(report.loss, mean, 3e-6, "loss");
        close(
            report.grad_norm_mean * epochs as f64,
            (0..epochs).map(|s| want(s, "grad_norm")).sum(),
            1e-5,
            "norm",
        );
        let tokens = epochs as f64 * want(step, "tokens");
        for (got, key) in [
            (report.clip_low_frac, "clip_low"),
            (report.clip_high_frac, "clip_high"),
            (report.dual_clip_frac, "dual_clip"),
        ] {
            close(got * tokens, (0..epochs).map(|s| want(s, key)).sum(), 1e-9, key);
        }
        let counts = GroupCounts {
            total: 6,
            informative: 3,
            too_small: 1,
            no_spread: 1,
            non_finite: 1,
        };
        assert_eq!(
            (report.groups, report.empty_episodes, report.episodes),
            (counts, 1, 11)
        );
        if epochs == 2 {
            for (name, _, got) in pi.to_weights().unwrap().tensors {
                let want: Vec<f64> =
                    serde_json::from_value(golden["final"][&name]["values"].clone()).unwrap();
                got.iter()
                    .zip(want)
                    .for_each(|(g, w)| close(f64::from(*g), w, 2e-5, &format!("final {name}")));
            }
        }
    }
}
