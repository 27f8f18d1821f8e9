//! Gradients of the whole forward against central differences, and properties of the packed batch.

use candle_core::{DType, Device};

use super::evaluate::{TokenGradients, backward_cpu, backward_graph};
use super::*;
use crate::batch::{Episode, Packed};
use crate::testing::{quick_start_config, tiny_config, tiny_weights, tokens};
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
        let loss_gradient = |stats: TokenStats| Ok((coefficients(stats.logprobs.len()), ()));
        let micro = std::slice::from_ref(&batch);
        let (grads, _) =
            backward_cpu::<f64, _>(&policy, micro, TEMPERATURE, |_, s| loss_gradient(s)).unwrap();
        let (graph, ()) = backward_graph(&policy, &batch, TEMPERATURE, loss_gradient).unwrap();
        for (((name, var), got), graph) in policy.vars().iter().zip(grads.values).zip(graph) {
            assert!(
                got.iter().any(|g| g.abs() > 1e-8),
                "{family}: the gradient of {name} is zero"
            );
            let graph = graph.flatten_all().unwrap().to_vec1::<f64>().unwrap();
            assert!(
                got.iter().zip(&graph).all(|(a, b)| (a - b).abs() < 1e-12),
                "{family}: candle disagrees on {name}"
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

#[test]
fn the_gradient_has_the_same_bits_at_any_thread_count() {
    // One large micro-batch runs with all threads inside each operation, several small ones side by side.
    for family in ["qwen3", "qwen2"] {
        let tiny = tiny_config(family);
        let config = ModelConfig {
            model_type: tiny.model_type,
            qk_norm: tiny.qk_norm,
            attention_bias: tiny.attention_bias,
            tie_word_embeddings: tiny.tie_word_embeddings,
            ..quick_start_config()
        };
        let policy = TrainerPolicy::from_weights(&tiny_weights(&config, 1), &Device::Cpu).unwrap();
        let episodes: Vec<Episode> = (0..9)
            .map(|i| {
                tokens(
                    272,
                    &[(false, 30 + i), (true, 20), (false, 10), (true, 15 + i)],
                    i as u64,
                )
            })
            .map(|t| Episode::new(0, &t, &config).unwrap())
            .collect();
        let one = vec![Packed::new(&episodes)];
        let several: Vec<Packed> = episodes.iter().map(|e| Packed::new([e])).collect();
        let run = |micro: &[Packed], threads| {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap();
            pool.install(|| {
                let loss = |_, s: TokenStats| {
                    Ok((
                        TokenGradients {
                            logprobs: vec![-0.01; s.logprobs.len()],
                            entropies: s.entropies,
                        },
                        (),
                    ))
                };
                backward_cpu::<f32, _>(&policy, micro, 1.0, loss).unwrap().0
            })
        };
        let (large, small) = (run(&one, 1), run(&several, 1));
        for threads in [2, 3, 8] {
            assert!(
                large == run(&one, threads),
                "{family}: one micro-batch, {threads} threads"
            );
            assert!(
                small == run(&several, threads),
                "{family}: several micro-batches, {threads} threads"
            );
        }
        let pairs = large.values.iter().flatten().zip(small.values.iter().flatten());
        let scale = large.values.iter().flatten().fold(0f32, |m, g| m.max(g.abs()));
        assert!(pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) < 1e-5 * scale);
    }
}
