//! Chat models: a Hugging Face chat template around the turns, and a grammar inside them.
//!
//! The template is asked for text; ids are made of what it *adds*: the prompt once, then after each sampled turn the rest of the
//! template's text behind it. What was sampled keeps its ids. A template whose text of the longer conversation does not start with
//! its text of the shorter one (which strips earlier thinking, say) is refused.

use mipu_envs::{Message, Reply, Role, ToolCall, ToolSpec};
use serde_json::{Map, Value, json};

use super::grammar::{Grammar, Said, tool_json};
use super::template::Template;
use super::{Renderer, Shot};
use crate::model::{LoadedModel, ModelError};
use crate::tokenizer::Tokenizer;

const END_OF_THINKING: &str = "</think>";

/// Put into the name of a special token that stands in a message's text, so that only the template's own tokens become special.
/// A noncharacter: text from outside has no use for it.
const GUARD: char = '\u{fdd0}';

/// A grammar over a tokenizer and a chat template.
pub(super) struct Chat {
    tokenizer: Tokenizer,
    grammar: Box<dyn Grammar>,
    /// Examples that stand before an episode's own messages.
    few_shot: Vec<Shot>,
    template: Template,
    /// The token the template ends a turn with, then the model's other end tokens.
    stops: Vec<u32>,
}

impl Chat {
    /// Compiles the directory's template and finds out what ends a turn.
    ///
    /// # Errors
    /// When there is no template, it does not compile, or it ends a turn with no special token; when an example cannot be written.
    pub(super) fn new(
        model: &LoadedModel,
        grammar: Box<dyn Grammar>,
        few_shot: Vec<Shot>,
    ) -> Result<Self, ModelError> {
        let source = model.chat_template.as_deref().ok_or_else(|| {
            let hint = "hint: add chat_template.jinja, or mipu.json with {\"dialect\": \"compact\"} for byte-level models";
            ModelError::Template(format!("the model directory has no chat template\n{hint}"))
        })?;
        let mut chat = Self {
            template: Template::new(source, &model.tokenizer_config)?,
            tokenizer: model.tokenizer.clone(),
            grammar,
            few_shot,
            stops: Vec::new(),
        };
        chat.stops.push(chat.end_of_turn()?);
        let eos = &model.generation_config["eos_token_id"];
        let listed = eos.as_array().map_or(std::slice::from_ref(eos), Vec::as_slice);
        chat.stops.extend(
            listed
                .iter()
                .filter_map(Value::as_u64)
                .filter_map(|id| u32::try_from(id).ok()),
        );
        chat.stops.extend(
            chat.template
                .special("eos_token")
                .and_then(|name| chat.tokenizer.added_id(name)),
        );
        let mut seen = Vec::new();
        chat.stops.retain(|id| {
            !seen.contains(id) && {
                seen.push(*id);
                true
            }
        });
        chat.examples()?;
        Ok(chat)
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
        let systems = messages.iter().take_while(|m| m.role == Role::System).count();
        let (system, rest) = messages.split_at(systems);
        let mut list: Vec<Value> = system.iter().map(|m| self.message(m)).collect();
        list.extend(self.examples()?);
        list.extend(rest.iter().map(|m| self.message(m)));
        let by_template = self.grammar.tools_by_template() && self.template.takes_tools;
        if !tools.is_empty() && !by_template {
            let guarded: Vec<ToolSpec> = tools
                .iter()
                .map(|tool| ToolSpec {
                    name: self.guard(&tool.name),
                    description: self.guard(&tool.description),
                    parameters: self.guard_json(&tool.parameters),
                })
                .collect();
            tell_tools(&mut list, &self.grammar.describe(&guarded)?);
        }
        let specs = if by_template && !tools.is_empty() {
            tools.iter().map(|t| self.guard_json(&tool_json(t))).collect()
        } else {
            Value::Null
        };
        self.template.render(&list, &specs, true)
    }

    /// The few-shot examples as templates take them.
    fn examples(&self) -> Result<Vec<Value>, ModelError> {
        let mut list = Vec::new();
        let mut tool = String::new();
        for shot in &self.few_shot {
            let reply = match shot {
                Shot::User(text) => {
                    list.push(self.message(&Message::new(Role::User, text.clone())));
                    continue;
                }
                Shot::Result(text) => {
                    list.push(self.message(&Message::tool(tool.clone(), text.clone())));
                    continue;
                }
                Shot::Call(call) => {
                    tool.clone_from(&call.name);
                    Reply {
                        tool_calls: vec![call.clone()],
                        ..Reply::default()
                    }
                }
                Shot::Answer(text) => Reply {
                    answer: Some(text.clone()),
                    ..Reply::default()
                },
            };
            list.push(json!({"role": "assistant", "content": self.reply_text(&reply)?}));
        }
        Ok(list)
    }

    /// A message as templates take it. An assistant's text is given as sampled, tool calls and all, so that the template cannot
    /// write it in another way.
    fn message(&self, message: &Message) -> Value {
        if message.role == Role::Assistant {
            return json!({"role": "assistant", "content": self.without_stop(&message.content)});
        }
        let (role, content) = self.grammar.message(message);
        let mut value = json!({"role": role, "content": self.guard(&content)});
        if let Some(name) = message.name.as_ref().filter(|_| role != "user") {
            value["name"] = json!(name);
        }
        value
    }

    /// A turn as the model writes it, its end token aside. What would be read back as something else is refused.
    fn reply_text(&self, reply: &Reply) -> Result<String, ModelError> {
        let refused = |reason: &str| ModelError::Template(reason.to_owned());
        let guard = |text: &str| self.guard(text);
        let (text, said) = match (&reply.answer, reply.tool_calls.as_slice()) {
            (Some(answer), []) => (
                self.grammar.answer(answer, &guard),
                Said::Answer(answer.trim().to_owned()),
            ),
            (None, calls @ [_, ..]) => (
                self.grammar.calls(calls, &guard).map_err(|e| refused(&e))?,
                Said::Calls(calls.to_vec()),
            ),
            _ => return Err(refused("a turn is either tool calls or an answer")),
        };
        let plain = text.replace(GUARD, "");
        // An answer must not be read as a call of code.
        let code = ToolCall {
            name: "python".to_owned(),
            arguments: Map::from_iter([("code".to_owned(), Value::Null)]),
        };
        let calls = if reply.answer.is_some() {
            std::slice::from_ref(&code)
        } else {
            &reply.tool_calls
        };
        let tools: Vec<ToolSpec> = calls.iter().map(called).collect();
        if plain.contains(END_OF_THINKING) || plain.trim_start().starts_with("<think>") {
            return Err(refused("a turn cannot contain the tags of thinking"));
        }
        if self.grammar.parse(&plain, true, &tools) != said {
            return Err(refused(
                "the dialect cannot express this turn: it would be read as another",
            ));
        }
        Ok(text)
    }

    fn without_stop<'a>(&self, text: &'a str) -> &'a str {
        let names = self.stops.iter().filter_map(|id| self.tokenizer.added_text(*id));
        names
            .filter_map(|name| text.strip_suffix(name))
            .next()
            .unwrap_or(text)
    }
}

/// Puts the tools' description into the system message.
fn tell_tools(messages: &mut Vec<Value>, text: &str) {
    match messages.first_mut() {
        Some(first) if first["role"] == "system" => {
            let own = first["content"].as_str().unwrap_or_default();
            first["content"] = Value::String(format!("{own}\n\n{text}"));
        }
        _ => messages.insert(0, json!({"role": "system", "content": text})),
    }
}

/// A tool that a call fits.
fn called(call: &ToolCall) -> ToolSpec {
    let properties: Map<String, Value> = call
        .arguments
        .keys()
        .map(|key| (key.clone(), json!({})))
        .collect();
    ToolSpec {
        name: call.name.clone(),
        description: String::new(),
        parameters: json!({"type": "object", "properties": properties}),
    }
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

impl Renderer for Chat {
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

    fn parse(&self, turn: &[u32], truncated: bool, tools: &[ToolSpec]) -> Reply {
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
        match self.grammar.parse(said, stopped || !truncated, tools) {
            Said::Malformed(reason) => reply.malformed = Some(reason),
            Said::Calls(calls) => reply.tool_calls = calls,
            Said::Answer(_) if !stopped => reply.malformed = Some("the turn has no end token".to_owned()),
            Said::Answer(_) if said.trim_start().starts_with("<think>") => {
                reply.malformed = Some("the turn ends inside <think>".to_owned());
            }
            Said::Answer(answer) => reply.answer = Some(answer),
        }
        reply
    }

    fn render_reply(&self, reply: &Reply) -> Result<Vec<u32>, ModelError> {
        let mut ids = self.encode(&self.reply_text(reply)?)?;
        ids.push(self.stops[0]);
        Ok(ids)
    }

    fn stop_ids(&self) -> &[u32] {
        &self.stops
    }

    fn stop_strings(&self, tools: &[ToolSpec]) -> Vec<String> {
        self.grammar.stop_strings(tools)
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

#[cfg(test)]
#[path = "chat_tests.rs"]
pub(super) mod tests;
