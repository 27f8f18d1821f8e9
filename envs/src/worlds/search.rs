//! A corpus to be searched: documents ranked by [BM25](super::bm25), and opened one at a time.
//!
//! The world pays nothing and never changes: what is rewarded is the answer, by any rule of the task file.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use mipu_sandbox::Sandbox;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::bm25::Bm25;
use super::{Chance, Effect, Kind, World};
use crate::diagnostic::{Diagnostic, Place};
use crate::env::Unscored;
use crate::message::{ToolCall, ToolSpec};
use crate::spec::{ByteCount, NonNegative, Probability, Setting, Turns};
use crate::task::Task;
use crate::template::{Fields, RenderError};
use crate::tools;

/// A corpus and how it is searched: the tools `search {query}` and `open {id}`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(try_from = "RawSearch")]
pub struct SearchSpec {
    /// Where the documents come from.
    pub corpus: Corpus,
    /// Documents that a search lists at most.
    pub results: Turns,
    /// Bytes of a document's text that a search shows.
    pub snippet_bytes: ByteCount,
    /// BM25's `k1`.
    pub k1: NonNegative,
    /// BM25's `b`.
    pub b: Probability,
}

/// Where the documents come from.
#[derive(Clone, Debug, JsonSchema)]
pub enum Corpus {
    /// In the task file, or a row's own.
    Documents(Setting<Vec<Document>>),
    /// One JSON object a line.
    Jsonl(String),
}

/// A document.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// What `open` takes; no two documents share one.
    pub id: String,
    /// Shown in the results and searched like the text. Default none.
    #[serde(default)]
    pub title: String,
    /// What `open` shows.
    pub text: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RawSearch {
    /// The documents, `[{id: .., title: .., text: ..}]`; a template (`"{{ documents }}"`) takes them from the row.
    #[serde(default)]
    documents: Option<Setting<Vec<Document>>>,
    /// Instead of `documents`: a file with one such JSON object a line; the path is relative to the task file.
    #[serde(default)]
    jsonl: Option<String>,
    /// Documents that a search lists at most. Default 5.
    #[serde(default)]
    results: Option<Turns>,
    /// Bytes of a document's text that a search shows; the rest must be opened. Default 120.
    #[serde(default)]
    snippet_bytes: Option<ByteCount>,
    /// BM25's `k1`: how much a term's repetition counts. Default 1.2.
    #[serde(default)]
    k1: Option<NonNegative>,
    /// BM25's `b`: how much its length is held against a document. Default 0.75.
    #[serde(default)]
    b: Option<Probability>,
}

impl TryFrom<RawSearch> for SearchSpec {
    type Error = String;

    fn try_from(raw: RawSearch) -> Result<Self, String> {
        let valid = "a default lies in its range";
        let corpus = match (raw.documents, raw.jsonl) {
            (Some(documents), None) => Corpus::Documents(documents),
            (None, Some(path)) => Corpus::Jsonl(path),
            _ => {
                return Err(
                    "a search takes exactly one of `documents` and `jsonl`\nhint: documents: [{id: a, text: ..}]"
                        .to_owned(),
                );
            }
        };
        Ok(Self {
            corpus,
            results: raw.results.unwrap_or_else(|| Turns::try_from(5).expect(valid)),
            snippet_bytes: raw
                .snippet_bytes
                .unwrap_or_else(|| ByteCount::try_from(120).expect(valid)),
            k1: raw.k1.unwrap_or_else(|| NonNegative::try_from(1.2).expect(valid)),
            b: raw.b.unwrap_or_else(|| Probability::try_from(0.75).expect(valid)),
        })
    }
}

/// Documents with their index.
#[derive(Debug)]
struct Library {
    documents: Vec<Document>,
    index: Bm25,
}

impl SearchSpec {
    fn library(&self, documents: Vec<Document>) -> Result<Library, String> {
        let mut ids = HashSet::new();
        if let Some(twice) = documents
            .iter()
            .find(|document| !ids.insert(document.id.as_str()))
        {
            return Err(format!("two documents have the id {:?}", twice.id));
        }
        if documents.is_empty() {
            return Err("the corpus has no document".to_owned());
        }
        let texts: Vec<String> = documents
            .iter()
            .map(|d| format!("{} {}", d.title, d.text))
            .collect();
        let index = Bm25::new(texts.iter().map(String::as_str), self.k1.get(), self.b.get());
        Ok(Library { documents, index })
    }

    fn of_fields(&self, fields: &Fields) -> Result<Option<Library>, RenderError> {
        match &self.corpus {
            Corpus::Documents(setting) => {
                let library = self.library(setting.get(fields)?);
                library.map(Some).map_err(|message| setting.problem(message))
            }
            Corpus::Jsonl(_) => Ok(None),
        }
    }

    /// Builds what the row describes.
    pub(crate) fn check(&self, fields: &Fields) -> Result<(), RenderError> {
        self.of_fields(fields).map(drop)
    }

    /// What the row decides.
    pub(crate) fn of_row(&self, fields: &Fields) -> Result<Value, RenderError> {
        match &self.corpus {
            Corpus::Documents(setting) => setting.of_row(fields),
            Corpus::Jsonl(_) => Ok(Value::Null),
        }
    }

    /// The kind, its corpus read if that is a file beside `task_file`, and the bytes of that file.
    pub(crate) fn read(&self, task_file: &Path) -> Result<(Search, Vec<u8>), Diagnostic> {
        let (library, bytes) = match &self.corpus {
            Corpus::Documents(_) => (None, Vec::new()),
            Corpus::Jsonl(name) => {
                let path = task_file.with_file_name(name);
                let text = std::fs::read_to_string(&path).map_err(|error| {
                    let hint = "the path is relative to the task file".to_owned();
                    Diagnostic::whole(&path, format!("the corpus cannot be read: {error}")).with_hint(hint)
                })?;
                let library = self
                    .library(documents(&path, &text)?)
                    .map_err(|message| Diagnostic::whole(&path, message))?;
                (Some(Arc::new(library)), text.into_bytes())
            }
        };
        let spec = self.clone();
        Ok((Search { spec, library }, bytes))
    }
}

/// The documents of a JSON lines file.
fn documents(path: &Path, text: &str) -> Result<Vec<Document>, Diagnostic> {
    let lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(above, line)| {
            serde_json::from_str(line).map_err(|error| {
                let place = Place {
                    line: above + 1,
                    column: error.column().max(1),
                };
                let message = error.to_string();
                let message = message
                    .rsplit_once(" at line ")
                    .map_or(message.as_str(), |(head, _)| head);
                let hint = "a document is {\"id\": .., \"title\": .., \"text\": ..}".to_owned();
                Diagnostic::at(path, text, place, format!("not a document: {message}")).with_hint(hint)
            })
        })
        .collect()
}

/// The kind.
#[derive(Debug)]
pub(crate) struct Search {
    spec: SearchSpec,
    /// The corpus that all rows share, if it is a file.
    library: Option<Arc<Library>>,
}

impl Kind for Search {
    fn name(&self) -> &str {
        "search"
    }

    fn tools(&self) -> Vec<ToolSpec> {
        let tool = |name: &str, description: &str, parameter: &str| ToolSpec {
            name: name.to_owned(),
            description: description.to_owned(),
            parameters: json!({
                "type": "object",
                "properties": { parameter: { "type": "string" } },
                "required": [parameter],
            }),
        };
        vec![
            tool("search", "Lists the documents that match a query best.", "query"),
            tool("open", "Shows a whole document by its id.", "id"),
        ]
    }

    fn open(&self, task: &Arc<Task>, _: &Sandbox, _seed: u64) -> Result<Box<dyn World>, Unscored> {
        let library = match &self.library {
            Some(library) => Arc::clone(library),
            None => {
                let own = self.spec.of_fields(&Fields::of(&task.row))?;
                Arc::new(own.expect("a corpus that is no file is the row's"))
            }
        };
        Ok(Box::new(Reader {
            library,
            results: self.spec.results.get(),
            snippet_bytes: self.spec.snippet_bytes.get(),
        }))
    }
}

/// A live episode.
struct Reader {
    library: Arc<Library>,
    results: usize,
    snippet_bytes: usize,
}

impl Reader {
    fn search(&self, query: &str) -> String {
        let found = self.library.index.search(query);
        let lines: Vec<String> = found
            .iter()
            .take(self.results)
            .map(|&(index, _)| {
                let Document { id, title, text } = &self.library.documents[index];
                let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
                let snippet = tools::cap(line, self.snippet_bytes);
                match title.is_empty() {
                    true => format!("[{id}] {snippet}"),
                    false => format!("[{id}] {title}: {snippet}"),
                }
            })
            .collect();
        match lines.is_empty() {
            true => "(no document matches)".to_owned(),
            false => lines.join("\n"),
        }
    }

    fn open(&self, id: &str) -> String {
        // A model may copy the brackets of the list.
        let id = id.trim().trim_start_matches('[').trim_end_matches(']');
        match self.library.documents.iter().find(|document| document.id == id) {
            Some(document) if document.title.is_empty() => document.text.clone(),
            Some(document) => format!("{}\n{}", document.title, document.text),
            None => format!("error: no document `{id}`; search first"),
        }
    }
}

#[async_trait::async_trait]
impl World for Reader {
    async fn call(&mut self, call: &ToolCall, _: &mut Chance) -> Result<Effect, Unscored> {
        let answer = match call.name.as_str() {
            "search" => tools::text(&call.arguments, "query").map(|query| self.search(query)),
            _ => tools::text(&call.arguments, "id").map(|id| self.open(id)),
        };
        Ok(Effect::say(answer.unwrap_or_else(|mistake| mistake)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_corpus_that_cannot_be_searched_is_refused() {
        let read = |yaml: &str| -> Result<(), String> {
            let spec: SearchSpec = serde_saphyr::from_str(yaml).map_err(|error| error.to_string())?;
            spec.check(&Fields::of(&serde_json::Map::new()))
                .map_err(|error| error.message)
        };
        read("documents: [{id: a, text: x}]").unwrap();
        for (yaml, reason) in [
            ("results: 3", "exactly one of `documents` and `jsonl`"),
            (
                "{documents: [{id: a, text: x}], jsonl: a.jsonl}",
                "exactly one of",
            ),
            ("documents: []", "no document"),
            (
                "documents: [{id: a, text: x}, {id: a, text: z}]",
                "two documents have the id \"a\"",
            ),
            ("documents: [{id: a}]", "missing field `text`"),
            ("{documents: [{id: a, text: x}], b: 2}", "[0, 1]"),
        ] {
            let error = read(yaml).unwrap_err();
            assert!(error.contains(reason), "{yaml}: {error}");
        }
    }

    #[test]
    fn a_line_that_is_no_document_is_named() {
        let text = "{\"id\": \"a\", \"text\": \"x\"}\n\n{\"id\": 3, \"text\": \"x\"}\n";
        let error = documents(Path::new("c.jsonl"), text).unwrap_err();
        assert_eq!(error.place.unwrap().line, 3);
        assert!(
            error.message.starts_with("not a document: invalid type"),
            "{error}"
        );
    }
}
