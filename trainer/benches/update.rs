//! Scoring, a supervised step and an update of the quick start's model on its usual batch.
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::Arc;

use candle_core::Device;
use criterion::{Criterion, criterion_group, criterion_main};
use mipu_agent::{ModelConfig, Tokens, Weights};
use mipu_trainer::bench::{BenchSize, synthetic_groups};
use mipu_trainer::optim::OptimConfig;
use mipu_trainer::update::{AlgorithmConfig, UpdateContext, score, sft_step, update};
use mipu_trainer::{AdamW, TrainerPolicy};

fn quick_start() -> ModelConfig {
    ModelConfig {
        model_type: "qwen3".to_owned(),
        vocab_size: 272,
        hidden_size: 96,
        intermediate_size: 256,
        num_hidden_layers: 3,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 24,
        rms_norm_eps: 1e-6,
        rope_theta: 1e4,
        tie_word_embeddings: true,
        max_position_embeddings: 160,
        qk_norm: true,
        attention_bias: false,
    }
}

fn benches(c: &mut Criterion) {
    let weights = Weights::init(Arc::new(quick_start()), 1);
    let mut policy = TrainerPolicy::from_weights(&weights, &Device::Cpu).expect("the weights fit");
    let mut optim = AdamW::new(&policy, OptimConfig::default());
    let groups = synthetic_groups(272, &BenchSize::default(), 1);
    let episodes: Vec<Tokens> = groups
        .iter()
        .flat_map(|g| &g.trajectories)
        .map(|t| t.tokens.clone())
        .collect();
    let config = AlgorithmConfig {
        minibatches: NonZeroUsize::MIN.saturating_add(1),
        ..AlgorithmConfig::default()
    };
    let context = UpdateContext {
        seed: 1,
        attempt: 0,
        lr: 1e-6,
        temperature: 1.0,
        reference: None,
    };
    let mut group = c.benchmark_group("trainer");
    group.sample_size(10);
    group.bench_function("score", |b| {
        let views: Vec<&Tokens> = episodes.iter().collect();
        b.iter(|| score(&policy, black_box(&views), 1.0).expect("scores"));
    });
    group.bench_function("sft_step", |b| {
        b.iter(|| sft_step(&mut policy, &mut optim, black_box(&episodes), 1e-6).expect("steps"));
    });
    group.bench_function("update", |b| {
        b.iter(|| update(&mut policy, &mut optim, black_box(&groups), &config, &context).expect("updates"));
    });
    group.finish();
}

criterion_group!(trainer, benches);
criterion_main!(trainer);
