//! The task file, version 1, as it is written: wire types without behaviour, every range checked while reading.

pub(crate) mod case;
pub(crate) mod environment;
mod range;
mod rules;
mod setting;
mod stochastic;
mod unit_tests;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

pub use case::{Case, Demand, Expected};
pub use environment::Environment;
pub use range::{
    ByteCount, Finite, Mebibytes, NonNegative, Probability, RowCount, Seconds, Share, TokenCount, Turns,
};
pub use rules::{
    Checker, EnvironmentRule, JsonRule, JsonType, Numeric, Pattern, Phrases, RewardSpec, Rule, Weighted,
};
pub use setting::{Lines, Setting};
pub use stochastic::{Latency, Stochastic, Truncation};
pub use unit_tests::{CaseList, UnitTests};

use crate::diagnostic::Place;
use crate::template::Template;

/// The JSON Schema of a task file, for editors.
pub fn json_schema() -> Value {
    schemars::schema_for!(TaskFile).to_value()
}

/// A task file, version 1.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskFile {
    /// Version of this format: 1.
    pub version: Version,
    /// Short name: lower-case letters, digits, `-` and `_`.
    pub name: Name,
    /// One sentence for people.
    #[serde(default)]
    pub description: String,
    /// First user message; a template over the row's fields.
    pub instruction: Template,
    /// System message.
    #[serde(default)]
    pub system: Option<Template>,
    /// Tools of an episode.
    #[serde(default)]
    pub tools: Vec<ToolChoice>,
    /// The world of an episode, with tools of its own. Default: none, the tools above are all there is.
    #[serde(default)]
    pub environment: Option<Environment>,
    /// Budgets.
    #[serde(default)]
    pub limits: Limits,
    /// Randomness of the environment.
    #[serde(default)]
    pub stochastic: Stochastic,
    /// Files in the episode directory at the start, by relative path.
    #[serde(default)]
    pub workspace: BTreeMap<WorkspacePath, Template>,
    /// Where the rows come from.
    pub data: DataSource,
    /// Shares of the rows kept from training.
    #[serde(default)]
    pub split: SplitShares,
    /// What is rewarded.
    pub reward: RewardSpec,
    /// Reference script: must score 1, or `min_reward` on average.
    #[serde(default)]
    pub solution: Option<Solution>,
    /// Script of the warm start, possibly imperfect; the `solution` where absent.
    #[serde(default)]
    pub demonstration: Option<ScriptSource>,
}

/// Format version; only 1 exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "u64")]
pub struct Version(u64);

impl TryFrom<u64> for Version {
    type Error = String;

    fn try_from(version: u64) -> Result<Self, String> {
        if version == 1 {
            Ok(Self(version))
        } else {
            Err(format!(
                "unsupported task version {version}; this build reads version 1\nhint: write `version: 1`"
            ))
        }
    }
}

/// Name of a task file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct Name(String);

impl Name {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        if !name.is_empty() && name.len() <= 64 && name.chars().all(plain) {
            Ok(Self(name))
        } else {
            Err(format!(
                "a name has 1..=64 of a-z, 0-9, `-` and `_`; got {name:?}\nhint: for example `fix-op`"
            ))
        }
    }
}

/// A relative path inside the episode directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct WorkspacePath(String);

impl WorkspacePath {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for WorkspacePath {
    type Error = String;

    fn try_from(path: String) -> Result<Self, String> {
        let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
        if path.split('/').all(plain) && !path.contains(['\0', '\\']) {
            Ok(Self(path))
        } else {
            Err(format!(
                "expected a relative path like `src/main.py`; got {path:?}"
            ))
        }
    }
}

/// A tool of an episode.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// A Python interpreter; its state and files survive between turns.
    Python,
    /// Runs the visible tests on a candidate; says `pass` or `fail`.
    RunTests(Box<UnitTests>),
    /// `list_files`, `read_file`, `write_file`, `edit_file` and `search_files` in the episode directory.
    Files,
    /// Ends the episode and has it scored.
    Submit,
}

/// Budgets of an episode.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Turns of the agent. Default 8.
    pub max_turns: Turns,
    /// Tokens of the whole episode, prompt and observations included. Default 4096.
    pub max_tokens: TokenCount,
    /// Wall-clock limit of each execution in the sandbox. Default 5.
    pub timeout_sec: Seconds,
    /// Memory of each sandboxed interpreter. Default 256.
    pub memory_mb: Mebibytes,
    /// Longest observation; what is longer is cut and marked. Default 4096.
    pub observation_bytes: ByteCount,
}

impl Default for Limits {
    fn default() -> Self {
        let valid = "a default lies in its range";
        Self {
            max_turns: Turns::try_from(8).expect(valid),
            max_tokens: TokenCount::try_from(4096).expect(valid),
            timeout_sec: Seconds::try_from(5.0).expect(valid),
            memory_mb: Mebibytes::try_from(256).expect(valid),
            observation_bytes: ByteCount::try_from(4096).expect(valid),
        }
    }
}

fn zero() -> NonNegative {
    NonNegative::try_from(0.0).expect("zero is not negative")
}

/// Shares of the rows for validation and test; the rest is for training.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "RawSplit")]
pub struct SplitShares {
    /// Share for the gate. Default 0.1.
    pub validation: Share,
    /// Share for the final evaluation. Default 0.1.
    pub test: Share,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct RawSplit {
    /// Share for the gate, which decides whether an update is kept. Default 0.1.
    validation: Share,
    /// Share for the final evaluation. Default 0.1.
    test: Share,
}

impl Default for RawSplit {
    fn default() -> Self {
        let SplitShares { validation, test } = SplitShares::default();
        Self { validation, test }
    }
}

impl Default for SplitShares {
    fn default() -> Self {
        let tenth = Share::try_from(0.1).expect("a default lies in its range");
        Self {
            validation: tenth,
            test: tenth,
        }
    }
}

impl TryFrom<RawSplit> for SplitShares {
    type Error = String;

    fn try_from(raw: RawSplit) -> Result<Self, String> {
        let held_out = raw.validation.get() + raw.test.get();
        if held_out < 1.0 {
            Ok(Self {
                validation: raw.validation,
                test: raw.test,
            })
        } else {
            Err(format!(
                "validation and test must leave rows for training; they sum to {held_out}"
            ))
        }
    }
}

/// Where the rows come from.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(try_from = "RawData")]
pub enum DataSource {
    /// Rows in the file.
    Rows(Vec<Map<String, Value>>),
    /// One JSON object a line; the path is relative to the task file.
    Jsonl(String),
    /// `def generate(rng, count)` yielding dictionaries, run in the sandbox.
    Python {
        /// The generator's source.
        source: String,
        /// Number of distinct rows.
        count: RowCount,
    },
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RawData {
    /// Rows in the file.
    #[serde(default)]
    rows: Option<Vec<Map<String, Value>>>,
    /// One JSON object a line; the path is relative to the task file.
    #[serde(default)]
    jsonl: Option<String>,
    /// `def generate(rng, count)` yielding dictionaries, run in the sandbox.
    #[serde(default)]
    python: Option<String>,
    /// Number of distinct rows of `python`.
    #[serde(default)]
    count: Option<RowCount>,
}

impl TryFrom<RawData> for DataSource {
    type Error = String;

    fn try_from(raw: RawData) -> Result<Self, String> {
        match (raw.rows, raw.jsonl, raw.python, raw.count) {
            (Some(rows), None, None, None) => Ok(Self::Rows(rows)),
            (None, Some(path), None, None) => Ok(Self::Jsonl(path)),
            (None, None, Some(source), Some(count)) => Ok(Self::Python { source, count }),
            (None, None, Some(_), None) => {
                Err("`python` needs `count`, the number of rows\nhint: add `count: 1000`".to_owned())
            }
            (_, _, None, Some(_)) => Err("`count` belongs to `python`\nhint: remove `count`".to_owned()),
            _ => Err("data takes exactly one of `rows`, `jsonl` and `python`".to_owned()),
        }
    }
}

/// The reference script.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(try_from = "RawSolution")]
pub struct Solution {
    /// The script.
    pub script: ScriptSource,
    /// Mean reward that it must reach over the rows of a task with chance in it; 1, the default, means every row.
    pub min_reward: Probability,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RawSolution {
    /// Fixed turns; a turn whose tool answered the failure text is repeated.
    #[serde(default)]
    turns: Option<Vec<TurnSource>>,
    /// A generator function `solve(row, rng)` that yields turns and is sent observations.
    #[serde(default)]
    python: Option<String>,
    /// Mean reward that it must reach over the rows of a task with chance in it. Default 1: every row is solved.
    #[serde(default = "whole")]
    min_reward: Probability,
}

fn whole() -> Probability {
    Probability::try_from(1.0).expect("a default lies in its range")
}

impl TryFrom<RawSolution> for Solution {
    type Error = String;

    fn try_from(raw: RawSolution) -> Result<Self, String> {
        let (turns, python) = (raw.turns, raw.python);
        Ok(Self {
            script: ScriptSource::try_from(RawScript { turns, python })?,
            min_reward: raw.min_reward,
        })
    }
}

/// A scripted agent.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(try_from = "RawScript")]
pub enum ScriptSource {
    /// Fixed turns; a turn whose tool answered the failure text is repeated.
    Turns(Vec<TurnSource>),
    /// A generator function `(row, rng)` that yields turns and is sent observations, run in the sandbox.
    Python(String),
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RawScript {
    /// Fixed turns; a turn whose tool answered the failure text is repeated.
    #[serde(default)]
    turns: Option<Vec<TurnSource>>,
    /// A generator function `(row, rng)` (`solve`, `demonstrate`) that yields turns and is sent observations.
    #[serde(default)]
    python: Option<String>,
}

impl TryFrom<RawScript> for ScriptSource {
    type Error = String;

    fn try_from(raw: RawScript) -> Result<Self, String> {
        match (raw.turns, raw.python) {
            (Some(turns), None) if turns.is_empty() => {
                Err("`turns` is empty\nhint: end with `- answer: ..`".to_owned())
            }
            (Some(turns), None) => Ok(Self::Turns(turns)),
            (None, Some(source)) => Ok(Self::Python(source)),
            _ => Err("a script takes exactly one of `turns` and `python`".to_owned()),
        }
    }
}

/// One scripted turn: `{answer: text}`, or `{tool: text}` / `{tool: {argument: text, ..}}`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(try_from = "BTreeMap<String, TurnBody>")]
pub struct TurnSource {
    /// `answer`, or the tool.
    pub head: String,
    /// Its text or arguments.
    pub body: TurnBody,
}

impl TryFrom<BTreeMap<String, TurnBody>> for TurnSource {
    type Error = String;

    fn try_from(map: BTreeMap<String, TurnBody>) -> Result<Self, String> {
        let count = map.len();
        match map.into_iter().next() {
            Some((head, body)) if count == 1 => Ok(Self { head, body }),
            _ => Err(format!("a turn has one key, a tool or `answer`; got {count}")),
        }
    }
}

impl TurnSource {
    /// Where its body stands.
    pub(crate) fn place(&self) -> Place {
        self.body
            .templates()
            .first()
            .map(|template| template.place())
            .unwrap_or_default()
    }
}

/// What a scripted turn says: one text, or arguments by name.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Spanned<Value>")]
pub enum TurnBody {
    /// The answer, or the tool's first required argument.
    Text(Template),
    /// Arguments by name.
    Arguments(BTreeMap<String, Template>),
}

impl TurnBody {
    /// Its templates.
    pub(crate) fn templates(&self) -> Vec<&Template> {
        match self {
            Self::Text(template) => vec![template],
            Self::Arguments(arguments) => arguments.values().collect(),
        }
    }
}

impl TryFrom<Spanned<Value>> for TurnBody {
    type Error = String;

    fn try_from(spanned: Spanned<Value>) -> Result<Self, String> {
        let place = Place::of(&spanned.referenced);
        match spanned.value {
            Value::Object(map) => {
                let arguments = map
                    .into_iter()
                    .map(|(name, value)| Ok((name, template(value, place)?)));
                Ok(Self::Arguments(arguments.collect::<Result<_, String>>()?))
            }
            value => Ok(Self::Text(template(value, place)?)),
        }
    }
}

/// A scalar as a template.
fn template(value: Value, place: Place) -> Result<Template, String> {
    match value {
        Value::String(text) => Template::new(text, place),
        Value::Number(_) | Value::Bool(_) => Template::new(value.to_string(), place),
        other => Err(format!("expected text; got {other}")),
    }
}

impl JsonSchema for TurnBody {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "TurnBody".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "anyOf": [{ "type": ["string", "number", "boolean"] }, { "type": "object" }] })
    }
}
