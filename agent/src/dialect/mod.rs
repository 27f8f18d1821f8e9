//! How a model writes a tool call and a final answer, and how a conversation becomes ids.
//!
//! [`Renderer`] joins tokenizer, template and dialect: `prompt` ids from the first messages, `observation` ids (deltas only), and
//! `parse` of the sampled ids of one turn into a [`mipu_envs::Reply`]. Generated text is never re-tokenised.

mod chat;
mod compact;
mod fenced;
mod grammar;
mod hermes;
mod lenient;
mod llama3;
mod react;
mod tags;
mod template;

use std::sync::Arc;

use mipu_envs::{Message, Reply, ToolCall, ToolSpec};
use serde::{Deserialize, Serialize};

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
    /// next turn. None of them were sampled.
    ///
    /// - `history`: every message so far, the sampled turn last; `turn`: the ids of that turn.
    ///
    /// # Errors
    /// When the template refuses the messages or rewrites the past.
    fn observation(
        &self,
        history: &[Message],
        tools: &[ToolSpec],
        turn: &[u32],
        observations: &[Message],
    ) -> Result<Vec<u32>, ModelError>;

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

    /// Texts that end a turn of this episode although the model did not end it (each is sampled, mask true).
    fn stop_strings(&self, _tools: &[ToolSpec]) -> Vec<String> {
        Vec::new()
    }

    /// Ids as readable text, special tokens shown.
    fn decode(&self, ids: &[u32]) -> String;
}

/// How a conversation is written, where it is not the model directory's own choice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DialectConfig {
    /// `hermes`, `llama3`, `fenced`, `tags`, `react` or `compact`. Default: the one `mipu.json` names, else `hermes`.
    pub dialect: Option<String>,
    /// Examples that stand before an episode's own messages, in whatever dialect is used. Default: none.
    pub few_shot: Vec<Shot>,
}

/// A message of a few-shot example.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Shot {
    /// What the user says.
    User(String),
    /// A tool call of the agent: `name` and `arguments`.
    Call(#[schemars(with = "serde_json::Map<String, serde_json::Value>")] ToolCall),
    /// What the tool called last says.
    Result(String),
    /// The agent's answer.
    Answer(String),
}

/// Names of the dialects.
pub const DIALECTS: [&str; 6] = ["hermes", "llama3", "fenced", "tags", "react", "compact"];

/// The renderer of a model directory: the dialect `mipu.json` names, `hermes` without one.
///
/// # Errors
/// When the dialect is unknown, or the directory lacks what it needs (special tokens, chat template).
pub fn renderer(model: &LoadedModel) -> Result<Arc<dyn Renderer>, ModelError> {
    renderer_with(model, &DialectConfig::default())
}

/// [`renderer`] with the dialect and examples of a config.
///
/// # Errors
/// As [`renderer`], and when the dialect cannot write an example.
pub fn renderer_with(model: &LoadedModel, config: &DialectConfig) -> Result<Arc<dyn Renderer>, ModelError> {
    let name = config.dialect.as_deref().unwrap_or(model.dialect_name());
    let grammar: Box<dyn grammar::Grammar> = match name {
        "hermes" => Box::new(hermes::Hermes),
        "llama3" => Box::new(llama3::Llama3),
        "fenced" => Box::new(fenced::Fenced),
        "tags" => Box::new(tags::Tags),
        "react" => Box::new(react::React),
        "compact" if config.few_shot.is_empty() => {
            return Ok(Arc::new(Compact::new(model.tokenizer.clone())?));
        }
        "compact" => {
            let reason = "the compact dialect takes no few-shot examples\nhint: warm-start the model with `mipu sft` instead";
            return Err(ModelError::Template(reason.to_owned()));
        }
        other => {
            return Err(ModelError::Template(format!(
                "unknown dialect `{other}`\nhint: one of {}",
                DIALECTS.join(", ")
            )));
        }
    };
    Ok(Arc::new(chat::Chat::new(
        model,
        grammar,
        config.few_shot.clone(),
    )?))
}

#[cfg(test)]
#[path = "dialects_tests.rs"]
mod tests;
