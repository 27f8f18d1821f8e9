//! What a program printed, against what it must print.

/// What differs, for the agent: white space at the ends of lines and empty last lines aside, numbers within `tolerance`.
pub(super) fn difference(printed: &str, expected: &str, tolerance: f64) -> Option<String> {
    let lines = |text: &'_ str| -> Vec<String> {
        text.trim_end()
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect()
    };
    let (printed, expected) = (lines(printed), lines(expected));
    let longest = printed.len().max(expected.len());
    (0..longest).find_map(|at| {
        let what = match (printed.get(at), expected.get(at)) {
            (Some(got), Some(wanted)) if same_line(got, wanted, tolerance) => return None,
            (Some(got), Some(wanted)) => format!("expected {wanted:?}, got {got:?}"),
            (None, Some(wanted)) => format!("expected {wanted:?}, got the end of the output"),
            (Some(got), None) => format!("expected the end of the output, got {got:?}"),
            (None, None) => return None,
        };
        Some(format!("line {}: {what}", at + 1))
    })
}

fn same_line(got: &str, wanted: &str, tolerance: f64) -> bool {
    if got == wanted || tolerance <= 0.0 {
        return got == wanted;
    }
    let (mut got, mut wanted) = (got.split_whitespace(), wanted.split_whitespace());
    loop {
        match (got.next(), wanted.next()) {
            (None, None) => return true,
            (Some(got), Some(wanted)) if got == wanted || near(got, wanted, tolerance) => {}
            _ => return false,
        }
    }
}

/// Two numbers within `tolerance`; `nan` and infinities are texts.
fn near(got: &str, wanted: &str, tolerance: f64) -> bool {
    let number = |text: &str| {
        let plain = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E');
        text.parse::<f64>().ok().filter(|_| text.chars().all(plain))
    };
    match (number(got), number(wanted)) {
        (Some(got), Some(wanted)) => (got - wanted).abs() <= tolerance,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_trailing_white_space_is_ignored() {
        for (printed, expected, tolerance, told) in [
            ("7\n", "7", 0.0, None),
            ("7  \r\n\n", "7", 0.0, None),
            ("", "\n", 0.0, None),
            (" 7", "7", 0.0, Some("line 1: expected \"7\", got \" 7\"")),
            ("1\n\n2", "1\n2", 0.0, Some("line 2: expected \"2\", got \"\"")),
            (
                "1",
                "1\n2",
                0.0,
                Some("line 2: expected \"2\", got the end of the output"),
            ),
            (
                "1\n2",
                "1",
                0.0,
                Some("line 2: expected the end of the output, got \"2\""),
            ),
            (
                "0.3333",
                "0.3334",
                0.0,
                Some("line 1: expected \"0.3334\", got \"0.3333\""),
            ),
            ("x 0.3333", "x   0.3334", 1e-3, None),
            (
                "x 0.3333",
                "y 0.3334",
                1e-3,
                Some("line 1: expected \"y 0.3334\", got \"x 0.3333\""),
            ),
            ("nan", "0", 1e9, Some("line 1: expected \"0\", got \"nan\"")),
            ("1 2", "1", 1e-3, Some("line 1: expected \"1\", got \"1 2\"")),
            ("７", "7", 0.0, Some("line 1: expected \"7\", got \"７\"")),
        ] {
            assert_eq!(
                difference(printed, expected, tolerance).as_deref(),
                told,
                "{printed:?}"
            );
        }
    }
}
