//! One problem, rendered, and what the rows of its file share.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mipu_sandbox::{Policy, Sandbox, SandboxError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::diagnostic::{Diagnostic, from_yaml, suggestion};
use crate::env::Env;
use crate::episode::Episode;
use crate::message::{Message, Role, ToolSpec};
use crate::reward::unit_tests::Remembered;
use crate::script::{Demonstrator, Missing, Script};
use crate::spec::{Environment, ScriptSource, TaskFile};
use crate::template::{Fields, RenderError, Template};
use crate::tools::Tool;
use crate::worlds::Kind;

/// Which part of a task's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// Rows the policy is trained on.
    Train,
    /// Rows the gate validates on.
    Validation,
    /// Rows for the final evaluation.
    Test,
}

/// A task file could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// The file is not valid; the message has line, column, snippet and hint.
    #[error(transparent)]
    Invalid(#[from] Box<Diagnostic>),
    /// The sandbox could not run the file's data generator.
    #[error("{}: the sandbox failed: {source}", path.display())]
    Sandbox {
        /// The task file.
        path: PathBuf,
        /// What failed.
        source: SandboxError,
    },
}

impl From<Diagnostic> for TaskError {
    fn from(diagnostic: Diagnostic) -> Self {
        Self::Invalid(Box::new(diagnostic))
    }
}

/// One problem: a row of a task file, rendered. Valid by construction.
#[derive(Clone, Debug)]
pub struct Task {
    /// `name/<content hash of the row>`.
    pub id: String,
    /// The row's fields.
    pub row: Map<String, Value>,
    /// The rendered system text.
    pub system: Option<String>,
    /// The rendered instruction.
    pub instruction: String,
    /// The split it belongs to.
    pub split: Split,
    /// Everything the rows share.
    pub spec: Arc<TaskSpec>,
}

/// What the rows of one file share.
#[derive(Debug)]
pub struct TaskSpec {
    /// Name of the task file.
    pub name: String,
    /// One sentence for people.
    pub description: String,
    /// Turn limit.
    pub max_turns: usize,
    /// Token limit of an episode (prompt and observations included).
    pub max_tokens: usize,
    /// Tools as the agent sees them.
    pub tools: Vec<ToolSpec>,
    pub(crate) toolbox: Vec<Tool>,
    pub(crate) kind: Option<Arc<dyn Kind>>,
    pub(crate) file: TaskFile,
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    /// Content of a file that the environment was read from.
    pub(crate) beside: Vec<u8>,
    pub(crate) remembered: Remembered,
    solution: Option<Script>,
    demonstration: Option<Script>,
}

impl TaskSpec {
    /// The task file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads and checks a task file (not its rows). `kinds` are the worlds written in Rust that it may name.
    ///
    /// # Errors
    /// On an invalid file.
    pub fn read(path: &Path, kinds: &[Arc<dyn Kind>]) -> Result<Self, TaskError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Diagnostic::whole(path, format!("cannot be read: {error}")))?;
        Self::from_text(path, text, kinds)
    }

    /// [`TaskSpec::read`] of `text`, the content of `path`.
    ///
    /// # Errors
    /// On an invalid file.
    pub(crate) fn from_text(path: &Path, text: String, kinds: &[Arc<dyn Kind>]) -> Result<Self, TaskError> {
        let file: TaskFile = from_yaml(path, &text)?;
        let toolbox: Vec<Tool> = file.tools.iter().flat_map(Tool::of).collect();
        let (kind, beside) = match &file.environment {
            Some(Environment::Custom(name)) => (Some(custom(path, name.as_str(), kinds)?), None),
            Some(environment) => environment.read(path)?.unzip(),
            None => (None, None),
        };
        let mut tools: Vec<ToolSpec> = toolbox.iter().map(Tool::spec).collect();
        tools.extend(kind.iter().flat_map(|kind| kind.tools()));
        let spec = Self {
            name: file.name.as_str().to_owned(),
            description: file.description.clone(),
            max_turns: file.limits.max_turns.get(),
            max_tokens: file.limits.max_tokens.get(),
            tools,
            solution: file
                .solution
                .clone()
                .map(|solution| Script::new(solution.script, "solve")),
            demonstration: file
                .demonstration
                .clone()
                .map(|source| Script::new(source, "demonstrate")),
            toolbox,
            kind,
            file,
            path: path.to_owned(),
            text,
            beside: beside.unwrap_or_default(),
            remembered: Remembered::default(),
        };
        spec.check_tools()?;
        Ok(spec)
    }

    /// Limits of every interpreter of an episode.
    pub(crate) fn policy(&self) -> Policy {
        let limits = &self.file.limits;
        Policy {
            deadline: limits.timeout_sec.duration(),
            memory_bytes: limits.memory_mb.get() << 20,
            ..Policy::default()
        }
    }

    /// Checks every template against the fields of a row.
    pub(crate) fn check_templates(&self, row: &Map<String, Value>) -> Result<(), TaskError> {
        let plain = Fields::of(row);
        let file = &self.file;
        let opening = std::iter::once(&file.instruction)
            .chain(&file.system)
            .chain(file.workspace.values());
        for template in opening {
            template.check(&plain).map_err(|error| self.at(&error))?;
        }
        let tests = self.toolbox.iter().filter_map(|tool| match tool {
            Tool::RunTests(tests) => Some(tests),
            _ => None,
        });
        let mut rules = Vec::new();
        tests.for_each(|tests| tests.templates(&mut rules));
        file.reward.rule.templates(&mut rules);
        let with_answer = Fields::with(row, "answer", "");
        for (template, reads_answer) in rules {
            template
                .check(if reads_answer { &with_answer } else { &plain })
                .map_err(|error| self.at(&error))?;
        }
        let observed = Fields::with(row, "observation", "");
        for template in self.scripts().flat_map(script_templates) {
            template.check(&observed).map_err(|error| self.at(&error))?;
        }
        Ok(())
    }

    /// The scripts of the file.
    fn scripts(&self) -> impl Iterator<Item = &ScriptSource> {
        let solution = self.file.solution.iter().map(|solution| &solution.script);
        solution.chain(&self.file.demonstration)
    }

    /// An error at a template's place in the file.
    pub(crate) fn at(&self, error: &RenderError) -> TaskError {
        Diagnostic::at(&self.path, &self.text, error.place, error.message.clone())
            .with_hint(error.hint.clone())
            .into()
    }

    fn check_tools(&self) -> Result<(), TaskError> {
        let mut names: Vec<&str> = self.tools.iter().map(|tool| tool.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Diagnostic::whole(&self.path, format!("tool `{}` is listed twice", pair[0])).into());
        }
        if let Some(Environment::ChatUser(_)) = &self.file.environment
            && !names.contains(&Tool::Submit.name())
        {
            let hint =
                "a text of the agent goes to the user: write `tools: [submit]`, which ends the episode";
            return Err(
                Diagnostic::whole(&self.path, "a `chat_user` needs the tool `submit`")
                    .with_hint(hint.to_owned())
                    .into(),
            );
        }
        names.push("answer");
        for turns in self.scripts() {
            let ScriptSource::Turns(turns) = turns else {
                continue;
            };
            if let Some(turn) = turns.iter().find(|turn| !names.contains(&turn.head.as_str())) {
                let message = format!(
                    "the script calls `{}`, which is not a tool of this task",
                    turn.head
                );
                let hint = suggestion(&turn.head, names.iter().copied());
                return Err(Diagnostic::at(&self.path, &self.text, turn.place(), message)
                    .with_hint(hint)
                    .into());
            }
        }
        Ok(())
    }
}

/// The kind of this name.
fn custom(path: &Path, name: &str, kinds: &[Arc<dyn Kind>]) -> Result<Arc<dyn Kind>, TaskError> {
    let found = kinds.iter().find(|kind| kind.name() == name);
    found.cloned().ok_or_else(|| {
        let hint = "a custom environment is Rust code: load the file with `TaskSet::load_with`".to_owned();
        let message = format!("the environment `{name}` is not built into this program");
        Diagnostic::whole(path, message).with_hint(hint).into()
    })
}

fn script_templates(source: &ScriptSource) -> Vec<&Template> {
    match source {
        ScriptSource::Turns(turns) => turns.iter().flat_map(|turn| turn.body.templates()).collect(),
        ScriptSource::Python(_) => Vec::new(),
    }
}

impl Task {
    /// Builds a fresh environment for one episode; `seed` rules its randomness.
    pub fn env(self: &Arc<Self>, sandbox: &Sandbox, seed: u64) -> Box<dyn Env> {
        Box::new(Episode::new(Arc::clone(self), sandbox.clone(), seed))
    }

    /// Plays the reference `solution`.
    pub fn solution(self: &Arc<Self>, sandbox: &Sandbox, seed: u64) -> Box<dyn Demonstrator> {
        match &self.spec.solution {
            Some(script) => script.play(self, sandbox, seed),
            None => Box::new(Missing("solution")),
        }
    }

    /// Plays the (possibly imperfect) `demonstration` used for the warm start; the `solution` where the task has none.
    pub fn demonstration(self: &Arc<Self>, sandbox: &Sandbox, seed: u64) -> Box<dyn Demonstrator> {
        match &self.spec.demonstration {
            Some(script) => script.play(self, sandbox, seed),
            None => self.solution(sandbox, seed),
        }
    }

    /// The opening messages of an episode.
    pub fn opening(&self) -> Vec<Message> {
        let system = self
            .system
            .iter()
            .map(|text| Message::new(Role::System, text.as_str()));
        system
            .chain(std::iter::once(Message::new(
                Role::User,
                self.instruction.as_str(),
            )))
            .collect()
    }

    /// The files of the episode directory at the start.
    pub(crate) fn workspace(&self) -> Result<BTreeMap<String, Vec<u8>>, RenderError> {
        let fields = Fields::of(&self.row);
        let render = |template: &Template| template.render(&fields).map(String::into_bytes);
        let files = self.spec.file.workspace.iter();
        files
            .map(|(path, template)| Ok((path.as_str().to_owned(), render(template)?)))
            .collect()
    }
}
