//! Python values on the host: conversion from and to JSON, literals, and `==`.

mod equality;
mod literal;

pub(crate) use equality::{Tolerance, equal};
pub(crate) use literal::parse as parse_literal;

use mipu_sandbox::Plain;
use serde_json::{Map, Number, Value};

/// A JSON value as Python data.
pub(crate) fn to_plain(value: &Value) -> Plain {
    match value {
        Value::Null => Plain::None,
        Value::Bool(b) => Plain::Bool(*b),
        Value::Number(n) if n.is_f64() => Plain::Float(n.as_f64().unwrap_or(f64::NAN)),
        Value::Number(n) => Plain::Int(n.to_string()),
        Value::String(s) => Plain::Str(s.clone()),
        Value::Array(items) => Plain::List(items.iter().map(to_plain).collect()),
        Value::Object(map) => Plain::Dict(
            map.iter()
                .map(|(k, v)| (Plain::Str(k.clone()), to_plain(v)))
                .collect(),
        ),
    }
}

/// Python data as JSON; tuples become arrays.
///
/// # Errors
/// On bytes, sets, keys that are not `str`, floats that are not finite and integers beyond 64 bits.
pub(crate) fn to_json(plain: &Plain) -> Result<Value, String> {
    Ok(match plain {
        Plain::None => Value::Null,
        Plain::Bool(b) => Value::Bool(*b),
        Plain::Int(digits) => {
            let number = digits
                .parse::<i64>()
                .map(Number::from)
                .or_else(|_| digits.parse::<u64>().map(Number::from));
            Value::Number(number.map_err(|_| format!("the integer {digits} does not fit 64 bits"))?)
        }
        Plain::Float(x) => {
            Value::Number(Number::from_f64(*x).ok_or_else(|| format!("{x} has no JSON form"))?)
        }
        Plain::Str(s) => Value::String(s.clone()),
        Plain::List(items) | Plain::Tuple(items) => {
            Value::Array(items.iter().map(to_json).collect::<Result<_, _>>()?)
        }
        Plain::Dict(pairs) => Value::Object(to_map(pairs)?),
        Plain::Bytes(_) => return Err("bytes have no JSON form".to_owned()),
        Plain::Set(_) => return Err("a set has no JSON form; yield a sorted list".to_owned()),
    })
}

/// A dictionary with `str` keys as a JSON object; see [`to_json`].
///
/// # Errors
/// As [`to_json`].
pub(crate) fn to_map(pairs: &[(Plain, Plain)]) -> Result<Map<String, Value>, String> {
    pairs
        .iter()
        .map(|(key, value)| match key {
            Plain::Str(key) => to_json(value)
                .map(|value| (key.clone(), value))
                .map_err(|e| format!("`{key}`: {e}")),
            other => Err(format!("keys must be str; got {}", show(other))),
        })
        .collect()
}

/// A JSON value as a Python literal.
pub(crate) fn literal(value: &Value) -> String {
    show(&to_plain(value))
}

/// Python data as `repr` would show it.
pub(crate) fn show(plain: &Plain) -> String {
    let list = |items: &[Plain]| items.iter().map(show).collect::<Vec<_>>().join(", ");
    match plain {
        Plain::None => "None".to_owned(),
        Plain::Bool(true) => "True".to_owned(),
        Plain::Bool(false) => "False".to_owned(),
        Plain::Int(digits) => digits.clone(),
        Plain::Float(x) => show_float(*x),
        Plain::Str(s) => show_str(s),
        Plain::Bytes(bytes) => {
            let body: String = bytes.iter().map(|b| b.escape_ascii().to_string()).collect();
            format!("b'{body}'")
        }
        Plain::List(items) => format!("[{}]", list(items)),
        Plain::Tuple(items) if items.len() == 1 => format!("({},)", list(items)),
        Plain::Tuple(items) => format!("({})", list(items)),
        Plain::Set(items) if items.is_empty() => "set()".to_owned(),
        Plain::Set(items) => format!("{{{}}}", list(items)),
        Plain::Dict(pairs) => {
            let body: Vec<String> = pairs
                .iter()
                .map(|(k, v)| format!("{}: {}", show(k), show(v)))
                .collect();
            format!("{{{}}}", body.join(", "))
        }
    }
}

fn show_float(x: f64) -> String {
    if x.is_nan() {
        "float('nan')".to_owned()
    } else if x.is_infinite() {
        format!("float('{}inf')", if x < 0.0 { "-" } else { "" })
    } else {
        // Rust's `{:?}` is the shortest text that reads back as `x`, always with a point or an exponent, as in Python.
        format!("{x:?}")
    }
}

fn show_str(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('\'');
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\'' => out.push_str("\\'"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('\'');
    out
}
