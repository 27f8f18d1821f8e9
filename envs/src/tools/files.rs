//! The `files` tools: list, read, write and edit. The directory lives in the sandbox's memory, where no path or link leads out.

use std::collections::BTreeMap;

use mipu_sandbox::Files;

/// Text of a file.
///
/// # Errors
/// With the reason for the agent.
pub(crate) fn read(files: &Files, path: &str) -> Result<String, String> {
    let bytes = files.read(path).map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|_| format!("not UTF-8 text: {path}"))
}

/// Writes a file.
///
/// # Errors
/// With the reason for the agent.
pub(crate) fn write(files: &Files, path: &str, content: &[u8]) -> Result<(), String> {
    files.write(path, content).map_err(|error| error.to_string())
}

/// Replaces the only occurrence of `old`.
///
/// # Errors
/// With the reason for the agent.
pub(crate) fn edit(files: &Files, path: &str, old: &str, new: &str) -> Result<(), String> {
    let text = read(files, path)?;
    match text.matches(old).count() {
        _ if old.is_empty() => Err("`old` is empty".to_owned()),
        1 => write(files, path, text.replacen(old, new, 1).as_bytes()),
        0 => Err(format!("`old` does not occur in {path}")),
        count => Err(format!("`old` occurs {count} times in {path}; it must be unique")),
    }
}

/// One line a file, sorted: path and bytes.
pub(crate) fn list(files: &Files) -> String {
    let lines: Vec<String> = files
        .list()
        .iter()
        .map(|file| format!("{} {}", file.path, file.bytes))
        .collect();
    if lines.is_empty() {
        "(no files)".to_owned()
    } else {
        lines.join("\n")
    }
}

/// Every file with its content.
pub(crate) fn collect(files: &Files) -> BTreeMap<String, Vec<u8>> {
    let listed = files.list().into_iter();
    listed
        .filter_map(|file| files.read(&file.path).ok().map(|content| (file.path, content)))
        .collect()
}
