//! Gradients of the whole forward against central differences, and properties of the packed batch.

use candle_core::{DType, Device};

use super::evaluate::{TokenGradients, backward_one};
use super::ops::Exec;
use super::*;
use crate::batch::{Episode, Packed};
use crate::testing::{tiny_config, tiny_weights, tokens};
use mipu_agent::Tokens;

const FAMILIES: [&str; 3] = ["llama", "qwen2", "qwen3"];
const TEMPERATURE: f64 = 0.8;

fn batch(config: &ModelConfig) -> Packed {
    let episodes = [
        tokens(
            config.vocab_size,
            &[(false, 3), (true, 2), (false, 2), (true, 3), (false, 2)],
            1,
        ),
        tokens(config.vocab_size, &[(false, 1), (true, 4)], 2),
    ];
    let episodes: Vec<Episode> = episodes
        .iter()
        .map(|t| Episode::new(0, t, config).unwrap())
        .collect();
    Packed::new(&episodes)
}

/// A loss that weighs every log-prob and entropy differently.
fn coefficients(n: usize) -> TokenGradients {
    TokenGradients {
        logprobs: (0..n).map(|i| (i as f64 * 0.9).cos()).collect(),
        entropies: (0..n).map(|i| 0.4 * (i as f64 * 0.7).sin()).collect(),
    }
}

fn loss(policy: &TrainerPolicy, batch: &Packed) -> f64 {
    let stats = &evaluate(policy, std::slice::from_ref(batch), TEMPERATURE).unwrap()[0];
    let c = coefficients(stats.logprobs.len());
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    dot(&c.logprobs, &stats.logprobs) + dot(&c.entropies, &stats.entropies)
}

#[test]
fn every_variable_gets_the_gradient_that_central_differences_give() {
    for family in FAMILIES {
        let config = tiny_config(family);
        let policy = TrainerPolicy::with_dtype(&tiny_weights(&config, 3), &Device::Cpu, DType::F64).unwrap();
        let batch = batch(&config);
        let params = policy.params(true);
        let (grads, ()) = backward_one(&policy, &params, &batch, TEMPERATURE, Exec::Parallel, |stats| {
            Ok((coefficients(stats.logprobs.len()), ()))
        })
        .unwrap();
        for (name, var) in policy.vars() {
            let got = grads
                .get(var)
                .unwrap_or_else(|| panic!("{family}: no gradient for {name}"));
            let got = got.flatten_all().unwrap().to_vec1::<f64>().unwrap();
            assert!(
                got.iter().any(|g| g.abs() > 1e-8),
                "{family}: the gradient of {name} is zero"
            );
            let original = var.as_tensor().copy().unwrap();
            let values = original.flatten_all().unwrap().to_vec1::<f64>().unwrap();
            for i in 0..values.len() {
                let at = |delta: f64| {
                    let mut moved = values.clone();
                    moved[i] += delta;
                    var.set(&Tensor::from_vec(moved, var.dims(), &Device::Cpu).unwrap())
                        .unwrap();
                    loss(&policy, &batch)
                };
                const STEP: f64 = 1e-5;
                let want = (at(STEP) - at(-STEP)) / (2.0 * STEP);
                assert!(
                    (got[i] - want).abs() < 1e-7 * (1.0 + want.abs()),
                    "{family}: {name}[{i}] {} != {want}",
                    got[i]
                );
            }
            var.set(&original).unwrap();
        }
    }
}

#[test]
fn packing_with_other_episodes_changes_nothing() {
    let config = tiny_config("qwen3");
    let policy = TrainerPolicy::with_dtype(&tiny_weights(&config, 4), &Device::Cpu, DType::F64).unwrap();
    let records: Vec<Tokens> = (0..5)
        .map(|i| {
            tokens(
                config.vocab_size,
                &[(false, 1 + i), (true, 2), (false, i), (true, 1 + i % 2)],
                i as u64,
            )
        })
        .collect();
    let episodes: Vec<Episode> = records
        .iter()
        .map(|t| Episode::new(0, t, &config).unwrap())
        .collect();
    let packed = Packed::new(&episodes);
    let together = &evaluate(&policy, std::slice::from_ref(&packed), 1.0).unwrap()[0];
    for (episode, got) in episodes.iter().zip(packed.split(&together.logprobs)) {
        let alone = &evaluate(&policy, &[Packed::new([episode])], 1.0).unwrap()[0].logprobs;
        assert!(
            got.iter().zip(alone).all(|(a, b)| (a - b).abs() < 1e-12),
            "{got:?} {alone:?}"
        );
    }
}

#[test]
fn weights_come_back_as_they_went_in() {
    let config = tiny_config("qwen2");
    let weights = tiny_weights(&config, 5);
    let mut policy = TrainerPolicy::from_weights(&weights, &Device::Cpu).unwrap();
    assert_eq!(policy.to_weights().unwrap().tensors, weights.tensors);
    let other = tiny_weights(&config, 6);
    policy.set_weights(&other).unwrap();
    assert_eq!(policy.to_weights().unwrap().tensors, other.tensors);
    assert!(
        policy
            .set_weights(&tiny_weights(&tiny_config("llama"), 1))
            .is_err()
    );
}

#[test]
fn unusable_weights_are_named() {
    let config = tiny_config("qwen3");
    let mut weights = tiny_weights(&config, 5);
    weights.tensors.remove(3);
    let error = TrainerPolicy::from_weights(&weights, &Device::Cpu).err().unwrap();
    assert_eq!(
        error.to_string(),
        "weights do not match their configuration at `model.layers.0.self_attn.k_proj.weight`: expected [8, 8], got nothing"
    );
    let odd = ModelConfig {
        head_dim: 3,
        ..config
    };
    let error = TrainerPolicy::from_weights(&tiny_weights(&odd, 5), &Device::Cpu)
        .err()
        .unwrap();
    assert!(matches!(error, TrainerError::Shape(_)), "{error}");
}
