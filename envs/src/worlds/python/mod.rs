//! A world written in Python: `reset` and `step`, run in the sandbox, one interpreter for each episode.
//!
//! ```python
//! def reset(row, rng):             # the row's fields; a random.Random of the episode
//!     global left
//!     left = row["from"]
//!     return "The counter shows " + str(left)   # below the instruction; or None
//!
//! def step(tool, arguments):       # the tool's name; its arguments, checked against its parameters
//!     global left
//!     left -= arguments["by"]
//!     return str(left), 1.0 if left == 0 else 0.0, left <= 0   # observation, reward, done; or the observation alone
//!
//! def message(text):               # optional: a final text of the agent, answered as by `step`; None: it is the answer
//!     return None
//! ```
//!
//! The code is the task author's, what it hears is the agent's: arguments arrive as plain data of the declared types, and whatever the
//! agent got wrong about them is an observation that `step` never sees. What the code gets wrong (an exception, a value of another
//! shape, a limit passed) is the environment's own failure: the episode is unscored, and the error names the line.

mod arguments;

use std::path::Path;
use std::sync::Arc;

use mipu_sandbox::{Outcome, Plain, Policy, Sandbox, Session, Status};
use rand::RngExt;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Chance, Effect, Kind, World};
use crate::diagnostic::Diagnostic;
use crate::env::Unscored;
use crate::message::{ToolCall, ToolSpec};
use crate::python;
use crate::task::Task;
use crate::tools::python::observation;
pub use arguments::{Parameters, PythonTool};

/// A world in Python: `reset(row, rng)` returns the first observation, `step(tool, arguments)` returns `(observation, reward, done)`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(try_from = "RawPython")]
pub struct PythonSpec {
    /// Where the code stands.
    pub code: Code,
    /// The tools.
    pub tools: Vec<PythonTool>,
}

/// Where the code stands.
#[derive(Clone, Debug, JsonSchema)]
pub enum Code {
    /// In the task file.
    Source(String),
    /// In a file of its own.
    File(String),
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RawPython {
    /// The code: `def reset(row, rng)`, `def step(tool, arguments)` and, to hear final texts, `def message(text)`.
    #[serde(default)]
    source: Option<String>,
    /// Instead of `source`: the file that holds the code; the path is relative to the task file.
    #[serde(default)]
    file: Option<String>,
    /// The tools that the agent calls and `step` answers.
    #[serde(default)]
    tools: Vec<PythonTool>,
}

impl TryFrom<RawPython> for PythonSpec {
    type Error = String;

    fn try_from(raw: RawPython) -> Result<Self, String> {
        let code = match (raw.source, raw.file) {
            (Some(source), None) => Code::Source(complete(source)?),
            (None, Some(file)) => Code::File(file),
            _ => {
                return Err(
                    "a python environment takes exactly one of `source` and `file`\nhint: source: |"
                        .to_owned(),
                );
            }
        };
        Ok(Self {
            code,
            tools: raw.tools,
        })
    }
}

/// The source, if it defines what it must.
fn complete(source: String) -> Result<String, String> {
    for (function, shape) in [
        (
            "reset",
            "def reset(row, rng): return \"what the agent sees first\"",
        ),
        (
            "step",
            "def step(tool, arguments): return \"observation\", 0.0, False",
        ),
    ] {
        if !source.contains(&format!("def {function}(")) {
            return Err(format!(
                "a python environment defines `{function}`\nhint: {shape}"
            ));
        }
    }
    Ok(source)
}

impl PythonSpec {
    /// The kind, its code read if that is a file beside `task_file`, and the bytes of that file.
    pub(crate) fn read(&self, task_file: &Path) -> Result<(PythonKind, Vec<u8>), Diagnostic> {
        let (source, bytes) = match &self.code {
            Code::Source(source) => (source.clone(), Vec::new()),
            Code::File(name) => {
                let path = task_file.with_file_name(name);
                let text = std::fs::read_to_string(&path).map_err(|error| {
                    let hint = "the path is relative to the task file".to_owned();
                    Diagnostic::whole(&path, format!("the environment cannot be read: {error}"))
                        .with_hint(hint)
                })?;
                let bytes = text.clone().into_bytes();
                let source = complete(text).map_err(|message| {
                    let (message, hint) = message.split_once("\nhint: ").unwrap_or((&message, ""));
                    Diagnostic::whole(&path, message).with_hint(hint.to_owned())
                })?;
                (source, bytes)
            }
        };
        let kind = PythonKind {
            source: source.into(),
            tools: self.tools.clone().into(),
        };
        Ok((kind, bytes))
    }
}

/// The kind.
#[derive(Debug)]
pub(crate) struct PythonKind {
    source: Arc<str>,
    tools: Arc<[PythonTool]>,
}

impl Kind for PythonKind {
    fn name(&self) -> &str {
        "python"
    }

    fn tools(&self) -> Vec<ToolSpec> {
        self.tools.iter().map(PythonTool::spec).collect()
    }

    fn open(&self, task: &Arc<Task>, sandbox: &Sandbox, seed: u64) -> Result<Box<dyn World>, Unscored> {
        let row = task
            .row
            .iter()
            .map(|(name, value)| (Plain::Str(name.clone()), python::to_plain(value)));
        Ok(Box::new(PythonWorld {
            source: Arc::clone(&self.source),
            tools: Arc::clone(&self.tools),
            row: Plain::Dict(row.collect()),
            sandbox: sandbox.clone(),
            policy: task.spec.policy(),
            seed,
            session: None,
            hears: false,
        }))
    }
}

/// Called by name after the author's code, whose `random` may be anything by then.
const PRELUDE: &str = "
import random as _mipu_random
def _mipu_reset(row, seed):
    return reset(row, _mipu_random.Random(seed)), callable(globals().get('message'))
";

/// A live interpreter.
struct PythonWorld {
    source: Arc<str>,
    tools: Arc<[PythonTool]>,
    row: Plain,
    sandbox: Sandbox,
    policy: Policy,
    seed: u64,
    session: Option<Session>,
    /// The code defines `message`.
    hears: bool,
}

impl PythonWorld {
    async fn ask(&mut self, function: &str, arguments: &[Plain]) -> Result<Plain, Unscored> {
        let session = self.session.as_mut().ok_or_else(|| Unscored {
            reason: "the environment has not been started".to_owned(),
        })?;
        let outcome = session.call(function, arguments).await?;
        let function = function.trim_start_matches("_mipu_");
        match (&outcome.value, outcome.status.is_success()) {
            (Some(value), true) => Ok(value.clone()),
            _ => Err(self.failed(&format!("`{function}` failed"), &outcome)),
        }
    }

    /// The code failed; names the line.
    fn failed(&self, what: &str, outcome: &Outcome) -> Unscored {
        let timeout_sec = self.policy.deadline.as_secs_f64();
        let quiet = Outcome {
            stdout: String::new(),
            ..outcome.clone()
        };
        let why = observation(&quiet, timeout_sec);
        let hint = match &outcome.status {
            Status::TimedOut => Some("each call has `limits: {timeout_sec: ..}`"),
            Status::OutOfMemory => Some("the interpreter has `limits: {memory_mb: ..}`"),
            Status::Raised { kind, .. } if kind == "NotPlain" => {
                Some("return text, numbers, lists and dictionaries, no objects")
            }
            _ => None,
        };
        let mut reason = format!("the environment's {what}: {why}");
        if let Some(line) = line_of(&outcome.stderr) {
            let text = self.source.lines().nth(line - 1).unwrap_or_default().trim();
            reason.push_str(&format!(" (line {line}: `{text}`)"));
        }
        if let Some(hint) = hint {
            reason.push_str(&format!("\nhint: {hint}"));
        }
        Unscored { reason }
    }

    fn effect(&self, function: &str, value: Plain) -> Result<Effect, Unscored> {
        let misshapen = |got: &Plain| Unscored {
            reason: format!(
                "the environment's `{function}` returned {}\nhint: return (observation, reward, done): text, a number, True or False; or the observation alone",
                crate::tools::cap(python::show(got), 200)
            ),
        };
        let parts = match value {
            Plain::Str(observation) => return Ok(Effect::say(observation)),
            Plain::Tuple(parts) => parts,
            other => return Err(misshapen(&other)),
        };
        let reward = match parts.get(1) {
            Some(Plain::Float(reward)) => Some(*reward),
            Some(Plain::Int(digits)) => digits.parse().ok(),
            _ => None,
        };
        match (parts.as_slice(), reward) {
            ([Plain::Str(observation), _, Plain::Bool(done)], Some(reward)) => Ok(Effect {
                observation: observation.clone(),
                reward,
                done: *done,
            }),
            _ => Err(misshapen(&Plain::Tuple(parts))),
        }
    }
}

/// The last line of the author's code in a traceback.
fn line_of(stderr: &str) -> Option<usize> {
    let mark = "File \"<python-1>\", line ";
    let at = stderr.rfind(mark)? + mark.len();
    let digits: String = stderr[at..].chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().filter(|line| *line > 0)
}

#[async_trait::async_trait]
impl World for PythonWorld {
    async fn start(&mut self, chance: &mut Chance) -> Result<Option<String>, Unscored> {
        let mut session = self.sandbox.session(&self.policy, self.seed).await?;
        for code in [&*Arc::clone(&self.source), PRELUDE] {
            let outcome = session.exec(code, b"").await?;
            if !outcome.status.is_success() {
                return Err(self.failed("code failed", &outcome));
            }
        }
        self.session = Some(session);
        let seed = Plain::Int(chance.random::<u64>().to_string());
        let first = self.ask("_mipu_reset", &[self.row.clone(), seed]).await?;
        match first {
            Plain::Tuple(parts) => match parts.as_slice() {
                [Plain::Str(text), Plain::Bool(hears)] => {
                    self.hears = *hears;
                    Ok(Some(text.clone()))
                }
                [Plain::None, Plain::Bool(hears)] => {
                    self.hears = *hears;
                    Ok(None)
                }
                [other, _] => Err(Unscored {
                    reason: format!(
                        "the environment's `reset` returned {}\nhint: return the text that the agent sees first, or None",
                        crate::tools::cap(python::show(other), 200)
                    ),
                }),
                _ => Err(Unscored {
                    reason: "the environment's code has replaced what calls it".to_owned(),
                }),
            },
            _ => Err(Unscored {
                reason: "the environment's code has replaced what calls it".to_owned(),
            }),
        }
    }

    async fn call(&mut self, call: &ToolCall, _: &mut Chance) -> Result<Effect, Unscored> {
        let Some(tool) = self.tools.iter().find(|tool| tool.name() == call.name) else {
            return Ok(Effect::say(format!("error: no tool `{}`", call.name)));
        };
        let arguments = match tool.read(&call.arguments) {
            Ok(arguments) => arguments,
            Err(mistake) => return Ok(Effect::say(mistake)),
        };
        let value = self
            .ask("step", &[Plain::Str(call.name.clone()), arguments])
            .await?;
        self.effect("step", value)
    }

    async fn message(&mut self, text: &str, _: &mut Chance) -> Result<Option<Effect>, Unscored> {
        if !self.hears {
            return Ok(None);
        }
        match self.ask("message", &[Plain::Str(text.to_owned())]).await? {
            Plain::None => Ok(None),
            value => self.effect("message", value).map(Some),
        }
    }
}
