//! One test case, as a task file or a row writes it.

use regex::Regex;
use serde_json::{Map, Value};

use super::{NonNegative, Seconds};
use crate::diagnostic::suggestion;

/// Every key a case may have.
const KEYS: [&str; 8] = [
    "call",
    "expect",
    "raises",
    "match",
    "stdin",
    "stdout",
    "tolerance",
    "timeout_sec",
];
/// The forms of a case, for error messages.
const FORMS: &str =
    "hint: a case is {call: .., expect: ..}, {call: .., raises: ..} or {stdin: .., stdout: ..}";

/// What is asked of the candidate once. `T` is text: a template in a task file, plain text in a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Case<T> {
    /// What must happen.
    pub demand: Demand<T>,
    /// Absolute tolerance where a float is involved; the tests' own where absent.
    pub tolerance: Option<NonNegative>,
    /// Wall-clock limit; the tests' own where absent.
    pub timeout_sec: Option<Seconds>,
}

/// What must happen.
#[derive(Clone, Debug, PartialEq)]
pub enum Demand<T> {
    /// A call returns a value.
    Returns {
        /// A Python expression, evaluated in the candidate's session.
        call: T,
        /// Compared on the host.
        expect: Expected<T>,
    },
    /// A call raises an exception.
    Raises {
        /// A Python expression, evaluated in the candidate's session.
        call: T,
        /// A builtin exception (the class or a subclass of it), or the exact name of a class of the candidate's own.
        class: T,
        /// Pattern that the message must contain.
        message: Option<T>,
    },
    /// The candidate, run as a program of its own, prints a text.
    Prints {
        /// Its standard input.
        stdin: T,
        /// Compared without white space at the ends of lines and without empty last lines.
        stdout: T,
    },
}

/// What a call must return.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected<T> {
    /// A Python literal (`"(1, 2)"`, `"'text'"`), or an expression, which costs a trusted session.
    Expression(T),
    /// The value itself.
    Value(Value),
}

impl Case<String> {
    /// Reads a mapping.
    ///
    /// # Errors
    /// When a key is missing, unknown, of another type, or does not go with the others.
    pub(crate) fn read(item: Value) -> Result<Self, String> {
        let Value::Object(mut map) = item else {
            return Err(format!("a case is a mapping; got {item}\n{FORMS}"));
        };
        if let Some(key) = map.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return Err(format!(
                "unknown key `{key}` in a case\nhint: {}",
                suggestion(key, KEYS)
            ));
        }
        let tolerance = number(&mut map, "tolerance")?.map(NonNegative::try_from);
        let timeout_sec = number(&mut map, "timeout_sec")?.map(Seconds::try_from);
        Ok(Self {
            demand: demand(&mut map)?,
            tolerance: tolerance.transpose().map_err(|e| format!("`tolerance` {e}"))?,
            timeout_sec: timeout_sec
                .transpose()
                .map_err(|e| format!("`timeout_sec` {e}"))?,
        })
    }
}

fn demand(map: &mut Map<String, Value>) -> Result<Demand<String>, String> {
    let present: Vec<&str> = KEYS[..6]
        .iter()
        .copied()
        .filter(|key| map.contains_key(*key))
        .collect();
    match present[..] {
        ["call", "expect"] => Ok(Demand::Returns {
            call: text(map, "call")?,
            expect: match map.remove("expect") {
                Some(Value::String(text)) => Expected::Expression(text),
                value => Expected::Value(value.unwrap_or_default()),
            },
        }),
        ["call", "raises"] | ["call", "raises", "match"] => Ok(Demand::Raises {
            call: text(map, "call")?,
            class: text(map, "raises")?,
            message: match map.contains_key("match") {
                true => Some(text(map, "match")?),
                false => None,
            },
        }),
        ["stdout"] => Ok(Demand::Prints {
            stdin: String::new(),
            stdout: text(map, "stdout")?,
        }),
        ["stdin", "stdout"] => Ok(Demand::Prints {
            stdin: text(map, "stdin")?,
            stdout: text(map, "stdout")?,
        }),
        [] => Err(format!("an empty case\n{FORMS}")),
        _ => Err(format!("a case cannot have {}\n{FORMS}", list(&present))),
    }
}

fn list(keys: &[&str]) -> String {
    match keys {
        [only] => format!("`{only}` alone"),
        _ => keys
            .iter()
            .map(|key| format!("`{key}`"))
            .collect::<Vec<_>>()
            .join(" and "),
    }
}

fn text(map: &mut Map<String, Value>, key: &str) -> Result<String, String> {
    match map.remove(key) {
        Some(Value::String(text)) => Ok(text),
        // YAML reads an unquoted `stdout: 7` as a number.
        Some(value @ (Value::Number(_) | Value::Bool(_))) if matches!(key, "stdin" | "stdout" | "call") => {
            Ok(value.to_string())
        }
        Some(other) => Err(format!("`{key}` of a case must be text; got {other}")),
        None => Err(format!("a case needs `{key}`")),
    }
}

fn number(map: &mut Map<String, Value>, key: &str) -> Result<Option<f64>, String> {
    match map.remove(key) {
        None => Ok(None),
        Some(value) => match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Err(format!("`{key}` of a case must be a number; got {value}")),
        },
    }
}

impl<T> Case<T> {
    /// The same case with every text turned into something else.
    ///
    /// # Errors
    /// With the first that cannot be.
    pub(crate) fn try_map<U, E>(&self, mut turn: impl FnMut(&T) -> Result<U, E>) -> Result<Case<U>, E> {
        Ok(Case {
            demand: match &self.demand {
                Demand::Returns { call, expect } => Demand::Returns {
                    call: turn(call)?,
                    expect: match expect {
                        Expected::Expression(text) => Expected::Expression(turn(text)?),
                        Expected::Value(value) => Expected::Value(value.clone()),
                    },
                },
                Demand::Raises { call, class, message } => Demand::Raises {
                    call: turn(call)?,
                    class: turn(class)?,
                    message: message.as_ref().map(turn).transpose()?,
                },
                Demand::Prints { stdin, stdout } => Demand::Prints {
                    stdin: turn(stdin)?,
                    stdout: turn(stdout)?,
                },
            },
            tolerance: self.tolerance,
            timeout_sec: self.timeout_sec,
        })
    }

    /// Every text of the case.
    pub(crate) fn texts(&self) -> Vec<&T> {
        match &self.demand {
            Demand::Returns { call, expect } => match expect {
                Expected::Expression(text) => vec![call, text],
                Expected::Value(_) => vec![call],
            },
            Demand::Raises { call, class, message } => [Some(call), Some(class), message.as_ref()]
                .into_iter()
                .flatten()
                .collect(),
            Demand::Prints { stdin, stdout } => vec![stdin, stdout],
        }
    }
}

/// Whether `class` can name a Python class.
pub(crate) fn is_class_name(class: &str) -> bool {
    let mut letters = class.chars();
    letters.next().is_some_and(|c| c.is_alphabetic() || c == '_')
        && letters.all(|c| c.is_alphanumeric() || c == '_')
}

/// A pattern for a message.
///
/// # Errors
/// When it is not one.
pub(crate) fn message_pattern(pattern: &str) -> Result<Regex, String> {
    Regex::new(pattern).map_err(|_| format!("`match` {pattern:?} is not a regular expression"))
}

/// The JSON Schema of a case, for editors.
pub(super) fn schema() -> Value {
    let text = |description: &str| serde_json::json!({ "type": "string", "description": description });
    let scalar = |description: &str| serde_json::json!({ "type": ["string", "number", "boolean"], "description": description });
    let call = text("A Python expression, evaluated in the candidate's session");
    let form = |required: &[&str], own: Value| {
        let mut properties = serde_json::json!({
            "tolerance": { "type": "number", "minimum": 0, "description": "Absolute tolerance where a float is involved" },
            "timeout_sec": { "type": "number", "exclusiveMinimum": 0, "maximum": 600, "description": "Wall-clock limit of this case" },
        });
        if let (Value::Object(all), Value::Object(own)) = (&mut properties, own) {
            all.extend(own);
        }
        serde_json::json!({ "type": "object", "required": required, "additionalProperties": false, "properties": properties })
    };
    serde_json::json!({ "oneOf": [
        form(&["call", "expect"], serde_json::json!({
            "call": call,
            "expect": { "description": "The value, or text that is a Python literal (`\"(1, 2)\"`, `\"'text'\"`) or expression" },
        })),
        form(&["call", "raises"], serde_json::json!({
            "call": call,
            "raises": text("A builtin exception (subclasses match), or the exact name of the candidate's own"),
            "match": text("Regular expression that the message must contain"),
        })),
        form(&["stdout"], serde_json::json!({
            "stdin": scalar("Standard input of the candidate, run as a program"),
            "stdout": scalar("What it must print; white space at the ends of lines is ignored"),
        })),
    ] })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_forms_of_a_case() {
        for (item, expected) in [
            (json!({"call": "f()", "expect": 1}), "Returns"),
            (
                json!({"call": "f()", "expect": null, "tolerance": 0.1}),
                "Returns",
            ),
            (json!({"call": "f()", "raises": "ValueError"}), "Raises"),
            (
                json!({"call": "f()", "raises": "ValueError", "match": "bad"}),
                "Raises",
            ),
            (json!({"stdin": "1", "stdout": "2", "timeout_sec": 1}), "Prints"),
            (json!({"stdout": 7}), "Prints"),
            (json!({"call": "f()"}), "a case cannot have `call` alone"),
            (
                json!({"call": "f()", "expect": 1, "stdout": "1"}),
                "a case cannot have `call` and `expect` and `stdout`",
            ),
            (
                json!({"call": "f()", "expect": 1, "match": "x"}),
                "a case cannot have `call` and `expect` and `match`",
            ),
            (json!({"cal": "f()"}), "did you mean `call`?"),
            (
                json!({"call": "f()", "expect": 1, "tolerance": -1}),
                "`tolerance` must lie in [0, inf); got -1",
            ),
            (
                json!({"call": "f()", "expect": 1, "timeout_sec": "1"}),
                "`timeout_sec` of a case must be a number",
            ),
            (
                json!({"stdin": [], "stdout": ""}),
                "`stdin` of a case must be text; got []",
            ),
            (json!({}), "an empty case"),
            (json!([]), "a case is a mapping; got []"),
        ] {
            let got = match Case::read(item.clone()) {
                Ok(case) => format!("{case:?}"),
                Err(message) => message,
            };
            assert!(got.contains(expected), "{item}: {got}");
        }
    }
}
