//! The ReAct dialect (Yao et al. 2022): thoughts, actions and observations as labelled lines.
//!
//! ```text
//! Thought: I should compute it.
//! Action: python
//! Action Input: print(12 * 7)
//! ```
//!
//! and at last `Final Answer: 84`. What follows an action's input from a line `Observation:` on was made up by the model: it is
//! not read, and the turn stops there.

use mipu_envs::{Message, Role, ToolCall, ToolSpec};

use super::grammar::{Grammar, Guard, Said, arguments_of, body_of, signatures, tool};
use crate::model::ModelError;

const ACTION: &str = "Action:";
const INPUT: &str = "Action Input:";
const OBSERVATION: &str = "\nObservation:";
const FINAL: &str = "Final Answer:";

/// The grammar.
pub(super) struct React;

impl Grammar for React {
    fn tools_by_template(&self) -> bool {
        false
    }

    fn describe(&self, tools: &[ToolSpec]) -> Result<String, ModelError> {
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        Ok(format!(
            "Answer as best you can. You have these tools:\n{}\n\nUse this format:\nThought: what to do next\n{ACTION} one of {}\n{INPUT} \
             the input of the action\nand wait for the observation. When you know the answer, write\n{FINAL} the answer",
            signatures(tools),
            names.join(", ")
        ))
    }

    fn parse(&self, said: &str, ended: bool, tools: &[ToolSpec]) -> Said {
        let own = said.split_once(OBSERVATION).map_or(said, |(own, _)| own);
        let whole = ended || own.len() < said.len();
        match (label(own, ACTION), label(own, FINAL)) {
            (None, None) => Said::Malformed(format!(
                "a turn holds `{ACTION}` and `{INPUT}`, or `{FINAL}`; it holds neither"
            )),
            (action, Some(answer)) if action.is_none_or(|action| answer < action) => {
                Said::Answer(own[answer + FINAL.len()..].trim().to_owned())
            }
            (Some(action), _) => {
                let rest = &own[action + ACTION.len()..];
                let (name, input) = match label(rest, INPUT) {
                    Some(at) => (&rest[..at], &rest[at + INPUT.len()..]),
                    None => (rest, ""),
                };
                if !whole {
                    return Said::Malformed("the action is cut off".to_owned());
                }
                let input = input.strip_prefix(' ').unwrap_or(input);
                // An answer behind the action was made up without its observation.
                let input = label(input, FINAL).map_or(input, |at| &input[..at]);
                let input = input.trim_matches('\n');
                match tool(name.trim(), tools).and_then(|tool| Ok((tool, arguments_of(input, tool)?))) {
                    Ok((tool, arguments)) => Said::Calls(vec![ToolCall {
                        name: tool.name.clone(),
                        arguments,
                    }]),
                    Err(reason) => Said::Malformed(reason),
                }
            }
            (None, Some(_)) => Said::Malformed("the answer is cut off".to_owned()),
        }
    }

    fn calls(&self, calls: &[ToolCall], guard: Guard<'_>) -> Result<String, String> {
        let [call] = calls else {
            return Err(format!("a turn holds one action; got {}", calls.len()));
        };
        let body = body_of(&call.arguments, |text| {
            !text.is_empty() && text.trim_matches('\n') == text && !text.starts_with(' ')
        })?;
        Ok(format!(
            "{ACTION} {}\n{INPUT} {}",
            guard(&call.name),
            guard(&body)
        ))
    }

    fn answer(&self, answer: &str, guard: Guard<'_>) -> String {
        format!("{FINAL} {}", guard(answer))
    }

    fn message(&self, message: &Message) -> (&'static str, String) {
        match message.role {
            Role::System => ("system", message.content.clone()),
            Role::User => ("user", message.content.clone()),
            Role::Assistant => ("assistant", message.content.clone()),
            Role::Tool => ("user", format!("Observation: {}", message.content)),
        }
    }

    fn stop_strings(&self, _tools: &[ToolSpec]) -> Vec<String> {
        vec![OBSERVATION.to_owned()]
    }
}

/// Where a label opens a line.
fn label(text: &str, label: &str) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = text[from..].find(label) {
        let at = from + at;
        let line = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
        if text[line..at].trim().is_empty() {
            return Some(at);
        }
        from = at + label.len();
    }
    None
}
