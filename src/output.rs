//! The only place that writes to the terminal: data to standard output, words to standard error.

use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;

/// Writes a line of talk to standard error.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Writes data to standard output; a closed pipe is the reader's choice, not an error.
pub(crate) fn data(text: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

/// Writes exactly one JSON object to standard output.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    data(&serde_json::to_string(value)?);
    Ok(())
}

/// An error as a person reads it: the message, its causes, and hints on lines of their own.
pub(crate) fn error_text(error: &anyhow::Error) -> String {
    let mut text = format!("error: {error}");
    let mut last = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !last.contains(&cause) {
            text.push_str(&format!("\n  caused by: {cause}"));
        }
        last = cause;
    }
    text
}

/// A report as one JSON object, or as `key  value` lines.
pub(crate) fn report(as_json: bool, report: &impl Serialize) -> anyhow::Result<ExitCode> {
    if as_json {
        json(report)?;
    } else {
        let mut lines = Vec::new();
        flatten(&serde_json::to_value(report)?, "", &mut lines);
        let width = lines.iter().map(|(key, _)| key.len()).max().unwrap_or(0);
        for (key, value) in lines {
            data(&format!("{key:width$}  {value}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn flatten(value: &serde_json::Value, prefix: &str, lines: &mut Vec<(String, String)>) {
    let join = |key: &str| {
        if prefix.is_empty() {
            key.to_owned()
        } else {
            format!("{prefix}.{key}")
        }
    };
    match value {
        serde_json::Value::Object(map) => {
            for (key, value) in map {
                flatten(value, &join(key), lines);
            }
        }
        serde_json::Value::Array(items) => {
            for (i, value) in items.iter().enumerate() {
                flatten(value, &join(&i.to_string()), lines);
            }
        }
        serde_json::Value::Number(n) if n.is_f64() => {
            lines.push((prefix.to_owned(), number(n.as_f64().unwrap_or_default())));
        }
        serde_json::Value::String(text) => lines.push((prefix.to_owned(), text.clone())),
        other => lines.push((prefix.to_owned(), other.to_string())),
    }
}

/// Four digits that matter, whatever the size.
fn number(value: f64) -> String {
    let size = value.abs();
    if value.fract().abs() < f64::EPSILON && size < 1e9 {
        format!("{value:.0}")
    } else if (1e-3..1e6).contains(&size) {
        format!("{value:.4}")
    } else {
        format!("{value:.3e}")
    }
}
