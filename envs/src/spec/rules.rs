//! Reward rules as they are written.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::Spanned;

use super::{NonNegative, UnitTests};
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
