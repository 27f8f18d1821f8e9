//! A Hugging Face chat template, rendered as transformers renders it.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{AutoEscape, Environment, ErrorKind, Value as Jinja, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::Serialize;
use serde_json::Value;

use crate::model::ModelError;

/// What `strftime_now` says: templates that print a date must not make episodes depend on the day they are run.
const TODAY: [(&str, &str); 10] = [
    ("%Y", "2025"),
    ("%y", "25"),
    ("%m", "01"),
    ("%d", "01"),
    ("%B", "January"),
    ("%b", "Jan"),
    ("%A", "Wednesday"),
    ("%a", "Wed"),
    ("%H", "00"),
    ("%M", "00"),
];

/// A compiled chat template.
pub(super) struct Template {
    environment: Environment<'static>,
    /// `bos_token`, `eos_token`, .. by role.
    special: serde_json::Map<String, Value>,
    /// More variables.
    options: serde_json::Map<String, Value>,
    /// The source mentions `tools`.
    pub(super) takes_tools: bool,
}

impl Template {
    /// Compiles `source`; `config` is a `tokenizer_config.json`, `options` are more variables of the template.
    pub(super) fn new(
        source: &str,
        config: &Value,
        options: serde_json::Map<String, Value>,
    ) -> Result<Self, ModelError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(|e| ModelError::Template(e.to_string()))?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_filter("tojson", to_json);
        // In Jinja2 a string is iterable; Llama's templates quote results by it.
        environment.add_test("iterable", |value: &Jinja| {
            value.as_str().is_some() || value.try_iter().is_ok()
        });
        environment.add_function(
            "raise_exception",
            |message: String| -> Result<String, minijinja::Error> {
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
            },
        );
        environment.add_function("strftime_now", |format: String| {
            TODAY
                .iter()
                .fold(format, |text, (from, to)| text.replace(from, to))
        });
        environment
            .add_template_owned("chat", source.to_owned())
            .map_err(|e| ModelError::Template(format!("the chat template does not compile: {e:#}")))?;
        let text = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Object(token) => token.get("content").and_then(Value::as_str).map(str::to_owned),
            _ => None,
        };
        let tokens = config
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(key, _)| key.ends_with("_token"));
        let special = tokens
            .filter_map(|(key, value)| Some((key.clone(), Value::String(text(value)?))))
            .collect();
        Ok(Self {
            environment,
            special,
            options,
            takes_tools: source.contains("tools"),
        })
    }

    /// The conversation as text. `tools` is `null` without tools.
    pub(super) fn render(
        &self,
        messages: &[Value],
        tools: &Value,
        generate: bool,
    ) -> Result<String, ModelError> {
        let refused = |e: minijinja::Error| ModelError::Template(format!("the chat template refuses: {e}"));
        let template = self.environment.get_template("chat").map_err(refused)?;
        let variables = context! {
            messages => messages.iter().map(from_json).collect::<Vec<_>>(),
            tools => from_json(tools),
            add_generation_prompt => generate,
            ..Jinja::from_pairs(
                self.special.iter().chain(&self.options).map(|(k, v)| (k.as_str(), from_json(v))),
            )
        };
        template.render(variables).map_err(refused)
    }

    /// A special token by its role.
    pub(super) fn special(&self, role: &str) -> Option<&str> {
        self.special.get(role).and_then(Value::as_str)
    }
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
        Value::Array(list) => list.iter().map(from_json).collect::<Vec<_>>().into(),
        Value::Object(map) => Jinja::from_pairs(map.iter().map(|(k, v)| (k.as_str(), from_json(v)))),
    }
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`, which is what transformers gives templates as `tojson`.
fn to_json(value: &Jinja, options: Kwargs) -> Result<String, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    for known in ["ensure_ascii", "separators", "sort_keys"] {
        if options.has(known) {
            let _: Jinja = options.get(known)?;
        }
    }
    options.assert_all_used()?;
    let failed = |e: serde_json::Error| minijinja::Error::new(ErrorKind::BadSerialization, e.to_string());
    match indent {
        None => python_json(value).map_err(failed),
        Some(width) => {
            let spaces = " ".repeat(width);
            let mut out = Vec::new();
            let formatter = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
            value.serialize(&mut serializer).map_err(failed)?;
            Ok(String::from_utf8_lossy(&out).into_owned())
        }
    }
}

/// JSON with the separators of Python's `json.dumps`: `", "` and `": "`.
pub(super) fn python_json(value: &impl Serialize) -> Result<String, serde_json::Error> {
    struct Python;
    impl serde_json::ser::Formatter for Python {
        fn begin_array_value<W: std::io::Write + ?Sized>(
            &mut self,
            w: &mut W,
            first: bool,
        ) -> std::io::Result<()> {
            if first { Ok(()) } else { w.write_all(b", ") }
        }

        fn begin_object_key<W: std::io::Write + ?Sized>(
            &mut self,
            w: &mut W,
            first: bool,
        ) -> std::io::Result<()> {
            if first { Ok(()) } else { w.write_all(b", ") }
        }

        fn begin_object_value<W: std::io::Write + ?Sized>(&mut self, w: &mut W) -> std::io::Result<()> {
            w.write_all(b": ")
        }
    }
    let mut out = Vec::new();
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, Python))?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render(source: &str, messages: Value) -> Result<String, String> {
        let config = json!({"eos_token": {"content": "<e>"}, "bos_token": "<b>"});
        let template = Template::new(source, &config, serde_json::Map::new()).map_err(|e| e.to_string())?;
        template
            .render(messages.as_array().unwrap(), &Value::Null, true)
            .map_err(|e| e.to_string())
    }

    #[test]
    fn python_methods_and_json_are_those_of_transformers() {
        let source = "{{ bos_token }}{% for m in messages %}{{ m.content.strip().split('x')[-1] }}\
                      {{ m | tojson }}{{ strftime_now('%d %b %Y') }}{% endfor %}{{ eos_token }}";
        let text = render(
            source,
            json!([{"role": "user", "content": " axb ", "n": [1, {"é": null}]}]),
        )
        .unwrap();
        assert_eq!(
            text,
            "<b>b{\"role\": \"user\", \"content\": \" axb \", \"n\": [1, {\"é\": null}]}01 Jan 2025<e>"
        );
    }

    #[test]
    fn html_is_not_escaped() {
        let text = render(
            "{{ messages | tojson }}{{ messages[0].content }}",
            json!([{"content": "<'&\">"}]),
        )
        .unwrap();
        assert_eq!(text, r#"[{"content": "<'&\">"}]<'&">"#);
    }

    #[test]
    fn a_template_may_refuse() {
        let error = render("{{ raise_exception('roles must alternate') }}", json!([])).unwrap_err();
        assert!(error.contains("roles must alternate"), "{error}");
        let error = render("{% if %}", json!([])).unwrap_err();
        assert!(error.contains("does not compile"), "{error}");
    }
}
