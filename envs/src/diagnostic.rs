//! YAML to typed values, with errors a person can act on: file, line, column, snippet and hint.
//!
//! Other crates read their own YAML through [`from_yaml`], so that every file of the project fails in the same voice.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// Where in a YAML file a value stands; line and column count from 1, 0 is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

impl Place {
    /// The place the parser reports.
    pub fn of(location: &serde_saphyr::Location) -> Self {
        Self {
            line: location.line() as usize,
            column: location.column() as usize,
        }
    }
}

/// One problem in a file, ready to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file.
    pub path: PathBuf,
    /// Where in it, if known.
    pub place: Option<Place>,
    /// What was expected and found.
    pub message: String,
    /// The line of the file at `place`.
    pub snippet: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Diagnostic {
    /// A problem at `place` of `text`, the content of `path`.
    pub fn at(path: &Path, text: &str, place: Place, message: impl Into<String>) -> Self {
        let snippet = place
            .line
            .checked_sub(1)
            .and_then(|above| text.lines().nth(above))
            .map(str::to_owned);
        let place = (place.line > 0).then_some(place);
        Self {
            path: path.to_owned(),
            place,
            message: message.into(),
            snippet,
            hint: None,
        }
    }

    /// A problem of the file as a whole.
    pub fn whole(path: &Path, message: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            place: None,
            message: message.into(),
            snippet: None,
            hint: None,
        }
    }

    /// The same problem with a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<Option<String>>) -> Self {
        self.hint = hint.into();
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(Place { line, column }) = self.place {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.message)?;
        if let (Some(Place { line, column }), Some(snippet)) = (self.place, &self.snippet) {
            let gutter = " ".repeat(line.to_string().len());
            let caret = " ".repeat(column.saturating_sub(1));
            write!(f, "\n{gutter} |\n{line} | {snippet}\n{gutter} | {caret}^")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\nhint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostic {}

/// Reads `text`, the content of `path`, as a `T`.
///
/// # Errors
/// On YAML syntax, unknown or missing keys (with the nearest known one as a hint) and values out of range.
pub fn from_yaml<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, Box<Diagnostic>> {
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| Box::new(explain(path, text, &error)))
}

/// Reads a file as a `T`; see [`from_yaml`].
///
/// # Errors
/// When the file cannot be read, and as [`from_yaml`].
pub fn from_yaml_file<T: DeserializeOwned>(path: &Path) -> Result<(T, String), Box<Diagnostic>> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Box::new(Diagnostic::whole(path, format!("cannot be read: {error}"))))?;
    Ok((from_yaml(path, &text)?, text))
}

/// The known name nearest to `name`, if one is near enough to be meant.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let far = (name.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|&(distance, _)| distance <= far)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// `did you mean `x`?`, or the list of what is known.
pub fn suggestion<'a>(name: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> String {
    if let Some(near) = nearest(name, known.clone()) {
        return format!("did you mean `{near}`?");
    }
    let mut names: Vec<&str> = known.into_iter().collect();
    names.sort_unstable();
    format!("known here: {}", names.join(", "))
}

fn explain(path: &Path, text: &str, error: &serde_saphyr::Error) -> Diagnostic {
    use serde_saphyr::Error;
    let error = error.without_snippet();
    let place = error.location().map(|at| Place::of(&at)).unwrap_or_default();
    let (message, hint) = match error {
        Error::SerdeUnknownField { field, expected, .. } => (
            format!("unknown key `{field}`"),
            Some(suggestion(field, expected.iter().copied())),
        ),
        Error::SerdeUnknownVariant {
            variant, expected, ..
        } => (
            format!("unknown choice `{variant}`"),
            Some(suggestion(variant, expected.iter().copied())),
        ),
        Error::SerdeMissingField { field, .. } => (
            format!("missing key `{field}`"),
            Some(format!("add `{field}: ..` to the mapping that holds this line")),
        ),
        Error::InvalidScalar { ty, .. } => (format!("expected {}", scalar_name(ty)), None),
        Error::ExternalMessage { msg, .. } => (
            format!("not YAML: {msg}"),
            Some("look for an open quote or bracket in the lines above".to_owned()),
        ),
        Error::SerdeInvalidType {
            unexpected, expected, ..
        }
        | Error::SerdeInvalidValue {
            unexpected, expected, ..
        } => (format!("expected {expected}; got {unexpected}"), None),
        Error::DuplicateMappingKey { key, .. } => {
            let key = key.as_deref().unwrap_or("?");
            (
                format!("key `{key}` is given twice"),
                Some("keep one of them".to_owned()),
            )
        }
        Error::Message { msg, .. } => (msg.clone(), None),
        other => (strip_location(&other.to_string()), None),
    };
    // A range error may carry its own hint after a line break.
    let (message, hint) = match message.split_once("\nhint: ") {
        Some((message, own)) => (message.to_owned(), Some(own.to_owned())),
        None => (message, hint),
    };
    Diagnostic::at(path, text, place, message).with_hint(hint)
}

/// What people call a Rust scalar type.
fn scalar_name(ty: &str) -> &str {
    match ty {
        "f32" | "f64" => "a number",
        "bool" => "`true` or `false`",
        ty if ty.starts_with(['u', 'i']) => "a whole number",
        other => other,
    }
}

/// Drops the ` at line 3, column 4` that the parser appends; the diagnostic shows it in front.
fn strip_location(message: &str) -> String {
    match message.rfind(" at line ") {
        Some(cut) => message[..cut].to_owned(),
        None => message.to_owned(),
    }
}
