//! Rows: inline, JSON lines, or a seeded Python generator run in the sandbox; deduplicated by content.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use mipu_sandbox::{Outcome, Plain, Policy, Sandbox, Session};
use serde_json::{Map, Value};

use crate::diagnostic::{Diagnostic, Place};
use crate::python;
use crate::seed::{self, Purpose};
use crate::spec::DataSource;
use crate::task::TaskError;

/// Rows fetched from a generator by one call: few calls for thousands of rows, each far below the sandbox's size cap.
const CHUNK: usize = 500;
/// A generator that keeps repeating itself is stopped after this many yields for each row asked.
const MAX_YIELDS_PER_ROW: usize = 20;
/// Time a generator has for each chunk.
const GENERATOR_DEADLINE: Duration = Duration::from_secs(60);

/// Rows leave as one JSON text a chunk: the interpreter writes that several times faster than plain data, and the code is trusted.
const PRELUDE: &str = "
import itertools as _itertools, json as _json, random as _random
def _mipu_open(seed, count):
    global _mipu_rows
    _mipu_rows = iter(generate(_random.Random(seed), count))
def _mipu_take(count):
    rows = list(_itertools.islice(_mipu_rows, count))
    return _json.dumps(rows, allow_nan=False, separators=(',', ':'))
";

/// One row and the blake3 of its content.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// Its fields.
    pub fields: Map<String, Value>,
    /// blake3 of the fields, whatever their order.
    pub hash: blake3::Hash,
}

/// The distinct rows of a task file.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    /// In the order of the source.
    pub rows: Vec<Row>,
    /// How many rows repeated an earlier one.
    pub duplicates: usize,
    /// What a person should know.
    pub warnings: Vec<String>,
    seen: HashSet<blake3::Hash>,
}

impl Rows {
    fn push(&mut self, fields: Map<String, Value>) {
        let hash = content_hash(&fields);
        if self.seen.insert(hash) {
            self.rows.push(Row { fields, hash });
        } else {
            self.duplicates += 1;
        }
    }
}

/// Reads the rows of the task file at `path`, whose content is `text`.
///
/// # Errors
/// When the file or generator cannot be read or run, or yields no row.
pub(crate) async fn load(
    source: &DataSource,
    path: &Path,
    text: &str,
    sandbox: &Sandbox,
    seed: u64,
) -> Result<Rows, TaskError> {
    let mut rows = Rows::default();
    match source {
        DataSource::Rows(_) => return inline(source, path, text),
        DataSource::Jsonl(name) => read_jsonl(&path.with_file_name(name), &mut rows)?,
        DataSource::Python { source, count } => {
            let mut session = open_generator(source, count.get(), sandbox, seed)
                .await
                .map_err(|e| e.into_error(path, text))?;
            fill(&mut session, count.get(), &mut rows)
                .await
                .map_err(|e| e.into_error(path, text))?;
        }
    }
    rows.finish(source, path, text)
}

/// The rows that stand in the file itself.
///
/// # Errors
/// When they stand elsewhere, or there is none.
pub(crate) fn inline(source: &DataSource, path: &Path, text: &str) -> Result<Rows, TaskError> {
    let mut rows = Rows::default();
    match source {
        DataSource::Rows(inline) => inline.iter().for_each(|row| rows.push(row.clone())),
        DataSource::Jsonl(_) | DataSource::Python { .. } => {
            let message = "the rows of a file in memory stand in it";
            return Err(Diagnostic::at(path, text, data_place(text), message).into());
        }
    }
    rows.finish(source, path, text)
}

impl Rows {
    /// The rows, with what a person should know about them.
    fn finish(self, source: &DataSource, path: &Path, text: &str) -> Result<Self, TaskError> {
        let mut rows = self;
        if rows.rows.is_empty() {
            return Err(Diagnostic::at(path, text, data_place(text), "the data has no row").into());
        }
        // A generator that draws at random repeats itself now and then; it makes up for it.
        let (asked, tolerated) = match source {
            DataSource::Python { count, .. } => (count.get(), rows.rows.len() / 10),
            _ => (0, 0),
        };
        if rows.duplicates > tolerated {
            rows.warnings
                .push(format!("{} duplicate rows were dropped", rows.duplicates));
        }
        if rows.rows.len() < asked {
            rows.warnings.push(format!(
                "the generator gave {} distinct rows of the {asked} asked",
                rows.rows.len()
            ));
        }
        Ok(rows)
    }
}

fn read_jsonl(path: &Path, rows: &mut Rows) -> Result<(), TaskError> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let hint = "the path is relative to the task file".to_owned();
        Diagnostic::whole(path, format!("cannot be read: {error}")).with_hint(hint)
    })?;
    parse_jsonl(path, &text)?
        .into_iter()
        .for_each(|row| rows.push(row));
    Ok(())
}

/// The objects of `text`, the content of `path`, one on each line; empty lines do not count.
///
/// # Errors
/// With the place of what is no object.
pub(crate) fn parse_jsonl(path: &Path, text: &str) -> Result<Vec<Map<String, Value>>, Box<Diagnostic>> {
    let mut rows = Vec::new();
    let lines = text.lines().enumerate();
    for (above, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |column, message: String| {
            let line = above + 1;
            Err(Box::new(Diagnostic::at(
                path,
                text,
                Place { line, column },
                message,
            )))
        };
        match serde_json::from_str(line) {
            Ok(Value::Object(fields)) => rows.push(fields),
            Ok(_) => return wrong(1, "expected a JSON object on each line".to_owned()),
            Err(error) => {
                let message = error.to_string();
                // The parser counts lines within this one; the place is that of the file.
                let message = message
                    .rsplit_once(" at line ")
                    .map_or(message.as_str(), |(message, _)| message);
                return wrong(error.column(), format!("not JSON: {message}"));
            }
        }
    }
    Ok(rows)
}

/// A generator failed: its own fault (a message for its author) or the host's.
enum GeneratorError {
    Author(String, Option<String>),
    Host(mipu_sandbox::SandboxError),
}

impl From<mipu_sandbox::SandboxError> for GeneratorError {
    fn from(error: mipu_sandbox::SandboxError) -> Self {
        Self::Host(error)
    }
}

impl GeneratorError {
    fn into_error(self, path: &Path, text: &str) -> TaskError {
        match self {
            Self::Author(message, hint) => Diagnostic::at(path, text, data_place(text), message)
                .with_hint(hint)
                .into(),
            Self::Host(source) => TaskError::Sandbox {
                path: path.to_owned(),
                source,
            },
        }
    }
}

async fn open_generator(
    source: &str,
    count: usize,
    sandbox: &Sandbox,
    seed: u64,
) -> Result<Session, GeneratorError> {
    let policy = Policy {
        deadline: GENERATOR_DEADLINE,
        ..Policy::default()
    };
    let mut session = sandbox
        .session(&policy, seed::derive(seed, Purpose::Data, &[0]))
        .await?;
    finished(session.exec(source, b"").await?)?;
    finished(session.exec(PRELUDE, b"").await?)?;
    let draws = seed::derive(seed, Purpose::Data, &[1]);
    let arguments = [Plain::Int(draws.to_string()), Plain::Int(count.to_string())];
    finished(session.call("_mipu_open", &arguments).await?)?;
    Ok(session)
}

async fn fill(session: &mut Session, count: usize, rows: &mut Rows) -> Result<(), GeneratorError> {
    let mut yields = 0;
    while rows.rows.len() < count && yields < count.saturating_mul(MAX_YIELDS_PER_ROW) {
        let asked = (count - rows.rows.len()).min(CHUNK);
        let outcome = finished(
            session
                .call("_mipu_take", &[Plain::Int(asked.to_string())])
                .await?,
        )?;
        let chunk = match &outcome.value {
            Some(Plain::Str(json)) => serde_json::from_str::<Vec<Value>>(json),
            _ => return Err(GeneratorError::Author("`generate` gave no rows".to_owned(), None)),
        };
        let chunk =
            chunk.map_err(|error| GeneratorError::Author(format!("a row is not JSON: {error}"), None))?;
        yields += chunk.len();
        let ended = chunk.len() < asked;
        for item in chunk {
            let Value::Object(fields) = item else {
                let message = format!(
                    "`generate` must yield dictionaries; got {}",
                    python::literal(&item)
                );
                return Err(GeneratorError::Author(
                    message,
                    Some("yield {\"field\": value, ..}".to_owned()),
                ));
            };
            if let Some((name, value)) = fields.iter().find(|(_, value)| holds_huge_number(value)) {
                let message = format!("`{name}` holds {value}, which does not fit 64 bits");
                return Err(GeneratorError::Author(
                    message,
                    Some("yield it as text: str(value)".to_owned()),
                ));
            }
            rows.push(fields);
        }
        if ended {
            break;
        }
    }
    Ok(())
}

/// An integer beyond 64 bits would silently have become a float.
fn holds_huge_number(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64() && number.as_f64().is_none_or(|x| x.abs() >= 2f64.powi(63)),
        Value::Array(items) => items.iter().any(holds_huge_number),
        Value::Object(map) => map.values().any(holds_huge_number),
        _ => false,
    }
}

/// The outcome, if the author's code ran to its end.
fn finished(outcome: Outcome) -> Result<Outcome, GeneratorError> {
    if outcome.status.is_success() {
        return Ok(outcome);
    }
    let what = crate::tools::python::observation(&outcome, GENERATOR_DEADLINE.as_secs_f64());
    let at = outcome
        .stderr
        .lines()
        .rev()
        .find(|line| line.trim_start().starts_with("File "))
        .map(str::trim);
    let last = what.lines().last().unwrap_or_default().to_owned();
    Err(GeneratorError::Author(
        format!("the data generator failed: {last}"),
        at.map(|line| format!("at {line}")),
    ))
}

/// The `data:` key of the task file.
fn data_place(text: &str) -> Place {
    match text.lines().position(|line| line.starts_with("data:")) {
        Some(above) => Place {
            line: above + 1,
            column: 1,
        },
        None => Place::default(),
    }
}

/// blake3 of a row's content; the order of keys does not matter.
pub(crate) fn content_hash(fields: &Map<String, Value>) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hash_map(&mut hasher, fields);
    hasher.finalize()
}

fn hash_map(hasher: &mut blake3::Hasher, map: &Map<String, Value>) {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    hasher.update(b"{").update(&(entries.len() as u64).to_le_bytes());
    for (key, value) in entries {
        hash_text(hasher, b'k', key);
        hash_value(hasher, value);
    }
}

fn hash_value(hasher: &mut blake3::Hasher, value: &Value) {
    match value {
        Value::Object(map) => hash_map(hasher, map),
        Value::Array(items) => {
            hasher.update(b"[").update(&(items.len() as u64).to_le_bytes());
            items.iter().for_each(|item| hash_value(hasher, item));
        }
        Value::String(text) => hash_text(hasher, b's', text),
        scalar => hash_text(hasher, b'v', &scalar.to_string()),
    }
}

fn hash_text(hasher: &mut blake3::Hasher, tag: u8, text: &str) {
    hasher
        .update(&[tag])
        .update(&(text.len() as u64).to_le_bytes())
        .update(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hash(value: Value) -> blake3::Hash {
        let Value::Object(map) = value else {
            unreachable!("rows are objects")
        };
        content_hash(&map)
    }

    #[test]
    fn the_hash_sees_content_and_not_order() {
        assert_eq!(
            hash(json!({"a": 1, "b": {"c": 2, "d": 3}})),
            hash(json!({"b": {"d": 3, "c": 2}, "a": 1}))
        );
        for (a, b) in [
            (json!({"a": 1}), json!({"a": "1"})),
            (json!({"a": 1}), json!({"a": 1.0})),
            (json!({"a": [1, 2]}), json!({"a": [2, 1]})),
            (json!({"a": ["1", "2"]}), json!({"a": ["12"]})),
            (json!({"a": null}), json!({})),
            (json!({"ab": "c"}), json!({"a": "bc"})),
        ] {
            assert_ne!(hash(a.clone()), hash(b.clone()), "{a} {b}");
        }
    }
}
