//! JSON lines of any shape, with a template for the prompt and one for the expected answer.

use serde_json::{Map, Value, json};

use super::output::{self, Draft, object};
use super::{Comparison, ImportError, Options, Report, source};
use crate::diagnostic::Diagnostic;

/// Fields that usually hold the problem, likeliest first.
const PROMPTS: [&str; 5] = ["question", "prompt", "instruction", "problem", "input"];
/// Fields that usually hold the answer.
const ANSWERS: [&str; 5] = ["answer", "gold", "target", "output", "solution"];

pub(super) fn import(options: &Options) -> Result<Report, ImportError> {
    let rows = source::rows(&options.source)?;
    let first = &rows[0];
    let template = |given: &Option<String>, usual: &[&str], what: &str| match given {
        Some(template) => Ok(template.clone()),
        None => usual_field(first, usual).ok_or_else(|| {
            let fields: Vec<&str> = first.keys().map(String::as_str).collect();
            let message = format!(
                "no field of the rows is known to be {what}: {}",
                fields.join(", ")
            );
            Diagnostic::whole(&options.source, message).with_hint(format!(
                "give a template over these fields, such as \"{{{{ {} }}}}\"",
                fields[0]
            ))
        }),
    };
    if first.is_empty() {
        return Err(Diagnostic::whole(&options.source, "the first row has no field").into());
    }
    let instruction = template(&options.instruction, &PROMPTS, "the prompt")?;
    let answer = template(&options.answer, &ANSWERS, "the expected answer")?;
    let reward = match options.comparison {
        Comparison::Exact => json!({ "exact": answer }),
        Comparison::Numeric => json!({ "numeric": { "expected": answer } }),
        Comparison::Contains => json!({ "contains": answer }),
    };
    let count = rows.len();
    let draft = Draft {
        name: output::name(options.name.as_deref(), &options.source),
        origin: "Imported from JSON lines by `mipu task import`.".to_owned(),
        keys: object(json!({
            "instruction": instruction,
            "tools": ["python"],
            "limits": { "max_turns": 4, "max_tokens": 4096 },
            "reward": reward,
            "solution": { "turns": [{ "answer": answer }] },
        })),
        rows,
    };
    Ok(Report {
        tasks: vec![output::write(&options.out_dir, &draft)?],
        rows: count,
        refused: Vec::new(),
    })
}

fn usual_field(row: &Map<String, Value>, usual: &[&str]) -> Option<String> {
    let name = usual.iter().find(|name| row.contains_key(**name))?;
    Some(format!("{{{{ {name} }}}}"))
}
