//! How the text of a turn means tool calls or an answer: what the dialects of chat models have in common.

use mipu_envs::{Message, Role, ToolCall, ToolSpec};
use serde_json::{Map, Value};

use super::template::python_json;
use crate::model::ModelError;

/// A turn's text, understood.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Said {
    Calls(Vec<ToolCall>),
    Answer(String),
    /// Why it was not understood.
    Malformed(String),
}

/// Text with the names of special tokens made plain.
pub(super) type Guard<'a> = &'a dyn Fn(&str) -> String;

/// The way a dialect writes.
pub(super) trait Grammar: Send + Sync {
    /// The chat template is given the tools, if it has a place for them.
    fn tools_by_template(&self) -> bool;

    /// What the system message says of the tools otherwise.
    fn describe(&self, tools: &[ToolSpec]) -> Result<String, ModelError>;

    /// What a turn says, its end token and its thinking cut off. `ended` is false where the token budget cut it. Total.
    fn parse(&self, said: &str, ended: bool, tools: &[ToolSpec]) -> Said;

    /// Tool calls as the model writes them.
    fn calls(&self, calls: &[ToolCall], guard: Guard<'_>) -> Result<String, String>;

    /// An answer as the model writes it.
    fn answer(&self, answer: &str, guard: Guard<'_>) -> String {
        guard(answer)
    }

    /// Role and text of a message that is not the agent's.
    fn message(&self, message: &Message) -> (&'static str, String) {
        let role = match message.role {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        };
        (role, message.content.clone())
    }

    /// Texts behind which a turn is over, though the model did not end it.
    fn stop_strings(&self, _tools: &[ToolSpec]) -> Vec<String> {
        Vec::new()
    }
}

/// One line for each tool: name, parameters in order, description.
pub(super) fn signatures(tools: &[ToolSpec]) -> String {
    let line = |tool: &ToolSpec| {
        format!(
            "- {}({}): {}",
            tool.name,
            parameters(tool).join(", "),
            tool.description
        )
    };
    tools.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Tools as JSON, one a line.
pub(super) fn json_lines(tools: &[ToolSpec]) -> Result<String, ModelError> {
    let lines = tools.iter().map(|tool| python_json(&tool_json(tool)));
    let lines = lines.collect::<Result<Vec<_>, _>>();
    Ok(lines.map_err(|e| ModelError::Template(e.to_string()))?.join("\n"))
}

/// A tool as templates take it.
pub(super) fn tool_json(tool: &ToolSpec) -> Value {
    let function = serde_json::json!({"name": tool.name, "description": tool.description, "parameters": tool.parameters});
    serde_json::json!({"type": "function", "function": function})
}

/// Names of a tool's parameters, the required ones first.
pub(super) fn parameters(tool: &ToolSpec) -> Vec<&str> {
    let required = tool.parameters.get("required").and_then(Value::as_array);
    let mut names: Vec<&str> = required.into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = tool.parameters.get("properties").and_then(Value::as_object);
    for name in properties.into_iter().flat_map(Map::keys) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names
}

/// Arguments from the bare text of a call: a JSON object of the tool's parameters, or the first parameter itself.
pub(super) fn arguments_of(body: &str, tool: &ToolSpec) -> Result<Map<String, Value>, String> {
    let names = parameters(tool);
    if let Ok(Value::Object(map)) = serde_json::from_str(body)
        && map.keys().all(|key| names.contains(&key.as_str()))
        && (!map.is_empty() || names.is_empty())
    {
        return Ok(map);
    }
    match names.first() {
        Some(first) => Ok(Map::from_iter([(
            (*first).to_owned(),
            Value::String(body.to_owned()),
        )])),
        None if body.trim().is_empty() => Ok(Map::new()),
        None => Err(format!("tool `{}` takes no argument", tool.name)),
    }
}

/// The bare text of a call: its only argument if that is a text that `plain` allows, else a JSON object without `<`.
pub(super) fn body_of(
    arguments: &Map<String, Value>,
    plain: impl Fn(&str) -> bool,
) -> Result<String, String> {
    let mut values = arguments.values();
    if let (Some(Value::String(text)), None) = (values.next(), values.next())
        && !text.trim_start().starts_with('{')
        && plain(text)
    {
        return Ok(text.clone());
    }
    let json = python_json(arguments).map_err(|e| e.to_string())?;
    Ok(json.replace('<', "\\u003c").replace('`', "\\u0060"))
}

/// The tool of a name, or what to tell the agent.
pub(super) fn tool<'a>(name: &str, tools: &'a [ToolSpec]) -> Result<&'a ToolSpec, String> {
    tools.iter().find(|tool| tool.name == name).ok_or_else(|| {
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        match names.as_slice() {
            [] => format!("there is no tool `{name}`: this task has no tools"),
            _ => format!("there is no tool `{name}`; there are: {}", names.join(", ")),
        }
    })
}
