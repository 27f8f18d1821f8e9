//! The dialect whose calls are tags with the tool's name.
//!
//! ```text
//! <calc>12 * 7</calc>
//! ```
//!
//! The text between is the tool's first argument, or a JSON object of several. A turn ends behind a closing tag. A turn without a
//! call is the final answer; `<answer>..</answer>` in it is read as well.

use mipu_envs::{Message, Role, ToolCall, ToolSpec};

use super::grammar::{Grammar, Guard, Said, arguments_of, body_of, signatures};
use crate::model::ModelError;

const ANSWER: &str = "<answer>";
const ANSWER_END: &str = "</answer>";

/// The grammar.
pub(super) struct Tags;

impl Grammar for Tags {
    fn tools_by_template(&self) -> bool {
        false
    }

    fn describe(&self, tools: &[ToolSpec]) -> Result<String, ModelError> {
        let first = tools.first().map_or("tool", |tool| tool.name.as_str());
        Ok(format!(
            "You have these tools:\n{}\n\nTo use one, write <{first}>...</{first}> and wait for its result. A reply without a tool is \
             your final answer.",
            signatures(tools)
        ))
    }

    fn parse(&self, said: &str, ended: bool, tools: &[ToolSpec]) -> Said {
        let mut calls = Vec::new();
        let mut rest = said;
        loop {
            let first = tools.iter().filter_map(|tool| {
                let open = format!("<{}>", tool.name);
                rest.find(&open).map(|at| (at, open.len(), tool))
            });
            let Some((at, len, tool)) = first.min_by_key(|(at, ..)| *at) else {
                break;
            };
            let close = format!("</{}>", tool.name);
            let inside = &rest[at + len..];
            let body = match inside.split_once(&close) {
                Some((body, after)) => {
                    rest = after;
                    body
                }
                None if ended => {
                    rest = "";
                    inside
                }
                None => return Said::Malformed(format!("<{}> is not closed by {close}", tool.name)),
            };
            match arguments_of(body.trim_matches('\n'), tool) {
                Ok(arguments) => calls.push(ToolCall {
                    name: tool.name.clone(),
                    arguments,
                }),
                Err(reason) => return Said::Malformed(reason),
            }
        }
        if !calls.is_empty() {
            return Said::Calls(calls);
        }
        match said.split_once(ANSWER) {
            Some((_, answer)) => {
                let answer = answer.split_once(ANSWER_END).map_or(answer, |(answer, _)| answer);
                Said::Answer(answer.trim().to_owned())
            }
            None => Said::Answer(said.trim().to_owned()),
        }
    }

    fn calls(&self, calls: &[ToolCall], guard: Guard<'_>) -> Result<String, String> {
        let one = |call: &ToolCall| {
            let name = &call.name;
            let close = format!("</{name}>");
            let body = body_of(&call.arguments, |text| {
                !text.is_empty() && text.trim_matches('\n') == text && !text.contains(&close)
            })?;
            Ok(format!("<{}>{}</{}>", guard(name), guard(&body), guard(name)))
        };
        Ok(calls
            .iter()
            .map(one)
            .collect::<Result<Vec<_>, String>>()?
            .join("\n"))
    }

    fn message(&self, message: &Message) -> (&'static str, String) {
        match message.role {
            Role::System => ("system", message.content.clone()),
            Role::User => ("user", message.content.clone()),
            Role::Assistant => ("assistant", message.content.clone()),
            Role::Tool => ("user", format!("<result>{}</result>", message.content)),
        }
    }

    fn stop_strings(&self, tools: &[ToolSpec]) -> Vec<String> {
        tools.iter().map(|tool| format!("</{}>", tool.name)).collect()
    }
}
