//! The `<tool_call>` JSON dialect of Hermes, Qwen and many others.
//!
//! ```text
//! <tool_call>
//! {"name": "python", "arguments": {"code": "print(1)"}}
//! </tool_call>
//! ```
//!
//! A turn without a tool call is the final answer.

use mipu_envs::{ToolCall, ToolSpec};
use serde_json::{Map, Value, json};

use super::grammar::{Grammar, Guard, Said, json_lines};
use super::lenient;
use super::template::python_json;
use crate::model::ModelError;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// The grammar.
pub(super) struct Hermes;

impl Grammar for Hermes {
    fn tools_by_template(&self) -> bool {
        true
    }

    fn describe(&self, tools: &[ToolSpec]) -> Result<String, ModelError> {
        Ok(format!(
            "You may call these functions:\n{}\n\nTo call one, write\n{OPEN}\n{{\"name\": <name>, \"arguments\": <object>}}\n{CLOSE}\n\
             and wait for its result.",
            json_lines(tools)?
        ))
    }

    fn parse(&self, said: &str, ended: bool, _tools: &[ToolSpec]) -> Said {
        match calls(said, ended) {
            Err(reason) => Said::Malformed(reason),
            Ok(calls) if calls.is_empty() => Said::Answer(said.trim().to_owned()),
            Ok(calls) => Said::Calls(calls),
        }
    }

    fn calls(&self, calls: &[ToolCall], guard: Guard<'_>) -> Result<String, String> {
        let one = |call: &ToolCall| {
            let value = json!({"name": call.name, "arguments": call.arguments});
            let body = python_json(&value).map_err(|e| e.to_string())?;
            Ok(format!("{OPEN}\n{}\n{CLOSE}", guard(&body)))
        };
        Ok(calls
            .iter()
            .map(one)
            .collect::<Result<Vec<_>, String>>()?
            .join("\n"))
    }
}

/// Every tool call of a turn; an error names the first that is not well-formed.
fn calls(text: &str, ended: bool) -> Result<Vec<ToolCall>, String> {
    let mut calls = Vec::new();
    let mut rest = text;
    while let Some((_, body)) = rest.split_once(OPEN) {
        // Some models fence the JSON.
        let bare = body.trim_start();
        let fenced = bare
            .strip_prefix("```")
            .map(|b| b.trim_start_matches(|c: char| c.is_ascii_alphabetic()));
        let body = fenced.unwrap_or(bare);
        if body.trim().is_empty() || body.starts_with(CLOSE) {
            return Err("a tool call is empty".to_owned());
        }
        // The JSON parser finds the end, so a body may contain the closing tag.
        let (value, end) = lenient::value(body).map_err(|e| format!("a tool call must be JSON: {e}"))?;
        rest = body[end..].trim_start();
        if fenced.is_some() {
            rest = rest.strip_prefix("```").unwrap_or(rest).trim_start();
        }
        rest = match rest.strip_prefix(CLOSE) {
            Some(rest) => rest,
            // A model may end its turn, or go on to the next call, without the closing tag.
            None if (rest.is_empty() && ended) || rest.starts_with(OPEN) => rest,
            None => return Err(format!("a tool call must end with {CLOSE}")),
        };
        calls.push(call(value, "arguments")?);
    }
    Ok(calls)
}

/// A call from its JSON object; `key` is what the dialect calls the arguments.
pub(super) fn call(value: Value, key: &str) -> Result<ToolCall, String> {
    let Value::Object(mut fields) = value else {
        return Err(format!(
            "a tool call must be a JSON object with `name` and `{key}`"
        ));
    };
    let name = match fields.remove("name") {
        Some(Value::String(name)) => name,
        _ => return Err("a tool call needs a string `name`".to_owned()),
    };
    let given = fields
        .remove(key)
        .or_else(|| fields.remove("arguments"))
        .or_else(|| fields.remove("parameters"));
    let arguments: Map<String, Value> = match given {
        Some(Value::Object(arguments)) => arguments,
        None | Some(Value::Null) => Map::new(),
        // Some models write the arguments' JSON as a string, as the OpenAI protocol does.
        Some(Value::String(text)) if matches!(serde_json::from_str(&text), Ok(Value::Object(_))) => {
            serde_json::from_str(&text).map_err(|e| e.to_string())?
        }
        Some(_) => return Err(format!("the call of `{name}` needs an object `{key}`")),
    };
    Ok(ToolCall { name, arguments })
}
