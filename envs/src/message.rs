//! Messages, tool calls and what the agent did in a turn, as plain values.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Who wrote a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The task's system text.
    System,
    /// The task's instruction.
    User,
    /// The agent.
    Assistant,
    /// A tool's observation.
    Tool,
}

/// One message of an episode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who wrote it.
    pub role: Role,
    /// Its text.
    pub content: String,
    /// Tool calls of an assistant message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// The tool's name, on a tool message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Message {
    /// A message with text alone.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            tool_calls: Vec::new(),
            name: None,
        }
    }

    /// A tool's observation.
    pub fn tool(name: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: Role::Tool,
            content: content.into(),
            tool_calls: Vec::new(),
            name: Some(name.into()),
        }
    }
}

/// A call of a tool with JSON arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The tool.
    pub name: String,
    /// Its arguments, by parameter name.
    pub arguments: Map<String, Value>,
}

/// What a tool looks like to the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    /// Name the agent calls.
    pub name: String,
    /// One sentence for the agent.
    pub description: String,
    /// JSON Schema of the arguments (`{"type": "object", "properties": ..}`).
    pub parameters: Value,
}

/// One turn of the agent, parsed by a dialect. A mistake of the agent is data here, never an error.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The turn's text as sampled (special tokens rendered as text).
    pub content: String,
    /// Well-formed tool calls in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// The final answer, when the turn gives one; ends the episode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Why the turn could not be understood; fed back to the agent as an observation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub malformed: Option<String>,
    /// The turn hit its token limit before it ended.
    #[serde(default)]
    pub truncated: bool,
}
