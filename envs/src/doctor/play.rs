//! Whole episodes: of a script, or of an agent that does no work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mipu_sandbox::Sandbox;

use crate::env::{StopReason, Unscored};
use crate::message::{Message, Reply, Role, ToolCall};
use crate::reward::{Effort, settle};
use crate::script::Demonstrator;
use crate::task::Task;

/// Answers that are no answer to anything: other types, other notations of numbers, what breaks parsers.
const WRONG_TYPES: [&str; 7] = [
    "nan",
    "1e999",
    "{\"mipu\": [null, {}]}",
    "\u{0}\u{feff}\u{202e}",
    "((((((((((((((((((((((((((((((((",
    "-",
    "<answer></answer>",
];

/// An agent that does no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Baseline {
    Empty,
    Echo,
    Noop,
    Submit,
    WrongType(usize),
}

impl Baseline {
    /// All of them; `submit` only where there is such a tool.
    pub(super) fn all(submits: bool) -> Vec<Self> {
        let mut all = vec![Self::Empty, Self::Echo, Self::Noop];
        all.extend(submits.then_some(Self::Submit));
        all.extend((0..WRONG_TYPES.len()).map(Self::WrongType));
        all
    }

    /// What it is called in the report.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Echo => "echo",
            Self::Noop => "no-op",
            Self::Submit => "submit",
            Self::WrongType(_) => "wrong-type",
        }
    }

    /// What it answers, where a name does not tell.
    pub(super) fn detail(self) -> Option<String> {
        match self {
            Self::WrongType(which) => Some(format!("it answered {:?}", WRONG_TYPES[which])),
            _ => None,
        }
    }

    /// Plays it.
    pub(super) fn script(self, task: &Task) -> Repeat {
        let answer = |text: &str| Reply {
            content: text.to_owned(),
            answer: Some(text.to_owned()),
            ..Reply::default()
        };
        Repeat(match self {
            Self::Empty => answer(""),
            Self::Echo => answer(&task.instruction),
            Self::WrongType(which) => answer(WRONG_TYPES[which]),
            Self::Noop => Reply::default(),
            Self::Submit => {
                let call = ToolCall {
                    name: "submit".to_owned(),
                    arguments: serde_json::Map::new(),
                };
                Reply {
                    tool_calls: vec![call],
                    ..Reply::default()
                }
            }
        })
    }
}

/// Says the same thing again and again.
pub(super) struct Repeat(Reply);

#[async_trait::async_trait]
impl Demonstrator for Repeat {
    async fn next(&mut self, _observations: &[Message]) -> Result<Reply, Unscored> {
        Ok(self.0.clone())
    }
}

/// One episode of a script.
pub(super) struct Episode {
    pub(super) messages: Vec<Message>,
    pub(super) answer: Option<String>,
    pub(super) reward: f64,
    /// The reward of a solved episode of this many turns and bytes.
    pub(super) best: f64,
    pub(super) stop: StopReason,
    pub(super) turns: usize,
    pub(super) tool_failures: usize,
    /// Longest time the environment took for one turn.
    pub(super) slowest_step: Duration,
    /// Everything said, in bytes.
    pub(super) bytes: usize,
}

impl Episode {
    /// Equal to the byte.
    pub(super) fn same_as(&self, other: &Self) -> bool {
        self.messages == other.messages
            && self.reward.to_bits() == other.reward.to_bits()
            && self.stop == other.stop
            && self.turns == other.turns
    }
}

pub(super) async fn play(
    task: &Arc<Task>,
    script: &mut dyn Demonstrator,
    sandbox: &Sandbox,
    seed: u64,
) -> Result<Episode, Unscored> {
    let mut env = task.env(sandbox, seed);
    let mut messages = env.start().await?;
    let mut observations = Vec::new();
    let (mut reward, mut turns, mut written_bytes, mut answer) = (0.0, 0, 0, None);
    let mut slowest_step = Duration::ZERO;
    loop {
        let reply = script.next(&observations).await?;
        let begun = Instant::now();
        let result = env.step(&reply).await?;
        slowest_step = slowest_step.max(begun.elapsed());
        turns += 1;
        written_bytes += reply.content.len();
        reward += result.reward;
        let said = Message {
            tool_calls: reply.tool_calls.clone(),
            ..Message::new(Role::Assistant, reply.content)
        };
        messages.push(said);
        messages.extend(result.observations.iter().cloned());
        answer = reply.answer.or(answer);
        if let Some(stop) = result.stop {
            let failures = result.metrics.iter().find(|(name, _)| name == "tool/failures");
            let tool_failures = failures.map_or(0, |(_, count)| *count as usize);
            let best = settle(&task.spec.file.reward, 1.0, Effort { turns, written_bytes });
            return Ok(Episode {
                bytes: messages.iter().map(|message| message.content.len()).sum(),
                slowest_step,
                messages,
                answer,
                reward,
                best,
                stop,
                turns,
                tool_failures,
            });
        }
        observations = result.observations;
    }
}

/// The end of an episode on one line.
pub(super) fn transcript(messages: &[Message]) -> String {
    let tail = messages.len().saturating_sub(6);
    let lines: Vec<String> = messages[tail..]
        .iter()
        .map(|message| {
            let calls: Vec<String> = message
                .tool_calls
                .iter()
                .map(|call| {
                    format!(
                        "{}({})",
                        call.name,
                        serde_json::Value::Object(call.arguments.clone())
                    )
                })
                .collect();
            let text = if calls.is_empty() {
                format!("{:?}", message.content)
            } else {
                calls.join(" ")
            };
            format!("{:?} {}", message.role, crate::tools::cap(text, 160))
        })
        .collect();
    lines.join("; ")
}
