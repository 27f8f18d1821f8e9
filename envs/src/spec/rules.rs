//! Reward rules as they are written.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::Spanned;

use super::{NonNegative, Seconds};
use crate::diagnostic::Place;
use crate::template::{Template, ValueTemplate};

/// One rule and what is added to it. Without `partial` the reward is 1 if the rule holds entirely, else 0.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(try_from = "RawReward")]
pub struct RewardSpec {
    /// The rule.
    pub rule: Rule,
    /// Pay a partly satisfied rule its share (cases passed, weights satisfied). Default false.
    pub partial: bool,
    /// Subtracted for each turn after the first; the reward never falls below 0. Default 0.
    pub turn_penalty: NonNegative,
    /// Subtracted for each byte the agent wrote; the reward never falls below 0. Default 0.
    pub length_penalty: NonNegative,
}

/// A reward rule.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// The answer is this text (surrounding white space aside).
    Exact(Template),
    /// The answer is a number near this one.
    Numeric(Numeric),
    /// The answer contains a match of this pattern.
    Regex(Pattern),
    /// The answer contains this text, or all of these.
    Contains(Phrases),
    /// The answer is JSON of this shape.
    Json(JsonRule),
    /// The whole answer matches this pattern.
    Format(Pattern),
    /// The candidate passes these tests.
    UnitTests(Box<UnitTests>),
    /// `def reward(row, answer, files)` returns a number in [0, 1].
    Python(Checker),
    /// The environment's own return, clipped to [0, 1].
    Environment(EnvironmentRule),
    /// The worst of these; stops at the first 0.
    All(Vec<Rule>),
    /// The best of these; stops at the first 1.
    Any(Vec<Rule>),
    /// The weighted mean of these.
    Weighted(Vec<Weighted>),
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RawReward {
    /// The answer is this text (surrounding white space aside).
    #[serde(default)]
    exact: Option<Template>,
    /// The answer is a number near this one.
    #[serde(default)]
    numeric: Option<Numeric>,
    /// The answer contains a match of this pattern.
    #[serde(default)]
    regex: Option<Pattern>,
    /// The answer contains this text, or all of these.
    #[serde(default)]
    contains: Option<Phrases>,
    /// The answer is JSON of this shape.
    #[serde(default)]
    json: Option<JsonRule>,
    /// The whole answer matches this pattern.
    #[serde(default)]
    format: Option<Pattern>,
    /// The candidate passes these tests.
    #[serde(default)]
    unit_tests: Option<Box<UnitTests>>,
    /// `def reward(row, answer, files)` returns a number in [0, 1].
    #[serde(default)]
    python: Option<Checker>,
    /// The environment's own return, clipped to [0, 1].
    #[serde(default)]
    environment: Option<EnvironmentRule>,
    /// The worst of these; stops at the first 0.
    #[serde(default)]
    all: Option<Vec<Rule>>,
    /// The best of these; stops at the first 1.
    #[serde(default)]
    any: Option<Vec<Rule>>,
    /// The weighted mean of these.
    #[serde(default)]
    weighted: Option<Vec<Weighted>>,
    /// Pay a partly satisfied rule its share.
    #[serde(default)]
    partial: bool,
    /// Subtracted for each turn after the first.
    #[serde(default = "super::zero")]
    turn_penalty: NonNegative,
    /// Subtracted for each byte the agent wrote.
    #[serde(default = "super::zero")]
    length_penalty: NonNegative,
}

impl TryFrom<RawReward> for RewardSpec {
    type Error = String;

    fn try_from(raw: RawReward) -> Result<Self, String> {
        let rules = [
            raw.exact.map(Rule::Exact),
            raw.numeric.map(Rule::Numeric),
            raw.regex.map(Rule::Regex),
            raw.contains.map(Rule::Contains),
            raw.json.map(Rule::Json),
            raw.format.map(Rule::Format),
            raw.unit_tests.map(Rule::UnitTests),
            raw.python.map(Rule::Python),
            raw.environment.map(Rule::Environment),
            raw.all.map(Rule::All),
            raw.any.map(Rule::Any),
            raw.weighted.map(Rule::Weighted),
        ];
        let mut rules: Vec<Rule> = rules.into_iter().flatten().collect();
        let (Some(rule), true) = (rules.pop(), rules.is_empty()) else {
            return Err(
                "a reward takes exactly one rule\nhint: combine several with `all`, `any` or `weighted`"
                    .to_owned(),
            );
        };
        if rule.has_empty_list() {
            return Err(
                "`all`, `any` and `weighted` need at least one rule, and a positive weight".to_owned(),
            );
        }
        Ok(Self {
            rule,
            partial: raw.partial,
            turn_penalty: raw.turn_penalty,
            length_penalty: raw.length_penalty,
        })
    }
}

impl Rule {
    fn has_empty_list(&self) -> bool {
        match self {
            Self::All(rules) | Self::Any(rules) => rules.is_empty() || rules.iter().any(Self::has_empty_list),
            Self::Weighted(parts) => {
                parts.iter().map(|part| part.weight.get()).sum::<f64>() <= 0.0
                    || parts.iter().any(|part| part.rule.has_empty_list())
            }
            _ => false,
        }
    }
}

/// The rule `environment: {}`; it has no settings.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentRule {}

/// A rule and its weight.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Weighted {
    /// Share of the sum; weights need not add up to 1.
    pub weight: NonNegative,
    /// The rule.
    pub rule: Rule,
}

/// A number and how near the answer must be: `|answer - expected| <= max(tolerance, relative * |expected|)`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Numeric {
    /// The expected number.
    pub expected: Template,
    /// Absolute tolerance. Default 1e-6.
    #[serde(default = "micro")]
    pub tolerance: NonNegative,
    /// Relative tolerance. Default 0.
    #[serde(default = "super::zero")]
    pub relative: NonNegative,
}

fn micro() -> NonNegative {
    NonNegative::try_from(1e-6).expect("a default lies in its range")
}

/// A regular expression; placeholders insert row values (`| regex_escape` makes them literal).
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(try_from = "Template")]
pub struct Pattern(#[schemars(with = "String")] pub(crate) Template);

impl TryFrom<Template> for Pattern {
    type Error = String;

    fn try_from(template: Template) -> Result<Self, String> {
        if template.variables().is_empty()
            && !template.source().contains("{{")
            && !template.source().contains("{%")
        {
            regex::Regex::new(template.source()).map_err(|error| {
                let last = error
                    .to_string()
                    .lines()
                    .last()
                    .unwrap_or_default()
                    .trim()
                    .to_owned();
                format!("not a regular expression: {}", last.trim_start_matches("error: "))
            })?;
        }
        Ok(Self(template))
    }
}

/// One text or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Spanned<Value>")]
pub struct Phrases(pub(crate) Vec<Template>);

impl TryFrom<Spanned<Value>> for Phrases {
    type Error = String;

    fn try_from(spanned: Spanned<Value>) -> Result<Self, String> {
        let place = Place::of(&spanned.referenced);
        let phrases = match spanned.value {
            Value::Array(items) => items
                .into_iter()
                .map(|item| super::template(item, place))
                .collect(),
            value => super::template(value, place).map(|phrase| vec![phrase]),
        }?;
        if phrases.is_empty() {
            Err("`contains` needs at least one text".to_owned())
        } else {
            Ok(Self(phrases))
        }
    }
}

impl JsonSchema for Phrases {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Phrases".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] })
    }
}

/// What a JSON answer must satisfy; text in it is a template, and a whole `{{ expression }}` keeps its type.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct JsonRule {
    /// The whole value (numbers compare by value: `1 == 1.0`).
    pub equals: Option<ValueTemplate>,
    /// Members an object must have with these values, others allowed.
    pub includes: BTreeMap<String, ValueTemplate>,
    /// Members an object must have, by type.
    pub types: BTreeMap<String, JsonType>,
}

/// A JSON type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JsonType {
    /// Text.
    String,
    /// Any number.
    Number,
    /// A number without a fraction.
    Integer,
    /// True or false.
    Boolean,
    /// A list.
    Array,
    /// An object.
    Object,
    /// Null.
    Null,
}

/// Tests of a candidate, which runs in an untrusted sandbox session of its own; results are compared on the host.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(try_from = "RawUnitTests")]
pub struct UnitTests {
    /// Source of the candidate; may read `answer`. Default `{{ answer }}`.
    pub source: Template,
    /// File of the episode directory that holds the candidate, instead of `source`.
    pub file: Option<Template>,
    /// Calls and what they must return.
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
    /// File of the episode directory that holds the candidate, instead of `source`.
    #[serde(default)]
    file: Option<Template>,
    /// Calls and what they must return.
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
    Listed(Vec<Case>),
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
                    .map(|item| Case::read(item, place))
                    .collect::<Result<_, _>>()?,
            )),
            Value::String(text) => Template::new(text, place).map(Self::FromRow),
            other => Err(format!(
                "expected a list of cases or a template that yields one; got {other}"
            )),
        }
    }
}

impl JsonSchema for CaseList {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "CaseList".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "anyOf": [{ "type": "string" }, { "type": "array", "items": {
                "type": "object", "required": ["call", "expect"], "additionalProperties": false,
                "properties": { "call": { "type": "string" }, "expect": {} }
            } }]
        })
    }
}

/// One call and what it must return.
#[derive(Clone, Debug)]
pub struct Case {
    /// A Python expression, evaluated in the candidate's session.
    pub call: Template,
    /// Text is a Python literal (`"(1, 2)"`, `"'text'"`) or an expression, which costs a trusted session; else the value itself.
    pub expect: Expected,
}

/// What a call must return.
#[derive(Clone, Debug)]
pub enum Expected {
    /// A Python literal, or an expression evaluated in a trusted session.
    Expression(Template),
    /// The value itself.
    Value(Value),
}

impl Case {
    /// Reads `{call, expect}`; `place` is that of the list.
    ///
    /// # Errors
    /// When a key is missing, unknown or of another type.
    pub(crate) fn read(item: Value, place: Place) -> Result<Self, String> {
        let Value::Object(mut map) = item else {
            return Err(format!("a case is {{call: .., expect: ..}}; got {item}"));
        };
        let (call, expect) = (map.remove("call"), map.remove("expect"));
        if let Some(key) = map.keys().next() {
            let hint = crate::diagnostic::suggestion(key, ["call", "expect"]);
            return Err(format!("unknown key `{key}` in a case\nhint: {hint}"));
        }
        let (Some(Value::String(call)), Some(expect)) = (call, expect) else {
            return Err("a case needs `call`, a Python expression, and `expect`".to_owned());
        };
        let expect = match expect {
            Value::String(text) => Expected::Expression(Template::new(text, place)?),
            value => Expected::Value(value),
        };
        Ok(Self {
            call: Template::new(call, place)?,
            expect,
        })
    }
}

/// Source of a checker: `def reward(row, answer, files)`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct Checker(pub(crate) String);

impl TryFrom<String> for Checker {
    type Error = String;

    fn try_from(source: String) -> Result<Self, String> {
        if source.contains("def reward(") {
            Ok(Self(source))
        } else {
            Err(
                "a checker defines `reward`\nhint: def reward(row, answer, files): return 1.0 if .. else 0.0"
                    .to_owned(),
            )
        }
    }
}
