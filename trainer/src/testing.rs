//! Tiny models and episodes for the tests of this crate.

use std::sync::Arc;

use mipu_agent::{Group, ModelConfig, PROMPT_TURN, Tokens, Trajectory, Weights};
use mipu_envs::StopReason;
use mipu_envs::seed::{Purpose, stream};
use rand::RngExt;

/// A two-layer model of a family, small enough for central differences.
pub(crate) fn tiny_config(model_type: &str) -> ModelConfig {
    ModelConfig {
        model_type: model_type.to_owned(),
        vocab_size: 13,
        hidden_size: 8,
        intermediate_size: 12,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 4,
        rms_norm_eps: 1e-6,
        rope_theta: 1e4,
        tie_word_embeddings: model_type != "qwen2",
        max_position_embeddings: 64,
        qk_norm: model_type == "qwen3",
        attention_bias: model_type == "qwen2",
    }
}

/// Random weights of a useful size: norms around 1, everything else around 0.
pub(crate) fn tiny_weights(config: &ModelConfig, seed: u64) -> Weights {
    let mut rng = stream(seed, Purpose::Init, &[]);
    let tensors = config
        .tensor_shapes()
        .into_iter()
        .map(|(name, shape)| {
            let offset = if name.contains("norm") { 1.0 } else { 0.0 };
            let n = shape.iter().product();
            let values = (0..n)
                .map(|_| offset + rng.random_range(-0.45f32..0.45))
                .collect();
            (name, shape, Arc::new(values))
        })
        .collect();
    Weights {
        config: Arc::new(config.clone()),
        tensors,
    }
}

/// An episode of runs of tokens: `(sampled, length)`; ids and sampler log-probs are random.
pub(crate) fn tokens(vocab: usize, runs: &[(bool, usize)], seed: u64) -> Tokens {
    let mut rng = stream(seed, Purpose::Sampling, &[]);
    let mut out = Tokens::default();
    let mut turn = PROMPT_TURN;
    for &(sampled, n) in runs {
        let ids: Vec<u32> = (0..n).map(|_| rng.random_range(0..vocab as u32)).collect();
        if sampled {
            turn = turn.wrapping_add(1);
            let logprobs: Vec<f32> = (0..n).map(|_| rng.random_range(-3.5f32..-0.5)).collect();
            out.push_sampled(&ids, &logprobs, turn);
        } else {
            out.push_context(&ids, turn);
        }
    }
    out
}

/// A trajectory around tokens.
pub(crate) fn trajectory(task: &str, sample: usize, tokens: Tokens, reward: f64) -> Trajectory {
    Trajectory {
        task_id: task.to_owned(),
        sample,
        seed: 0,
        policy_version: 0,
        weights_hash: String::new(),
        tokens,
        messages: Vec::new(),
        turn_rewards: vec![reward],
        stop: StopReason::Answered,
        metrics: Vec::new(),
        malformed_turns: 0,
        latency_ms: 0.0,
    }
}

/// A group with the given rewards; each episode has a prompt, two turns and an observation, of varying lengths.
pub(crate) fn group(vocab: usize, task: &str, rewards: &[f64], seed: u64) -> Group {
    let trajectories = rewards
        .iter()
        .enumerate()
        .map(|(i, &reward)| {
            let runs = [
                (false, 3 + i % 2),
                (true, 2 + i % 3),
                (false, 2),
                (true, 1 + i % 4),
            ];
            trajectory(task, i, tokens(vocab, &runs, seed * 100 + i as u64), reward)
        })
        .collect();
    Group {
        task_id: task.to_owned(),
        trajectories,
        unscored: Vec::new(),
    }
}

/// The quick start's model.
pub(crate) fn quick_start_config() -> ModelConfig {
    ModelConfig {
        vocab_size: 272,
        hidden_size: 96,
        intermediate_size: 256,
        num_hidden_layers: 3,
        head_dim: 24,
        max_position_embeddings: 160,
        ..tiny_config("qwen3")
    }
}
