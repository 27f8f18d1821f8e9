//! The reference solution, played the way training plays: it must earn what it should, again and again, in time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mipu_sandbox::Sandbox;

use super::DoctorOptions;
use super::play::{Episode, play, transcript};
use super::report::{DoctorReport, Reference, Severity};
use crate::env::{StopReason, Unscored};
use crate::seed::{self, Purpose};
use crate::spec::Rule;
use crate::task::Task;

/// An episode may lose its turns to injected failures; this many seeds are tried before the solution is blamed.
const ATTEMPTS: u64 = 8;
/// Episodes of each row whose mean counts where chance has a say.
const CHANCES: u64 = 4;
/// Rows that are played several times.
const REPEATED_ROWS: usize = 4;
/// Share of its time limit that a turn may take before a busier machine would cut it.
const SLOW_SHARE: f64 = 0.5;
/// Bytes of a token at most, on average: text of any kind in any vocabulary has at least a token for so many bytes.
const MOST_BYTES_PER_TOKEN: usize = 5;
/// Share of the rows that one answer may be right for.
const COMMON_SHARE: f64 = 0.75;

/// Rewards are equal if they differ by less.
const ROUNDING: f64 = 1e-9;

/// Plays the solution on every row of the sample; returns its answers and rewards.
pub(super) async fn check_solution(
    sample: &[Arc<Task>],
    sandbox: &Sandbox,
    options: &DoctorOptions,
    report: &mut DoctorReport,
) -> (Vec<Option<String>>, Vec<f64>) {
    let mut reference = Reference {
        episodes: sample.len(),
        ..Reference::default()
    };
    let least = sample.first().map_or(1.0, |task| least_reward(task));
    let (mut turns, mut wall, mut played) = (0, Duration::ZERO, 0_usize);
    let (mut answers, mut rewards) = (Vec::new(), Vec::new());
    for (index, task) in sample.iter().enumerate() {
        let mut earned = Vec::new();
        let mut answer = None;
        for attempt in 0..ATTEMPTS {
            let seed = seed::derive(options.seed, Purpose::Eval, &[index as u64, attempt]);
            let started = Instant::now();
            let episode = match play(task, task.solution(sandbox, seed).as_mut(), sandbox, seed).await {
                Ok(episode) => episode,
                Err(Unscored { reason }) => {
                    report.add_row(Severity::Error, "solution", &task.id, reason, None, "");
                    break;
                }
            };
            wall += started.elapsed();
            played += 1;
            turns += episode.turns;
            reference.tool_failures += episode.tool_failures;
            reference.longest_bytes = reference.longest_bytes.max(episode.bytes);
            let best = episode.reward >= episode.best - ROUNDING && episode.best > 0.0;
            let unlucky = episode.stop == StopReason::MaxTurns && episode.tool_failures > 0;
            if least < 1.0 {
                earned.push(episode.reward);
                if attempt + 1 < CHANCES {
                    continue;
                }
            } else if !best && unlucky && attempt + 1 < ATTEMPTS {
                reference.lost_to_failures += 1;
                continue;
            } else {
                earned = vec![episode.reward];
                if !best {
                    blame(task, &episode, report);
                }
            }
            reference.solved += usize::from(best);
            answer = episode.answer;
            break;
        }
        let mean = earned.iter().sum::<f64>() / earned.len().max(1) as f64;
        reference.mean_reward += mean / sample.len() as f64;
        rewards.extend((!earned.is_empty()).then_some(mean));
        answers.push(answer);
    }
    reference.mean_turns = turns as f64 / played.max(1) as f64;
    reference.episode_ms = wall.as_secs_f64() * 1e3 / played.max(1) as f64;
    if least < 1.0 && reference.mean_reward < least - ROUNDING {
        report.add(
            Severity::Error,
            "solution",
            format!(
                "the solution earns {:.3} on average of {played} episodes; `min_reward` is {least}",
                reference.mean_reward
            ),
            "improve the solution, or lower `min_reward` to what it can reach",
        );
    }
    if reference.lost_to_failures > 0 {
        let message = format!(
            "{} of {played} reference episodes lost their turns to injected tool failures",
            reference.lost_to_failures
        );
        report.add(
            Severity::Note,
            "solution",
            message,
            "raise `max_turns` if the share is large",
        );
    }
    report.reference = reference;
    check_length(sample, report);
    check_common_answer(sample, &answers, report);
    (answers, rewards)
}

/// The mean reward that the solution must reach.
fn least_reward(task: &Task) -> f64 {
    let solution = task.spec.file.solution.as_ref();
    solution.map_or(1.0, |solution| solution.min_reward.get())
}

fn blame(task: &Task, episode: &Episode, report: &mut DoctorReport) {
    report.add_row(
        Severity::Error,
        "solution",
        &task.id,
        format!(
            "the solution scored {} and stopped at {:?}",
            episode.reward, episode.stop
        ),
        Some(format!("its transcript: {}", transcript(&episode.messages))),
        "the reference solution must score 1 on every row; a row that it cannot solve trains nothing",
    );
}

/// Whether the solution fits the token budget: exact counts need a tokenizer, bounds do not.
fn check_length(sample: &[Arc<Task>], report: &mut DoctorReport) {
    let Some(task) = sample.first() else { return };
    let (bytes, budget) = (report.reference.longest_bytes, task.spec.max_tokens);
    if bytes / MOST_BYTES_PER_TOKEN > budget {
        report.add(
            Severity::Error,
            "length",
            format!(
                "the longest solution has {bytes} bytes, at least {} tokens; `max_tokens` is {budget}",
                bytes / MOST_BYTES_PER_TOKEN
            ),
            "raise `limits.max_tokens`, or shorten prompts and observations",
        );
    } else if bytes > budget {
        report.add(
            Severity::Note,
            "length",
            format!(
                "the longest solution has {bytes} bytes, {} to {bytes} tokens; `max_tokens` is {budget}",
                bytes / MOST_BYTES_PER_TOKEN
            ),
            "`mipu task show --model DIR` counts the tokens of a model",
        );
    }
}

/// Whether one answer is right nearly everywhere: an agent would learn it and nothing else.
fn check_common_answer(sample: &[Arc<Task>], answers: &[Option<String>], report: &mut DoctorReport) {
    let Some(task) = sample.first() else { return };
    let rule = &task.spec.file.reward.rule;
    // In a world, what was said last need not be what counts.
    if task.spec.kind.is_some() || rule.reads_files() && !matches!(rule, Rule::Python(_)) || sample.len() < 8
    {
        return;
    }
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for answer in answers.iter().flatten() {
        *counts.entry(answer.trim()).or_default() += 1;
    }
    let common = counts.into_iter().max_by_key(|&(answer, count)| (count, answer));
    if let Some((answer, count)) = common
        && count as f64 > COMMON_SHARE * sample.len() as f64
    {
        report.add(
            Severity::Warning,
            "reward",
            format!(
                "the answer {:?} is right for {count} of {} rows",
                crate::tools::cap(answer.to_owned(), 80),
                sample.len()
            ),
            "balance the rows, or an agent will learn that answer and nothing else",
        );
    }
}

/// Plays rows several times: with one seed, loaded first and second, to the byte; with another seed, to the reward.
pub(super) async fn check_determinism(
    loaded: [&[Arc<Task>]; 2],
    sandbox: &Sandbox,
    options: &DoctorOptions,
    report: &mut DoctorReport,
) {
    for (index, (task, twin)) in loaded[0].iter().zip(loaded[1]).take(REPEATED_ROWS).enumerate() {
        let seed = seed::derive(options.seed, Purpose::Eval, &[index as u64, 0]);
        let mut first: Option<Episode> = None;
        for task in [task, twin].into_iter().cycle().take(options.runs) {
            // A script that fails was reported with the solution.
            let Ok(episode) = play(task, task.solution(sandbox, seed).as_mut(), sandbox, seed).await else {
                return;
            };
            let Some(first) = &mut first else {
                first = Some(episode);
                continue;
            };
            first.slowest_step = first.slowest_step.min(episode.slowest_step);
            if !first.same_as(&episode) {
                report.add_row(
                    Severity::Error,
                    "determinism",
                    &task.id,
                    "runs with one seed differ",
                    Some(transcript(&episode.messages)),
                    "time, ids and unseeded randomness must not reach an observation or a verdict",
                );
                break;
            }
        }
        let Some(first) = first else { continue };
        let limit = task.spec.policy().deadline;
        if first.slowest_step.as_secs_f64() > SLOW_SHARE * limit.as_secs_f64() {
            report.add_row(
                Severity::Warning,
                "slow",
                &task.id,
                format!(
                    "a turn of the solution took {:.2} s; each execution may take {} s",
                    first.slowest_step.as_secs_f64(),
                    limit.as_secs_f64()
                ),
                None,
                "a busier machine would give another verdict; raise `timeout_sec` or make the tests lighter",
            );
        }
        if has_chance(task) {
            continue;
        }
        let other = seed::derive(options.seed, Purpose::Eval, &[index as u64, ATTEMPTS]);
        let Ok(episode) = play(task, task.solution(sandbox, other).as_mut(), sandbox, other).await else {
            continue;
        };
        if (episode.reward - first.reward).abs() > ROUNDING {
            report.add_row(
                Severity::Error,
                "flaky",
                &task.id,
                format!(
                    "the solution scores {} with one seed and {} with another",
                    first.reward, episode.reward
                ),
                None,
                "a verdict must depend on the answer alone; take randomness out of the checker or the tests",
            );
        }
    }
}

/// Whether the reward may depend on the seed.
fn has_chance(task: &Task) -> bool {
    let knobs = &task.spec.file.stochastic;
    task.spec.kind.is_some()
        || least_reward(task) < 1.0
        || knobs.tool_failure.get() > 0.0
        || knobs.observation_noise.get() > 0.0
        || knobs.truncation.is_some()
}
