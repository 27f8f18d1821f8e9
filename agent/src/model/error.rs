//! What can be wrong with a model directory.

use std::path::{Path, PathBuf};

/// A model could not be read, written or rendered.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not what its format says.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was expected and found.
        reason: String,
    },
    /// The model's shape is inconsistent or not supported.
    #[error("model config: {0}")]
    Config(String),
    /// A tensor is missing, extra, mis-shaped or not finite.
    #[error("{}: tensor `{tensor}`: {reason}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// What was expected and found.
        reason: String,
    },
    /// A model could not be had from a hub.
    #[error("{repo}: {reason}")]
    Hub {
        /// `ORG/NAME`.
        repo: String,
        /// What was expected and found.
        reason: String,
    },
    /// The tokenizer refused.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The chat template or dialect cannot express a conversation.
    #[error("template: {0}")]
    Template(String),
}

impl ModelError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn file(path: &Path, reason: impl std::fmt::Display) -> Self {
        Self::File {
            path: path.to_owned(),
            reason: reason.to_string(),
        }
    }

    pub(crate) fn tensor(path: &Path, tensor: &str, reason: impl std::fmt::Display) -> Self {
        Self::Tensor {
            path: path.to_owned(),
            tensor: tensor.to_owned(),
            reason: reason.to_string(),
        }
    }
}
