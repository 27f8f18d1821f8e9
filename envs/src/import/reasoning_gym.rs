//! Exports of reasoning-gym: question, answer, metadata, and the generator's verifier as a `python` reward.

use serde_json::json;

use super::output::{self, Draft, object};
use super::{ImportError, Options, Report, source};
use crate::diagnostic::Diagnostic;

/// The rule of generators that have no verifier of their own: 1 for the answer itself, its share of the text where it stands in it.
const BASE: &str = "\
def score_answer(answer, entry):
    gold = entry[\"answer\"]
    if answer == gold:
        return 1.0
    return len(gold) / len(answer) if answer and gold in answer else 0.0
";

/// A verifier that fails over an answer says nothing against the task: such an answer is wrong.
const REWARD: &str = "
def reward(row, answer, files):
    try:
        score = float(score_answer(answer, row))
    except Exception:
        return 0.0
    return min(max(score, 0.0), 1.0)
";

pub(super) fn import(options: &Options) -> Result<Report, ImportError> {
    let rows = source::rows(&options.source)?;
    source::require(&options.source, &rows, &["question", "answer"])?;
    let verifier = match &options.verifier {
        None => BASE.to_owned(),
        Some(path) => {
            let text = source::text(path)?;
            if !text.contains("def score_answer(") {
                let message = "it does not define `score_answer`";
                let hint =
                    "def score_answer(answer, entry): return 1.0 if answer == entry[\"answer\"] else 0.0";
                return Err(Diagnostic::whole(path, message).with_hint(hint.to_owned()).into());
            }
            text
        }
    };
    let count = rows.len();
    let draft = Draft {
        name: output::name(options.name.as_deref(), &options.source),
        origin: "Imported from a reasoning-gym export by `mipu task import`.".to_owned(),
        keys: object(json!({
            "instruction": "{{ question }}",
            "tools": ["python"],
            "limits": { "max_turns": 4, "max_tokens": 4096 },
            "reward": { "python": format!("{}{REWARD}", verifier.trim_end().to_owned() + "\n") },
            "solution": { "turns": [{ "answer": "{{ answer }}" }] },
        })),
        rows,
    };
    Ok(Report {
        tasks: vec![output::write(&options.out_dir, &draft)?],
        rows: count,
        refused: Vec::new(),
    })
}
