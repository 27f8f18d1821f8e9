//! The `files` tools: list, read, write, edit and search. The directory lives in the sandbox's memory, where no path or link leads out.

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

/// Lines that a search returns at most.
const MAX_HITS: usize = 100;

/// `path:line: text` of every line that matches, by path and line.
///
/// # Errors
/// With the reason for the agent.
pub(crate) fn search(files: &Files, pattern: &str) -> Result<String, String> {
    let pattern = regex::RegexBuilder::new(pattern)
        .size_limit(1 << 20)
        .build()
        .map_err(|error| {
            let text = error.to_string();
            let last = text.lines().last().unwrap_or_default();
            format!(
                "not a regular expression: {}",
                last.trim().trim_start_matches("error: ")
            )
        })?;
    let mut hits = Vec::new();
    for file in files.list() {
        // What is not text has no lines.
        let Ok(text) = read(files, &file.path) else {
            continue;
        };
        for (above, line) in text
            .lines()
            .enumerate()
            .filter(|(_, line)| pattern.is_match(line))
        {
            if hits.len() == MAX_HITS {
                hits.push(format!("(more than {MAX_HITS} lines match)"));
                return Ok(hits.join("\n"));
            }
            hits.push(format!("{}:{}: {line}", file.path, above + 1));
        }
    }
    Ok(if hits.is_empty() {
        "(no match)".to_owned()
    } else {
        hits.join("\n")
    })
}

/// Every file with its content.
pub(crate) fn collect(files: &Files) -> BTreeMap<String, Vec<u8>> {
    let listed = files.list().into_iter();
    listed
        .filter_map(|file| files.read(&file.path).ok().map(|content| (file.path, content)))
        .collect()
}
