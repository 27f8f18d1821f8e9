//! The tools of a world in Python, and an agent's arguments read by their declared types.

use mipu_sandbox::Plain;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::message::ToolSpec;
use crate::python;
use crate::spec::Name;

/// A tool that `step` answers.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PythonTool {
    /// The name the agent calls, and the `tool` that `step` gets.
    name: Name,
    /// What the agent reads about it.
    #[serde(default)]
    description: String,
    /// Its parameters in order: a type (`integer`), or a JSON Schema of one (`{type: string, enum: [left, right]}`).
    #[serde(default)]
    parameters: Parameters,
    /// Parameters that a call may leave out. Default: none, all are required.
    #[serde(default)]
    optional: Vec<String>,
}

/// Parameters by name, each a JSON Schema.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(try_from = "Map<String, Value>")]
pub struct Parameters(Map<String, Value>);

/// Types that a parameter may have.
const TYPES: [&str; 6] = ["string", "integer", "number", "boolean", "array", "object"];

impl TryFrom<Map<String, Value>> for Parameters {
    type Error = String;

    fn try_from(map: Map<String, Value>) -> Result<Self, String> {
        let schema = |(name, value): (String, Value)| {
            let schema = match value {
                Value::String(kind) => json!({ "type": kind }),
                value => value,
            };
            match schema.get("type").and_then(Value::as_str) {
                Some(kind) if TYPES.contains(&kind) => Ok((name, schema)),
                _ => Err(format!(
                    "the parameter `{name}` has no known type\nhint: {name}: integer; types are {}",
                    TYPES.join(", ")
                )),
            }
        };
        Ok(Self(map.into_iter().map(schema).collect::<Result<_, _>>()?))
    }
}

impl JsonSchema for Parameters {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Parameters".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "object",
            "additionalProperties": { "anyOf": [
                { "enum": TYPES },
                { "type": "object", "properties": { "type": { "enum": TYPES } }, "required": ["type"] }
            ] }
        })
    }
}

impl PythonTool {
    /// Its name.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// What the agent sees.
    pub(super) fn spec(&self) -> ToolSpec {
        let required: Vec<&String> = self
            .parameters
            .0
            .keys()
            .filter(|name| !self.optional.contains(name))
            .collect();
        ToolSpec {
            name: self.name().to_owned(),
            description: self.description.clone(),
            parameters: json!({ "type": "object", "properties": self.parameters.0, "required": required }),
        }
    }

    /// The declared arguments as a Python dictionary; what a model wrote as text is read by its type.
    ///
    /// # Errors
    /// With the observation for the agent.
    pub(super) fn read(&self, arguments: &Map<String, Value>) -> Result<Plain, String> {
        let mut read = Vec::new();
        for (name, schema) in &self.parameters.0 {
            match arguments.get(name) {
                Some(value) => {
                    let kind = schema["type"].as_str().unwrap_or_default();
                    let value = typed(value, kind).ok_or_else(|| {
                        format!("error: argument `{name}` must be of type {kind}; got {value}")
                    })?;
                    if let Some(Value::Array(allowed)) = schema.get("enum")
                        && !allowed.contains(&value)
                    {
                        let allowed: Vec<String> = allowed.iter().map(Value::to_string).collect();
                        return Err(format!(
                            "error: argument `{name}` must be one of {}; got {value}",
                            allowed.join(", ")
                        ));
                    }
                    read.push((Plain::Str(name.clone()), python::to_plain(&value)));
                }
                None if self.optional.contains(name) => {}
                None => return Err(format!("error: missing argument `{name}`")),
            }
        }
        Ok(Plain::Dict(read))
    }
}

/// The value as one of this type, if it can be read so.
fn typed(value: &Value, kind: &str) -> Option<Value> {
    let whole = |x: f64| (x.fract() == 0.0 && x.abs() < 2f64.powi(53)).then_some(x as i64);
    match (kind, value) {
        ("string", Value::String(_))
        | ("number", Value::Number(_))
        | ("boolean", Value::Bool(_))
        | ("array", Value::Array(_))
        | ("object", Value::Object(_)) => Some(value.clone()),
        ("string", Value::Number(_) | Value::Bool(_)) => Some(Value::String(value.to_string())),
        ("integer", Value::Number(number)) if number.is_f64() => {
            number.as_f64().and_then(whole).map(Value::from)
        }
        ("integer", Value::Number(_)) => Some(value.clone()),
        ("string", _) => None,
        (_, Value::String(text)) => {
            // A sign that JSON does not know, as in `+3`.
            let text = text.trim();
            let parsed: Value = serde_json::from_str(text.strip_prefix('+').unwrap_or(text)).ok()?;
            match parsed {
                Value::String(_) => None,
                parsed => typed(&parsed, kind),
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_by_their_types() {
        for (value, kind, expected) in [
            (json!(7), "integer", Some(json!(7))),
            (json!(7.0), "integer", Some(json!(7))),
            (json!(" 7 "), "integer", Some(json!(7))),
            (json!("+7"), "integer", Some(json!(7))),
            (json!("-7"), "integer", Some(json!(-7))),
            (json!(7.5), "integer", None),
            (json!(true), "integer", None),
            (json!("seven"), "integer", None),
            (json!("1e400"), "number", None),
            (json!("2.5"), "number", Some(json!(2.5))),
            (json!("true"), "boolean", Some(json!(true))),
            (json!(1), "boolean", None),
            (json!(3), "string", Some(json!("3"))),
            (json!([1]), "string", None),
            (json!("[1, 2]"), "array", Some(json!([1, 2]))),
            (json!("{\"a\": 1}"), "object", Some(json!({"a": 1}))),
            (json!(null), "string", None),
            (json!("\"7\""), "integer", None),
        ] {
            assert_eq!(typed(&value, kind), expected, "{value} as {kind}");
        }
    }

    #[test]
    fn a_tool_says_what_is_wrong_with_a_call() {
        let yaml = "{name: turn, parameters: {side: {type: string, enum: [left, right]}, times: integer}, optional: [times]}";
        let tool: PythonTool = serde_saphyr::from_str(yaml).unwrap();
        assert_eq!(tool.spec().parameters["required"], json!(["side"]));
        let read = |arguments: Value| {
            tool.read(arguments.as_object().unwrap())
                .map(|plain| python::show(&plain))
        };
        assert_eq!(
            read(json!({"times": "2", "side": "left", "more": 1})).unwrap(),
            "{'side': 'left', 'times': 2}"
        );
        assert_eq!(read(json!({"side": "right"})).unwrap(), "{'side': 'right'}");
        for (arguments, expected) in [
            (json!({}), "error: missing argument `side`"),
            (
                json!({"side": "up"}),
                "error: argument `side` must be one of \"left\", \"right\"; got \"up\"",
            ),
            (
                json!({"side": "left", "times": "x"}),
                "error: argument `times` must be of type integer; got \"x\"",
            ),
        ] {
            assert_eq!(read(arguments).unwrap_err(), expected);
        }
        let bad = serde_saphyr::from_str::<PythonTool>("{name: a, parameters: {x: int}}").unwrap_err();
        assert!(bad.to_string().contains("types are string, integer"), "{bad}");
    }
}
