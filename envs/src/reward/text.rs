//! Rules over the answer as text. Patterns run on an engine without backtracking, so that no answer can stall the host.

use regex::RegexBuilder;

use crate::env::Unscored;
use crate::python::Tolerance;
use crate::spec::Numeric;

/// Size limit of a compiled pattern in bytes.
const PATTERN_BYTES: usize = 1 << 20;

/// 1 if the texts are equal, surrounding white space aside.
pub(super) fn exact(answer: &str, expected: &str) -> f64 {
    verdict(answer.trim() == expected.trim())
}

/// 1 if the answer is a number near the expected one.
pub(super) fn numeric(answer: &str, expected: &str, rule: &Numeric) -> Result<f64, Unscored> {
    let Some(expected) = number(expected) else {
        return Err(Unscored {
            reason: format!("the expected value {expected:?} is not a number"),
        });
    };
    let tolerance = Tolerance {
        absolute: rule.tolerance.get(),
        relative: rule.relative.get(),
    };
    Ok(verdict(
        number(answer).is_some_and(|answer| tolerance.accepts(answer, expected)),
    ))
}

/// A finite number as people write it: `1,234.5`, `$3`, `3/4`, `1e3`, a trailing full stop.
fn number(text: &str) -> Option<f64> {
    let text = text
        .trim()
        .trim_end_matches('.')
        .trim_start_matches('$')
        .replace(',', "");
    let value = match text.split_once('/') {
        Some((above, below)) => plain_number(above)? / plain_number(below)?,
        None => plain_number(&text)?,
    };
    value.is_finite().then_some(value)
}

fn plain_number(text: &str) -> Option<f64> {
    let text = text.trim();
    // `parse` also reads `inf`, `nan` and `infinity`.
    if text
        .chars()
        .any(|c| c.is_ascii_alphabetic() && !matches!(c, 'e' | 'E'))
    {
        None
    } else {
        text.parse().ok()
    }
}

/// 1 if the answer contains a match.
pub(super) fn search(answer: &str, pattern: &str) -> Result<f64, Unscored> {
    matches(answer, pattern)
}

/// 1 if the whole answer matches.
pub(super) fn full_match(answer: &str, pattern: &str) -> Result<f64, Unscored> {
    matches(answer, &format!(r"\A(?:{pattern})\z"))
}

fn matches(answer: &str, pattern: &str) -> Result<f64, Unscored> {
    let regex = RegexBuilder::new(pattern).size_limit(PATTERN_BYTES).build();
    let regex = regex.map_err(|error| Unscored {
        reason: format!("pattern {pattern:?}: {error}"),
    })?;
    Ok(verdict(regex.is_match(answer)))
}

fn verdict(holds: bool) -> f64 {
    if holds { 1.0 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_is_exact() {
        for (answer, expected, score) in [
            ("133", "133", 1.0),
            (" 133\n", "133", 1.0),
            ("133.0", "133", 0.0),
            ("", "133", 0.0),
            ("1 33", "133", 0.0),
        ] {
            assert!((exact(answer, expected) - score).abs() < 1e-12, "{answer:?}");
        }
    }

    #[test]
    fn numeric_reads_numbers_as_people_write_them() {
        let rule: Numeric =
            serde_saphyr::from_str("{expected: x, tolerance: 0.01, relative: 0.001}").unwrap();
        for (answer, expected, score) in [
            ("1,234.5", "1234.5", 1.0),
            ("$3.", "3", 1.0),
            ("3/4", "0.75", 1.0),
            ("1e3", "1000", 1.0),
            ("0.019", "0.01", 1.0),
            ("0.021", "0.01", 0.0),
            ("10005", "10000", 1.0),
            ("10011", "10000", 0.0),
            ("nan", "0", 0.0),
            ("inf", "0", 0.0),
            ("1/0", "0", 0.0),
            ("", "0", 0.0),
            ("about 3", "3", 0.0),
            ("-3", "3", 0.0),
        ] {
            assert!(
                (numeric(answer, expected, &rule).unwrap() - score).abs() < 1e-12,
                "{answer:?}"
            );
        }
        assert!(
            numeric("1", "one", &rule).is_err(),
            "a bad gold value is the task's fault"
        );
    }

    #[test]
    fn format_matches_whole_answers_and_regex_parts() {
        let operator = r"[ab][+\-*%][ab]";
        for (answer, whole, part) in [
            ("a+b", 1.0, 1.0),
            ("a+b\n", 0.0, 1.0),
            ("a+b+a", 0.0, 1.0),
            ("ab", 0.0, 0.0),
        ] {
            assert!(
                (full_match(answer, operator).unwrap() - whole).abs() < 1e-12,
                "{answer:?}"
            );
            assert!(
                (search(answer, operator).unwrap() - part).abs() < 1e-12,
                "{answer:?}"
            );
        }
        assert!(
            (full_match("b", "a|b").unwrap() - 1.0).abs() < 1e-12,
            "alternatives are grouped"
        );
        assert!(search("x", "(").is_err());
    }
}
