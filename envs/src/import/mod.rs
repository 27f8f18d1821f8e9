//! Makes task files of what other projects keep their problems in.
//!
//! What comes out is an ordinary task file beside ordinary JSON lines: to be read, edited and checked like one written by hand. Nothing
//! is fetched and nothing of the source is executed here; `doctor::check` does that afterwards, in the sandbox.

mod harbor;
mod human_eval;
mod jsonl;
mod output;
mod reasoning_gym;
mod source;

use std::path::PathBuf;
use std::str::FromStr;

use serde::Serialize;

use crate::diagnostic::{Diagnostic, suggestion};
use crate::task::TaskError;

/// What the source is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// JSON lines with `prompt`, `entry_point`, `canonical_solution` and `test`, plain or gzipped, as HumanEval's.
    HumanEval,
    /// JSON lines of any shape, with templates for the prompt and the expected answer.
    Jsonl,
    /// A Harbor task directory (`task.toml`, `instruction.md`, `tests/`, `solution/`), or a directory of such.
    Harbor,
    /// JSON lines with `question`, `answer` and `metadata`, as exported from reasoning-gym.
    ReasoningGym,
}

impl Format {
    /// Every format by its name on the command line.
    pub const ALL: [(&'static str, Self); 4] = [
        ("human-eval", Self::HumanEval),
        ("jsonl", Self::Jsonl),
        ("harbor", Self::Harbor),
        ("reasoning-gym", Self::ReasoningGym),
    ];
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.map(|&(_, format)| format).ok_or_else(|| {
            let hint = suggestion(name, Self::ALL.iter().map(|&(known, _)| known));
            format!("no import format {name:?}\nhint: {hint}")
        })
    }
}

/// How the answer of a [`Format::Jsonl`] row is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Comparison {
    /// The same text.
    #[default]
    Exact,
    /// The same number.
    Numeric,
    /// The expected text somewhere in the answer.
    Contains,
}

impl FromStr for Comparison {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "exact" => Ok(Self::Exact),
            "numeric" => Ok(Self::Numeric),
            "contains" => Ok(Self::Contains),
            _ => Err(format!(
                "no comparison {name:?}\nhint: one of exact, numeric, contains"
            )),
        }
    }
}

/// What to import and where to.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the source is.
    pub format: Format,
    /// The file or directory.
    pub source: PathBuf,
    /// Directory of the task files; made if need be. Nothing in it is overwritten.
    pub out_dir: PathBuf,
    /// Name of the task. Default: that of the source. Not for directories with several Harbor tasks.
    pub name: Option<String>,
    /// [`Format::Jsonl`]: template of the prompt. Default: the field `question`, `prompt`, `instruction`, `problem` or `input`.
    pub instruction: Option<String>,
    /// [`Format::Jsonl`]: template of the expected answer. Default: the field `answer`, `gold`, `target`, `output` or `solution`.
    pub answer: Option<String>,
    /// [`Format::Jsonl`]: how answers are compared. Default exact.
    pub comparison: Comparison,
    /// [`Format::ReasoningGym`]: Python file that defines `score_answer(answer, entry)`. Default: reasoning-gym's base rule, 1 for the
    /// answer itself.
    pub verifier: Option<PathBuf>,
}

impl Options {
    /// The defaults for a source.
    pub fn new(format: Format, source: impl Into<PathBuf>, out_dir: impl Into<PathBuf>) -> Self {
        Self {
            format,
            source: source.into(),
            out_dir: out_dir.into(),
            name: None,
            instruction: None,
            answer: None,
            comparison: Comparison::default(),
            verifier: None,
        }
    }
}

/// What an import came to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The task files written; data files lie beside them.
    pub tasks: Vec<PathBuf>,
    /// Rows in them.
    pub rows: usize,
    /// What could not be imported, and why.
    pub refused: Vec<Refused>,
}

/// A problem that was left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Its name in the source.
    pub task: String,
    /// Why it cannot be a task here.
    pub reason: String,
}

/// An import failed as a whole.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The source is not what it should be; the message has place and hint.
    #[error(transparent)]
    Source(#[from] Box<Diagnostic>),
    /// What was written is not a valid task file: its templates do not fit the rows, or the source has a shape that nobody foresaw.
    #[error("the imported task is not valid: {0}")]
    Task(#[from] TaskError),
    /// A file or directory could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// `read`, `write` or `make`.
        action: &'static str,
        /// Path it was tried on.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// An output exists.
    #[error("{} exists already\nhint: remove it, or choose another name or directory", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// An option that the format does not have, or a value it cannot have.
    #[error("{0}")]
    Option(String),
}

impl From<Diagnostic> for ImportError {
    fn from(diagnostic: Diagnostic) -> Self {
        Self::Source(Box::new(diagnostic))
    }
}

/// Imports `options.source`; on success run `doctor::check` on what was written.
///
/// # Errors
/// When the source cannot be read or is not of its format, when an output exists or cannot be written. A Harbor task that cannot run
/// here is no error: it is listed in [`Report::refused`].
pub fn run(options: &Options) -> Result<Report, ImportError> {
    let jsonl = options.format == Format::Jsonl;
    let given = [
        ("instruction", options.instruction.is_some(), jsonl),
        ("answer", options.answer.is_some(), jsonl),
        ("comparison", options.comparison != Comparison::default(), jsonl),
        (
            "verifier",
            options.verifier.is_some(),
            options.format == Format::ReasoningGym,
        ),
    ];
    if let Some((option, ..)) = given.iter().find(|(_, is_given, fits)| *is_given && !fits) {
        return Err(ImportError::Option(format!(
            "`{option}` is not an option of this format\nhint: it belongs to {}",
            if *option == "verifier" {
                "reasoning-gym"
            } else {
                "jsonl"
            }
        )));
    }
    match options.format {
        Format::HumanEval => human_eval::import(options),
        Format::Jsonl => jsonl::import(options),
        Format::Harbor => harbor::import(options),
        Format::ReasoningGym => reasoning_gym::import(options),
    }
}
