//! Verdicts of imported reasoning-gym rows equal those of the package itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mipu_envs::import::{self, Format, Options};
use mipu_envs::{Task, TaskSet};
use serde_json::Value;

use crate::{close, sandbox, score};

fn peers(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/peers")
        .join(name)
}

/// 200 rows of 10 generators; `tests/peers/reasoning_gym.py` wrote them, with the scores of the package.
#[tokio::test]
async fn verdicts_equal_score_answer() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = Options::new(
        Format::ReasoningGym,
        peers("reasoning_gym.jsonl"),
        directory.path(),
    );
    options.verifier = Some(peers("reasoning_gym_verifier.py"));
    let report = import::run(&options).unwrap();
    assert_eq!(report.rows, 200);
    let set = TaskSet::load(&report.tasks, sandbox(), 0).await.unwrap();
    let tasks: Vec<&Arc<Task>> = set.train.iter().chain(&set.validation).chain(&set.test).collect();
    assert_eq!(tasks.len(), 200);
    let (mut right, mut partly, mut wrong) = (0, 0, 0);
    for task in tasks {
        for probe in task.row["probes"].as_array().unwrap() {
            let (answer, expected) = (probe[0].as_str().unwrap(), probe[1].as_f64());
            // The package raises on some malformed answers, which is no score: here such an answer is wrong.
            let expected = expected.unwrap_or(0.0);
            let result = score(task, answer).await.unwrap();
            let (_, got) = result.metrics[0];
            assert_eq!(result.metrics[0].0, "reward/score");
            assert!(
                close(got, expected),
                "{}: {answer:?} scored {got}, not {expected}",
                task.row["question"]
            );
            assert!(close(result.reward, f64::from(expected >= 1.0)), "{answer:?}");
            match expected {
                score if score >= 1.0 => right += 1,
                score if score > 0.0 => partly += 1,
                _ => wrong += 1,
            }
        }
        assert_eq!(
            task.row["probes"][0][1],
            Value::from(1.0),
            "the first probe is the answer"
        );
    }
    assert!(
        right >= 300 && partly >= 200 && wrong >= 400,
        "{right} {partly} {wrong}"
    );
}
