//! Scripted agents: the reference solution and the demonstrations of the warm start.
//!
//! A script is fixed turns, or a Python generator function `(row, rng)` that yields turns and is sent observations. Python scripts are
//! the task author's (trusted) code: their sessions are kept and reused, so a script must depend on its arguments alone.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mipu_sandbox::{Plain, Policy, Sandbox, Session};
use serde_json::{Map, Value};

use crate::env::Unscored;
use crate::message::{Message, Reply, ToolCall};
use crate::python;
use crate::seed::{self, Purpose};
use crate::spec::{ScriptSource, TurnBody, TurnSource};
use crate::task::Task;
use crate::template::Fields;
use crate::tools::first_parameter;
use crate::tools::python::observation;

/// Idle script sessions kept for each script; each holds about 9 MB.
const MAX_IDLE: usize = 8;

/// Writes turns that react to observations (a `busy` tool is retried), as a scripted agent.
#[async_trait::async_trait]
pub trait Demonstrator: Send {
    /// The next turn, given the observations of the last one (empty at first).
    ///
    /// # Errors
    /// When the script itself failed.
    async fn next(&mut self, observations: &[Message]) -> Result<Reply, Unscored>;
}

/// A script of a task file.
#[derive(Debug)]
pub(crate) struct Script {
    source: ScriptSource,
    function: &'static str,
    idle: Arc<Idle>,
}

/// Sessions that have executed the script and wait for the next episode.
#[derive(Default)]
struct Idle(Mutex<Vec<Session>>);

impl std::fmt::Debug for Idle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Idle(..)")
    }
}

impl Idle {
    fn take(&self) -> Option<Session> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn give(&self, session: Session) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if session.is_alive() && idle.len() < MAX_IDLE {
            idle.push(session);
        }
    }
}

impl Script {
    /// A script whose Python form defines `function`.
    pub(crate) fn new(source: ScriptSource, function: &'static str) -> Self {
        Self {
            source,
            function,
            idle: Arc::default(),
        }
    }

    /// Plays the script in one episode of `task`.
    pub(crate) fn play(&self, task: &Arc<Task>, sandbox: &Sandbox, seed: u64) -> Box<dyn Demonstrator> {
        match &self.source {
            ScriptSource::Turns(turns) => Box::new(Recital {
                task: Arc::clone(task),
                turns: turns.clone(),
                at: 0,
                last: None,
            }),
            ScriptSource::Python(source) => Box::new(Performer {
                task: Arc::clone(task),
                sandbox: sandbox.clone(),
                seed,
                source: source.clone(),
                function: self.function,
                idle: Arc::clone(&self.idle),
                session: None,
            }),
        }
    }
}

/// Stands in for a script that a task does not have.
pub(crate) struct Missing(pub(crate) &'static str);

#[async_trait::async_trait]
impl Demonstrator for Missing {
    async fn next(&mut self, _observations: &[Message]) -> Result<Reply, Unscored> {
        Err(Unscored {
            reason: format!("the task has no `{}`", self.0),
        })
    }
}

/// Plays fixed turns.
struct Recital {
    task: Arc<Task>,
    turns: Vec<TurnSource>,
    at: usize,
    last: Option<Reply>,
}

#[async_trait::async_trait]
impl Demonstrator for Recital {
    async fn next(&mut self, observations: &[Message]) -> Result<Reply, Unscored> {
        let failure = &self.task.spec.file.stochastic.failure_text;
        let failed = observations.iter().any(|message| message.content == *failure);
        if let (true, Some(last)) = (failed, &self.last) {
            return Ok(last.clone());
        }
        let Some(turn) = self.turns.get(self.at) else {
            return Err(Unscored {
                reason: format!("the script has {} turns and needs more", self.turns.len()),
            });
        };
        self.at += 1;
        let observation = joined(observations);
        let fields = Fields::with(&self.task.row, "observation", &observation);
        let value = match &turn.body {
            TurnBody::Text(template) => Value::String(template.render(&fields)?),
            TurnBody::Arguments(arguments) => Value::Object(
                arguments
                    .iter()
                    .map(|(name, template)| Ok((name.clone(), Value::String(template.render(&fields)?))))
                    .collect::<Result<_, Unscored>>()?,
            ),
        };
        let reply = reply(&self.task, &turn.head, value)?;
        self.last = Some(reply.clone());
        Ok(reply)
    }
}

const PRELUDE: &str = "
import random as _random
_mipu_play = None
def _mipu_start(function, row, seed):
    global _mipu_play
    if _mipu_play is not None:
        _mipu_play.close()
    _mipu_play = globals()[function](row, _random.Random(seed))
    return next(_mipu_play, None)
def _mipu_send(observation):
    try:
        return _mipu_play.send(observation)
    except StopIteration:
        return None
";

/// Plays a Python generator function.
struct Performer {
    task: Arc<Task>,
    sandbox: Sandbox,
    seed: u64,
    source: String,
    function: &'static str,
    idle: Arc<Idle>,
    session: Option<Session>,
}

impl Performer {
    fn policy() -> Policy {
        Policy {
            deadline: Duration::from_secs(10),
            ..Policy::default()
        }
    }

    /// A session that has executed the script; `&mut` because a session may move between threads but not be shared.
    async fn open(&mut self) -> Result<Session, Unscored> {
        if let Some(session) = self.idle.take() {
            return Ok(session);
        }
        let seed = seed::derive(0, Purpose::Demonstration, &[]);
        let mut session = self.sandbox.session(&Self::policy(), seed).await?;
        for code in [self.source.as_str(), PRELUDE] {
            let outcome = session.exec(code, b"").await?;
            if !outcome.status.is_success() {
                return Err(self.failed(&observation(&outcome, Self::policy().deadline.as_secs_f64())));
            }
        }
        Ok(session)
    }

    fn failed(&self, what: &str) -> Unscored {
        Unscored {
            reason: format!("`{}` failed: {what}", self.function),
        }
    }
}

#[async_trait::async_trait]
impl Demonstrator for Performer {
    async fn next(&mut self, observations: &[Message]) -> Result<Reply, Unscored> {
        let outcome = match &mut self.session {
            None => {
                let seed = seed::derive(self.seed, Purpose::Demonstration, &[0]);
                let row = self
                    .task
                    .row
                    .iter()
                    .map(|(k, v)| (Plain::Str(k.clone()), python::to_plain(v)))
                    .collect();
                let arguments = [
                    Plain::Str(self.function.to_owned()),
                    Plain::Dict(row),
                    Plain::Int(seed.to_string()),
                ];
                let session = self.open().await?;
                self.session
                    .insert(session)
                    .call("_mipu_start", &arguments)
                    .await?
            }
            Some(session) => {
                session
                    .call("_mipu_send", &[Plain::Str(joined(observations))])
                    .await?
            }
        };
        if !outcome.status.is_success() {
            return Err(self.failed(&observation(&outcome, Self::policy().deadline.as_secs_f64())));
        }
        match outcome.value {
            Some(Plain::Dict(pairs)) if pairs.len() == 1 => {
                let turn = python::to_map(&pairs).map_err(|reason| self.failed(&reason))?;
                let (head, body) = turn.into_iter().next().expect("one pair");
                reply(&self.task, &head, body)
            }
            Some(Plain::None) => Err(self.failed("it ended without an answer")),
            other => {
                let got = other.as_ref().map_or_else(|| "nothing".to_owned(), python::show);
                Err(self.failed(&format!(
                    "a turn is {{\"tool\": ..}} or {{\"answer\": ..}}; got {got}"
                )))
            }
        }
    }
}

impl Drop for Performer {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            self.idle.give(session);
        }
    }
}

fn joined(observations: &[Message]) -> String {
    observations
        .iter()
        .map(|message| message.content.as_str())
        .collect::<Vec<_>>()
        .join("\n")
}

/// A turn as a reply: `answer` and its text, or a tool and its text or arguments.
fn reply(task: &Task, head: &str, body: Value) -> Result<Reply, Unscored> {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if head == "answer" {
        let answer = text(&body);
        return Ok(Reply {
            content: answer.clone(),
            answer: Some(answer),
            ..Reply::default()
        });
    }
    let Some(spec) = task.spec.tools.iter().find(|spec| spec.name == head) else {
        return Err(Unscored {
            reason: format!("the script calls `{head}`, which is not a tool of this task"),
        });
    };
    let arguments = match (body, first_parameter(spec)) {
        (Value::Object(arguments), _) => arguments,
        (body, Some(name)) => Map::from_iter([(name.to_owned(), Value::String(text(&body)))]),
        (_, None) => Map::new(),
    };
    let content = arguments.values().map(text).collect::<Vec<_>>().join("\n");
    Ok(Reply {
        content,
        tool_calls: vec![ToolCall {
            name: head.to_owned(),
            arguments,
        }],
        ..Reply::default()
    })
}
