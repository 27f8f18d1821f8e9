//! What can go wrong in the trainer.

/// A failure of the trainer; the policy and the optimizer are as they were before the call that returned it.
#[derive(Debug, thiserror::Error)]
pub enum TrainerError {
    /// A tensor operation failed.
    #[error("tensor operation failed: {0}")]
    Tensor(#[from] candle_core::Error),
    /// Weights do not have the tensors that their configuration names.
    #[error("weights do not match their configuration at `{name}`: expected {expected}, got {got}")]
    Weights {
        /// Canonical name of the tensor.
        name: String,
        /// Expected tensor.
        expected: String,
        /// Tensor found.
        got: String,
    },
    /// The model shape cannot be run.
    #[error("unsupported model shape: {0}")]
    Shape(String),
    /// A token has no row in the embedding.
    #[error("token id {id} at position {position} of episode {episode} is outside the vocabulary of {vocab}")]
    TokenOutOfVocabulary {
        /// Index of the episode in the batch.
        episode: usize,
        /// Position in the episode.
        position: usize,
        /// The token.
        id: u32,
        /// Vocabulary size.
        vocab: usize,
    },
    /// An episode is longer than the model's context.
    #[error("episode {episode} has {len} tokens, the model's context is {max}")]
    EpisodeTooLong {
        /// Index of the episode in the batch.
        episode: usize,
        /// Its tokens.
        len: usize,
        /// `max_position_embeddings`.
        max: usize,
    },
    /// The first token of an episode is marked as sampled: nothing predicts it.
    #[error("episode {episode} marks its first token as sampled, but no context predicts it")]
    NoContext {
        /// Index of the episode in the batch.
        episode: usize,
    },
    /// A number that must be finite is not.
    #[error("{what} is not finite ({value})")]
    NonFinite {
        /// What was computed, and for which tensor or episode.
        what: String,
        /// The value seen.
        value: f64,
    },
    /// A trainable tensor received no gradient.
    #[error("no gradient reached `{name}`")]
    MissingGradient {
        /// Canonical name of the tensor.
        name: String,
    },
    /// A KL term is configured without a reference policy.
    #[error("the loss has a KL term but no reference policy was given")]
    MissingReference,
    /// An optimizer state belongs to another model.
    #[error("optimizer state does not fit the policy: {0}")]
    OptimizerState(String),
}
