//! Reads a typed YAML file with `a.b=c` overrides; errors carry file, line, column, snippet and hint.

use std::path::{Path, PathBuf};

use mipu_envs::diagnostic::{Diagnostic, from_yaml};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A configuration file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// File.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The text does not fit the schema: file, line, column, snippet and hint.
    #[error(transparent)]
    Parse(#[from] Box<Diagnostic>),
    /// An override is malformed or does not fit.
    #[error("override `{text}`: {message}\nhint: write `section.key=value`, e.g. `rollout.group_size=4`")]
    Override {
        /// As given.
        text: String,
        /// What is wrong.
        message: String,
    },
    /// Sections contradict each other.
    #[error("{}: {message}\nhint: {hint}", path.display())]
    Invalid {
        /// File.
        path: PathBuf,
        /// What is wrong.
        message: String,
        /// How to mend it.
        hint: String,
    },
}

/// Loads a file into `T`.
///
/// # Errors
/// On an unreadable file, a schema error, or a bad override.
pub fn load<T: DeserializeOwned>(path: &Path, overrides: &[String]) -> Result<T, ConfigError> {
    load_expanded(path, overrides, |_| false)
}

/// As [`load`], with `expand` adding to the tree after the overrides; it returns whether it did.
///
/// # Errors
/// As for [`load`].
pub(crate) fn load_expanded<T: DeserializeOwned>(
    path: &Path,
    overrides: &[String],
    expand: impl FnOnce(&mut Value) -> bool,
) -> Result<T, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    // The file must be right by itself: its errors carry line and column, those of overrides cannot.
    let typed: T = from_yaml(path, &text)?;
    let mut tree: Value = from_yaml(path, &text)?;
    for item in overrides {
        apply(&mut tree, item)?;
    }
    if !expand(&mut tree) && overrides.is_empty() {
        return Ok(typed);
    }
    serde_json::from_value(tree).map_err(|e| ConfigError::Override {
        text: overrides.join(" "),
        message: e.to_string(),
    })
}

fn apply(tree: &mut Value, item: &str) -> Result<(), ConfigError> {
    let fail = |message: &str| ConfigError::Override {
        text: item.to_owned(),
        message: message.to_owned(),
    };
    let (key, value) = item.split_once('=').ok_or_else(|| fail("there is no `=`"))?;
    let value: Value = if value.is_empty() {
        Value::Null
    } else {
        serde_saphyr::from_str(value).map_err(|e| fail(&format!("the value is not YAML: {e}")))?
    };
    let mut parts = key.split('.').peekable();
    let mut node = tree;
    while let Some(part) = parts.next() {
        if part.is_empty() {
            return Err(fail("a key is empty"));
        }
        if !node.is_object() {
            // `algorithm.gate=never` then `algorithm.gate.mipu.c..=`: a scalar choice gives way to a map.
            *node = Value::Object(serde_json::Map::new());
        }
        let Value::Object(map) = node else {
            return Err(fail("the key does not lead to a map"));
        };
        if parts.peek().is_none() {
            map.insert(part.to_owned(), value);
            return Ok(());
        }
        node = map.entry(part.to_owned()).or_insert(Value::Null);
    }
    Err(fail("the key is empty"))
}

/// A path in a file is relative to the file; one that exists only from the current directory (a command-line override) stays.
pub fn relative_to(file: &Path, path: &Path) -> PathBuf {
    if path.is_absolute() {
        return path.to_owned();
    }
    let beside = file.parent().unwrap_or(Path::new("")).join(path);
    if !beside.exists() && path.exists() {
        path.to_owned()
    } else {
        beside
    }
}
