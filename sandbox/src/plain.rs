//! Plain data that may cross between a guest and the host: exact builtin types only.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Deepest nesting that crosses; the guest refuses more, and so does the host.
const MAX_DEPTH: usize = 64;
/// Most digits of an `int`.
const MAX_DIGITS: usize = 100_001;

/// A Python value of an exact builtin type (`type(x) is int`, never a subclass), size-capped.
///
/// On the wire (JSON): `null`, `true`, `{"i": "123"}` for int, `{"f": "0x1.8p+1"}` for float (`float.hex`, `nan`, `inf`),
/// `"text"` for str, `{"b": "<hex>"}` for bytes, `[..]` for list, `{"t": [..]}` for tuple, `{"s": [..]}` for set and frozenset
/// (sorted by wire form), `{"d": [[k, v], ..]}` for dict in insertion order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Plain {
    /// `None`.
    None,
    /// `bool`.
    Bool(bool),
    /// `int`, decimal digits (unbounded up to the size cap).
    Int(String),
    /// `float`.
    Float(f64),
    /// `str`.
    Str(String),
    /// `bytes`.
    Bytes(Vec<u8>),
    /// `list`.
    List(Vec<Plain>),
    /// `tuple`.
    Tuple(Vec<Plain>),
    /// `set` or `frozenset`, elements in a canonical order.
    Set(Vec<Plain>),
    /// `dict`, in insertion order.
    Dict(Vec<(Plain, Plain)>),
}

/// Why bytes from a guest are not plain data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not plain data: {0}")]
pub struct NotPlain(&'static str);

impl Plain {
    /// The wire form.
    pub fn to_wire(&self) -> Value {
        let list = |items: &[Self]| Value::Array(items.iter().map(Self::to_wire).collect());
        match self {
            Self::None => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Int(digits) => tagged("i", Value::String(digits.clone())),
            Self::Float(value) => tagged("f", Value::String(float_to_hex(*value))),
            Self::Str(text) => Value::String(text.clone()),
            Self::Bytes(bytes) => tagged(
                "b",
                Value::String(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
            ),
            Self::List(items) => list(items),
            Self::Tuple(items) => tagged("t", list(items)),
            Self::Set(items) => tagged("s", list(items)),
            Self::Dict(pairs) => {
                let pair = |(key, value): &(Self, Self)| Value::Array(vec![key.to_wire(), value.to_wire()]);
                tagged("d", Value::Array(pairs.iter().map(pair).collect()))
            }
        }
    }

    /// Reads the wire form. The bytes come from code under test: every shape is checked, nothing is guessed.
    ///
    /// # Errors
    /// When the value is not in the one canonical form that [`Plain::to_wire`] writes.
    pub fn from_wire(wire: &Value) -> Result<Self, NotPlain> {
        read(wire, 0)
    }
}

fn tagged(tag: &str, body: Value) -> Value {
    Value::Object([(tag.to_owned(), body)].into_iter().collect())
}

fn read(wire: &Value, depth: usize) -> Result<Plain, NotPlain> {
    if depth > MAX_DEPTH {
        return Err(NotPlain("nested too deeply"));
    }
    match wire {
        Value::Null => Ok(Plain::None),
        Value::Bool(value) => Ok(Plain::Bool(*value)),
        Value::String(text) => Ok(Plain::Str(text.clone())),
        Value::Array(items) => Ok(Plain::List(read_all(items, depth)?)),
        Value::Number(_) => Err(NotPlain("a bare number")),
        Value::Object(fields) => {
            let mut fields = fields.iter();
            match (fields.next(), fields.next()) {
                (Some((tag, body)), None) => read_tagged(tag, body, depth),
                _ => Err(NotPlain("an object that is not one tag")),
            }
        }
    }
}

fn read_tagged(tag: &str, body: &Value, depth: usize) -> Result<Plain, NotPlain> {
    match (tag, body) {
        ("i", Value::String(digits)) if is_canonical_int(digits) => Ok(Plain::Int(digits.clone())),
        ("f", Value::String(text)) => float_from_hex(text)
            .map(Plain::Float)
            .ok_or(NotPlain("a malformed float")),
        ("b", Value::String(text)) => bytes_from_hex(text)
            .map(Plain::Bytes)
            .ok_or(NotPlain("malformed bytes")),
        ("t", Value::Array(items)) => Ok(Plain::Tuple(read_all(items, depth)?)),
        ("s", Value::Array(items)) => Ok(Plain::Set(read_all(items, depth)?)),
        ("d", Value::Array(pairs)) => {
            let pair = |pair: &Value| match pair.as_array().map(Vec::as_slice) {
                Some([key, value]) => Ok((read(key, depth + 1)?, read(value, depth + 1)?)),
                _ => Err(NotPlain("a dict item that is not a pair")),
            };
            Ok(Plain::Dict(pairs.iter().map(pair).collect::<Result<_, _>>()?))
        }
        _ => Err(NotPlain("an unknown or malformed tag")),
    }
}

fn read_all(items: &[Value], depth: usize) -> Result<Vec<Plain>, NotPlain> {
    items.iter().map(|item| read(item, depth + 1)).collect()
}

fn is_canonical_int(digits: &str) -> bool {
    let body = digits.strip_prefix('-').unwrap_or(digits);
    let negative = body.len() != digits.len();
    !body.is_empty()
        && body.len() <= MAX_DIGITS
        && body.bytes().all(|byte| byte.is_ascii_digit())
        && (!body.starts_with('0') || (body == "0" && !negative))
}

fn bytes_from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?))
        .collect()
}

/// Python's `float.hex`.
fn float_to_hex(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    let sign = if value.is_sign_negative() { "-" } else { "" };
    if value.is_infinite() {
        return format!("{sign}inf");
    }
    let bits = value.to_bits();
    let mantissa = bits & ((1 << 52) - 1);
    let exponent = (bits >> 52 & 0x7ff) as i32;
    match (exponent, mantissa) {
        (0, 0) => format!("{sign}0x0.0p+0"),
        (0, _) => format!("{sign}0x0.{mantissa:013x}p-1022"),
        _ => format!("{sign}0x1.{mantissa:013x}p{:+}", exponent - 1023),
    }
}

/// Reads exactly what `float.hex` writes.
fn float_from_hex(text: &str) -> Option<f64> {
    let (sign, body) = match text.strip_prefix('-') {
        Some(body) => (1u64 << 63, body),
        None => (0, text),
    };
    let magnitude = match body {
        "nan" if sign == 0 => f64::NAN.to_bits(),
        "inf" => f64::INFINITY.to_bits(),
        "0x0.0p+0" => 0,
        _ => {
            let (mantissa, exponent) = body.strip_prefix("0x")?.split_once('p')?;
            let (lead, fraction) = mantissa.split_once('.')?;
            let well_formed = fraction.len() == 13
                && fraction
                    .bytes()
                    .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            let fraction = u64::from_str_radix(fraction, 16).ok().filter(|_| well_formed)?;
            let exponent: i32 = exponent.parse().ok()?;
            match (lead, exponent) {
                ("1", -1022..=1023) => u64::try_from(exponent + 1023).ok()? << 52 | fraction,
                ("0", -1022) => fraction,
                _ => return None,
            }
        }
    };
    Some(f64::from_bits(sign | magnitude))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_use_pythons_hex() {
        // Right-hand sides printed by CPython's float.hex.
        for (value, hex) in [
            (3.0, "0x1.8000000000000p+1"),
            (-0.1, "-0x1.999999999999ap-4"),
            (0.0, "0x0.0p+0"),
            (-0.0, "-0x0.0p+0"),
            (5e-324, "0x0.0000000000001p-1022"),
            (f64::MAX, "0x1.fffffffffffffp+1023"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::MIN_POSITIVE, "0x1.0000000000000p-1022"),
        ] {
            assert_eq!(float_to_hex(value), hex);
            assert_eq!(float_from_hex(hex).map(f64::to_bits), Some(value.to_bits()));
        }
        assert!(float_from_hex("nan").is_some_and(f64::is_nan));
        for bad in [
            "",
            "1.0",
            "0x1.8p+1",
            "0x1.8000000000000p+1024",
            "0x2.0000000000000p+1",
            "-nan",
            "0x1.+000000000000p+1",
        ] {
            assert_eq!(float_from_hex(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_the_canonical_form_is_read() {
        for bad in [
            "1",
            "1.5",
            r#"{"i":1}"#,
            r#"{"i":"01"}"#,
            r#"{"i":"-0"}"#,
            r#"{"i":"+1"}"#,
            r#"{"i":""}"#,
            r#"{"i":"1","i2":"2"}"#,
            "{}",
            r#"{"b":"0"}"#,
            r#"{"b":"AB"}"#,
            r#"{"b":"é"}"#,
            r#"{"t":{}}"#,
            r#"{"d":[["k"]]}"#,
            r#"{"d":[null]}"#,
            r#"{"x":"1"}"#,
            r#"{"i":"1e5"}"#,
        ] {
            let wire: Value = serde_json::from_str(bad).unwrap();
            assert!(Plain::from_wire(&wire).is_err(), "{bad}");
        }
        let deep = (0..=MAX_DEPTH).fold(Value::Null, |inner, _| Value::Array(vec![inner]));
        assert_eq!(Plain::from_wire(&deep), Err(NotPlain("nested too deeply")));
    }
}
