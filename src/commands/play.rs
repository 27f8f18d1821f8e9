//! `mipu task play`: a person plays an episode.

use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use mipu_envs::{Message, Reply, Role, StepResult, StopReason, ToolCall, ToolSpec};
use serde_json::{Map, Value};

use super::shared::{open_sandbox, row_of};
use crate::output;

const HELP: &str = "
  answer TEXT        give the final answer, which ends the episode
  TOOL TEXT          call a tool with its first argument; you are asked for the others
  TOOL {\"a\": \"b\"}    call a tool with JSON arguments
  TOOL               be asked for every argument
  tools              list the tools and their arguments
  quit               end the episode without an answer
A text that is just `<<` starts a block of several lines; a line that is just `.` ends it.";

/// Plays one row of a task in the terminal.
pub(crate) async fn run(path: &Path, row: usize, seed: u64) -> anyhow::Result<ExitCode> {
    let sandbox = open_sandbox()?;
    let task = row_of(path, row, &sandbox, seed).await?;
    let mut env = task.env(&sandbox, seed);
    let mut lines = Lines::new(std::io::stdin().lock());
    output::data(&format!(
        "{}: at most {} turns. Type `help` for how to play.\n",
        task.id, task.spec.max_turns
    ));
    env.start().await?.iter().for_each(show);
    show_tools(env.tools());
    let mut total = 0.0;
    let mut turn = 0;
    let last = loop {
        let tools = env.tools().to_vec();
        let step = match next_turn(&mut lines, &tools, turn)? {
            Some(reply) => env.step(&reply).await?,
            None => env.finish(StopReason::Cancelled).await?,
        };
        turn += 1;
        total += step.reward;
        step.observations.iter().for_each(show);
        if step.latency_ms > 0.0 {
            output::data(&format!("(virtual latency {:.0} ms)", step.latency_ms));
        }
        if step.reward.abs() > 0.0 && step.stop.is_none() {
            output::data(&format!("(reward {})", step.reward));
        }
        if step.stop.is_some() {
            break step;
        }
    };
    end(&last, total, turn);
    Ok(ExitCode::SUCCESS)
}

fn end(last: &StepResult, total: f64, turns: usize) {
    let stop = last
        .stop
        .map(|stop| format!("{stop:?}"))
        .unwrap_or_default()
        .to_lowercase();
    output::data(&format!("\nreturn {total} after {turns} turns ({stop})"));
    for (name, value) in &last.metrics {
        output::data(&format!("  {name}  {value}"));
    }
}

fn show(message: &Message) {
    let who = match (&message.role, &message.name) {
        (Role::Tool, Some(name)) => name.clone(),
        (role, _) => format!("{role:?}").to_lowercase(),
    };
    output::data(&format!("[{who}] {}", message.content));
}

fn show_tools(tools: &[ToolSpec]) {
    for tool in tools {
        let arguments: Vec<String> = parameters(tool).into_iter().map(|(name, _)| name).collect();
        output::data(&format!(
            "  {}({}): {}",
            tool.name,
            arguments.join(", "),
            tool.description
        ));
    }
}

/// Names and JSON types of a tool's required parameters (all of them when none is required), in order.
fn parameters(tool: &ToolSpec) -> Vec<(String, String)> {
    let empty = Map::new();
    let properties = tool.parameters["properties"].as_object().unwrap_or(&empty);
    let required = tool.parameters["required"].as_array();
    let names: Vec<&str> = match required {
        Some(names) => names.iter().filter_map(Value::as_str).collect(),
        None => properties.keys().map(String::as_str).collect(),
    };
    let kind = |name: &str| {
        properties
            .get(name)
            .and_then(|p| p["type"].as_str())
            .unwrap_or("string")
            .to_owned()
    };
    names
        .into_iter()
        .map(|name| (name.to_owned(), kind(name)))
        .collect()
}

/// Reads turns from a person or a script.
struct Lines<R> {
    input: R,
    prompts: bool,
}

impl<R: BufRead> Lines<R> {
    fn new(input: R) -> Self {
        Self {
            input,
            prompts: std::io::stdin().is_terminal(),
        }
    }

    /// One line, or the block that `<<` starts; `None` at the end of input.
    fn read(&mut self, prompt: &str) -> anyhow::Result<Option<String>> {
        if self.prompts {
            let mut out = std::io::stderr().lock();
            let _ = write!(out, "{prompt}").and_then(|()| out.flush());
        }
        let Some(line) = self.line()? else {
            return Ok(None);
        };
        let Some(head) = line.strip_suffix("<<") else {
            return Ok(Some(line));
        };
        let mut block = String::new();
        while let Some(line) = self.line()? {
            if line == "." {
                break;
            }
            block.push_str(&line);
            block.push('\n');
        }
        Ok(Some(format!("{head}{block}")))
    }

    fn line(&mut self) -> anyhow::Result<Option<String>> {
        let mut line = String::new();
        let count = self
            .input
            .read_line(&mut line)
            .context("standard input is not UTF-8 text")?;
        Ok((count > 0).then(|| line.trim_end_matches(['\n', '\r']).to_owned()))
    }
}

/// The next turn; `None` when the person leaves.
fn next_turn<R: BufRead>(
    lines: &mut Lines<R>,
    tools: &[ToolSpec],
    turn: usize,
) -> anyhow::Result<Option<Reply>> {
    loop {
        let Some(line) = lines.read(&format!("turn {} > ", turn + 1))? else {
            return Ok(None);
        };
        let (head, body) = match line.trim_start().split_once(char::is_whitespace) {
            Some((head, body)) => (head.to_owned(), body.to_owned()),
            None => (line.trim().to_owned(), String::new()),
        };
        match head.as_str() {
            "" => {}
            "help" => output::data(HELP),
            "tools" => show_tools(tools),
            "quit" => return Ok(None),
            "answer" => {
                return Ok(Some(Reply {
                    content: body.clone(),
                    answer: Some(body),
                    ..Reply::default()
                }));
            }
            name => match tools.iter().find(|tool| tool.name == name) {
                None => output::data(&format!("there is no tool `{name}`; type `tools` or `help`")),
                Some(tool) => match arguments(lines, tool, &body)? {
                    Ok(arguments) => {
                        return Ok(Some(Reply {
                            content: line.clone(),
                            tool_calls: vec![ToolCall {
                                name: tool.name.clone(),
                                arguments,
                            }],
                            ..Reply::default()
                        }));
                    }
                    Err(reason) => output::data(&reason),
                },
            },
        }
    }
}

/// The arguments of a call; the inner error is for the person.
fn arguments<R: BufRead>(
    lines: &mut Lines<R>,
    tool: &ToolSpec,
    body: &str,
) -> anyhow::Result<Result<Map<String, Value>, String>> {
    if let Ok(Value::Object(map)) = serde_json::from_str(body) {
        return Ok(Ok(map));
    }
    let mut given = (!body.is_empty()).then(|| body.to_owned());
    let mut map = Map::new();
    for (name, kind) in parameters(tool) {
        let text = match given.take() {
            Some(text) => text,
            None => match lines.read(&format!("  {name}: "))? {
                Some(text) => text,
                None => return Ok(Err(format!("`{}` needs `{name}`", tool.name))),
            },
        };
        let value = match kind.as_str() {
            "string" => Value::String(text),
            _ => match serde_json::from_str(text.trim()) {
                Ok(value) => value,
                Err(_) => return Ok(Err(format!("`{name}` is of type {kind}; got {text}"))),
            },
        };
        map.insert(name, value);
    }
    Ok(match given {
        Some(_) => Err(format!("`{}` takes no argument", tool.name)),
        None => Ok(map),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tools() -> Vec<ToolSpec> {
        let tool = |name: &str, parameters| ToolSpec {
            name: name.to_owned(),
            description: String::new(),
            parameters,
        };
        vec![
            tool(
                "write",
                json!({"type": "object", "required": ["path", "content"],
                       "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}),
            ),
            tool(
                "pull",
                json!({"type": "object", "required": ["arm"], "properties": {"arm": {"type": "integer"}}}),
            ),
        ]
    }

    fn turn(input: &str) -> Option<Reply> {
        let mut lines = Lines {
            input: input.as_bytes(),
            prompts: false,
        };
        next_turn(&mut lines, &tools(), 0).unwrap()
    }

    #[test]
    fn a_person_writes_turns_in_every_form() {
        for (input, name, arguments) in [
            (
                "write {\"path\": \"a\", \"content\": \"b\"}\n",
                "write",
                json!({"path": "a", "content": "b"}),
            ),
            ("write a\nb c\n", "write", json!({"path": "a", "content": "b c"})),
            (
                "write\na\n<<\nx\n y\n.\nrest\n",
                "write",
                json!({"path": "a", "content": "x\n y\n"}),
            ),
            ("\nhelp\nnonsense\npull 3\n", "pull", json!({"arm": 3})),
            ("pull three\npull 3\n", "pull", json!({"arm": 3})),
        ] {
            let reply = turn(input).unwrap();
            assert_eq!(reply.tool_calls[0].name, name, "{input:?}");
            assert_eq!(Value::Object(reply.tool_calls[0].arguments.clone()), arguments);
        }
        assert_eq!(turn("answer 4 2\n").unwrap().answer.as_deref(), Some("4 2"));
        assert_eq!(
            turn("answer <<\na\nb\n.\n").unwrap().answer.as_deref(),
            Some("a\nb\n")
        );
        assert_eq!(turn("quit\n"), None);
        assert_eq!(turn(""), None);
    }
}
