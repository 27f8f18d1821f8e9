//! A JSON Schema as a Markdown reference: one section a type, one table row a key.

use std::collections::{BTreeSet, VecDeque};

use serde_json::{Map, Value};

/// The reference of `schema`, whose root is called `title`. Types follow in the order they are first named.
pub(crate) fn markdown(schema: &Value, title: &str) -> String {
    let book = Book {
        definitions: schema["$defs"].as_object(),
    };
    let mut out = String::new();
    let mut waiting = VecDeque::new();
    book.section(title, schema, &mut out, &mut waiting);
    let mut written = BTreeSet::new();
    while let Some(name) = waiting.pop_front() {
        if written.insert(name.clone())
            && let Some(definition) = book.definition(&name)
        {
            book.section(&name, definition, &mut out, &mut waiting);
        }
    }
    out
}

struct Book<'a> {
    definitions: Option<&'a Map<String, Value>>,
}

impl<'a> Book<'a> {
    fn definition(&self, name: &str) -> Option<&'a Value> {
        self.definitions?.get(name)
    }

    /// Whether a type has keys or choices of its own, and so a section; others are explained where they are used.
    fn has_section(definition: &Value) -> bool {
        definition["properties"].is_object() || definition["oneOf"].is_array()
    }

    fn section(&self, name: &str, definition: &Value, out: &mut String, waiting: &mut VecDeque<String>) {
        let level = if out.is_empty() { "#" } else { "##" };
        out.push_str(&format!("{level} {name}\n\n"));
        if let Some(about) = definition["description"].as_str() {
            out.push_str(&format!("{}\n\n", one_line(about)));
        }
        if let Some(properties) = definition["properties"].as_object() {
            let required: Vec<&str> = definition["required"]
                .as_array()
                .map(|names| names.iter().filter_map(Value::as_str).collect())
                .unwrap_or_default();
            out.push_str("| key | value | |\n|---|---|---|\n");
            for (key, property) in properties {
                let must = if required.contains(&key.as_str()) {
                    " **required**"
                } else {
                    ""
                };
                self.row(&format!("`{key}`{must}"), property, out, waiting);
            }
            out.push('\n');
        }
        if let Some(choices) = definition["oneOf"].as_array() {
            out.push_str("| one of | value | |\n|---|---|---|\n");
            for choice in choices {
                let about = choice["description"].clone();
                match choice["properties"].as_object().and_then(|p| p.iter().next()) {
                    Some((key, value)) => {
                        let mut value = value.clone();
                        if about.is_string() {
                            value["description"] = about;
                        }
                        self.row(&format!("`{key}:`"), &value, out, waiting);
                    }
                    None => {
                        let words = choice["const"]
                            .as_str()
                            .map(|word| vec![word])
                            .or_else(|| {
                                Some(
                                    choice["enum"]
                                        .as_array()?
                                        .iter()
                                        .filter_map(Value::as_str)
                                        .collect(),
                                )
                            })
                            .unwrap_or_default();
                        let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
                        let about = one_line(about.as_str().unwrap_or_default());
                        out.push_str(&format!("| {} | | {about} |\n", words.join(", ")));
                    }
                }
            }
            out.push('\n');
        }
    }

    fn row(&self, head: &str, property: &Value, out: &mut String, waiting: &mut VecDeque<String>) {
        let kind = self.kind(property, waiting);
        let about = property["description"]
            .as_str()
            .or_else(|| self.definition(reference(property)?)?["description"].as_str())
            .unwrap_or_default();
        let mut about = one_line(about);
        let default = &property["default"];
        let simple =
            default.is_number() || default.is_boolean() || default.as_str().is_some_and(|s| !s.is_empty());
        if simple && !about.to_lowercase().contains("default") {
            about.push_str(&format!(" Default {default}."));
        }
        out.push_str(&format!("| {head} | {kind} | {about} |\n"));
    }

    /// The words for a type; named types that have a section are linked and queued.
    fn kind(&self, schema: &Value, waiting: &mut VecDeque<String>) -> String {
        if let Some(name) = reference(schema) {
            let Some(definition) = self.definition(name) else {
                return name.to_owned();
            };
            if Self::has_section(definition) {
                waiting.push_back(name.to_owned());
                return format!("[{name}](#{})", name.to_lowercase());
            }
            let plain = self.kind(definition, waiting);
            return match definition["description"].as_str() {
                Some(about) if definition["type"].is_string() && plain != "text" => {
                    format!("{plain}: {}", one_line(about.trim_end_matches('.')))
                }
                _ => plain,
            };
        }
        let several = ["anyOf", "oneOf"]
            .iter()
            .find_map(|key| schema[key].as_array())
            .map(|parts| {
                let mut kinds: Vec<String> = Vec::new();
                for part in parts.iter().filter(|part| part["type"] != "null") {
                    let kind = self.kind(part, waiting);
                    if !kinds.contains(&kind) {
                        kinds.push(kind);
                    }
                }
                kinds.join(" or ")
            });
        if let Some(several) = several {
            return several;
        }
        if let Some(words) = schema["enum"].as_array() {
            let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
            return words.join(", ");
        }
        let names: Vec<&str> = match &schema["type"] {
            Value::String(name) => vec![name],
            Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
            _ => return "any value".to_owned(),
        };
        let mut words: Vec<String> = Vec::new();
        for name in names {
            let word = match name {
                "null" => continue,
                "string" => "text".to_owned(),
                "array" if schema["items"].is_object() => {
                    format!("list of {}", self.kind(&schema["items"], waiting))
                }
                "array" => "list".to_owned(),
                "object" if schema["additionalProperties"].is_object() => {
                    format!("map to {}", self.kind(&schema["additionalProperties"], waiting))
                }
                "object" => "map".to_owned(),
                other => other.to_owned(),
            };
            words.push(word);
        }
        // A template takes text, numbers and booleans alike.
        if words.len() > 1 && words[0] == "text" {
            words.truncate(1);
        }
        words.join(" or ")
    }
}

fn reference(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.strip_prefix("#/$defs/")
}

/// One table cell: no line breaks, no column separators.
fn one_line(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_schema_becomes_sections_and_rows() {
        let schema = json!({
            "description": "A thing.",
            "required": ["size"],
            "properties": {
                "size": {"$ref": "#/$defs/Count", "description": "How large."},
                "parts": {"type": ["array", "null"], "items": {"$ref": "#/$defs/Part"}},
                "on": {"type": "boolean", "description": "Whether a | b.", "default": true},
            },
            "$defs": {
                "Count": {"type": "integer", "description": "A number in 1..=9."},
                "Part": {"oneOf": [
                    {"type": "string", "const": "plain", "description": "Nothing more."},
                    {"type": "object", "properties": {"named": {"type": "string"}}, "description": "With a name."},
                ]},
            },
        });
        let expected = "\
# Thing

A thing.

| key | value | |
|---|---|---|
| `size` **required** | integer: A number in 1..=9 | How large. |
| `parts` | list of [Part](#part) |  |
| `on` | boolean | Whether a \\| b. Default true. |

## Part

| one of | value | |
|---|---|---|
| `plain` | | Nothing more. |
| `named:` | text | With a name. |

";
        assert_eq!(markdown(&schema, "Thing"), expected);
    }
}
