//! HumanEval and data sets of its shape: complete a function, `check(candidate)` decides.

use serde_json::json;

use super::output::{self, Draft, object};
use super::{ImportError, Options, Report, source};

/// The tests may call helpers that the prompt defines, so the prompt is executed before them; the proxy of the candidate, which the
/// prompt's own definition would hide, is kept and restored.
const TESTS: &str = "_candidate = {{ entry_point }}\n{{ prompt }}\n    pass\n{{ entry_point }} = _candidate\n{{ test }}\ncheck(_candidate)\n";

pub(super) fn import(options: &Options) -> Result<Report, ImportError> {
    let rows = source::rows(&options.source)?;
    source::require(
        &options.source,
        &rows,
        &["prompt", "entry_point", "canonical_solution", "test"],
    )?;
    let count = rows.len();
    let draft = Draft {
        name: output::name(options.name.as_deref(), &options.source),
        origin: "Imported from HumanEval-style JSON lines by `mipu task import`.".to_owned(),
        keys: object(json!({
            "description": "Complete a Python function; assert-style tests decide.",
            "system": "Answer with the whole function and what it needs, without Markdown.",
            "instruction": "{{ prompt }}",
            "tools": ["python"],
            "limits": { "max_turns": 4, "max_tokens": 4096, "timeout_sec": 5 },
            "reward": { "unit_tests": { "entry": "{{ entry_point }}", "tests": TESTS } },
            "solution": { "turns": [{ "answer": "{{ prompt }}{{ canonical_solution }}" }] },
        })),
        rows,
    };
    Ok(Report {
        tasks: vec![output::write(&options.out_dir, &draft)?],
        rows: count,
        refused: Vec::new(),
    })
}
