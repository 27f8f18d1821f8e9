//! JSON as models write it: beside JSON itself, Python's literals and quotes, raw line breaks in strings, and trailing commas.
//!
//! Total over any text; what JSON itself can read is read as JSON.

use serde_json::{Map, Value};

/// Deeper nesting is refused.
const MAX_DEPTH: usize = 64;

/// The value at the start of `text` (white space before it aside) and where it ends.
///
/// # Errors
/// What was expected and found, with the position in bytes.
pub(super) fn value(text: &str) -> Result<(Value, usize), String> {
    let mut strict = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    if let Some(Ok(value)) = strict.next() {
        return Ok((value, strict.byte_offset()));
    }
    let mut reader = Reader { text, at: 0 };
    let value = reader.value(0)?;
    Ok((value, reader.at))
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn skip(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.at += wanted.len_utf8();
        }
        found
    }

    fn expected(&self, what: &str) -> String {
        match self.peek() {
            Some(c) => format!("expected {what}; got {c:?} at byte {}", self.at),
            None => format!("expected {what}; got the end"),
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        if depth > MAX_DEPTH {
            return Err(format!("nested deeper than {MAX_DEPTH}"));
        }
        self.skip();
        match self.peek() {
            Some('{') => self.object(depth),
            Some('[') => self.array(depth),
            Some('"' | '\'') => self.string().map(Value::String),
            _ => self.word(),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, String> {
        self.at += 1;
        let mut map = Map::new();
        loop {
            self.skip();
            if self.take('}') {
                return Ok(Value::Object(map));
            }
            if !matches!(self.peek(), Some('"' | '\'')) {
                return Err(self.expected("a quoted key or `}`"));
            }
            let key = self.string()?;
            self.skip();
            if !self.take(':') {
                return Err(self.expected("`:`"));
            }
            let value = self.value(depth + 1)?;
            map.insert(key, value);
            self.skip();
            if !self.take(',') && self.peek() != Some('}') {
                return Err(self.expected("`,` or `}`"));
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, String> {
        self.at += 1;
        let mut list = Vec::new();
        loop {
            self.skip();
            if self.take(']') {
                return Ok(Value::Array(list));
            }
            list.push(self.value(depth + 1)?);
            self.skip();
            if !self.take(',') && self.peek() != Some(']') {
                return Err(self.expected("`,` or `]`"));
            }
        }
    }

    fn string(&mut self) -> Result<String, String> {
        let quote = self.peek().unwrap_or('"');
        let start = self.at;
        self.at += quote.len_utf8();
        let mut out = String::new();
        loop {
            let Some(c) = self.peek() else {
                return Err(format!("the string that opens at byte {start} is not closed"));
            };
            self.at += c.len_utf8();
            match c {
                c if c == quote => return Ok(out),
                '\\' => self.escape(&mut out)?,
                c => out.push(c),
            }
        }
    }

    fn escape(&mut self, out: &mut String) -> Result<(), String> {
        let Some(c) = self.peek() else {
            return Err("a string ends behind `\\`".to_owned());
        };
        self.at += c.len_utf8();
        match c {
            'n' => out.push('\n'),
            't' => out.push('\t'),
            'r' => out.push('\r'),
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            'u' => {
                let unit = self.unit()?;
                let paired = (0xd800..0xdc00).contains(&unit) && self.rest().starts_with("\\u");
                let code = if paired {
                    self.at += 2;
                    0x10000 + ((unit - 0xd800) << 10) + self.unit()?.wrapping_sub(0xdc00) % 0x400
                } else {
                    unit
                };
                out.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            '"' | '\'' | '\\' | '/' => out.push(c),
            // As in Python, an escape that means nothing is itself.
            other => out.extend(['\\', other]),
        }
        Ok(())
    }

    fn unit(&mut self) -> Result<u32, String> {
        let digits = self
            .rest()
            .get(..4)
            .filter(|d| d.chars().all(|c| c.is_ascii_hexdigit()));
        let unit = digits.and_then(|d| u32::from_str_radix(d, 16).ok());
        let unit = unit.ok_or_else(|| self.expected("four hexadecimal digits"))?;
        self.at += 4;
        Ok(unit)
    }

    fn word(&mut self) -> Result<Value, String> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "+-._".contains(c);
        let len = self.rest().find(|c| !is_part(c)).unwrap_or(self.rest().len());
        let word = &self.rest()[..len];
        let value = match word {
            "true" | "True" => Value::Bool(true),
            "false" | "False" => Value::Bool(false),
            "null" | "None" => Value::Null,
            _ => match serde_json::from_str::<serde_json::Number>(word) {
                Ok(number) => Value::Number(number),
                Err(_) => return Err(self.expected("a value")),
            },
        };
        self.at += len;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_models_write_is_read() {
        for (text, want, rest) in [
            (r#" {"a": 1} tail"#, json!({"a": 1}), " tail"),
            ("{\"code\": \"a\nb\"}", json!({"code": "a\nb"}), ""),
            (
                "{'a': 'it\\'s', \"b\": None,}",
                json!({"a": "it's", "b": null}),
                "",
            ),
            ("[True, False, -1.5e3, ]", json!([true, false, -1500.0]), ""),
            (
                "{'p': 'a\\d \\ud83d\\ude00 \\u00e9'}",
                json!({"p": "a\\d 😀 é"}),
                "",
            ),
            ("{}</tool_call>", json!({}), "</tool_call>"),
        ] {
            let (got, end) = value(text).unwrap();
            assert_eq!((got, &text[end..]), (want, rest), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        for (text, want) in [
            ("", "expected a value; got the end"),
            ("{a: 1}", "expected a quoted key or `}`; got 'a' at byte 1"),
            ("{\"a\" 1}", "expected `:`; got '1' at byte 5"),
            ("{\"a\": 1 \"b\"}", "expected `,` or `}`; got '\"' at byte 8"),
            ("{\"a\": \"x", "the string that opens at byte 6 is not closed"),
            ("[1, nope]", "expected a value; got 'n' at byte 4"),
            ("{'a': '\\u12'}", "four hexadecimal digits"),
        ] {
            let error = value(text).unwrap_err();
            assert!(error.contains(want), "{text}: {error}");
        }
        assert!(value(&"[".repeat(100_000)).unwrap_err().contains("nested deeper"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in r#"[\[\]{}:,'"\\u0-9a-fTN\n é😀]{0,40}"#) {
            if let Ok((_, end)) = value(&text) {
                prop_assert!(text.is_char_boundary(end) && end <= text.len());
            }
        }

        #[test]
        fn json_is_read_as_json(keys in prop::collection::vec(".{0,8}", 0..4), text in ".{0,20}", n: i64) {
            let json = json!({"k": keys, "t": text, "n": n});
            let written = json.to_string();
            prop_assert_eq!(value(&written).unwrap(), (json, written.len()));
        }
    }
}
