//! Test cases of a row: templates filled in, expected values as Python data.

use std::time::Duration;

use mipu_sandbox::{Plain, Session};
use serde_json::Value;

use super::Judge;
use super::candidate::last_line;
use crate::env::Unscored;
use crate::python;
use crate::seed::{self, Purpose};
use crate::spec::{Case, CaseList, Demand, Expected, UnitTests};

/// Cases a row may bring; more is a mistake in the data.
const MAX_CASES: usize = 10_000;

/// A case whose expected value is known.
pub(super) struct ReadyCase {
    /// What must happen.
    pub demand: ReadyDemand,
    /// Absolute tolerance where a float is involved.
    pub tolerance: f64,
    /// Wall-clock limit.
    pub deadline: Duration,
}

/// What must happen.
pub(super) enum ReadyDemand {
    /// The call returns this.
    Returns { call: String, expected: Plain },
    /// The call raises this, with a message that matches.
    Raises {
        call: String,
        class: String,
        message: Option<regex::Regex>,
    },
    /// The program prints this.
    Prints { stdin: String, stdout: String },
}

/// The cases with their templates filled in.
pub(super) fn written(judge: &Judge, tests: &UnitTests) -> Result<Vec<Case<String>>, Unscored> {
    let cases: Vec<Case<String>> = match &tests.cases {
        CaseList::Listed(listed) => listed
            .iter()
            .map(|case| case.try_map(|text| judge.render(text)))
            .collect::<Result<_, _>>()?,
        CaseList::FromRow(template) => match template.evaluate(&judge.fields)? {
            Value::Array(items) => items
                .into_iter()
                .map(|item| Case::read(item).map_err(|reason| Unscored { reason }))
                .collect::<Result<_, _>>()?,
            other => {
                return Err(Unscored {
                    reason: format!("`cases` must be a list; got {other}"),
                });
            }
        },
    };
    match cases.len() {
        count if count > MAX_CASES => Err(Unscored {
            reason: format!("{count} test cases; the limit is {MAX_CASES}"),
        }),
        _ => Ok(cases),
    }
}

/// The cases with their expected values known; what is not a literal is evaluated in one trusted session.
pub(super) async fn ready(
    judge: &Judge,
    tests: &UnitTests,
    cases: Vec<Case<String>>,
    seed: u64,
) -> Result<Vec<ReadyCase>, Unscored> {
    let mut trusted = None;
    let mut ready = Vec::with_capacity(cases.len());
    for case in cases {
        let demand = match case.demand {
            Demand::Returns { call, expect } => ReadyDemand::Returns {
                call,
                expected: match expect {
                    Expected::Expression(text) => match python::parse_literal(&text) {
                        Some(literal) => literal,
                        None => evaluate(judge, &mut trusted, &text, seed).await?,
                    },
                    Expected::Value(value) => python::to_plain(&value),
                },
            },
            Demand::Raises { call, class, message } => ReadyDemand::Raises {
                call,
                class,
                message: message
                    .map(|pattern| crate::spec::case::message_pattern(&pattern))
                    .transpose()
                    .map_err(|reason| Unscored { reason })?,
            },
            Demand::Prints { stdin, stdout } => ReadyDemand::Prints { stdin, stdout },
        };
        ready.push(ReadyCase {
            demand,
            tolerance: case.tolerance.unwrap_or(tests.tolerance).get(),
            deadline: case.timeout_sec.map_or_else(
                || super::candidate::deadline(judge, tests),
                |seconds| judge.within(seconds.duration()),
            ),
        });
    }
    Ok(ready)
}

async fn evaluate(
    judge: &Judge,
    trusted: &mut Option<Session>,
    text: &str,
    seed: u64,
) -> Result<Plain, Unscored> {
    let policy = judge.policy();
    if trusted.is_none() {
        let seed = seed::derive(seed, Purpose::Sandbox, &[5]);
        *trusted = Some(judge.sandbox.session(&policy, seed).await?);
    }
    let session = trusted.as_mut().expect("opened above");
    let outcome = session.eval(text).await?;
    let problem = last_line(&outcome, policy.deadline);
    outcome.value.filter(|_| outcome.status.is_success()).ok_or_else(|| Unscored {
        reason: format!(
            "the expected value {text:?} is not a Python expression ({problem}); text needs quotes of its own"
        ),
    })
}
