//! Writing tasks: a YAML file and its rows, checked before anybody relies on them.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::ImportError;
use crate::diagnostic::Diagnostic;
use crate::task::TaskSpec;

/// A task about to be written.
pub(super) struct Draft {
    /// Its name, and that of its files.
    pub name: String,
    /// Where it comes from, one line.
    pub origin: String,
    /// The keys of the task file, `version`, `name` and `data` aside.
    pub keys: Map<String, Value>,
    /// The rows. One row is written into the task file, more into a file of JSON lines.
    pub rows: Vec<Map<String, Value>>,
}

/// Writes a draft into `directory`; returns the path of the task file.
pub(super) fn write(directory: &Path, draft: &Draft) -> Result<PathBuf, ImportError> {
    let path = directory.join(format!("{}.yaml", draft.name));
    let rows = directory.join(format!("{}.jsonl", draft.name));
    let mut file = Map::new();
    file.insert("version".to_owned(), json!(1));
    file.insert("name".to_owned(), json!(draft.name));
    file.extend(draft.keys.clone());
    let inline = draft.rows.len() == 1;
    let data = match inline {
        true => json!({ "rows": draft.rows }),
        false => json!({ "jsonl": format!("{}.jsonl", draft.name) }),
    };
    file.insert("data".to_owned(), data);
    let options = serde_saphyr::ser_options! { prefer_block_scalars: true, folded_wrap_chars: usize::MAX };
    let yaml = serde_saphyr::to_string_with_options(&file, options)
        .map_err(|error| Diagnostic::whole(&path, format!("cannot be written as YAML: {error}")))?;
    let head = format!(
        "# {}\n# Check it before training: mipu task check FILE\n",
        draft.origin
    );
    for path in [&path, &rows] {
        if path.exists() {
            return Err(ImportError::Exists { path: path.clone() });
        }
    }
    std::fs::create_dir_all(directory).map_err(|source| ImportError::Io {
        action: "make",
        path: directory.to_owned(),
        source,
    })?;
    if !inline {
        let mut lines = String::new();
        for row in &draft.rows {
            lines.push_str(&Value::Object(row.clone()).to_string());
            lines.push('\n');
        }
        create(&rows, &lines)?;
    }
    create(&path, &format!("{head}{yaml}"))?;
    let spec = TaskSpec::read(&path, &[])?;
    for row in &draft.rows {
        spec.check_templates(row)?;
    }
    Ok(path)
}

fn create(path: &Path, text: &str) -> Result<(), ImportError> {
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|source| match source.kind() {
        std::io::ErrorKind::AlreadyExists => ImportError::Exists {
            path: path.to_owned(),
        },
        _ => ImportError::Io {
            action: "write",
            path: path.to_owned(),
            source,
        },
    })
}

/// The name a task gets: the one asked for, or made from that of the source.
pub(super) fn name(asked: Option<&str>, source: &Path) -> String {
    let text = match asked {
        Some(name) => name.to_owned(),
        None => {
            let file = source.file_name().unwrap_or_default().to_string_lossy();
            let stem = file.trim_end_matches(".gz");
            stem.trim_end_matches(".jsonl")
                .trim_end_matches(".json")
                .to_owned()
        }
    };
    if asked.is_some() {
        return text; // the task file's own check explains what a name may be
    }
    let mut name = String::new();
    let mut small = false;
    for c in text.chars() {
        match c {
            'a'..='z' | '0'..='9' | '_' => name.push(c),
            'A'..='Z' => {
                // HumanEval -> human-eval
                if small {
                    name.push('-');
                }
                name.push(c.to_ascii_lowercase());
            }
            _ if name.ends_with('-') || name.is_empty() => {}
            _ => name.push('-'),
        }
        small = c.is_ascii_lowercase();
    }
    let name = name.trim_end_matches('-');
    match name.is_empty() {
        true => "imported".to_owned(),
        false => name[..name.len().min(64)].to_owned(),
    }
}

/// The object of a `json!` literal.
pub(super) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => unreachable!("the literal is an object"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_source() {
        for (asked, source, expected) in [
            (None, "data/HumanEval.jsonl.gz", "human-eval"),
            (None, "GSM8K train.jsonl", "gsm8k-train"),
            (None, "über.jsonl", "ber"),
            (None, "..", "imported"),
            (Some("My task"), "x.jsonl", "My task"),
        ] {
            assert_eq!(name(asked, Path::new(source)), expected, "{source}");
        }
    }
}
