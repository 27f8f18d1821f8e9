//! The sampler policy mu: tokenizer, templates, FP8 engine, rollouts.

pub mod dialect;
pub mod engine;
pub mod model;
pub mod policy;
pub mod rollout;
pub mod tokenizer;
pub mod trajectory;

pub use dialect::Renderer;
pub use engine::{Engine, EngineConfig, Precision};
pub use model::{LoadedModel, ModelConfig, ModelError, Weights};
pub use policy::{Policy, PolicyError, SampledTurn, Sampling, TurnRequest};
pub use rollout::{RolloutConfig, RolloutContext, rollout_groups};
pub use trajectory::{Group, PROMPT_TURN, Tokens, Trajectory};
