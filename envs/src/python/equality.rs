//! Python's `==` over plain data, decided on the host.
//!
//! As in Python, `1 == 1.0 == True`, a list never equals a tuple, dictionaries ignore order, `nan` equals nothing, and an
//! integer equals a float only if it does exactly (`2**53 + 1 != float(2**53 + 1)`). Sets and frozensets are one type on the wire.

use std::collections::BTreeMap;

use mipu_sandbox::Plain;

/// How far two numbers may lie apart when at least one is a float: `|a - b| <= max(absolute, relative * |b|)`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Tolerance {
    /// In the unit of the values.
    pub absolute: f64,
    /// As a share of the expected value.
    pub relative: f64,
}

impl Tolerance {
    /// Whether `actual` is near enough to `expected`; `nan` never is, an infinity only to itself.
    pub(crate) fn accepts(self, actual: f64, expected: f64) -> bool {
        if actual.is_infinite() || expected.is_infinite() {
            return actual.total_cmp(&expected).is_eq();
        }
        (actual - expected).abs() <= self.absolute.max(self.relative * expected.abs())
    }

    fn is_exact(self) -> bool {
        self.absolute <= 0.0 && self.relative <= 0.0
    }
}

/// `actual == expected`, floats within `tolerance` (members of sets and keys of dictionaries exactly).
pub(crate) fn equal(actual: &Plain, expected: &Plain, tolerance: Tolerance) -> bool {
    match (actual, expected) {
        (Plain::List(a), Plain::List(b)) | (Plain::Tuple(a), Plain::Tuple(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b, tolerance))
        }
        (Plain::Dict(a), Plain::Dict(b)) => {
            let (Some(a), Some(b)) = (by_key(a), by_key(b)) else {
                return false;
            };
            a.len() == b.len()
                && a.iter()
                    .zip(&b)
                    .all(|((ka, va), (kb, vb))| ka == kb && equal(va, vb, tolerance))
        }
        (Plain::Float(_), _) | (_, Plain::Float(_)) if !tolerance.is_exact() => {
            match (as_number(actual), as_number(expected)) {
                (Some(a), Some(b)) => tolerance.accepts(a, b),
                _ => false,
            }
        }
        _ => match (key(actual), key(expected)) {
            (Some(a), Some(b)) => a == b,
            _ => false,
        },
    }
}

fn by_key(pairs: &[(Plain, Plain)]) -> Option<BTreeMap<String, &Plain>> {
    pairs.iter().map(|(k, v)| Some((key(k)?, v))).collect()
}

fn as_number(plain: &Plain) -> Option<f64> {
    match plain {
        Plain::Bool(b) => Some(f64::from(u8::from(*b))),
        Plain::Int(digits) => digits.parse().ok(),
        Plain::Float(x) => Some(*x),
        _ => None,
    }
}

/// A text that two values share exactly when Python's `==` holds; `None` if the value contains `nan`, which equals nothing.
fn key(plain: &Plain) -> Option<String> {
    let joined = |items: &[Plain]| items.iter().map(key).collect::<Option<Vec<_>>>();
    Some(match plain {
        Plain::None => "n".to_owned(),
        Plain::Bool(b) => format!("#{}", u8::from(*b)),
        Plain::Int(digits) => format!("#{}", integer(digits)),
        // `{:.0}` prints every digit of an integral float, so that it meets the integer it equals.
        Plain::Float(x) if x.is_nan() => return None,
        Plain::Float(x) if x.is_finite() && x.fract().abs() <= 0.0 => {
            format!("#{}", integer(&format!("{x:.0}")))
        }
        Plain::Float(x) => format!("~{:016x}", x.to_bits()),
        Plain::Str(s) => format!("s{}:{s}", s.len()),
        Plain::Bytes(b) => format!("b{}:{b:02x?}", b.len()),
        Plain::List(items) => format!("[{}]", joined(items)?.join(",")),
        Plain::Tuple(items) => format!("({})", joined(items)?.join(",")),
        Plain::Set(items) => {
            let mut keys = joined(items)?;
            keys.sort_unstable();
            keys.dedup();
            format!("{{{}}}", keys.join(","))
        }
        Plain::Dict(pairs) => {
            let mut keys = pairs
                .iter()
                .map(|(k, v)| Some(format!("{}={}", key(k)?, key(v)?)))
                .collect::<Option<Vec<_>>>()?;
            keys.sort_unstable();
            format!("d{{{}}}", keys.join(","))
        }
    })
}

/// Decimal digits without `+`, leading zeros or a negative zero.
fn integer(digits: &str) -> String {
    let (sign, body) = match digits.strip_prefix('-') {
        Some(body) => ("-", body),
        None => ("", digits.strip_prefix('+').unwrap_or(digits)),
    };
    match body.trim_start_matches('0') {
        "" => "0".to_owned(),
        body => format!("{sign}{body}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::parse_literal;

    fn check(a: &str, b: &str, tolerance: f64) -> bool {
        let (a, b) = (parse_literal(a).unwrap(), parse_literal(b).unwrap());
        equal(
            &a,
            &b,
            Tolerance {
                absolute: tolerance,
                relative: 0.0,
            },
        )
    }

    /// Every line was answered by CPython 3 (tolerance 0).
    #[test]
    fn agrees_with_cpython() {
        for (a, b, expected) in [
            ("1", "1.0", true),
            ("1", "True", true),
            ("0", "-0.0", true),
            ("False", "0", true),
            ("None", "0", false),
            ("1", "'1'", false),
            ("'a'", "b'a'", false),
            ("[1, 2]", "(1, 2)", false),
            ("[1, 2]", "[1.0, True]", false),
            ("(1, 2)", "(1.0, 2)", true),
            ("{'a': 1, 'b': 2}", "{'b': 2.0, 'a': True}", true),
            ("{1: 'x'}", "{1.0: 'x'}", true),
            ("{1: 'x'}", "{1: 'x', 2: 'y'}", false),
            ("{1, 2}", "{2.0, True}", true),
            ("{1, 2}", "{1, 3}", false),
            ("9007199254740993", "9007199254740993.0", false),
            ("9007199254740992", "9007199254740993.0", true),
            (
                "123456789012345678901234567890",
                "123456789012345678901234567890",
                true,
            ),
            ("0.1", "0.10000000000000001", true),
            ("0.3", "0.30000000000000004", false),
            ("1e400", "1e500", true),
            ("[]", "()", false),
            ("''", "[]", false),
        ] {
            assert_eq!(check(a, b, 0.0), expected, "{a} == {b}");
            assert_eq!(check(b, a, 0.0), expected, "{b} == {a}");
        }
    }

    #[test]
    fn nan_equals_nothing() {
        let nan = Plain::Float(f64::NAN);
        let near = Tolerance {
            absolute: 1.0,
            relative: 1.0,
        };
        assert!(!equal(&nan, &nan, Tolerance::default()));
        assert!(!equal(&nan, &nan, near));
        assert!(!equal(
            &Plain::List(vec![nan.clone()]),
            &Plain::List(vec![nan]),
            near
        ));
    }

    #[test]
    fn tolerance_is_for_floats_only() {
        assert!(check("0.3", "0.30000000000000004", 1e-9));
        assert!(check("[1.0, (2.0,)]", "[1.0000001, (2,)]", 1e-6));
        assert!(!check("3", "4", 1.0));
        assert!(check("3.0", "4", 1.0));
        assert!(!check("'3'", "3.0", 1.0));
    }
}
