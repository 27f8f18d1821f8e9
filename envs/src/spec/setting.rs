//! Settings that are written in the file or taken from the row.

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_saphyr::Spanned;

use crate::diagnostic::Place;
use crate::template::{Fields, RenderError, ValueTemplate};

/// A value, or a template of one: `0.2`, `"{{ slip }}"`. A text that is one whole `{{ expression }}` keeps the expression's type.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Spanned<Value>", bound = "T: DeserializeOwned")]
pub struct Setting<T> {
    place: Place,
    kind: Source<T>,
}

#[derive(Clone, Debug)]
enum Source<T> {
    Fixed(T),
    FromRow(ValueTemplate),
}

impl<T: DeserializeOwned> TryFrom<Spanned<Value>> for Setting<T> {
    type Error = String;

    fn try_from(spanned: Spanned<Value>) -> Result<Self, String> {
        let place = Place::of(&spanned.referenced);
        let kind = if has_template(&spanned.value) {
            Source::FromRow(ValueTemplate::try_from(spanned)?)
        } else {
            Source::Fixed(read(spanned.value)?)
        };
        Ok(Self { place, kind })
    }
}

impl<T: DeserializeOwned + Clone> Setting<T> {
    /// A value that is written nowhere: a default.
    pub(crate) fn fixed(value: T) -> Self {
        Self {
            place: Place::default(),
            kind: Source::Fixed(value),
        }
    }

    /// The value for these fields.
    ///
    /// # Errors
    /// On a field the row does not have, or a value of another type or out of range.
    pub(crate) fn get(&self, fields: &Fields) -> Result<T, RenderError> {
        match &self.kind {
            Source::Fixed(value) => Ok(value.clone()),
            Source::FromRow(template) => {
                read(template.evaluate(fields)?).map_err(|message| self.problem(message))
            }
        }
    }

    /// An error at its place in the file; a hint may follow a line break.
    pub(crate) fn problem(&self, message: impl Into<String>) -> RenderError {
        let message = message.into();
        let (message, hint) = match message.split_once("\nhint: ") {
            Some((message, hint)) => (message.to_owned(), Some(hint.to_owned())),
            None => (message, None),
        };
        RenderError {
            place: self.place,
            message,
            hint,
        }
    }

    /// What the row decides, as plain data: all of a template, nothing of a fixed value.
    ///
    /// # Errors
    /// As [`Setting::get`].
    pub(crate) fn of_row(&self, fields: &Fields) -> Result<Value, RenderError> {
        match &self.kind {
            Source::Fixed(_) => Ok(Value::Null),
            Source::FromRow(template) => template.evaluate(fields),
        }
    }
}

fn read<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    T::deserialize(value).map_err(|error| error.to_string())
}

fn has_template(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains("{{") || text.contains("{%"),
        Value::Array(items) => items.iter().any(has_template),
        Value::Object(map) => map.values().any(has_template),
        _ => false,
    }
}

impl<T: JsonSchema> JsonSchema for Setting<T> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("SettingOf{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let plain = generator.subschema_for::<T>();
        schemars::json_schema!({
            "anyOf": [plain, { "type": "string", "description": "A `{{ template }}` over the fields of the row" }]
        })
    }
}

/// Lines of text: one text, or a list of lines.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "RawLines")]
pub struct Lines(#[schemars(with = "RawLines")] pub Vec<String>);

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum RawLines {
    /// One text of several lines.
    Text(String),
    /// A list of lines.
    List(Vec<String>),
}

impl TryFrom<RawLines> for Lines {
    type Error = String;

    fn try_from(raw: RawLines) -> Result<Self, String> {
        let mut lines: Vec<String> = match raw {
            RawLines::Text(text) => text.lines().map(str::to_owned).collect(),
            RawLines::List(lines) => lines,
        };
        let blank = |line: &String| line.trim().is_empty();
        while lines.last().is_some_and(blank) {
            lines.pop();
        }
        while lines.first().is_some_and(blank) {
            lines.remove(0);
        }
        if lines.is_empty() {
            Err("the map has no line".to_owned())
        } else {
            Ok(Self(lines))
        }
    }
}
