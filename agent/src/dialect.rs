//! How a model writes a tool call and a final answer, and how a conversation becomes ids.
//!
//! [`Renderer`] joins tokenizer, template and dialect: `prompt` ids from the first messages, `observation` ids (deltas only), and
//! `parse` of the sampled ids of one turn into a [`mipu_envs::Reply`]. Generated text is never re-tokenised.

use mipu_envs::{Message, Reply, ToolSpec};

/// Template, dialect and tokenizer of a policy.
pub trait Renderer: Send + Sync {
    /// Ids of the opening of an episode, up to and including what comes before the agent's first sampled token.
    fn prompt(&self, messages: &[Message], tools: &[ToolSpec]) -> Result<Vec<u32>, crate::model::ModelError>;
    /// Ids that follow a sampled turn: the turn's closing glue the model did not sample, the observations, and the opening of the next turn.
    fn observation(&self, turn: &[u32], observations: &[Message]) -> Result<Vec<u32>, crate::model::ModelError>;
    /// What the agent did in a turn, from its sampled ids (total: a mistake becomes `Reply::malformed`).
    fn parse(&self, turn: &[u32], truncated: bool) -> Reply;
    /// Ids of a scripted turn exactly as the model would have sampled it (for demonstrations), its end token included.
    fn render_reply(&self, reply: &Reply) -> Result<Vec<u32>, crate::model::ModelError>;
    /// Ids that end a turn (each is sampled, mask true).
    fn stop_ids(&self) -> &[u32];
    /// Ids as readable text, special tokens shown.
    fn decode(&self, ids: &[u32]) -> String;
}
