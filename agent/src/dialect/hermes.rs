//! The `<tool_call>` JSON dialect with a Hugging Face chat template.
//!
//! ```text
//! <tool_call>
//! {"name": "python", "arguments": {"code": "print(1)"}}
//! </tool_call>
//! ```
//!
//! A turn without a tool call is the final answer. The template is asked for text; ids are made of what it *adds*: the prompt once,
//! then after each sampled turn the rest of the template's text behind it. What was sampled keeps its ids. A template whose text of
//! the longer conversation does not start with its text of the shorter one (which strips earlier thinking, say) is refused.

use mipu_envs::{Message, Reply, Role, ToolCall, ToolSpec};
use serde_json::{Map, Value, json};

use super::Renderer;
use super::template::{Template, python_json};
use crate::model::{LoadedModel, ModelError};
use crate::tokenizer::Tokenizer;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const END_OF_THINKING: &str = "</think>";

/// Put into the name of a special token that stands in a message's text, so that only the template's own tokens become special.
/// A noncharacter: text from outside has no use for it.
const GUARD: char = '\u{fdd0}';

/// The dialect over a tokenizer and a chat template.
pub struct Hermes {
    tokenizer: Tokenizer,
    template: Template,
    /// The token the template ends a turn with, then the model's other end tokens.
    stops: Vec<u32>,
}

impl Hermes {
    /// Compiles the directory's template and finds out what ends a turn.
    ///
    /// # Errors
    /// When there is no template, it does not compile, or it ends a turn with no special token.
    pub fn new(model: &LoadedModel) -> Result<Self, ModelError> {
        let source = model.chat_template.as_deref().ok_or_else(|| {
            let hint = "hint: add chat_template.jinja, or mipu.json with {\"dialect\": \"compact\"} for byte-level models";
            ModelError::Template(format!("the model directory has no chat template\n{hint}"))
        })?;
        let mut hermes = Self {
            template: Template::new(source, &model.tokenizer_config)?,
            tokenizer: model.tokenizer.clone(),
            stops: Vec::new(),
        };
        hermes.stops.push(hermes.end_of_turn()?);
        let eos = &model.generation_config["eos_token_id"];
        let listed = eos.as_array().map_or(std::slice::from_ref(eos), Vec::as_slice);
        hermes.stops.extend(
            listed
                .iter()
                .filter_map(Value::as_u64)
                .filter_map(|id| u32::try_from(id).ok()),
        );
        hermes.stops.extend(
            hermes
                .template
                .special("eos_token")
                .and_then(|name| hermes.tokenizer.added_id(name)),
        );
        let mut seen = Vec::new();
        hermes.stops.retain(|id| {
            !seen.contains(id) && {
                seen.push(*id);
                true
            }
        });
        Ok(hermes)
    }

    /// The first special token that the template writes behind an assistant message.
    fn end_of_turn(&self) -> Result<u32, ModelError> {
        let probe = "mipu-probe";
        let messages = [
            json!({"role": "user", "content": "u"}),
            json!({"role": "assistant", "content": probe}),
        ];
        let text = self.template.render(&messages, &Value::Null, false)?;
        let rest = text.rsplit_once(probe).map_or("", |(_, rest)| rest);
        let found = self.tokenizer.find_added(rest).map(|(_, id)| id);
        found.ok_or_else(|| {
            let reason =
                "the chat template writes no special token behind an assistant message, so a turn cannot end";
            ModelError::Template(reason.to_owned())
        })
    }

    /// Text with the names of added tokens guarded.
    fn guard(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((range, _)) = self.tokenizer.find_added(rest) {
            let first = rest[range.start..].chars().next().map_or(0, char::len_utf8);
            out.push_str(&rest[..range.start + first]);
            out.push(GUARD);
            rest = &rest[range.start + first..];
        }
        out.push_str(rest);
        out
    }

    fn guard_json(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.guard(text)),
            Value::Array(list) => list.iter().map(|v| self.guard_json(v)).collect(),
            Value::Object(map) => map.iter().map(|(k, v)| (k.clone(), self.guard_json(v))).collect(),
            other => other.clone(),
        }
    }

    /// Ids of a template's text: added tokens by id, the rest literally, guards removed.
    fn encode(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        let mut ids = Vec::new();
        let mut rest = text;
        let plain = |text: &str| self.tokenizer.encode(&text.replace(GUARD, ""));
        while let Some((range, id)) = self.tokenizer.find_added(rest) {
            ids.extend(plain(&rest[..range.start])?);
            ids.push(id);
            rest = &rest[range.end..];
        }
        ids.extend(plain(rest)?);
        Ok(ids)
    }

    /// The template's text of a conversation that the agent continues.
    fn text(&self, messages: &[Message], tools: &[ToolSpec]) -> Result<String, ModelError> {
        let mut list: Vec<Value> = messages.iter().map(|m| self.message(m)).collect();
        let specs: Vec<Value> = tools
            .iter()
            .map(|t| {
                let function =
                    json!({"name": t.name, "description": t.description, "parameters": t.parameters});
                self.guard_json(&json!({"type": "function", "function": function}))
            })
            .collect();
        let specs = if specs.is_empty() {
            Value::Null
        } else {
            Value::Array(specs)
        };
        if !self.template.takes_tools && !specs.is_null() {
            describe_tools(&mut list, &specs)?;
        }
        self.template.render(&list, &specs, true)
    }

    /// A message as templates take it. An assistant's text is given as sampled, tool calls and all, so that the template cannot
    /// write it in another way.
    fn message(&self, message: &Message) -> Value {
        match message.role {
            Role::System => json!({"role": "system", "content": self.guard(&message.content)}),
            Role::User => json!({"role": "user", "content": self.guard(&message.content)}),
            Role::Assistant => json!({"role": "assistant", "content": self.without_stop(&message.content)}),
            Role::Tool => {
                let content = self.guard(&message.content);
                json!({"role": "tool", "name": message.name, "content": content})
            }
        }
    }

    fn without_stop<'a>(&self, text: &'a str) -> &'a str {
        let names = self.stops.iter().filter_map(|id| self.tokenizer.added_text(*id));
        names
            .filter_map(|name| text.strip_suffix(name))
            .next()
            .unwrap_or(text)
    }
}

/// Tells tools to a template that has no place for them, in the words of the Hermes format.
fn describe_tools(messages: &mut Vec<Value>, tools: &Value) -> Result<(), ModelError> {
    let lines = tools
        .as_array()
        .into_iter()
        .flatten()
        .map(python_json)
        .collect::<Result<Vec<_>, _>>();
    let lines = lines.map_err(|e| ModelError::Template(e.to_string()))?.join("\n");
    let text = format!(
        "You may call these functions:\n{lines}\n\nTo call one, write\n{OPEN}\n{{\"name\": <name>, \"arguments\": \
         <object>}}\n{CLOSE}\nand wait for its result."
    );
    match messages.first_mut() {
        Some(first) if first["role"] == "system" => {
            let own = first["content"].as_str().unwrap_or_default();
            first["content"] = Value::String(format!("{own}\n\n{text}"));
        }
        _ => messages.insert(0, json!({"role": "system", "content": text})),
    }
    Ok(())
}

/// What follows `part` at the start of `text`, white space aside (templates trim); `None` when `text` starts otherwise.
fn after<'a>(text: &'a str, part: &str) -> Option<&'a str> {
    if let Some(rest) = text.strip_prefix(part) {
        return Some(rest);
    }
    let mut rest = text;
    for wanted in part.chars().filter(|c| !c.is_whitespace()) {
        rest = rest.trim_start().strip_prefix(wanted)?;
    }
    Some(rest)
}

impl Renderer for Hermes {
    fn prompt(&self, messages: &[Message], tools: &[ToolSpec]) -> Result<Vec<u32>, ModelError> {
        self.encode(&self.text(messages, tools)?)
    }

    fn observation(
        &self,
        history: &[Message],
        tools: &[ToolSpec],
        turn: &[u32],
        observations: &[Message],
    ) -> Result<Vec<u32>, ModelError> {
        let Some((last, earlier)) = history
            .split_last()
            .filter(|(last, _)| last.role == Role::Assistant)
        else {
            return Err(ModelError::Template(
                "the history must end with the sampled turn".to_owned(),
            ));
        };
        let before = self.text(earlier, tools)?;
        let after_all = self.text(&[history, observations].concat(), tools)?;
        let rest = after_all.strip_prefix(before.as_str()).ok_or_else(|| {
            let at = before.bytes().zip(after_all.bytes()).take_while(|(a, b)| a == b).count();
            let shown = |text: &str| text.chars().skip(text[..floor(text, at)].chars().count()).take(40).collect::<String>();
            ModelError::Template(format!(
                "the chat template rewrites the past: where it wrote {:?} it now writes {:?}\nhint: an episode's ids only \
                 grow; use a template that keeps earlier turns (and their thinking) as they were",
                shown(&before),
                shown(&after_all)
            ))
        })?;
        let sampled = self.without_stop(&last.content);
        let rest = after(rest, sampled).ok_or_else(|| {
            ModelError::Template(format!(
                "the chat template changes a sampled turn: {:?} became {:?}\nhint: an episode's ids only grow; use a template \
                 that keeps assistant turns as they were",
                sampled.chars().take(60).collect::<String>(),
                rest.chars().take(60).collect::<String>()
            ))
        })?;
        // The end token is the template's, unless the policy sampled it itself.
        let stop = turn
            .last()
            .filter(|id| self.stops.contains(id))
            .and_then(|id| self.tokenizer.added_text(*id));
        let rest = stop
            .and_then(|name| rest.trim_start().strip_prefix(name))
            .unwrap_or(rest);
        self.encode(rest)
    }

    fn parse(&self, turn: &[u32], truncated: bool, _tools: &[ToolSpec]) -> Reply {
        let stopped = turn.last().is_some_and(|id| self.stops.contains(id));
        let text = self
            .tokenizer
            .decode(if stopped { &turn[..turn.len() - 1] } else { turn });
        let mut reply = Reply {
            content: self.tokenizer.decode(turn),
            truncated,
            ..Reply::default()
        };
        // A call that was only thought of is not made.
        let said = text
            .rsplit_once(END_OF_THINKING)
            .map_or(text.as_str(), |(_, said)| said);
        match parse_calls(said) {
            Err(reason) => reply.malformed = Some(reason),
            Ok(calls) if !calls.is_empty() => reply.tool_calls = calls,
            Ok(_) if !stopped => reply.malformed = Some("the turn has no end token".to_owned()),
            Ok(_) if said.trim_start().starts_with("<think>") => {
                reply.malformed = Some("the turn ends inside <think>".to_owned());
            }
            Ok(_) => reply.answer = Some(said.trim().to_owned()),
        }
        reply
    }

    fn render_reply(&self, reply: &Reply) -> Result<Vec<u32>, ModelError> {
        let refused = |reason: &str| Err(ModelError::Template(reason.to_owned()));
        let mut text = String::new();
        match (&reply.answer, reply.tool_calls.as_slice()) {
            (Some(answer), []) => {
                if [OPEN, END_OF_THINKING, "<think>"]
                    .iter()
                    .any(|tag| answer.contains(tag))
                {
                    return refused("an answer cannot contain the tags of tool calls or thinking");
                }
                text.push_str(&self.guard(answer));
            }
            (None, [_, ..]) => {
                for (i, call) in reply.tool_calls.iter().enumerate() {
                    let value = json!({"name": call.name, "arguments": call.arguments});
                    let body = python_json(&value).map_err(|e| ModelError::Template(e.to_string()))?;
                    // The rest of a turn is cut at the last closing tag of thinking.
                    if body.contains(END_OF_THINKING) {
                        return refused("an argument cannot contain the closing tag of thinking");
                    }
                    let separator = if i == 0 { "" } else { "\n" };
                    text.push_str(&format!("{separator}{OPEN}\n{}\n{CLOSE}", self.guard(&body)));
                }
            }
            _ => return refused("a turn is either tool calls or an answer"),
        }
        let mut ids = self.encode(&text)?;
        ids.push(self.stops[0]);
        Ok(ids)
    }

    fn stop_ids(&self) -> &[u32] {
        &self.stops
    }

    fn decode(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids)
    }
}

/// The largest character boundary of `text` that is at most `at`.
fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len()))
        .rev()
        .find(|&i| text.is_char_boundary(i))
        .unwrap_or(0)
}

/// Every tool call of a turn; an error names the first that is not well-formed.
fn parse_calls(text: &str) -> Result<Vec<ToolCall>, String> {
    let mut calls = Vec::new();
    let mut rest = text;
    while let Some((_, body)) = rest.split_once(OPEN) {
        // The JSON parser finds the end, so a body may contain the closing tag.
        let mut values = serde_json::Deserializer::from_str(body).into_iter::<Value>();
        let value = match values.next() {
            Some(Ok(value)) => value,
            Some(Err(e)) => return Err(format!("a tool call must be JSON: {e}")),
            None => return Err("a tool call is empty".to_owned()),
        };
        rest = body[values.byte_offset()..].trim_start();
        rest = rest
            .strip_prefix(CLOSE)
            .ok_or_else(|| format!("a tool call must end with {CLOSE}"))?;
        let Value::Object(mut fields) = value else {
            return Err("a tool call must be a JSON object with `name` and `arguments`".to_owned());
        };
        let name = match fields.remove("name") {
            Some(Value::String(name)) => name,
            _ => return Err("a tool call needs a string `name`".to_owned()),
        };
        let arguments: Map<String, Value> = match fields.remove("arguments") {
            Some(Value::Object(arguments)) => arguments,
            _ => return Err(format!("the call of `{name}` needs an object `arguments`")),
        };
        calls.push(ToolCall { name, arguments });
    }
    Ok(calls)
}

#[cfg(test)]
#[path = "hermes_tests.rs"]
mod tests;
