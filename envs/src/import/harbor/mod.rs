//! Harbor task directories: what can run without a container becomes a task file, the rest is refused with the reason.
//!
//! Importable is a task whose environment is files of text, whose tests are plain Python functions, and whose solution writes files or runs
//! Python. Tests that look at files become a `python` reward; tests that call one function of a file become unit tests, in which the
//! agent's code runs in an interpreter of its own.

mod container;
mod shell;
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::output::{self, Draft, object};
use super::{ImportError, Options, Refused, Report};
use crate::diagnostic::Diagnostic;

/// Why a task cannot be imported.
type Reason = String;

/// The agent's directory here; a container's working directory becomes it.
const HOME: &str = "/work";
/// Directories below the source in which tasks are looked for.
const MAX_DEPTH: usize = 6;
/// Bytes of one text file of a task.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// What of `task.toml` matters here.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    task: TaskTable,
    environment: EnvironmentTable,
    verifier: VerifierTable,
    steps: Vec<toml::Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TaskTable {
    description: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EnvironmentTable {
    docker_image: Option<String>,
    gpus: f64,
    memory_mb: Option<f64>,
    mcp_servers: Vec<toml::Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct VerifierTable {
    timeout_sec: Option<f64>,
}

pub(super) fn import(options: &Options) -> Result<Report, ImportError> {
    let mut directories = Vec::new();
    find(&options.source, 0, &mut directories)?;
    if directories.is_empty() {
        let hint = "a Harbor task is a directory with `task.toml` and `instruction.md`".to_owned();
        return Err(
            Diagnostic::whole(&options.source, "there is no `task.toml` in it")
                .with_hint(hint)
                .into(),
        );
    }
    if options.name.is_some() && directories.len() > 1 {
        let message = "a name fits one task; this directory has several";
        return Err(ImportError::Option(message.to_owned()));
    }
    let mut report = Report::default();
    for directory in directories {
        match draft(&directory, options.name.as_deref()) {
            Ok(draft) => {
                report.tasks.push(output::write(&options.out_dir, &draft)?);
                report.rows += 1;
            }
            Err(reason) => report.refused.push(Refused {
                task: directory
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned(),
                reason,
            }),
        }
    }
    Ok(report)
}

/// Task directories at and below `directory`, in order; links are not followed.
fn find(directory: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), ImportError> {
    if directory.join("task.toml").is_file() {
        found.push(directory.to_owned());
        return Ok(());
    }
    if depth >= MAX_DEPTH {
        return Ok(());
    }
    for (path, kind) in entries(directory).map_err(|source| ImportError::Io {
        action: "read",
        path: directory.to_owned(),
        source,
    })? {
        let hidden = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if kind.is_dir() && !hidden {
            find(&path, depth + 1, found)?;
        }
    }
    Ok(())
}

/// The entries of a directory in order of name.
fn entries(directory: &Path) -> std::io::Result<Vec<(PathBuf, fs::FileType)>> {
    let mut entries = fs::read_dir(directory)?
        .map(|entry| entry.and_then(|entry| Ok((entry.path(), entry.file_type()?))))
        .collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(entries)
}

/// The text of a file of the task.
fn text(path: &Path) -> Result<String, Reason> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match fs::metadata(path) {
        Ok(data) if data.len() > MAX_FILE_BYTES => {
            Err(format!("{name} has more than {MAX_FILE_BYTES} bytes"))
        }
        _ => match fs::read(path).map(String::from_utf8) {
            Ok(Ok(text)) => Ok(text.replace("\r\n", "\n")),
            Ok(Err(_)) => Err(format!("{name} is not text")),
            Err(error) => Err(format!("{name} cannot be read: {error}")),
        },
    }
}

fn draft(directory: &Path, asked: Option<&str>) -> Result<Draft, Reason> {
    let config: Config = toml::from_str(&text(&directory.join("task.toml"))?)
        .map_err(|error| format!("task.toml: {}", error.message()))?;
    config.check()?;
    let environment = container::read(
        &directory.join("environment"),
        config.environment.docker_image.as_deref(),
    )?;
    let home = |text: &str| match environment.home.as_str() {
        "/" => text.to_owned(),
        home => text.replace(home, HOME),
    };
    let instruction = text(&directory.join("instruction.md"))?;
    let tests = tests::read(&directory.join("tests"), &home)?;
    let solution = shell::read(&directory.join("solution"), &home)?;
    let mut row = Map::new();
    let mut keep = |name: String, text: String| {
        let template = format!("{{{{ {name} }}}}");
        row.insert(name, Value::String(text));
        template
    };
    let instruction = keep("instruction".to_owned(), home(without_canary(&instruction)));
    let mut workspace = Map::new();
    for (index, (path, content)) in environment.files.into_iter().enumerate() {
        workspace.insert(path, Value::String(keep(format!("file_{index}"), content)));
    }
    let mut turns = Vec::new();
    for (index, step) in solution.iter().enumerate() {
        turns.push(match step {
            shell::Step::Write { path, content } => {
                let content = keep(format!("solution_{index}"), content.clone());
                json!({ "write_file": { "path": path, "content": content } })
            }
            shell::Step::Python(code) => json!({ "python": keep(format!("solution_{index}"), code.clone()) }),
        });
    }
    turns.push(json!({ "answer": "ok" }));
    let reward = match tests {
        tests::Tests::Files(checker) => json!({ "python": checker }),
        tests::Tests::Function { file, entry, code } => {
            json!({ "unit_tests": { "file": file, "entry": entry, "tests": keep("tests".to_owned(), code) } })
        }
    };
    let timeout_sec = config.verifier.timeout_sec.unwrap_or(30.0).clamp(1.0, 60.0);
    let memory_mb = config.environment.memory_mb.unwrap_or(256.0).clamp(128.0, 512.0) as u64;
    let max_turns = (turns.len() + 8).max(16);
    Ok(Draft {
        name: output::name(asked, directory),
        origin: "Imported from a Harbor task by `mipu task import`.".to_owned(),
        keys: object(json!({
            "description": config.task.description,
            "instruction": instruction,
            "tools": ["python", "files"],
            "limits": { "max_turns": max_turns, "max_tokens": 16384, "timeout_sec": timeout_sec, "memory_mb": memory_mb },
            "workspace": workspace,
            "split": { "validation": 0, "test": 0 },
            "reward": reward,
            "solution": { "turns": turns },
        })),
        rows: vec![row],
    })
}

impl Config {
    fn check(&self) -> Result<(), Reason> {
        if !self.steps.is_empty() {
            return Err(format!(
                "it has {} steps; an episode here has one",
                self.steps.len()
            ));
        }
        if self.environment.gpus > 0.0 {
            return Err("it needs a GPU".to_owned());
        }
        if !self.environment.mcp_servers.is_empty() {
            return Err("it needs MCP servers".to_owned());
        }
        Ok(())
    }
}

/// The instruction without the lines at its head that keep it out of training sets.
fn without_canary(text: &str) -> &str {
    let mut rest = text.trim_start();
    while let Some((line, below)) = rest.split_once('\n') {
        if !(line.to_lowercase().contains("canary") && line.starts_with(['#', '<'])) {
            break;
        }
        rest = below.trim_start();
    }
    rest.trim_end()
}
