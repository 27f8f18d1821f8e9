//! The dialect of Llama 3.1 and later: a turn that is a JSON object with `name` and `parameters` is a call.
//!
//! ```text
//! {"name": "python", "parameters": {"code": "print(1)"}}
//! ```
//!
//! `<|python_tag|>` before it, several objects with `;` between them, and `<function=NAME>{..}</function>` are read as well.

use mipu_envs::{Message, Role, ToolCall, ToolSpec};
use serde_json::{Value, json};

use super::grammar::{Grammar, Guard, Said, arguments_of, json_lines, parameters};
use super::hermes::call;
use super::lenient;
use super::template::python_json;
use crate::model::ModelError;

const PYTHON_TAG: &str = "<|python_tag|>";
const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";

/// The grammar.
pub(super) struct Llama3;

impl Grammar for Llama3 {
    fn tools_by_template(&self) -> bool {
        true
    }

    fn describe(&self, tools: &[ToolSpec]) -> Result<String, ModelError> {
        Ok(format!(
            "You have access to these functions:\n{}\n\nTo call one, reply with nothing but\n\
             {{\"name\": <name>, \"parameters\": <object>}}\nand wait for its result.",
            json_lines(tools)?
        ))
    }

    fn parse(&self, said: &str, ended: bool, tools: &[ToolSpec]) -> Said {
        let text = said.trim();
        let result = match (text.strip_prefix(PYTHON_TAG), text.contains(FUNCTION)) {
            (Some(rest), _) if rest.trim_start().starts_with('{') => objects(rest),
            // The tag's first use is for bare code.
            (Some(code), _) => bare_code(code.trim(), tools).map(|call| vec![call]),
            (None, true) => functions(text, ended),
            (None, false) if looks_like_a_call(text) => objects(text),
            (None, false) => return Said::Answer(text.to_owned()),
        };
        match result {
            Ok(calls) => Said::Calls(calls),
            Err(reason) => Said::Malformed(reason),
        }
    }

    fn calls(&self, calls: &[ToolCall], guard: Guard<'_>) -> Result<String, String> {
        let one = |call: &ToolCall| {
            let value = json!({"name": call.name, "parameters": call.arguments});
            python_json(&value)
                .map(|body| guard(&body))
                .map_err(|e| e.to_string())
        };
        Ok(calls
            .iter()
            .map(one)
            .collect::<Result<Vec<_>, String>>()?
            .join("; "))
    }

    fn message(&self, message: &Message) -> (&'static str, String) {
        let role = match message.role {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "ipython",
        };
        (role, message.content.clone())
    }
}

/// An answer may be JSON too, but not with these keys.
fn looks_like_a_call(text: &str) -> bool {
    let named = |quote: char| {
        let key = |name: &str| text.contains(&format!("{quote}{name}{quote}"));
        key("name") && (key("parameters") || key("arguments"))
    };
    text.starts_with('{') && (named('"') || named('\''))
}

/// Objects one after another.
fn objects(text: &str) -> Result<Vec<ToolCall>, String> {
    let mut calls = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (value, end) = lenient::value(rest).map_err(|e| format!("a tool call must be JSON: {e}"))?;
        calls.push(call(value, "parameters")?);
        rest = rest[end..].trim_start_matches(|c: char| c.is_whitespace() || c == ';' || c == ',');
        if !rest.is_empty() && !rest.starts_with('{') {
            return Err("a turn with a tool call says nothing else".to_owned());
        }
    }
    Ok(calls)
}

fn functions(text: &str, ended: bool) -> Result<Vec<ToolCall>, String> {
    let mut calls = Vec::new();
    let mut rest = text;
    while let Some((_, body)) = rest.split_once(FUNCTION) {
        let (name, body) = body
            .split_once('>')
            .ok_or_else(|| format!("`{FUNCTION}` needs a name and `>`"))?;
        let (value, end) =
            lenient::value(body).map_err(|e| format!("the arguments of `{name}` must be JSON: {e}"))?;
        calls.push(call(json!({"name": name, "parameters": value}), "parameters")?);
        rest = body[end..].trim_start();
        rest = match rest.strip_prefix(FUNCTION_END) {
            Some(rest) => rest,
            None if rest.is_empty() && ended => rest,
            None => return Err(format!("the call of `{name}` must end with {FUNCTION_END}")),
        };
    }
    Ok(calls)
}

fn bare_code(code: &str, tools: &[ToolSpec]) -> Result<ToolCall, String> {
    let python = |tool: &&ToolSpec| tool.name == "python" || parameters(tool).first() == Some(&"code");
    let tool = tools.iter().find(python);
    let tool = tool.ok_or_else(|| format!("{PYTHON_TAG} needs a tool that runs code; this task has none"))?;
    let arguments = arguments_of(code, tool)?;
    call(
        json!({"name": tool.name, "parameters": Value::Object(arguments)}),
        "parameters",
    )
}
