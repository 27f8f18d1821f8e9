//! YAML values with templates in them.

use serde::Deserialize;
use serde_json::Value;

use super::{Fields, RenderError, Template};
use crate::diagnostic::Place;

/// A YAML value whose texts are templates; a text that is one whole `{{ expression }}` becomes the expression's value.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "serde_saphyr::Spanned<Value>")]
pub struct ValueTemplate(Node);

#[derive(Clone, Debug)]
enum Node {
    Template(Template),
    Scalar(Value),
    Array(Vec<Node>),
    Object(Vec<(String, Node)>),
}

impl TryFrom<serde_saphyr::Spanned<Value>> for ValueTemplate {
    type Error = String;

    fn try_from(spanned: serde_saphyr::Spanned<Value>) -> Result<Self, String> {
        Node::new(spanned.value, Place::of(&spanned.referenced)).map(Self)
    }
}

impl schemars::JsonSchema for ValueTemplate {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ValueTemplate".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "description": "Any value; a text that is one `{{ expression }}` keeps its type" })
    }
}

impl ValueTemplate {
    /// The value for these fields.
    ///
    /// # Errors
    /// As [`Template::render`].
    pub(crate) fn evaluate(&self, fields: &Fields) -> Result<Value, RenderError> {
        self.0.evaluate(fields)
    }

    /// Every template in it.
    pub(crate) fn templates(&self) -> Vec<&Template> {
        let mut found = Vec::new();
        self.0.collect(&mut found);
        found
    }
}

impl Node {
    fn new(value: Value, place: Place) -> Result<Self, String> {
        Ok(match value {
            Value::String(text) => Self::Template(Template::new(text, place)?),
            Value::Array(items) => Self::Array(
                items
                    .into_iter()
                    .map(|item| Self::new(item, place))
                    .collect::<Result<_, _>>()?,
            ),
            Value::Object(map) => {
                let members = map
                    .into_iter()
                    .map(|(key, value)| Ok((key, Self::new(value, place)?)));
                Self::Object(members.collect::<Result<_, String>>()?)
            }
            scalar => Self::Scalar(scalar),
        })
    }

    fn evaluate(&self, fields: &Fields) -> Result<Value, RenderError> {
        Ok(match self {
            Self::Template(template) => template.evaluate(fields)?,
            Self::Scalar(value) => value.clone(),
            Self::Array(items) => Value::Array(
                items
                    .iter()
                    .map(|item| item.evaluate(fields))
                    .collect::<Result<_, _>>()?,
            ),
            Self::Object(members) => {
                let members = members
                    .iter()
                    .map(|(key, node)| Ok((key.clone(), node.evaluate(fields)?)));
                Value::Object(members.collect::<Result<_, RenderError>>()?)
            }
        })
    }

    fn collect<'a>(&'a self, found: &mut Vec<&'a Template>) {
        match self {
            Self::Template(template) => found.push(template),
            Self::Scalar(_) => {}
            Self::Array(items) => items.iter().for_each(|item| item.collect(found)),
            Self::Object(members) => members.iter().for_each(|(_, node)| node.collect(found)),
        }
    }
}
