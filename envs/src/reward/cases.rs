//! Test cases of a row: templates filled in, expected values as Python data.

use mipu_sandbox::{Plain, Session};
use serde_json::Value;

use super::Judge;
use super::unit_tests::last_line;
use crate::env::Unscored;
use crate::python;
use crate::seed::{self, Purpose};
use crate::spec::{CaseList, Expected, UnitTests};

/// Cases a row may bring; more is a mistake in the data.
const MAX_CASES: usize = 10_000;

/// A call and what the file or row says it must return: text is a Python expression.
pub(super) struct WrittenCase {
    /// Evaluated in the candidate's session.
    pub call: String,
    /// The expected value as written.
    pub expected: Value,
}

/// A call and the value it must return.
pub(super) struct ReadyCase {
    /// Evaluated in the candidate's session.
    pub call: String,
    /// Compared on the host.
    pub expected: Plain,
}

/// The cases with their templates filled in.
pub(super) fn written(judge: &Judge, tests: &UnitTests) -> Result<Vec<WrittenCase>, Unscored> {
    let cases: Vec<WrittenCase> = match &tests.cases {
        CaseList::Listed(listed) => listed
            .iter()
            .map(|case| {
                let expected = match &case.expect {
                    Expected::Expression(template) => Value::String(judge.render(template)?),
                    Expected::Value(value) => value.clone(),
                };
                Ok(WrittenCase {
                    call: judge.render(&case.call)?,
                    expected,
                })
            })
            .collect::<Result<_, Unscored>>()?,
        CaseList::FromRow(template) => match template.evaluate(&judge.fields)? {
            Value::Array(items) => items.into_iter().map(from_row).collect::<Result<_, _>>()?,
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

fn from_row(item: Value) -> Result<WrittenCase, Unscored> {
    match (item.get("call"), item.get("expect")) {
        (Some(Value::String(call)), Some(expected)) => Ok(WrittenCase {
            call: call.clone(),
            expected: expected.clone(),
        }),
        _ => Err(Unscored {
            reason: format!("a case needs `call` and `expect`; got {item}"),
        }),
    }
}

/// The cases with their expected values known; what is not a literal is evaluated in one trusted session.
pub(super) async fn ready(
    judge: &Judge,
    cases: Vec<WrittenCase>,
    seed: u64,
) -> Result<Vec<ReadyCase>, Unscored> {
    let mut trusted = None;
    let mut ready = Vec::with_capacity(cases.len());
    for WrittenCase { call, expected } in cases {
        let expected = match expected {
            Value::String(text) => match python::parse_literal(&text) {
                Some(literal) => literal,
                None => evaluate(judge, &mut trusted, &text, seed).await?,
            },
            value => python::to_plain(&value),
        };
        ready.push(ReadyCase { call, expected });
    }
    Ok(ready)
}

async fn evaluate(
    judge: &Judge,
    trusted: &mut Option<Session>,
    text: &str,
    seed: u64,
) -> Result<Plain, Unscored> {
    let policy = judge.task.spec.policy();
    if trusted.is_none() {
        let seed = seed::derive(seed, Purpose::Sandbox, &[5]);
        *trusted = Some(judge.sandbox.session(&policy, seed).await?);
    }
    let session = trusted.as_mut().expect("opened above");
    let outcome = session.eval(text).await?;
    let problem = last_line(&outcome, policy.deadline.as_secs_f64());
    outcome.value.filter(|_| outcome.status.is_success()).ok_or_else(|| Unscored {
        reason: format!(
            "the expected value {text:?} is not a Python expression ({problem}); text needs quotes of its own"
        ),
    })
}
