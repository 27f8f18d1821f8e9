//! Model configuration and weights, shared by the sampler and the trainer.

mod config;
mod weights;

pub use config::ModelConfig;
pub use weights::{LoadedModel, ModelError, Weights};
