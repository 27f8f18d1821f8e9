//! How a model writes a tool call and a final answer, and how a conversation becomes ids.
//!
//! [`Renderer`] joins tokenizer, template and dialect: `prompt` ids from the first messages, `observation` ids (deltas only), and
//! `parse` of the sampled ids of one turn into a [`mipu_envs::Reply`]. Generated text is never re-tokenised.

mod compact;

use std::sync::Arc;

use mipu_envs::{Message, Reply, ToolSpec};

use crate::model::{LoadedModel, ModelError};

pub use compact::Compact;

/// Template, dialect and tokenizer of a policy.
pub trait Renderer: Send + Sync {
    /// Ids of the opening of an episode, up to and including what comes before the agent's first sampled token.
    ///
    /// # Errors
    /// When the template refuses the messages.
    fn prompt(&self, messages: &[Message], tools: &[ToolSpec]) -> Result<Vec<u32>, ModelError>;

    /// Ids that follow a sampled turn: the turn's closing glue the model did not sample, the observations, and the opening of the
    /// next turn.
    ///
    /// # Errors
    /// When the template refuses the messages or rewrites the past.
    fn observation(&self, turn: &[u32], observations: &[Message]) -> Result<Vec<u32>, ModelError>;

    /// What the agent did in a turn, from its sampled ids (total: a mistake becomes `Reply::malformed`). `tools` are those of the
    /// episode.
    fn parse(&self, turn: &[u32], truncated: bool, tools: &[ToolSpec]) -> Reply;

    /// Ids of a scripted turn exactly as the model would have sampled it (for demonstrations), its end token included.
    ///
    /// # Errors
    /// When the dialect cannot express the reply.
    fn render_reply(&self, reply: &Reply) -> Result<Vec<u32>, ModelError>;

    /// Ids that end a turn (each is sampled, mask true).
    fn stop_ids(&self) -> &[u32];

    /// Ids as readable text, special tokens shown.
    fn decode(&self, ids: &[u32]) -> String;
}

/// The renderer of a model directory: the dialect `mipu.json` names, `hermes` without one.
///
/// # Errors
/// When the dialect is unknown, or the directory lacks what it needs (special tokens, chat template).
pub fn renderer(model: &LoadedModel) -> Result<Arc<dyn Renderer>, ModelError> {
    match model.dialect_name() {
        "compact" => Ok(Arc::new(Compact::new(model.tokenizer.clone())?)),
        other => Err(ModelError::Template(format!(
            "unknown dialect `{other}`\nhint: `compact` or `hermes`"
        ))),
    }
}
