//! Templates over a row's fields: minijinja with strict undefined, a fixed set of filters and no functions.

mod value;

use std::collections::BTreeSet;
use std::sync::LazyLock;

use minijinja::value::{Value as Jinja, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior, filters};
use serde::Deserialize;
use serde_json::{Map, Number, Value};

use crate::diagnostic::{Place, suggestion};
pub use value::ValueTemplate;

/// A template whose syntax is known to be right, with its place in the task file.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "serde_saphyr::Spanned<String>")]
pub struct Template {
    source: String,
    place: Place,
}

impl schemars::JsonSchema for Template {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Template".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": ["string", "number", "boolean"],
            "description": "Text with `{{ field }}` placeholders over the fields of the row"
        })
    }
}

impl TryFrom<serde_saphyr::Spanned<String>> for Template {
    type Error = String;

    fn try_from(spanned: serde_saphyr::Spanned<String>) -> Result<Self, String> {
        let place = Place::of(&spanned.referenced);
        Self::new(spanned.value, place)
    }
}

impl Template {
    /// Checks the syntax of `source`, which stands at `place` of its file.
    ///
    /// # Errors
    /// With the syntax error.
    pub(crate) fn new(source: String, place: Place) -> Result<Self, String> {
        parse(&source)?;
        Ok(Self { source, place })
    }

    /// The template as written.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Its place in the task file.
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// The names the template reads.
    pub(crate) fn variables(&self) -> BTreeSet<String> {
        parse(&self.source).unwrap_or_default()
    }

    /// Reports what can be told without knowing the values: a field that nobody provides, or a filter that does not exist.
    ///
    /// # Errors
    /// With the first such problem.
    pub(crate) fn check(&self, fields: &Fields) -> Result<(), RenderError> {
        let known = fields.names();
        if let Some(name) = self.variables().into_iter().find(|name| !known.contains(name)) {
            return Err(self.missing(&name, &known));
        }
        match ENVIRONMENT.render_str(&self.source, fields.0.clone()) {
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::UnknownFilter | ErrorKind::UnknownFunction
                ) =>
            {
                Err(self.error(&error, fields))
            }
            _ => Ok(()),
        }
    }

    /// The text for these fields.
    ///
    /// # Errors
    /// On a field the row does not have, or a filter that does not apply to its value.
    pub(crate) fn render(&self, fields: &Fields) -> Result<String, RenderError> {
        ENVIRONMENT
            .render_str(&self.source, fields.0.clone())
            .map_err(|error| self.error(&error, fields))
    }

    /// The value for these fields: a template that is one whole `{{ expression }}` keeps its type, any other is text.
    ///
    /// # Errors
    /// As [`Template::render`].
    pub(crate) fn evaluate(&self, fields: &Fields) -> Result<Value, RenderError> {
        let Some(expression) = whole_expression(&self.source) else {
            return self.render(fields).map(Value::String);
        };
        let value = ENVIRONMENT
            .compile_expression_owned(expression.to_owned())
            .and_then(|compiled| compiled.eval(fields.0.clone()))
            .map_err(|error| self.error(&error, fields))?;
        if value.is_undefined() {
            // Rendering the same template names the missing field.
            return self.render(fields).map(Value::String);
        }
        to_json(&value).map_err(|message| RenderError {
            place: self.place,
            message,
            hint: None,
        })
    }

    fn error(&self, error: &minijinja::Error, fields: &Fields) -> RenderError {
        let known = fields.names();
        let unknown = self.variables().into_iter().find(|name| !known.contains(name));
        match (error.kind(), unknown) {
            (ErrorKind::UndefinedError, Some(name)) => self.missing(&name, &known),
            (ErrorKind::UnknownFilter, _) => {
                let hint = format!("filters: {}", FILTERS.join(", "));
                RenderError {
                    place: self.place,
                    message: describe(error),
                    hint: Some(hint),
                }
            }
            _ => RenderError {
                place: self.place,
                message: describe(error),
                hint: None,
            },
        }
    }

    fn missing(&self, name: &str, known: &[String]) -> RenderError {
        RenderError {
            place: self.place,
            message: format!("the template reads `{name}`, which the row does not have"),
            hint: Some(suggestion(name, known.iter().map(String::as_str))),
        }
    }
}

/// A template could not be rendered for a row.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct RenderError {
    /// Where the template stands.
    pub place: Place,
    /// What went wrong.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

/// The names a template may read: a row's fields and what the moment adds (`answer`, `observation`).
#[derive(Clone, Debug)]
pub(crate) struct Fields(Jinja);

impl Fields {
    /// The fields of `row`.
    pub(crate) fn of(row: &Map<String, Value>) -> Self {
        Self(Jinja::from_pairs(
            row.iter().map(|(name, value)| (name.as_str(), from_json(value))),
        ))
    }

    /// The fields of `row` and one more.
    pub(crate) fn with(row: &Map<String, Value>, name: &str, value: &str) -> Self {
        let fields = row
            .iter()
            .filter(|(field, _)| *field != name)
            .map(|(f, v)| (f.as_str(), from_json(v)));
        Self(Jinja::from_pairs(
            fields.chain(std::iter::once((name, Jinja::from(value)))),
        ))
    }

    fn names(&self) -> Vec<String> {
        self.0
            .try_iter()
            .map(|keys| keys.map(|key| key.to_string()).collect())
            .unwrap_or_default()
    }
}

static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut env = Environment::empty();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_recursion_limit(64);
    env.add_filter("upper", filters::upper);
    env.add_filter("lower", filters::lower);
    env.add_filter("trim", filters::trim);
    env.add_filter("replace", filters::replace);
    env.add_filter("join", filters::join);
    env.add_filter("split", filters::split);
    env.add_filter("length", filters::length);
    env.add_filter("first", filters::first);
    env.add_filter("last", filters::last);
    env.add_filter("sort", filters::sort);
    env.add_filter("int", filters::int);
    env.add_filter("float", filters::float);
    env.add_filter("round", filters::round);
    env.add_filter("abs", filters::abs);
    env.add_filter("indent", filters::indent);
    env.add_filter("tojson", |value: &Jinja| json_filter(value));
    env.add_filter("repr", |value: &Jinja| repr_filter(value));
    env.add_filter("regex_escape", |text: String| regex::escape(&text));
    env
});

/// Names of the filters a template may use.
const FILTERS: [&str; 18] = [
    "abs",
    "first",
    "float",
    "indent",
    "int",
    "join",
    "last",
    "length",
    "lower",
    "regex_escape",
    "replace",
    "repr",
    "round",
    "sort",
    "split",
    "tojson",
    "trim",
    "upper",
];

/// Checks syntax and filters, and returns the variables read.
fn parse(source: &str) -> Result<BTreeSet<String>, String> {
    // `template_from_str` ties the source to the environment's lifetime, so a scratch environment parses it.
    let scratch = Environment::empty();
    let template = scratch
        .template_from_str(source)
        .map_err(|error| syntax_message(&error))?;
    Ok(template.undeclared_variables(false).into_iter().collect())
}

fn syntax_message(error: &minijinja::Error) -> String {
    format!(
        "{}\nhint: placeholders are written `{{{{ field }}}}`; a literal brace pair needs `{{% raw %}}`",
        describe(error)
    )
}

fn describe(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("template: {detail}"),
        None => format!("template: {}", error.kind()),
    }
}

fn whole_expression(source: &str) -> Option<&str> {
    let inner = source.trim().strip_prefix("{{")?.strip_suffix("}}")?;
    (!inner.contains("{{") && !inner.contains("}}") && !inner.contains("{%")).then(|| inner.trim())
}

fn from_json(value: &Value) -> Jinja {
    match value {
        Value::Null => Jinja::from(()),
        Value::Bool(b) => Jinja::from(*b),
        Value::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i), _) => Jinja::from(i),
            (None, Some(u)) => Jinja::from(u),
            (None, None) => Jinja::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(s) => Jinja::from(s.as_str()),
        Value::Array(items) => items.iter().map(from_json).collect(),
        Value::Object(map) => Jinja::from_pairs(map.iter().map(|(k, v)| (k.as_str(), from_json(v)))),
    }
}

fn to_json(value: &Jinja) -> Result<Value, String> {
    Ok(match value.kind() {
        ValueKind::None | ValueKind::Undefined => Value::Null,
        ValueKind::Bool => Value::Bool(value.is_true()),
        ValueKind::Number => {
            let number = if !value.is_integer() {
                f64::try_from(value.clone()).ok().and_then(Number::from_f64)
            } else if let Ok(i) = i64::try_from(value.clone()) {
                Some(Number::from(i))
            } else {
                u64::try_from(value.clone()).ok().map(Number::from)
            };
            Value::Number(number.ok_or_else(|| format!("the number {value} has no JSON form"))?)
        }
        ValueKind::String => Value::String(value.to_string()),
        ValueKind::Seq | ValueKind::Iterable => Value::Array(
            value
                .try_iter()
                .map_err(|e| e.to_string())?
                .map(|item| to_json(&item))
                .collect::<Result<_, _>>()?,
        ),
        ValueKind::Map => {
            let mut map = Map::new();
            for key in value.try_iter().map_err(|e| e.to_string())? {
                let item = value.get_item(&key).map_err(|e| e.to_string())?;
                map.insert(key.to_string(), to_json(&item)?);
            }
            Value::Object(map)
        }
        other => return Err(format!("a template may not produce a {other}")),
    })
}

fn json_filter(value: &Jinja) -> Result<String, minijinja::Error> {
    let value =
        to_json(value).map_err(|message| minijinja::Error::new(ErrorKind::InvalidOperation, message))?;
    Ok(value.to_string())
}

fn repr_filter(value: &Jinja) -> Result<String, minijinja::Error> {
    let value =
        to_json(value).map_err(|message| minijinja::Error::new(ErrorKind::InvalidOperation, message))?;
    Ok(crate::python::literal(&value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row() -> Map<String, Value> {
        let Value::Object(row) = json!({"a": 3, "x": 1.0, "text": "hi\n'you'", "list": [1, true, null]})
        else {
            unreachable!("an object literal")
        };
        row
    }

    fn render(source: &str) -> Result<String, RenderError> {
        Template::new(source.to_owned(), Place::default())
            .unwrap()
            .render(&Fields::of(&row()))
    }

    #[test]
    fn fields_render_with_the_fixed_filters() {
        for (source, expected) in [
            ("{{ a }}+{{ a + 1 }}", "3+4"),
            ("{{ x }}", "1.0"),
            ("{{ text | repr }}", r#"'hi\n\'you\''"#),
            ("{{ list | repr }}", "[1, True, None]"),
            ("{{ list | tojson }}", "[1,true,null]"),
            ("{% for i in list %}{{ loop.index }}{% endfor %}", "123"),
            ("{{ 'a.b' | regex_escape }}", r"a\.b"),
            ("<b>&", "<b>&"),
        ] {
            assert_eq!(render(source).unwrap(), expected, "{source}");
        }
    }

    #[test]
    fn a_missing_field_is_named_with_its_neighbour() {
        let error = render("{{ txt }}").unwrap_err();
        assert_eq!(
            error.message,
            "the template reads `txt`, which the row does not have"
        );
        assert_eq!(error.hint.as_deref(), Some("did you mean `text`?"));
    }

    #[test]
    fn the_filter_list_is_the_list_of_filters() {
        for name in FILTERS {
            let error = ENVIRONMENT.render_str(&format!("{{{{ 1 | {name} }}}}"), ()).err();
            assert!(
                error.is_none_or(|e| e.kind() != ErrorKind::UnknownFilter),
                "{name}"
            );
        }
    }

    #[test]
    fn unknown_filters_and_functions_are_refused() {
        for source in ["{{ a | pprint }}", "{{ range(3) }}", "{{ dict() }}"] {
            let refused = Template::new(source.to_owned(), Place::default())
                .map_err(|_| ())
                .and_then(|t| t.render(&Fields::of(&row())).map_err(|_| ()));
            assert!(refused.is_err(), "{source}");
        }
    }

    #[test]
    fn a_whole_expression_keeps_its_type() {
        let evaluate = |source: &str| {
            Template::new(source.to_owned(), Place::default())
                .unwrap()
                .evaluate(&Fields::of(&row()))
                .unwrap()
        };
        assert_eq!(evaluate("{{ list }}"), json!([1, true, null]));
        assert_eq!(evaluate("{{ a }}"), json!(3));
        assert_eq!(evaluate("a{{ a }}"), json!("a3"));
    }
}
