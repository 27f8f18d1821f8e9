//! The `unit_tests` rule and the `run_tests` tool, as they are written.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::Spanned;

use super::case::{self, Case, Demand};
use super::{NonNegative, Seconds};
use crate::diagnostic::Place;
use crate::template::Template;

/// Tests of a candidate, which runs in an untrusted sandbox session of its own; results are compared on the host.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(try_from = "RawUnitTests")]
pub struct UnitTests {
    /// Source of the candidate; may read `answer`. Default `{{ answer }}`.
    pub source: Template,
    /// File of the episode directory that holds the candidate, instead of `source`; it may import the other files.
    pub file: Option<Template>,
    /// Calls and what they must return or raise, and programs and what they must print.
    pub cases: CaseList,
    /// Assert-style test code, run in a trusted session; `entry` is a proxy of the candidate's function.
    pub tests: Option<Template>,
    /// The function that `tests` call.
    pub entry: Option<Template>,
    /// Absolute tolerance where a float is involved. Default 0.
    pub tolerance: NonNegative,
    /// Wall-clock limit of each case. Default: the task's `timeout_sec`.
    pub timeout_sec: Option<Seconds>,
    /// As a tool: tell which case failed and how. Default true.
    pub details: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RawUnitTests {
    /// Source of the candidate; may read `answer`. Default `{{ answer }}`.
    #[serde(default)]
    source: Option<Template>,
    /// File of the episode directory that holds the candidate, instead of `source`; it may import the other files.
    #[serde(default)]
    file: Option<Template>,
    /// Calls and what they must return or raise, and programs and what they must print.
    #[serde(default)]
    cases: CaseList,
    /// Assert-style test code, run in a trusted session; `entry` is a proxy of the candidate.
    #[serde(default)]
    tests: Option<Template>,
    /// The function that `tests` call.
    #[serde(default)]
    entry: Option<Template>,
    /// Absolute tolerance where a float is involved. Default 0.
    #[serde(default = "super::zero")]
    tolerance: NonNegative,
    /// Wall-clock limit of each case. Default: the task's `timeout_sec`.
    #[serde(default)]
    timeout_sec: Option<Seconds>,
    /// As a tool: tell which case failed and how. Default true.
    #[serde(default)]
    details: Option<bool>,
}

impl TryFrom<RawUnitTests> for UnitTests {
    type Error = String;

    fn try_from(raw: RawUnitTests) -> Result<Self, String> {
        if raw.cases.is_empty() && raw.tests.is_none() {
            return Err(
                "unit tests need `cases` or `tests`\nhint: cases: [{call: \"f(1)\", expect: \"2\"}]"
                    .to_owned(),
            );
        }
        if raw.tests.is_some() != raw.entry.is_some() {
            return Err(
                "`tests` and `entry` belong together\nhint: `entry` names the function the tests call"
                    .to_owned(),
            );
        }
        if raw.source.is_some() && raw.file.is_some() {
            return Err("`source` and `file` exclude each other".to_owned());
        }
        let whole = || Template::new("{{ answer }}".to_owned(), Place::default()).expect("a valid template");
        Ok(Self {
            source: raw.source.unwrap_or_else(whole),
            file: raw.file,
            cases: raw.cases,
            tests: raw.tests,
            entry: raw.entry,
            tolerance: raw.tolerance,
            timeout_sec: raw.timeout_sec,
            details: raw.details.unwrap_or(true),
        })
    }
}

/// Test cases: a list, or a template that yields one (`"{{ cases }}"`).
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Spanned<Value>")]
pub enum CaseList {
    /// Written in the file.
    Listed(Vec<Case<Template>>),
    /// Taken from the row.
    FromRow(Template),
}

impl CaseList {
    fn is_empty(&self) -> bool {
        matches!(self, Self::Listed(cases) if cases.is_empty())
    }
}

impl Default for CaseList {
    fn default() -> Self {
        Self::Listed(Vec::new())
    }
}

impl TryFrom<Spanned<Value>> for CaseList {
    type Error = String;

    fn try_from(spanned: Spanned<Value>) -> Result<Self, String> {
        let place = Place::of(&spanned.referenced);
        match spanned.value {
            Value::Array(items) => Ok(Self::Listed(
                items
                    .into_iter()
                    .map(|item| listed(item, place))
                    .collect::<Result<_, _>>()?,
            )),
            Value::String(text) => Template::new(text, place).map(Self::FromRow),
            other => Err(format!(
                "expected a list of cases or a template that yields one; got {other}"
            )),
        }
    }
}

/// A case of the file; `place` is that of the list.
fn listed(item: Value, place: Place) -> Result<Case<Template>, String> {
    let case = Case::read(item)?;
    let case = case.try_map(|text| Template::new(text.clone(), place))?;
    if let Demand::Raises { class, message, .. } = &case.demand {
        let fixed = |template: &Template| !template.source().contains(['{', '}']);
        if fixed(class) && !case::is_class_name(class.source()) {
            return Err(format!(
                "`raises` {:?} is not the name of an exception\nhint: write `raises: ValueError`",
                class.source()
            ));
        }
        if let Some(message) = message.as_ref().filter(|message| fixed(message)) {
            case::message_pattern(message.source())?;
        }
    }
    Ok(case)
}

impl JsonSchema for CaseList {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "CaseList".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "anyOf": [{ "type": "string", "description": "A template that yields the list" },
                      { "type": "array", "items": case::schema() }]
        })
    }
}
