//! The rows as they are: splits, repetitions, answers in sight.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use mipu_sandbox::Sandbox;

use super::report::{DoctorReport, Severity};
use crate::env::Unscored;
use crate::reward::Judge;
use crate::reward::unit_tests::surface;
use crate::task::{Split, Task};
use crate::taskset::TaskSet;

/// Answers shorter than this stand in a prompt by chance.
const SHORTEST_LEAK: usize = 3;
/// Code shorter than this stands in a workspace by chance.
const SHORTEST_CODE: usize = 24;
/// Share of the rows that may show their answer before it is reported.
const LEAK_SHARE: f64 = 0.2;

/// Splits, prompts and repetitions of the whole set.
pub(super) fn check_rows(set: &TaskSet, report: &mut DoctorReport) {
    report.rows = [set.train.len(), set.validation.len(), set.test.len()];
    report.content_hash = Some(set.content_hash.clone());
    let tasks = || set.train.iter().chain(&set.validation).chain(&set.test);
    report.longest_prompt_bytes = tasks()
        .map(|task| task.instruction.len() + task.system.as_ref().map_or(0, String::len))
        .max()
        .unwrap_or_default();
    for warning in &set.warnings {
        report.add(Severity::Warning, "data", warning.clone(), "");
    }
    let Some(first) = tasks().next() else { return };
    report.name = Some(first.spec.name.clone());
    let shares = first.spec.file.split;
    for (split, share, rows) in [
        (
            Split::Train,
            1.0 - shares.validation.get() - shares.test.get(),
            &set.train,
        ),
        (Split::Validation, shares.validation.get(), &set.validation),
        (Split::Test, shares.test.get(), &set.test),
    ] {
        if share > 0.0 && rows.is_empty() {
            report.add(
                Severity::Warning,
                "splits",
                format!("{split:?} has no row at a share of {share}"),
                "rows are assigned by content; add rows or change the shares",
            );
        }
    }
    // What a world shows is not in the prompt: two rows with one prompt may be two problems.
    if first.spec.kind.is_none() {
        check_repetition(set, report);
    }
}

/// Prompts that stand in several rows, or in training and elsewhere but for case and spaces.
fn check_repetition(set: &TaskSet, report: &mut DoctorReport) {
    let mut seen: HashMap<blake3::Hash, &Task> = HashMap::new();
    let loose = |task: &Task| {
        let text = task.instruction.split_whitespace().collect::<Vec<_>>().join(" ");
        digest(task, &text.to_lowercase())
    };
    let trained: HashSet<blake3::Hash> = set.train.iter().map(|task| loose(task)).collect();
    for task in set.train.iter().chain(&set.validation).chain(&set.test) {
        if let Some(other) = seen.insert(digest(task, &task.instruction), task) {
            report.add_row(
                Severity::Note,
                "data",
                &task.id,
                "another row has the same prompt; only fields that the agent does not see differ",
                Some(format!("the other is {}", other.id)),
                "what is right for one must be right for the other, or an agent cannot know what is asked",
            );
        }
    }
    for (split, tasks) in [("validation", &set.validation), ("test", &set.test)] {
        for task in tasks.iter().filter(|task| trained.contains(&loose(task))) {
            report.add_row(
                Severity::Warning,
                "splits",
                &task.id,
                format!("a row of {split} is in training too, but for upper case and white space"),
                None,
                "normalise the text of the rows, so that they are recognised as one",
            );
        }
    }
}

/// blake3 of what the agent is given, with `instruction` for the task's own.
fn digest(task: &Task, instruction: &str) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    };
    part(task.system.as_deref().unwrap_or_default().as_bytes());
    part(instruction.as_bytes());
    for (path, content) in task.workspace().unwrap_or_default() {
        part(path.as_bytes());
        part(&content);
    }
    hasher.finalize()
}

/// Answers and tests that the agent is shown. `answers` are those of the reference solution, by row of `sample`.
pub(super) fn check_leaks(
    sample: &[Arc<Task>],
    answers: &[Option<String>],
    sandbox: &Sandbox,
    report: &mut DoctorReport,
) -> Result<(), Unscored> {
    let (mut prompts, mut asserts) = (0, Vec::new());
    for (task, answer) in sample.iter().zip(answers) {
        let answer = answer.as_deref().unwrap_or_default().trim();
        prompts += usize::from(answer.len() >= SHORTEST_LEAK && task.instruction.contains(answer));
        let mut tests = Vec::new();
        task.spec.file.reward.rule.unit_tests(&mut tests);
        if tests.is_empty() {
            continue;
        }
        let files = task.workspace()?;
        let shown: Vec<(&str, &str)> = std::iter::once(("the prompt", task.instruction.as_str()))
            .chain(files.iter().filter_map(|(path, content)| {
                std::str::from_utf8(content)
                    .ok()
                    .map(|text| (path.as_str(), text))
            }))
            .collect();
        if let Some((place, _)) = shown[1..]
            .iter()
            .find(|(_, text)| answer.len() >= SHORTEST_CODE && text.contains(answer))
        {
            report.add_row(
                Severity::Warning,
                "leak",
                &task.id,
                "the workspace holds the reference solution",
                Some(format!("it stands in {place}")),
                "an agent may learn to copy instead of to solve",
            );
        }
        let judge = Judge::new(Arc::clone(task), sandbox.clone(), 0, String::new(), files.clone());
        for tests in tests {
            let code = surface(&judge, tests)?.code.unwrap_or_default();
            let hidden = code
                .lines()
                .map(str::trim)
                .filter(|line| line.len() >= SHORTEST_CODE && line.starts_with("assert"));
            for line in hidden {
                if let Some((place, _)) = shown.iter().find(|(_, text)| text.contains(line)) {
                    asserts.push((task.id.clone(), format!("{line:?} stands in {place}")));
                    break;
                }
            }
        }
    }
    for (id, detail) in asserts {
        report.add_row(
            Severity::Warning,
            "leak",
            &id,
            "the agent is shown an assertion of the hidden tests",
            Some(detail),
            "keep the hidden tests out of the prompt and the workspace",
        );
    }
    if prompts as f64 > LEAK_SHARE * sample.len() as f64 {
        report.add(
            Severity::Warning,
            "leak",
            format!(
                "the prompt holds the answer verbatim in {prompts} of {} rows",
                sample.len()
            ),
            "an agent may learn to copy instead of to solve",
        );
    }
    Ok(())
}
