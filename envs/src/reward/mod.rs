//! Rewards: rules over the final answer and files, composition, and what turns and length cost.
//!
//! A rule's score lies in [0, 1]. The reward is 1 if the score is 1, else 0; with `partial` it is the score. Penalties are then
//! subtracted, never below 0, so that a wrong episode gains nothing by being short.

mod candidate;
mod cases;
mod checker;
mod json;
mod printed;
mod text;
pub(crate) mod unit_tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{BoxFuture, boxed};
use mipu_sandbox::{Policy, Sandbox};

use crate::env::Unscored;
use crate::spec::{RewardSpec, Rule, UnitTests};
use crate::task::Task;
use crate::template::{Fields, RenderError, Template, ValueTemplate};

mod futures {
    //! Recursion through an async function needs a boxed future.
    use std::future::Future;
    use std::pin::Pin;

    pub(super) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

    pub(super) fn boxed<'a, T>(future: impl Future<Output = T> + Send + 'a) -> BoxFuture<'a, T> {
        Box::pin(future)
    }
}

/// A score this near to 1 is 1: weights like 0.7 + 0.2 + 0.1 do not add up exactly.
const ROUNDING: f64 = 1e-9;

/// Everything a rule may look at.
pub(crate) struct Judge {
    /// The task.
    pub task: Arc<Task>,
    /// Where candidates and checkers run.
    pub sandbox: Sandbox,
    /// Seed of their interpreters.
    pub seed: u64,
    /// The final answer.
    pub answer: String,
    /// The episode's files, where a rule reads them.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Sum of the environment's own rewards.
    pub earned: f64,
    /// Shortest deadline of every execution, where the task allows more; the doctor does not wait for attacks.
    pub hurry: Option<Duration>,
    fields: Fields,
}

impl Judge {
    /// A judge of `answer`.
    pub(crate) fn new(
        task: Arc<Task>,
        sandbox: Sandbox,
        seed: u64,
        answer: String,
        files: BTreeMap<String, Vec<u8>>,
    ) -> Self {
        let fields = Fields::of(&task.row);
        Self {
            task,
            sandbox,
            seed,
            answer,
            files,
            earned: 0.0,
            hurry: None,
            fields,
        }
    }

    /// Limits of the interpreters that candidates and tests run in.
    fn policy(&self) -> Policy {
        let policy = self.task.spec.policy();
        Policy {
            deadline: self.within(policy.deadline),
            ..policy
        }
    }

    fn within(&self, deadline: Duration) -> Duration {
        self.hurry.map_or(deadline, |hurry| hurry.min(deadline))
    }

    /// A template over the row.
    fn render(&self, template: &Template) -> Result<String, Unscored> {
        Ok(template.render(&self.fields)?)
    }

    /// A template over the row and the answer.
    fn render_with_answer(&self, template: &Template) -> Result<String, Unscored> {
        Ok(template.render(&Fields::with(&self.task.row, "answer", &self.answer))?)
    }
}

impl From<RenderError> for Unscored {
    fn from(error: RenderError) -> Self {
        Self {
            reason: error.to_string(),
        }
    }
}

/// What an episode took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Turns.
    pub turns: usize,
    /// Bytes the agent wrote.
    pub written_bytes: usize,
}

/// The outcome of scoring.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// In [0, 1].
    pub reward: f64,
    /// `reward/score` and each rule that was evaluated.
    pub metrics: Vec<(String, f64)>,
}

/// Scores an answer.
///
/// # Errors
/// When a rule could not be evaluated through no fault of the agent.
pub(crate) async fn score(spec: &RewardSpec, judge: &Judge, effort: Effort) -> Result<Verdict, Unscored> {
    let mut metrics = Vec::new();
    let score = evaluate(&spec.rule, judge, spec.partial, &mut metrics).await?;
    metrics.insert(0, ("reward/score".to_owned(), score));
    Ok(Verdict {
        reward: settle(spec, score, effort),
        metrics,
    })
}

pub(crate) fn settle(spec: &RewardSpec, score: f64, effort: Effort) -> f64 {
    let earned = match (score >= 1.0 - ROUNDING, spec.partial) {
        (true, _) => 1.0,
        (false, true) => score,
        (false, false) => 0.0,
    };
    let turns = effort.turns.saturating_sub(1) as f64;
    let cost = spec.turn_penalty.get() * turns + spec.length_penalty.get() * effort.written_bytes as f64;
    (earned - cost).max(0.0)
}

/// Score of a rule in [0, 1].
fn evaluate<'a>(
    rule: &'a Rule,
    judge: &'a Judge,
    partial: bool,
    metrics: &'a mut Vec<(String, f64)>,
) -> BoxFuture<'a, Result<f64, Unscored>> {
    boxed(async move {
        let answer = judge.answer.as_str();
        let score = match rule {
            Rule::Exact(expected) => text::exact(answer, &judge.render(expected)?),
            Rule::Numeric(numeric) => text::numeric(answer, &judge.render(&numeric.expected)?, numeric)?,
            Rule::Regex(pattern) => text::search(answer, &judge.render(&pattern.0)?)?,
            Rule::Format(pattern) => text::full_match(answer, &judge.render(&pattern.0)?)?,
            Rule::Contains(phrases) => {
                let phrases = phrases
                    .0
                    .iter()
                    .map(|phrase| judge.render(phrase))
                    .collect::<Result<Vec<_>, _>>()?;
                let present = phrases
                    .iter()
                    .filter(|phrase| answer.contains(phrase.as_str()))
                    .count();
                present as f64 / phrases.len() as f64
            }
            Rule::Json(rule) => json::score(answer, rule, &judge.fields)?,
            Rule::UnitTests(tests) => unit_tests::score(judge, tests, partial).await?,
            Rule::Python(checker) => checker::score(judge, checker, metrics).await?,
            Rule::Environment(_) => judge.earned.clamp(0.0, 1.0),
            Rule::All(rules) => {
                let mut worst = 1.0_f64;
                for rule in rules {
                    worst = worst.min(evaluate(rule, judge, partial, metrics).await?);
                    if worst <= 0.0 || worst < 1.0 - ROUNDING && !partial {
                        break;
                    }
                }
                worst
            }
            Rule::Any(rules) => {
                let mut best = 0.0_f64;
                for rule in rules {
                    best = best.max(evaluate(rule, judge, partial, metrics).await?);
                    if best >= 1.0 - ROUNDING {
                        break;
                    }
                }
                best
            }
            Rule::Weighted(parts) => {
                let (mut sum, mut total) = (0.0, 0.0);
                for part in parts {
                    sum += part.weight.get() * evaluate(&part.rule, judge, partial, metrics).await?;
                    total += part.weight.get();
                }
                sum / total
            }
        };
        metrics.push((format!("reward/{}", rule.name()), score));
        Ok(score)
    })
}

impl Rule {
    /// The rule's key in the task file.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Exact(_) => "exact",
            Self::Numeric(_) => "numeric",
            Self::Regex(_) => "regex",
            Self::Contains(_) => "contains",
            Self::Json(_) => "json",
            Self::Format(_) => "format",
            Self::UnitTests(_) => "unit_tests",
            Self::Python(_) => "python",
            Self::Environment(_) => "environment",
            Self::All(_) => "all",
            Self::Any(_) => "any",
            Self::Weighted(_) => "weighted",
        }
    }

    /// Whether the episode's files matter.
    pub(crate) fn reads_files(&self) -> bool {
        match self {
            Self::Python(_) => true,
            Self::UnitTests(tests) => tests.file.is_some(),
            Self::All(rules) | Self::Any(rules) => rules.iter().any(Self::reads_files),
            Self::Weighted(parts) => parts.iter().any(|part| part.rule.reads_files()),
            _ => false,
        }
    }

    /// Whether the environment's own rewards matter.
    pub(crate) fn reads_environment(&self) -> bool {
        match self {
            Self::Environment(_) => true,
            Self::All(rules) | Self::Any(rules) => rules.iter().any(Self::reads_environment),
            Self::Weighted(parts) => parts.iter().any(|part| part.rule.reads_environment()),
            _ => false,
        }
    }

    /// Every set of unit tests in the rule.
    pub(crate) fn unit_tests<'a>(&'a self, found: &mut Vec<&'a UnitTests>) {
        match self {
            Self::UnitTests(tests) => found.push(tests),
            Self::All(rules) | Self::Any(rules) => rules.iter().for_each(|rule| rule.unit_tests(found)),
            Self::Weighted(parts) => parts.iter().for_each(|part| part.rule.unit_tests(found)),
            _ => {}
        }
    }

    /// Every template of the rule, and whether it may read `answer`.
    pub(crate) fn templates<'a>(&'a self, found: &mut Vec<(&'a Template, bool)>) {
        match self {
            Self::Exact(template) => found.push((template, false)),
            Self::Numeric(numeric) => found.push((&numeric.expected, false)),
            Self::Regex(pattern) | Self::Format(pattern) => found.push((&pattern.0, false)),
            Self::Contains(phrases) => found.extend(phrases.0.iter().map(|phrase| (phrase, false))),
            Self::Json(rule) => {
                let values = rule.equals.iter().chain(rule.includes.values());
                found.extend(
                    values
                        .flat_map(ValueTemplate::templates)
                        .map(|template| (template, false)),
                );
            }
            Self::Python(_) | Self::Environment(_) => {}
            Self::UnitTests(tests) => tests.templates(found),
            Self::All(rules) | Self::Any(rules) => rules.iter().for_each(|rule| rule.templates(found)),
            Self::Weighted(parts) => parts.iter().for_each(|part| part.rule.templates(found)),
        }
    }
}

impl UnitTests {
    /// Every template of the tests, and whether it may read `answer`.
    pub(crate) fn templates<'a>(&'a self, found: &mut Vec<(&'a Template, bool)>) {
        found.push((&self.source, true));
        found.extend(
            [&self.file, &self.tests, &self.entry]
                .into_iter()
                .flatten()
                .map(|template| (template, false)),
        );
        match &self.cases {
            crate::spec::CaseList::FromRow(template) => found.push((template, false)),
            crate::spec::CaseList::Listed(cases) => {
                found.extend(
                    cases
                        .iter()
                        .flat_map(crate::spec::Case::texts)
                        .map(|template| (template, false)),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(yaml: &str) -> RewardSpec {
        serde_saphyr::from_str(yaml).unwrap()
    }

    #[test]
    fn the_reward_settles_as_computed_by_hand() {
        let effort = Effort {
            turns: 3,
            written_bytes: 100,
        };
        for (yaml, score, expected) in [
            ("exact: x", 1.0, 1.0),
            ("exact: x", 0.99, 0.0),
            ("{exact: x, partial: true}", 0.25, 0.25),
            // 1 - 2 extra turns * 0.1
            ("{exact: x, turn_penalty: 0.1}", 1.0, 0.8),
            // 1 - 100 bytes * 0.001
            ("{exact: x, length_penalty: 0.001}", 1.0, 0.9),
            ("{exact: x, turn_penalty: 0.1, length_penalty: 0.001}", 1.0, 0.7),
            ("{exact: x, turn_penalty: 0.9}", 1.0, 0.0),
            ("{exact: x, turn_penalty: 0.1}", 0.0, 0.0),
            ("exact: x", 1.0 - 1e-12, 1.0),
        ] {
            let reward = settle(&spec(yaml), score, effort);
            assert!((reward - expected).abs() < 1e-12, "{yaml} {score}: {reward}");
        }
    }
}
