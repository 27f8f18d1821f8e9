//! Answers that must earn nothing: no work, other types, attacks on the verdict.

use std::sync::Arc;
use std::time::Duration;

use mipu_sandbox::Sandbox;

use super::DoctorOptions;
use super::attack::{attacks, expression};
use super::play::{Baseline, play};
use super::report::{DoctorReport, Severity};
use crate::env::Unscored;
use crate::reward::unit_tests::{Surface, surface};
use crate::reward::{self, Effort, Judge};
use crate::seed::{self, Purpose};
use crate::task::Task;

/// Deadline of every execution of an attack.
const HURRY: Duration = Duration::from_millis(200);

/// Candidates that are merely wrong: what they earn, in tests that pay for it by design, is no success of an attack.
const CONTROLS: [&str; 2] = [
    "def attack(*args, **named): return 'mipu'",
    "def attack(*args, **named): raise ValueError('mipu')",
];

/// Plays answers that do no work on every row of the sample; returns their rewards.
pub(super) async fn check_baselines(
    sample: &[Arc<Task>],
    sandbox: &Sandbox,
    options: &DoctorOptions,
    report: &mut DoctorReport,
) -> Vec<f64> {
    let Some(first) = sample.first() else {
        return Vec::new();
    };
    let submits = first.spec.tools.iter().any(|tool| tool.name == "submit");
    let mut rewards = Vec::new();
    for baseline in Baseline::all(submits) {
        let name = baseline.name();
        let (mut sum, mut unscored) = (0.0, 0);
        for (index, task) in sample.iter().enumerate() {
            let seed = seed::derive(options.seed, Purpose::Eval, &[index as u64, 0]);
            match play(task, &mut baseline.script(task), sandbox, seed).await {
                Ok(episode) => {
                    sum += episode.reward;
                    // Whoever never answers gets nothing, whatever the reward.
                    rewards.extend((baseline != Baseline::Noop).then_some(episode.reward));
                    if episode.reward > 0.0 {
                        report.add_row(
                            Severity::Error,
                            "baseline",
                            &task.id,
                            format!("the {name} answer scored {}", episode.reward),
                            baseline.detail(),
                            "an answer that does no work must score 0",
                        );
                    }
                }
                Err(Unscored { reason }) => {
                    unscored += 1;
                    report.add_row(
                        Severity::Error,
                        "baseline",
                        &task.id,
                        format!("the {name} answer could not be scored: {reason}"),
                        baseline.detail(),
                        "no answer of an agent may break a reward",
                    );
                }
            }
        }
        let mean = sum / (sample.len() - unscored).max(1) as f64;
        let worst = report.baselines.entry(name).or_insert(mean);
        *worst = worst.max(mean);
    }
    rewards
}

/// Carries out the attack suite on a row whose answers are code.
pub(super) async fn check_attacks(
    task: &Arc<Task>,
    sandbox: &Sandbox,
    report: &mut DoctorReport,
) -> Result<Vec<f64>, Unscored> {
    let mut tests = Vec::new();
    task.spec.file.reward.rule.unit_tests(&mut tests);
    let Some(tests) = tests.first() else {
        return Ok(Vec::new());
    };
    let target = surface(&judge(task, sandbox, String::new(), None)?, tests)?;
    let mut tolerated = 0.0_f64;
    for control in CONTROLS {
        let mut source = control.to_owned();
        for name in &target.names {
            source.push_str(&format!("\n{name} = attack"));
        }
        let candidate = if target.whole { source } else { expression(&source) };
        let earned = earned(task, sandbox, candidate, &target).await?;
        if control == CONTROLS[0] && earned > 0.0 {
            report.add_row(
                Severity::Error,
                "baseline",
                &task.id,
                format!("functions that return the text \"mipu\" scored {earned}"),
                None,
                "compare the result: `assert f(1) == 2` where `assert f(1)` accepts anything that is not empty",
            );
        }
        tolerated = tolerated.max(earned);
    }
    let mut rewards = Vec::new();
    for attack in attacks() {
        let candidate = match target.whole {
            true => attack.candidate(&target.names),
            false => attack.expression(&target.names),
        };
        let reward = earned(task, sandbox, candidate, &target).await;
        let (message, reward) = match reward {
            Ok(reward) if reward <= tolerated => {
                rewards.push(reward);
                continue;
            }
            Ok(reward) => (format!("the attack {:?} scored {reward}", attack.name), reward),
            Err(Unscored { reason }) => (
                format!("the attack {:?} could not be scored: {reason}", attack.name),
                0.0,
            ),
        };
        rewards.push(reward);
        report.add(
            Severity::Error,
            "attack",
            format!("{}: {message}; it tries to {}", task.id, attack.tries),
            "test values that a wrong answer cannot have, and leave the comparison to `cases` or `assert ==`",
        );
    }
    report.attacks = attacks().len();
    let mean = rewards.iter().sum::<f64>() / rewards.len().max(1) as f64;
    report.baselines.insert("attack", mean);
    Ok(rewards)
}

async fn earned(
    task: &Arc<Task>,
    sandbox: &Sandbox,
    candidate: String,
    target: &Surface,
) -> Result<f64, Unscored> {
    let judge = judge(task, sandbox, candidate, target.file.as_deref())?;
    let effort = Effort {
        turns: 1,
        written_bytes: 0,
    };
    Ok(reward::score(&task.spec.file.reward, &judge, effort)
        .await?
        .reward)
}

/// A judge of `candidate`, given as the answer or as the file that the tests read.
fn judge(
    task: &Arc<Task>,
    sandbox: &Sandbox,
    candidate: String,
    file: Option<&str>,
) -> Result<Judge, Unscored> {
    let mut files = task.workspace()?;
    if let Some(file) = file {
        files.insert(file.to_owned(), candidate.clone().into_bytes());
    }
    let mut judge = Judge::new(Arc::clone(task), sandbox.clone(), 0, candidate, files);
    judge.hurry = Some(HURRY);
    Ok(judge)
}
