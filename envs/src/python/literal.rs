//! A reader of Python literals, so that an expected value like `(1, [2.5], None)` needs no interpreter.
//!
//! Covered: `None`, booleans, decimal, hex, octal and binary integers, floats, `str` and `bytes` (no prefixes but `b` and `r`), lists,
//! tuples, sets, dictionaries, `set()`, signs and adjacent strings. Anything else (`2**31`, names, calls) is not a literal: the caller
//! evaluates it in a trusted sandbox session.

use mipu_sandbox::Plain;

/// Nesting beyond this is not read.
const MAX_DEPTH: usize = 64;

/// Reads a whole literal; `None` when the text is not one.
pub(crate) fn parse(text: &str) -> Option<Plain> {
    let mut reader = Reader { rest: text, depth: 0 };
    let value = reader.value()?;
    reader.space();
    reader.rest.is_empty().then_some(value)
}

struct Reader<'a> {
    rest: &'a str,
    depth: usize,
}

impl Reader<'_> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    fn eat(&mut self, token: &str) -> bool {
        self.space();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn value(&mut self) -> Option<Plain> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        self.space();
        let value = match self.rest.chars().next()? {
            '[' => {
                self.eat("[");
                Plain::List(self.items("]")?.0)
            }
            '(' => {
                self.eat("(");
                let (mut items, comma) = self.items(")")?;
                if items.len() == 1 && !comma {
                    items.remove(0)
                } else {
                    Plain::Tuple(items)
                }
            }
            '{' => self.braces()?,
            '\'' | '"' => Plain::Str(self.strings()?),
            '0'..='9' | '.' | '-' | '+' => self.number()?,
            _ => self.word()?,
        };
        self.depth -= 1;
        Some(value)
    }

    /// Items up to `close`, and whether a comma was seen.
    fn items(&mut self, close: &str) -> Option<(Vec<Plain>, bool)> {
        let (mut items, mut comma) = (Vec::new(), false);
        loop {
            if self.eat(close) {
                return Some((items, comma));
            }
            if !items.is_empty() && !comma {
                return None;
            }
            items.push(self.value()?);
            let followed = self.eat(",");
            comma = comma || followed;
            if !followed {
                return self.eat(close).then_some((items, comma));
            }
        }
    }

    fn braces(&mut self) -> Option<Plain> {
        self.eat("{");
        if self.eat("}") {
            return Some(Plain::Dict(Vec::new()));
        }
        let first = self.value()?;
        if self.eat(":") {
            let mut pairs = vec![(first, self.value()?)];
            while self.eat(",") {
                if self.eat("}") {
                    return Some(Plain::Dict(pairs));
                }
                let key = self.value()?;
                if !self.eat(":") {
                    return None;
                }
                let value = self.value()?;
                pairs.push((key, value));
            }
            return self.eat("}").then_some(Plain::Dict(pairs));
        }
        let mut items = vec![first];
        while self.eat(",") {
            if self.eat("}") {
                return Some(Plain::Set(items));
            }
            items.push(self.value()?);
        }
        self.eat("}").then_some(Plain::Set(items))
    }

    fn word(&mut self) -> Option<Plain> {
        if let Some(body) = self
            .rest
            .strip_prefix("b'")
            .or_else(|| self.rest.strip_prefix("b\""))
        {
            let quote = self.rest.as_bytes()[1];
            let (bytes, rest) = quoted(body, char::from(quote), true)?;
            self.rest = rest;
            // Escapes of bytes never exceed one byte, and plain characters must be ASCII.
            return bytes
                .chars()
                .map(|c| u8::try_from(u32::from(c)).ok())
                .collect::<Option<_>>()
                .map(Plain::Bytes);
        }
        for (word, value) in [
            ("None", Plain::None),
            ("True", Plain::Bool(true)),
            ("False", Plain::Bool(false)),
            ("set()", Plain::Set(Vec::new())),
        ] {
            if self.rest.starts_with(word) {
                let after = self.rest[word.len()..].chars().next();
                if after.is_none_or(|c| !c.is_alphanumeric() && c != '_') {
                    self.rest = &self.rest[word.len()..];
                    return Some(value);
                }
            }
        }
        None
    }

    /// One or several adjacent strings.
    fn strings(&mut self) -> Option<String> {
        let mut text = String::new();
        loop {
            self.space();
            let Some(quote @ ('\'' | '"')) = self.rest.chars().next() else {
                break;
            };
            let triple: String = std::iter::repeat_n(quote, 3).collect();
            if self.rest.starts_with(&triple) {
                return None;
            }
            let (part, rest) = quoted(&self.rest[1..], quote, false)?;
            text.push_str(&part);
            self.rest = rest;
        }
        Some(text)
    }

    fn number(&mut self) -> Option<Plain> {
        let mut negative = false;
        loop {
            if self.eat("-") {
                negative = !negative;
            } else if !self.eat("+") {
                break;
            }
        }
        self.space();
        let end = self.number_end();
        let (token, rest) = self.rest.split_at(end);
        self.rest = rest;
        let digits: String = token.chars().filter(|&c| c != '_').collect();
        if token.starts_with('_') || token.ends_with('_') || token.contains("__") || digits.is_empty() {
            return None;
        }
        let radix = match digits.get(..2).map(str::to_ascii_lowercase).as_deref() {
            Some("0x") => 16,
            Some("0o") => 8,
            Some("0b") => 2,
            _ => 10,
        };
        let signed = |body: String| {
            if negative && body != "0" {
                format!("-{body}")
            } else {
                body
            }
        };
        if radix != 10 {
            let value = u128::from_str_radix(&digits[2..], radix).ok()?;
            return Some(Plain::Int(signed(value.to_string())));
        }
        if digits.bytes().all(|b| b.is_ascii_digit()) {
            let body = digits.trim_start_matches('0');
            if body.len() != digits.len() && !body.is_empty() {
                return None; // `007` is a syntax error
            }
            return Some(Plain::Int(signed(if body.is_empty() {
                "0".to_owned()
            } else {
                body.to_owned()
            })));
        }
        let value: f64 = digits.parse().ok()?;
        Some(Plain::Float(if negative { -value } else { value }))
    }

    /// Length of the number token; an exponent's sign belongs to it. A letter that cannot be part of one makes the parse fail later.
    fn number_end(&self) -> usize {
        let bytes = self.rest.as_bytes();
        let hex = bytes.first() == Some(&b'0') && matches!(bytes.get(1), Some(b'x' | b'X'));
        let mut end = 0;
        while let Some(&b) = bytes.get(end) {
            let exponent_sign =
                (b == b'-' || b == b'+') && !hex && end > 0 && matches!(bytes[end - 1], b'e' | b'E');
            if !(b.is_ascii_alphanumeric() || b == b'.' || b == b'_' || exponent_sign) {
                break;
            }
            end += 1;
        }
        end
    }
}

/// The content of a string up to its closing `quote`, unescaped, and what follows it.
fn quoted(body: &str, quote: char, bytes: bool) -> Option<(String, &str)> {
    let mut text = String::new();
    let mut chars = body.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            c if c == quote => return Some((text, &body[at + 1..])),
            '\n' => return None,
            '\\' => {
                let (_, escape) = chars.next()?;
                let digits = match escape {
                    'n' => push(&mut text, '\n'),
                    't' => push(&mut text, '\t'),
                    'r' => push(&mut text, '\r'),
                    '0' if !body[at + 2..].starts_with(|c: char| c.is_ascii_digit()) => push(&mut text, '\0'),
                    '\\' | '\'' | '"' => push(&mut text, escape),
                    'x' => 2,
                    'u' if !bytes => 4,
                    'U' if !bytes => 8,
                    _ => return None,
                };
                if digits > 0 {
                    let mut code = 0;
                    for _ in 0..digits {
                        code = code * 16 + chars.next()?.1.to_digit(16)?;
                    }
                    text.push(char::from_u32(code)?);
                }
            }
            c if bytes && !c.is_ascii() => return None,
            c => text.push(c),
        }
    }
    None
}

fn push(text: &mut String, c: char) -> usize {
    text.push(c);
    0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::python::show;

    #[test]
    fn reads_literals_as_python_does() {
        let int = |s: &str| Plain::Int(s.to_owned());
        for (text, expected) in [
            ("10", int("10")),
            ("- 3", int("-3")),
            ("0x1F", int("31")),
            ("1_000", int("1000")),
            ("-0", int("0")),
            ("1.", Plain::Float(1.0)),
            (".5e-3", Plain::Float(0.0005)),
            ("-1e3", Plain::Float(-1000.0)),
            ("'a' \"b\"", Plain::Str("ab".to_owned())),
            (r"'\x41\u00e9\n'", Plain::Str("Aé\n".to_owned())),
            (r"b'\xff1'", Plain::Bytes(vec![255, b'1'])),
            ("(1)", int("1")),
            ("(1,)", Plain::Tuple(vec![int("1")])),
            ("()", Plain::Tuple(vec![])),
            (
                "[1, [2],]",
                Plain::List(vec![int("1"), Plain::List(vec![int("2")])]),
            ),
            ("{1, 2}", Plain::Set(vec![int("1"), int("2")])),
            ("{}", Plain::Dict(vec![])),
            (
                "{'a': None}",
                Plain::Dict(vec![(Plain::Str("a".to_owned()), Plain::None)]),
            ),
        ] {
            assert_eq!(parse(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn leaves_the_rest_to_an_interpreter() {
        for text in [
            "", "x", "2**3", "1 + 1", "f(1)", "007", "[1", "1 2", "'a", "Nonesuch", "[,]", "1__0", "f'x'",
            "[1,,2]", "1.2.3",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse(&"[".repeat(5000)), None);
    }

    fn plain() -> impl Strategy<Value = Plain> {
        let leaf = prop_oneof![
            Just(Plain::None),
            any::<bool>().prop_map(Plain::Bool),
            any::<i128>().prop_map(|i| Plain::Int(i.to_string())),
            any::<f64>()
                .prop_filter("finite", |x| x.is_finite())
                .prop_map(Plain::Float),
            "[a-zé'\"\\\\\n]{0,8}".prop_map(Plain::Str),
            proptest::collection::vec(any::<u8>(), 0..6).prop_map(Plain::Bytes),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Plain::List),
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Plain::Tuple),
                proptest::collection::vec((inner.clone(), inner), 0..3).prop_map(Plain::Dict),
            ]
        })
    }

    proptest! {
        /// What `repr` shows reads back as the same value.
        #[test]
        fn show_then_parse_is_identity(value in plain()) {
            prop_assert_eq!(parse(&show(&value)), Some(value));
        }
    }
}
