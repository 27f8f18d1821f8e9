//! The only place that writes to the terminal: data to standard output, words to standard error.

use std::io::Write;

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
