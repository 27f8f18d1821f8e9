//! The rows of one or several task files, split by content and ordered by seed.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use mipu_sandbox::Sandbox;
use rand::seq::SliceRandom;

use crate::data::{self, Row};
use crate::diagnostic::{Diagnostic, Place};
use crate::env::Unscored;
use crate::seed::{self, Purpose};
use crate::spec::SplitShares;
use crate::task::{Split, Task, TaskError, TaskSpec};
use crate::template::{Fields, RenderError};
use crate::worlds::Kind;

/// The rows of one or several task files, by split.
///
/// A row's split depends on the content of its prompt alone (system, instruction, files and world), so rows that look the same to the
/// agent never stand on two sides, whatever the seed, the number of rows or their order.
#[derive(Clone, Debug)]
pub struct TaskSet {
    /// Rows for training.
    pub train: Vec<Arc<Task>>,
    /// Rows for the gate.
    pub validation: Vec<Arc<Task>>,
    /// Rows for evaluation.
    pub test: Vec<Arc<Task>>,
    /// blake3 over the content of every file and row.
    pub content_hash: String,
    /// What a person should know: duplicates dropped, fewer rows than asked.
    pub warnings: Vec<String>,
}

impl TaskSet {
    /// Loads task files; generators run in the sandbox.
    ///
    /// # Errors
    /// On an invalid file or overlapping splits.
    pub async fn load(paths: &[impl AsRef<Path>], sandbox: &Sandbox, seed: u64) -> Result<Self, TaskError> {
        Self::load_with(paths, sandbox, seed, &[]).await
    }

    /// [`TaskSet::load`] with worlds written in Rust, which the files name as `environment: { custom: name }`.
    ///
    /// # Errors
    /// As [`TaskSet::load`].
    pub async fn load_with(
        paths: &[impl AsRef<Path>],
        sandbox: &Sandbox,
        seed: u64,
        kinds: &[Arc<dyn Kind>],
    ) -> Result<Self, TaskError> {
        let mut loader = Loader::default();
        for path in paths.iter().map(AsRef::as_ref) {
            let spec = loader.enter(TaskSpec::read(path, kinds)?)?;
            let rows = data::load(&spec.file.data, path, &spec.text, sandbox, seed).await?;
            if let Some(task) = loader.add(&spec, rows)? {
                rehearse(&task, sandbox).await?;
            }
        }
        Ok(loader.finish(seed))
    }

    /// The rows of a task file in memory that brings them itself (`data: {rows: ..}`); `path` is what errors call it.
    ///
    /// # Errors
    /// As [`TaskSet::load`], and when the rows stand elsewhere.
    pub fn from_text(path: &Path, text: &str, seed: u64) -> Result<Self, TaskError> {
        let mut loader = Loader::default();
        let spec = loader.enter(TaskSpec::from_text(path, text.to_owned(), &[])?)?;
        let rows = data::inline(&spec.file.data, path, text)?;
        loader.add(&spec, rows)?;
        Ok(loader.finish(seed))
    }

    /// The rows of one split.
    pub fn split(&self, split: Split) -> &[Arc<Task>] {
        match split {
            Split::Train => &self.train,
            Split::Validation => &self.validation,
            Split::Test => &self.test,
        }
    }

    fn split_mut(&mut self, split: Split) -> &mut Vec<Arc<Task>> {
        match split {
            Split::Train => &mut self.train,
            Split::Validation => &mut self.validation,
            Split::Test => &mut self.test,
        }
    }
}

/// A set in the making.
struct Loader {
    set: TaskSet,
    hasher: blake3::Hasher,
    homes: HashMap<blake3::Hash, Split>,
    names: Vec<String>,
}

impl Default for Loader {
    fn default() -> Self {
        Self {
            set: TaskSet {
                train: Vec::new(),
                validation: Vec::new(),
                test: Vec::new(),
                content_hash: String::new(),
                warnings: Vec::new(),
            },
            hasher: blake3::Hasher::new(),
            homes: HashMap::new(),
            names: Vec::new(),
        }
    }
}

impl Loader {
    /// Admits a task file.
    fn enter(&mut self, spec: TaskSpec) -> Result<Arc<TaskSpec>, TaskError> {
        if self.names.contains(&spec.name) {
            let message = format!(
                "the name `{}` is that of another task file of this set",
                spec.name
            );
            return Err(Diagnostic::whole(&spec.path, message).into());
        }
        self.names.push(spec.name.clone());
        self.hasher.update(blake3::hash(spec.text.as_bytes()).as_bytes());
        self.hasher.update(&spec.beside);
        Ok(Arc::new(spec))
    }

    /// Adds the rows of a file; returns the task of the first.
    fn add(&mut self, spec: &Arc<TaskSpec>, rows: data::Rows) -> Result<Option<Arc<Task>>, TaskError> {
        for warning in rows.warnings {
            tracing::warn!(task = %spec.name, "{warning}");
            self.set
                .warnings
                .push(format!("{}: {warning}", spec.path.display()));
        }
        if let Some(first) = rows.rows.first() {
            spec.check_templates(&first.fields)?;
        }
        let mut first = None;
        for row in rows.rows {
            self.hasher.update(row.hash.as_bytes());
            let (task, prompt) = build(spec, row).map_err(|error| spec.at(&error))?;
            let home = *self.homes.entry(prompt).or_insert(task.split);
            if home != task.split {
                let message = format!(
                    "splits overlap: {:?} is in {home:?} and {:?}",
                    task.instruction, task.split
                );
                let hint = "give the task files the same `split`".to_owned();
                return Err(Diagnostic::whole(&spec.path, message).with_hint(hint).into());
            }
            let task = Arc::new(task);
            first.get_or_insert_with(|| Arc::clone(&task));
            self.set.split_mut(task.split).push(task);
        }
        Ok(first)
    }

    /// The set, in the order of `seed`.
    fn finish(mut self, seed: u64) -> TaskSet {
        for (index, split) in [Split::Train, Split::Validation, Split::Test]
            .into_iter()
            .enumerate()
        {
            self.set
                .split_mut(split)
                .shuffle(&mut seed::stream(seed, Purpose::Order, &[index as u64]));
        }
        self.set.content_hash = self.hasher.finalize().to_hex().to_string();
        self.set
    }
}

/// Opens the world of a row: what is written in Python or Rust shows what is wrong with it only when it runs.
async fn rehearse(task: &Arc<Task>, sandbox: &Sandbox) -> Result<(), TaskError> {
    let spec = &task.spec;
    let Some(kind) = &spec.kind else { return Ok(()) };
    let mut chance = seed::stream(0, Purpose::Environment, &[0, 1]);
    let opened = match kind.open(task, sandbox, 0) {
        Ok(mut world) => world.start(&mut chance).await.map(drop),
        Err(error) => Err(error),
    };
    opened.map_err(|Unscored { reason }| {
        let (message, hint) = match reason.split_once("\nhint: ") {
            Some((message, hint)) => (message, Some(hint.to_owned())),
            None => (reason.as_str(), None),
        };
        let line = spec
            .text
            .lines()
            .position(|line| line.starts_with("environment:"));
        let place = line.map_or_else(Place::default, |above| Place {
            line: above + 1,
            column: 1,
        });
        Diagnostic::at(&spec.path, &spec.text, place, message)
            .with_hint(hint)
            .into()
    })
}

/// The task of a row, and the hash of what the agent sees of it.
fn build(spec: &Arc<TaskSpec>, row: Row) -> Result<(Task, blake3::Hash), RenderError> {
    let fields = Fields::of(&row.fields);
    let world = match &spec.file.environment {
        Some(environment) => {
            environment.check(&fields)?;
            Some(environment.of_row(&fields, &row.fields)?)
        }
        None => None,
    };
    let instruction = spec.file.instruction.render(&fields)?;
    let system = spec
        .file
        .system
        .as_ref()
        .map(|template| template.render(&fields))
        .transpose()?;
    let mut task = Task {
        id: format!("{}/{}", spec.name, &row.hash.to_hex()[..16]),
        row: row.fields,
        system,
        instruction,
        split: Split::Train,
        spec: Arc::clone(spec),
    };
    let mut hasher = blake3::Hasher::new();
    let mut part = |text: &[u8]| {
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text);
    };
    part(task.system.as_deref().unwrap_or_default().as_bytes());
    part(task.instruction.as_bytes());
    for (path, content) in task.workspace()? {
        part(path.as_bytes());
        part(&content);
    }
    if let Some(world) = world {
        part(world.to_string().as_bytes());
    }
    let prompt = hasher.finalize();
    task.split = split_of(&prompt, spec.file.split);
    Ok((task, prompt))
}

/// The split of a prompt: its hash, read as a number in [0, 1), against the shares.
fn split_of(prompt: &blake3::Hash, shares: SplitShares) -> Split {
    let head = prompt.as_bytes()[..8]
        .try_into()
        .expect("a blake3 hash has 32 bytes");
    let position = u64::from_le_bytes(head) as f64 / 2f64.powi(64);
    if position < shares.test.get() {
        Split::Test
    } else if position < shares.test.get() + shares.validation.get() {
        Split::Validation
    } else {
        Split::Train
    }
}
