//! The sampler policy mu: tokenizer, templates, FP8 engine, rollouts.
//!
//! Data flow: a [`LoadedModel`] gives [`Weights`], a tokenizer and a [`Renderer`]; an [`Engine`] quantises the weights and writes
//! turns; [`rollout_groups`] plays environments with it and records [`Trajectory`]s in [`Group`]s.
//!
//! Invariants: an episode's ids only grow, and what was sampled is never decoded and encoded again. The arrays of [`Tokens`]
//! cannot disagree. Every draw is a function of `(seed, task, sample, turn)`, and no bit depends on concurrency, batch or threads.
//!
//! Deliberately absent: gradients. Sampling that cuts the support (top-k, top-p, min-p) is for evaluation: the trainer's
//! distribution has the full support, so ratios to filtered log-probs would be biased.

pub mod bench;
pub mod dialect;
pub mod engine;
pub mod model;
pub mod policy;
pub mod quant;
pub mod rollout;
mod simd;
pub mod tokenizer;
pub mod trajectory;

pub use dialect::{DialectConfig, Renderer, Shot, renderer, renderer_with};
pub use engine::{Engine, EngineConfig, EngineStats, Precision};
pub use model::{LoadedModel, ModelConfig, ModelError, ModelInfo, Weights};
pub use policy::{Policy, PolicyError, SampledTurn, Sampling, Stop, TurnRequest};
pub use quant::Rounding;
pub use rollout::{RolloutConfig, RolloutContext, rollout_groups};
pub use trajectory::{Group, PROMPT_TURN, Tokens, Trajectory};
