//! The tools of an episode: what the agent sees of them and what they answer.

pub(crate) mod files;
pub(crate) mod python;
pub(crate) mod toolbox;
pub(crate) mod workspace;

use serde_json::{Map, Value, json};

use crate::message::ToolSpec;
use crate::spec::{ToolChoice, UnitTests};

/// A tool, by the name the agent calls.
#[derive(Clone, Debug)]
pub(crate) enum Tool {
    /// `python`.
    Python,
    /// `run_tests`.
    RunTests(Box<UnitTests>),
    /// `list_files`.
    ListFiles,
    /// `read_file`.
    ReadFile,
    /// `write_file`.
    WriteFile,
    /// `edit_file`.
    EditFile,
    /// `search_files`.
    SearchFiles,
    /// `submit`.
    Submit,
}

impl Tool {
    /// The tools of a choice in the task file.
    pub(crate) fn of(choice: &ToolChoice) -> Vec<Self> {
        match choice {
            ToolChoice::Python => vec![Self::Python],
            ToolChoice::RunTests(tests) => vec![Self::RunTests(tests.clone())],
            ToolChoice::Files => vec![
                Self::ListFiles,
                Self::ReadFile,
                Self::WriteFile,
                Self::EditFile,
                Self::SearchFiles,
            ],
            ToolChoice::Submit => vec![Self::Submit],
        }
    }

    /// The name the agent calls.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::RunTests(_) => "run_tests",
            Self::ListFiles => "list_files",
            Self::ReadFile => "read_file",
            Self::WriteFile => "write_file",
            Self::EditFile => "edit_file",
            Self::SearchFiles => "search_files",
            Self::Submit => "submit",
        }
    }

    /// What the agent sees.
    pub(crate) fn spec(&self) -> ToolSpec {
        let (description, parameters) = match self {
            Self::Python => (
                "Runs Python code and returns what it printed; variables and files survive.",
                required(&["code"]),
            ),
            Self::RunTests(tests) if tests.file.is_some() => {
                ("Runs the visible tests on the files as they are.", required(&[]))
            }
            Self::RunTests(_) => (
                "Runs the visible tests on a candidate answer.",
                required(&["answer"]),
            ),
            Self::ListFiles => ("Lists the files of the working directory.", required(&[])),
            Self::ReadFile => ("Returns the text of a file.", required(&["path"])),
            Self::WriteFile => (
                "Writes a file, replacing it if it exists.",
                required(&["path", "content"]),
            ),
            Self::EditFile => (
                "Replaces the only occurrence of `old` in a file by `new`.",
                required(&["path", "old", "new"]),
            ),
            Self::SearchFiles => (
                "Finds a regular expression in the files; one `path:line: text` for each matching line.",
                required(&["pattern"]),
            ),
            Self::Submit => (
                "Ends the task and submits the answer.",
                json!({ "type": "object", "properties": { "answer": { "type": "string" } }, "required": [] }),
            ),
        };
        ToolSpec {
            name: self.name().to_owned(),
            description: description.to_owned(),
            parameters,
        }
    }
}

fn required(names: &[&str]) -> Value {
    let properties: Map<String, Value> = names
        .iter()
        .map(|name| ((*name).to_owned(), json!({ "type": "string" })))
        .collect();
    json!({ "type": "object", "properties": properties, "required": names })
}

/// A text argument of a call.
///
/// # Errors
/// With the observation for the agent.
pub(crate) fn text<'a>(arguments: &'a Map<String, Value>, name: &str) -> Result<&'a str, String> {
    match arguments.get(name) {
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(format!("error: argument `{name}` must be text; got {other}")),
        None => Err(format!("error: missing argument `{name}`")),
    }
}

/// Name of the first required parameter, or of the first at all: where a single text argument goes.
pub(crate) fn first_parameter(spec: &ToolSpec) -> Option<&str> {
    let required = spec.parameters.get("required").and_then(Value::as_array);
    let first = required.and_then(|names| names.first()?.as_str());
    first.or_else(|| {
        Some(
            spec.parameters
                .get("properties")?
                .as_object()?
                .keys()
                .next()?
                .as_str(),
        )
    })
}

/// Cuts an observation to `limit` bytes at a character boundary and marks the cut.
pub(crate) fn cap(mut text: String, limit: usize) -> String {
    const MARK: &str = "...";
    if text.len() > limit {
        let mut end = limit.saturating_sub(MARK.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str(MARK);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_observation_keeps_whole_characters() {
        for (text, limit, expected) in [
            ("abcdefgh", 8, "abcdefgh"),
            ("abcdefghi", 8, "abcde..."),
            ("ééééé", 8, "éé..."),
            ("", 8, ""),
        ] {
            assert_eq!(cap(text.to_owned(), limit), expected);
        }
    }
}
