//! Model configuration and weights, shared by the sampler and the trainer.

mod config;
mod error;
mod format;
mod gguf;
mod info;
mod loaded;
mod pull;
mod store;
mod weights;

pub use config::ModelConfig;
pub use error::ModelError;
pub use format::WeightFormat;
pub use gguf::{ImportReport, import_gguf, parse_gguf, read_gguf};
pub use info::ModelInfo;
pub use loaded::LoadedModel;
pub use pull::{Hub, PullReport, PulledFile, pull};
pub use weights::{NamedTensor, Weights};
