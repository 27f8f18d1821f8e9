//! The `json` rule: shape and members of a JSON answer.

use serde_json::Value;

use crate::env::Unscored;
use crate::spec::{JsonRule, JsonType};
use crate::template::Fields;

/// Share of the rule's demands that the answer satisfies; 0 if it is not JSON.
pub(super) fn score(answer: &str, rule: &JsonRule, fields: &Fields) -> Result<f64, Unscored> {
    let Ok(answer) = serde_json::from_str::<Value>(answer.trim()) else {
        return Ok(0.0);
    };
    let (mut met, mut demands) = (0, 0);
    let mut demand = |holds: bool| {
        demands += 1;
        met += usize::from(holds);
    };
    if let Some(expected) = &rule.equals {
        demand(equal(&answer, &expected.evaluate(fields)?));
    }
    for (name, expected) in &rule.includes {
        let expected = expected.evaluate(fields)?;
        demand(answer.get(name).is_some_and(|value| equal(value, &expected)));
    }
    for (name, kind) in &rule.types {
        demand(answer.get(name).is_some_and(|value| has_type(value, *kind)));
    }
    // Without demands, being JSON is enough.
    Ok(if demands == 0 {
        1.0
    } else {
        f64::from(met as u32) / f64::from(demands as u32)
    })
}

/// Equality by value: members in any order, `1` equals `1.0`, `true` is not a number.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            a == b
                || a.as_f64()
                    .zip(b.as_f64())
                    .is_some_and(|(a, b)| a.total_cmp(&b).is_eq())
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(key, value)| b.get(key).is_some_and(|other| equal(value, other)))
        }
        _ => a == b,
    }
}

fn has_type(value: &Value, kind: JsonType) -> bool {
    match kind {
        JsonType::String => value.is_string(),
        JsonType::Number => value.is_number(),
        JsonType::Integer => value.is_i64() || value.is_u64(),
        JsonType::Boolean => value.is_boolean(),
        JsonType::Array => value.is_array(),
        JsonType::Object => value.is_object(),
        JsonType::Null => value.is_null(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(rule: &str, answer: &str) -> f64 {
        let Value::Object(row) = json!({"n": 3, "who": "ada", "list": [1, 2]}) else {
            unreachable!("an object")
        };
        let rule: JsonRule = serde_saphyr::from_str(rule).unwrap();
        score(answer, &rule, &Fields::of(&row)).unwrap()
    }

    #[test]
    fn scores_are_the_share_of_demands_met() {
        for (rule, answer, expected) in [
            (
                "{equals: {n: '{{ n }}', who: '{{ who }}'}}",
                r#"{"who": "ada", "n": 3.0}"#,
                1.0,
            ),
            ("{equals: {n: '{{ n }}'}}", r#"{"n": "3"}"#, 0.0),
            ("{equals: '{{ list }}'}", "[1, 2]", 1.0),
            ("{equals: '{{ list }}'}", "[2, 1]", 0.0),
            ("{equals: true}", "1", 0.0),
            (
                "{includes: {n: 3, who: bob}}",
                r#"{"n": 3, "who": "ada", "x": null}"#,
                0.5,
            ),
            (
                "{types: {n: integer, who: string, x: 'null', y: array}}",
                r#"{"n": 3.5, "who": "", "x": null, "y": []}"#,
                0.75,
            ),
            ("{types: {n: integer}}", "not json", 0.0),
            ("{types: {n: integer}}", "[]", 0.0),
            ("{}", "null", 1.0),
            ("{}", "", 0.0),
        ] {
            assert!((check(rule, answer) - expected).abs() < 1e-12, "{rule} {answer}");
        }
    }
}
