//! The dialect whose calls are fenced blocks: Python code between fences is run.
//!
//! ````text
//! I compute it.
//! ```python
//! print(12 * 7)
//! ```
//! ````
//!
//! The word behind the fence names the tool (`python` and `py` the one that runs code). A turn without a block, or with blocks of
//! other languages only, is the final answer; where a task has no tools every turn is.

use mipu_envs::{Message, Role, ToolCall, ToolSpec};

use super::grammar::{Grammar, Guard, Said, arguments_of, body_of, parameters, signatures};
use crate::model::ModelError;

/// Fences of code that a tool of another name runs.
const PYTHON: [&str; 4] = ["python", "py", "python3", "tool_code"];

/// The grammar.
pub(super) struct Fenced;

impl Grammar for Fenced {
    fn tools_by_template(&self) -> bool {
        false
    }

    fn describe(&self, tools: &[ToolSpec]) -> Result<String, ModelError> {
        let first = tools.first().map_or("python", |tool| tool.name.as_str());
        Ok(format!(
            "You have these tools:\n{}\n\nTo use one, write a block that names it\n```{first}\n...\n```\nand wait for its output. \
             A reply without a block is your final answer.",
            signatures(tools)
        ))
    }

    fn parse(&self, said: &str, ended: bool, tools: &[ToolSpec]) -> Said {
        if tools.is_empty() {
            return Said::Answer(said.trim().to_owned());
        }
        let mut calls = Vec::new();
        let mut lines = said.split('\n');
        while let Some(line) = lines.next() {
            let Some((fence, info)) = opening(line) else {
                continue;
            };
            let mut body = Vec::new();
            let mut closed = false;
            for line in lines.by_ref() {
                closed = closes(line, fence);
                if closed {
                    break;
                }
                body.push(line);
            }
            let Some(tool) = tool_of(info, tools) else {
                continue;
            };
            if !closed && !ended {
                return Said::Malformed(format!("the block of `{info}` is not closed"));
            }
            match arguments_of(&body.join("\n"), tool) {
                Ok(arguments) => calls.push(ToolCall {
                    name: tool.name.clone(),
                    arguments,
                }),
                Err(reason) => return Said::Malformed(reason),
            }
        }
        if calls.is_empty() {
            Said::Answer(said.trim().to_owned())
        } else {
            Said::Calls(calls)
        }
    }

    fn calls(&self, calls: &[ToolCall], guard: Guard<'_>) -> Result<String, String> {
        let one = |call: &ToolCall| {
            let body = body_of(&call.arguments, |_| true)?;
            let longest = body.lines().filter_map(opening).map(|(n, _)| n).max();
            let fence = "`".repeat(longest.map_or(3, |n| n + 1));
            Ok(format!("{fence}{}\n{}\n{fence}", guard(&call.name), guard(&body)))
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
            Role::Tool => ("user", format!("Output:\n{}", message.content)),
        }
    }
}

/// Length of a line's fence and the word behind it.
fn opening(line: &str) -> Option<(usize, &str)> {
    let line = line.trim();
    let info = line.trim_start_matches('`');
    let fence = line.len() - info.len();
    (fence >= 3 && !info.contains('`')).then(|| (fence, info.trim()))
}

fn closes(line: &str, fence: usize) -> bool {
    matches!(opening(line), Some((n, "")) if n >= fence)
}

fn tool_of<'a>(info: &str, tools: &'a [ToolSpec]) -> Option<&'a ToolSpec> {
    let code = || {
        tools
            .iter()
            .find(|tool| parameters(tool).first() == Some(&"code"))
    };
    match tools.iter().find(|tool| tool.name == info) {
        Some(tool) => Some(tool),
        None if info.is_empty() || PYTHON.contains(&info) => {
            tools.iter().find(|tool| tool.name == "python").or_else(code)
        }
        None => None,
    }
}
