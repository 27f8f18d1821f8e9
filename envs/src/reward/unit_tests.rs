//! The `unit_tests` rule and the `run_tests` tool.
//!
//! The candidate is executed in an untrusted session of its own, used for nothing else. Calls go in as text, results come out as plain
//! data, and the host compares them with values the candidate never saw. Leaving the interpreter, patching `builtins` or returning
//! objects with their own `__eq__` therefore gains nothing. Assert-style code runs in a second, trusted session against a proxy.

use mipu_sandbox::{Outcome, Plain, Session, Status};
use serde_json::Value;

use super::Judge;
use crate::env::Unscored;
use crate::python::{self, Tolerance};
use crate::seed::{self, Purpose};
use crate::spec::{CaseList, Expected, UnitTests};
use crate::tools::python::observation;

/// Cases a row may bring; more is a mistake in the data.
const MAX_CASES: usize = 10_000;

/// A call and the value it must return.
struct ReadyCase {
    call: String,
    expected: Plain,
}

/// What the tests came to.
#[derive(Debug)]
struct Report {
    passed: usize,
    total: usize,
    /// The first thing that went wrong, for the agent.
    failure: Option<String>,
}

/// Share of the cases passed; without `partial` the first failure ends it.
pub(super) async fn score(judge: &Judge, tests: &UnitTests, partial: bool) -> Result<f64, Unscored> {
    let report = run(judge, tests, partial).await?;
    Ok(report.passed as f64 / report.total as f64)
}

/// The observation of the tool: `pass`, or `fail` and what failed first.
pub(crate) async fn observe(judge: &Judge, tests: &UnitTests) -> Result<String, Unscored> {
    let report = run(judge, tests, false).await?;
    Ok(match report.failure {
        None => "pass".to_owned(),
        Some(failure) if tests.details => format!("fail\n{failure}"),
        Some(_) => "fail".to_owned(),
    })
}

async fn run(judge: &Judge, tests: &UnitTests, partial: bool) -> Result<Report, Unscored> {
    let cases = ready_cases(judge, tests).await?;
    let total = cases.len() + usize::from(tests.tests.is_some());
    if total == 0 {
        return Err(Unscored {
            reason: "the row has no test case".to_owned(),
        });
    }
    let mut report = Report {
        passed: 0,
        total,
        failure: None,
    };
    let source = match source(judge, tests)? {
        Ok(source) => source,
        Err(missing) => {
            return Ok(Report {
                failure: Some(missing),
                ..report
            });
        }
    };
    let mut candidate = match Candidate::open(judge, tests, &source).await? {
        Ok(candidate) => candidate,
        Err(failure) => {
            return Ok(Report {
                failure: Some(failure),
                ..report
            });
        }
    };
    let tolerance = Tolerance {
        absolute: tests.tolerance.get(),
        relative: 0.0,
    };
    for case in &cases {
        let failure = candidate.check(case, tolerance).await?;
        report.passed += usize::from(failure.is_none());
        report.failure = report.failure.or(failure);
        if report.failure.is_some() && !partial {
            return Ok(report);
        }
        if !candidate.session.is_alive() {
            // One endless case must not cost the others their credit.
            match Candidate::open(judge, tests, &source).await? {
                Ok(fresh) => candidate = fresh,
                Err(_) => return Ok(report),
            }
        }
    }
    if let (Some(code), Some(entry)) = (&tests.tests, &tests.entry) {
        let failure = candidate
            .assert(judge, &judge.render(code)?, &judge.render(entry)?)
            .await?;
        report.passed += usize::from(failure.is_none());
        report.failure = report.failure.or(failure);
    }
    Ok(report)
}

/// The candidate's code; the inner error is for the agent.
fn source(judge: &Judge, tests: &UnitTests) -> Result<Result<String, String>, Unscored> {
    let Some(path) = &tests.file else {
        return judge.render_with_answer(&tests.source).map(Ok);
    };
    let path = judge.render(path)?;
    Ok(match judge.files.get(&path) {
        Some(content) => String::from_utf8(content.clone()).map_err(|_| format!("{path} is not UTF-8 text")),
        None => Err(format!("there is no file {path}")),
    })
}

/// An untrusted session that has executed the candidate's code.
struct Candidate {
    session: Session,
    timeout_sec: f64,
}

impl Candidate {
    /// Executes `source`; the inner error is for the agent.
    async fn open(judge: &Judge, tests: &UnitTests, source: &str) -> Result<Result<Self, String>, Unscored> {
        let mut policy = judge.task.spec.policy();
        if let Some(seconds) = tests.timeout_sec {
            policy.deadline = seconds.duration();
        }
        let timeout_sec = policy.deadline.as_secs_f64();
        let mut session = judge
            .sandbox
            .session(&policy, seed::derive(judge.seed, Purpose::Sandbox, &[3]))
            .await?;
        let outcome = session.exec(source, b"").await?;
        let raised = matches!(outcome.status, Status::Raised { .. });
        if raised || !session.is_alive() {
            return Ok(Err(last_line(&outcome, timeout_sec)));
        }
        // A script that ends with `sys.exit()` has still defined its functions.
        Ok(Ok(Self { session, timeout_sec }))
    }

    /// What is wrong with the result of a case, if anything.
    async fn check(&mut self, case: &ReadyCase, tolerance: Tolerance) -> Result<Option<String>, Unscored> {
        let outcome = self.session.eval(&case.call).await?;
        let problem = match (&outcome.value, outcome.status.is_success()) {
            (Some(value), true) if python::equal(value, &case.expected, tolerance) => None,
            (Some(value), true) => Some(format!(
                "expected {}, got {}",
                python::show(&case.expected),
                python::show(value)
            )),
            _ => Some(last_line(&outcome, self.timeout_sec)),
        };
        Ok(problem.map(|problem| format!("{}: {problem}", case.call)))
    }

    /// What is wrong according to assert-style code, if anything.
    async fn assert(&mut self, judge: &Judge, code: &str, entry: &str) -> Result<Option<String>, Unscored> {
        let policy = judge.task.spec.policy();
        let mut trusted = judge.sandbox.session(&policy, seed::derive(judge.seed, Purpose::Sandbox, &[4])).await?;
        let outcome = trusted.exec_against(code, entry, &mut self.session).await?;
        // What leaves the candidate, `SystemExit` included, arrives as an ordinary exception: only the end of the tests is success.
        Ok((!outcome.status.is_success()).then(|| last_line(&outcome, self.timeout_sec)))
    }
}

/// Cases with their templates filled in and their expected values known.
async fn ready_cases(judge: &Judge, tests: &UnitTests) -> Result<Vec<ReadyCase>, Unscored> {
    let mut cases = Vec::new();
    match &tests.cases {
        CaseList::Listed(listed) => {
            for case in listed {
                let expected = match &case.expect {
                    Expected::Expression(template) => Value::String(judge.render(template)?),
                    Expected::Value(value) => value.clone(),
                };
                cases.push((judge.render(&case.call)?, expected));
            }
        }
        CaseList::FromRow(template) => {
            let Value::Array(items) = template.evaluate(&judge.fields)? else {
                return Err(Unscored {
                    reason: "`cases` must be a list".to_owned(),
                });
            };
            for item in items {
                match (item.get("call"), item.get("expect")) {
                    (Some(Value::String(call)), Some(expected)) => {
                        cases.push((call.clone(), expected.clone()))
                    }
                    _ => {
                        return Err(Unscored {
                            reason: format!("a case needs `call` and `expect`; got {item}"),
                        });
                    }
                }
            }
        }
    }
    if cases.len() > MAX_CASES {
        return Err(Unscored {
            reason: format!("{} test cases; the limit is {MAX_CASES}", cases.len()),
        });
    }
    let mut trusted = None;
    let mut ready = Vec::with_capacity(cases.len());
    for (call, expected) in cases {
        let expected = match expected {
            Value::String(text) => match python::parse_literal(&text) {
                Some(literal) => literal,
                None => evaluate(judge, &mut trusted, &text).await?,
            },
            value => python::to_plain(&value),
        };
        ready.push(ReadyCase { call, expected });
    }
    Ok(ready)
}

/// An expected value that is not a literal, evaluated in a trusted session.
async fn evaluate(judge: &Judge, trusted: &mut Option<Session>, text: &str) -> Result<Plain, Unscored> {
    let policy = judge.task.spec.policy();
    if trusted.is_none() {
        let seed = seed::derive(judge.seed, Purpose::Sandbox, &[5]);
        *trusted = Some(judge.sandbox.session(&policy, seed).await?);
    }
    let session = trusted.as_mut().expect("opened above");
    let outcome = session.eval(text).await?;
    let problem = last_line(&outcome, policy.deadline.as_secs_f64());
    outcome.value.filter(|_| outcome.status.is_success()).ok_or_else(|| Unscored {
        reason: format!("the expected value {text:?} is not a Python expression ({problem}); text needs quotes of its own"),
    })
}

fn last_line(outcome: &Outcome, timeout_sec: f64) -> String {
    match &outcome.status {
        Status::Exited { code } | Status::Aborted { code } => format!("left the interpreter with code {code}"),
        _ => observation(outcome, timeout_sec)
            .lines()
            .last()
            .unwrap_or_default()
            .to_owned(),
    }
}
