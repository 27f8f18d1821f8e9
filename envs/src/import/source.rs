//! Reading sources: JSON lines, plain or gzipped, with the line in every error.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::MultiGzDecoder;
use serde_json::{Map, Value};

use super::ImportError;
use crate::data;
use crate::diagnostic::{Diagnostic, Place, suggestion};

/// Longest text of a source in bytes: a small gzip file can hold any amount.
const MAX_BYTES: u64 = 1 << 30;
/// Longest line that an error shows.
const SHOWN_BYTES: usize = 160;

/// The rows of a file of JSON objects, one a line.
pub(super) fn rows(path: &Path) -> Result<Vec<Map<String, Value>>, ImportError> {
    let text = text(path)?;
    let rows = data::parse_jsonl(path, &text).map_err(|diagnostic| brief(*diagnostic))?;
    match rows.is_empty() {
        true => Err(Diagnostic::whole(path, "it has no row").into()),
        false => Ok(rows),
    }
}

/// Lines of a data set are long: an error shows their beginning.
fn brief(mut diagnostic: Diagnostic) -> Diagnostic {
    diagnostic.snippet = diagnostic
        .snippet
        .map(|line| crate::tools::cap(line, SHOWN_BYTES));
    if diagnostic.place.is_some_and(|place| place.column > SHOWN_BYTES) {
        diagnostic.snippet = None;
    }
    diagnostic
}

/// The text of a file, unpacked where its name ends in `.gz`.
pub(super) fn text(path: &Path) -> Result<String, ImportError> {
    let io = |source| ImportError::Io {
        action: "read",
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(io)?;
    let mut bytes = Vec::new();
    if path.extension().is_some_and(|extension| extension == "gz") {
        MultiGzDecoder::new(file)
            .take(MAX_BYTES + 1)
            .read_to_end(&mut bytes)
    } else {
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes)
    }
    .map_err(io)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Diagnostic::whole(path, format!("it holds more than {MAX_BYTES} bytes")).into());
    }
    String::from_utf8(bytes).map_err(|_| Diagnostic::whole(path, "it is not UTF-8 text").into())
}

/// Refuses a row without a text field that the format needs.
pub(super) fn require(path: &Path, rows: &[Map<String, Value>], fields: &[&str]) -> Result<(), ImportError> {
    for (index, row) in rows.iter().enumerate() {
        for field in fields {
            let message = match row.get(*field) {
                Some(Value::String(_)) => continue,
                Some(other) => format!(
                    "`{field}` of row {} must be text; got {}",
                    index + 1,
                    crate::tools::cap(other.to_string(), 80)
                ),
                None => format!("row {} has no `{field}`", index + 1),
            };
            let hint = match row.contains_key(*field) {
                true => None,
                false => Some(suggestion(field, row.keys().map(String::as_str))),
            };
            let place = Place::default();
            return Err(Diagnostic::at(path, "", place, message).with_hint(hint).into());
        }
    }
    Ok(())
}
