//! Model configuration and weights, shared by the sampler and the trainer.

mod config;
mod error;
mod info;
mod loaded;
mod weights;

pub use config::ModelConfig;
pub use error::ModelError;
pub use info::ModelInfo;
pub use loaded::LoadedModel;
pub use weights::{NamedTensor, Weights};
