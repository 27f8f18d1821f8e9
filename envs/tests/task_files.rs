//! Every file of `tasks/` loads and passes the doctor, and the doctor finds what is wrong with bad ones.

use std::path::{Path, PathBuf};

use mipu_envs::doctor::{self, DoctorOptions, DoctorReport, Severity};
use mipu_envs::{Role, TaskSet};

use crate::{TaskFile, sandbox};

fn task_files() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tasks");
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    files.sort();
    files
}

fn task_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tasks").join(name)
}

#[tokio::test]
async fn every_task_file_passes_the_doctor() {
    let files = task_files();
    assert!(files.len() >= 3, "{files:?}");
    for path in files {
        let report = doctor::check(&path, sandbox(), &DoctorOptions::default()).await;
        let found: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        assert!(report.passed(), "{}:\n{}", path.display(), found.join("\n"));
        assert!(
            report.findings.iter().all(|f| f.severity == Severity::Note),
            "{}:\n{}",
            path.display(),
            found.join("\n")
        );
        // Where chance has a say the doctor compares the mean with `min_reward`.
        if !std::fs::read_to_string(&path).unwrap().contains("min_reward:") {
            assert_eq!(report.reference.solved, report.reference.episodes);
        }
    }
}

async fn findings(yaml: &str) -> (DoctorReport, String) {
    let file = TaskFile::new(yaml);
    let report = doctor::check(&file.path(), sandbox(), &DoctorOptions::default()).await;
    let text = report
        .findings
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n");
    (report, text)
}

#[tokio::test]
async fn the_doctor_finds_what_is_wrong() {
    let head = "version: 1\nname: t\ninstruction: 'say {{ gold }}'\ntools: [python]\nsplit: {validation: 0, test: 0}\ndata: {rows: [{gold: 'yes!'}, {gold: 'no!'}]}\n";
    let good = "reward: {exact: '{{ gold }}'}\nsolution: {turns: [{answer: '{{ gold }}'}]}\n";
    let (report, text) = findings(&format!("{head}{good}")).await;
    assert!(
        report.passed()
            && text.contains("warning: leak: the prompt holds the answer verbatim in 2 of 2 rows"),
        "{text}"
    );
    for (rest, expected) in [
        (
            "reward: {exact: '{{ gold }}'}\n",
            "error: solution: the task has no reference solution",
        ),
        (
            "reward: {exact: 'other'}\nsolution: {turns: [{answer: '{{ gold }}'}]}\n",
            "the solution scored 0 and stopped at Answered",
        ),
        (
            "reward: {contains: '{{ gold }}'}\nsolution: {turns: [{answer: '{{ gold }}'}]}\n",
            "the echo answer scored 1",
        ),
        (
            "reward: {format: '.*'}\nsolution: {turns: [{answer: '{{ gold }}'}]}\n",
            "the empty answer scored 1",
        ),
        (
            "reward: {numeric: {expected: '{{ gold }}'}}\nsolution: {turns: [{answer: '1'}]}\n",
            "the empty answer could not be scored",
        ),
        (
            "stochastic: {tool_failure: 1}\nreward: {exact: '{{ gold }}'}\nsolution: {turns: [{python: 'x'}, {answer: '{{ gold }}'}]}\n",
            "the solution scored 0 and stopped at MaxTurns",
        ),
        ("rewrd: {}\n", "error: schema: "),
    ] {
        let (report, text) = findings(&format!("{head}{rest}")).await;
        assert!(!report.passed() && text.contains(expected), "{rest}\n{text}");
    }
    let unstable = "version: 1\nname: t\ninstruction: '{{ x }}'\ndata:\n  count: 5\n  python: |\n    def generate(rng, count):\n      while True: yield {'x': id(object()) % 97 + rng.random()}\nreward: {exact: '{{ x }}'}\nsolution: {turns: [{answer: '{{ x }}'}]}\n";
    let (report, text) = findings(unstable).await;
    // Inside the sandbox even `id` repeats, so this passes: nothing unseeded is left to draw from.
    assert!(
        report.content_hash.is_some() && !text.contains("error: determinism"),
        "{text}"
    );
}

#[tokio::test]
async fn a_generator_gives_as_many_distinct_rows_as_it_was_asked_for() {
    for (name, count) in [("calc.yaml", 16_000), ("fix-op.yaml", 4000)] {
        let set = TaskSet::load(&[task_file(name)], sandbox(), 0).await.unwrap();
        let ids: std::collections::HashSet<_> = set
            .train
            .iter()
            .chain(&set.validation)
            .chain(&set.test)
            .map(|t| &t.id)
            .collect();
        assert_eq!(ids.len(), count, "{name}");
    }
}

/// Compact dialect: one token a byte, plus one for each opening and closing mark.
#[tokio::test]
async fn quick_start_episodes_fit_112_tokens() {
    for (name, tool) in [("calc.yaml", "python"), ("fix-op.yaml", "run_tests")] {
        let set = TaskSet::load(&[task_file(name)], sandbox(), 0).await.unwrap();
        let spec = &set.train[0].spec;
        assert_eq!((spec.max_tokens, spec.tools[0].name.as_str()), (112, tool));
        let prompt = set
            .train
            .iter()
            .chain(&set.test)
            .map(|task| 1 + task.instruction.len())
            .max()
            .unwrap();
        for task in set.train.iter().take(24) {
            for seed in 0..3 {
                let (mut env, mut script) = (task.env(sandbox(), seed), task.demonstration(sandbox(), seed));
                let mut tokens = prompt;
                let mut observations = env.start().await.unwrap();
                observations.clear();
                loop {
                    let reply = script.next(&observations).await.unwrap();
                    let result = env.step(&reply).await.unwrap();
                    tokens += reply.content.len() + 2;
                    tokens += result
                        .observations
                        .iter()
                        .map(|message| message.content.len() + 2)
                        .sum::<usize>();
                    assert!(
                        result
                            .observations
                            .iter()
                            .all(|message| message.role == Role::Tool)
                    );
                    observations = result.observations;
                    if result.stop.is_some() {
                        break;
                    }
                }
                assert!(tokens <= 112, "{name} {}: {tokens}", task.id);
            }
        }
    }
}

/// The teacher must err about as often as the recipe says, or the warm start leaves nothing to learn.
#[tokio::test]
async fn demonstrations_succeed_about_half_the_time() {
    for name in ["calc.yaml", "fix-op.yaml"] {
        let set = TaskSet::load(&[task_file(name)], sandbox(), 0).await.unwrap();
        let mut solved = 0.0;
        for (seed, task) in set.train.iter().take(100).enumerate() {
            let (mut env, mut script) = (
                task.env(sandbox(), seed as u64),
                task.demonstration(sandbox(), seed as u64),
            );
            let mut observations = Vec::new();
            loop {
                let result = env
                    .step(&script.next(&observations).await.unwrap())
                    .await
                    .unwrap();
                observations = result.observations;
                if result.stop.is_some() {
                    solved += result.reward;
                    break;
                }
            }
        }
        assert!((30.0..=75.0).contains(&solved), "{name}: {solved}");
    }
}
