//! The `unit_tests` rule and the `run_tests` tool.
//!
//! The candidate is executed in an untrusted session of its own, used for nothing else. Calls go in as text, results come out as plain
//! data, and the host compares them with values the candidate never saw. Leaving the interpreter, patching `builtins` or returning
//! objects with their own `__eq__` therefore gains nothing. Assert-style code runs in a second, trusted session against a proxy.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use mipu_sandbox::{Outcome, Session, Status};

use super::Judge;
use super::cases::{self, ReadyCase, WrittenCase};
use crate::env::Unscored;
use crate::python::{self, Tolerance};
use crate::seed::{self, Purpose};
use crate::spec::UnitTests;
use crate::tools::python::observation;

/// Reports a task file remembers; some 100 bytes each. A full memory is emptied.
const MAX_REMEMBERED: usize = 1 << 16;

/// What the tests came to.
#[derive(Clone, Debug)]
struct Report {
    passed: usize,
    total: usize,
    /// The first thing that went wrong, for the agent.
    failure: Option<String>,
    /// The wall clock had a say: another run might differ.
    timed_out: bool,
}

/// Reports by everything they depend on.
///
/// A report is a function of candidate and tests: the interpreters' seed is derived from them, their clocks are virtual. So the same
/// candidate always gets the same report, and the episodes of a group, which often try the same thing, need not run it again.
#[derive(Debug, Default)]
pub(crate) struct Remembered(Mutex<HashMap<blake3::Hash, Report>>);

impl Remembered {
    fn get(&self, key: &blake3::Hash) -> Option<Report> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(key)
            .cloned()
    }

    fn put(&self, key: blake3::Hash, report: &Report) {
        let mut reports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if reports.len() >= MAX_REMEMBERED {
            reports.clear();
        }
        reports.insert(key, report.clone());
    }
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

/// Candidate and tests with their templates filled in.
struct Trial {
    source: String,
    cases: Vec<WrittenCase>,
    /// Assert-style code and the function it calls.
    code: Option<(String, String)>,
}

impl Trial {
    /// Hash of everything the report depends on.
    fn key(&self, judge: &Judge, tests: &UnitTests, partial: bool) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        let mut part = |text: &str| {
            hasher
                .update(&(text.len() as u64).to_le_bytes())
                .update(text.as_bytes());
        };
        part(&format!(
            "{partial} {:?} {:?}",
            tests.tolerance,
            deadline(judge, tests)
        ));
        part(&self.source);
        match &self.code {
            Some((code, entry)) => [code, entry].into_iter().for_each(|text| part(text)),
            None => part("no code"),
        }
        for case in &self.cases {
            part(&case.call);
            part(&case.expected.to_string());
        }
        hasher.finalize()
    }
}

async fn run(judge: &Judge, tests: &UnitTests, partial: bool) -> Result<Report, Unscored> {
    let cases = cases::written(judge, tests)?;
    let code = match (&tests.tests, &tests.entry) {
        (Some(code), Some(entry)) => Some((judge.render(code)?, judge.render(entry)?)),
        _ => None,
    };
    let total = cases.len() + usize::from(code.is_some());
    if total == 0 {
        return Err(Unscored {
            reason: "the row has no test case".to_owned(),
        });
    }
    let source = match source(judge, tests)? {
        Ok(source) => source,
        Err(missing) => {
            return Ok(Report {
                passed: 0,
                total,
                failure: Some(missing),
                timed_out: false,
            });
        }
    };
    let trial = Trial { source, cases, code };
    let key = trial.key(judge, tests, partial);
    let remembered = &judge.task.spec.remembered;
    if let Some(report) = remembered.get(&key) {
        return Ok(report);
    }
    let head = key.as_bytes()[..8]
        .try_into()
        .expect("a blake3 hash has 32 bytes");
    let report = carry_out(judge, tests, trial, partial, u64::from_le_bytes(head)).await?;
    if !report.timed_out {
        remembered.put(key, &report);
    }
    Ok(report)
}

async fn carry_out(
    judge: &Judge,
    tests: &UnitTests,
    trial: Trial,
    partial: bool,
    seed: u64,
) -> Result<Report, Unscored> {
    let Trial { source, cases, code } = trial;
    let cases = cases::ready(judge, cases, seed).await?;
    let total = cases.len() + usize::from(code.is_some());
    let mut report = Report {
        passed: 0,
        total,
        failure: None,
        timed_out: false,
    };
    let mut candidate = match Candidate::open(judge, tests, &source, seed).await? {
        Ok(candidate) => candidate,
        Err(failed) => return Ok(report.with(Some(failed))),
    };
    let tolerance = Tolerance {
        absolute: tests.tolerance.get(),
        relative: 0.0,
    };
    for case in &cases {
        report = report.with(candidate.check(case, tolerance).await?);
        if report.failure.is_some() && !partial {
            return Ok(report);
        }
        if !candidate.session.is_alive() {
            // One endless case must not cost the others their credit.
            match Candidate::open(judge, tests, &source, seed).await? {
                Ok(fresh) => candidate = fresh,
                Err(failed) => {
                    report.timed_out |= failed.timed_out;
                    return Ok(report);
                }
            }
        }
    }
    if let Some((code, entry)) = code {
        report = report.with(candidate.assert(judge, &code, &entry, seed).await?);
    }
    Ok(report)
}

impl Report {
    /// The report after one more test.
    fn with(mut self, failed: Option<Failed>) -> Self {
        match failed {
            None => self.passed += 1,
            Some(Failed { what, timed_out }) => {
                self.failure = self.failure.or(Some(what));
                self.timed_out |= timed_out;
            }
        }
        self
    }
}

/// Why a test failed.
struct Failed {
    what: String,
    timed_out: bool,
}

impl Failed {
    fn of(outcome: &Outcome, timeout_sec: f64) -> Self {
        Self {
            what: last_line(outcome, timeout_sec),
            timed_out: outcome.status == Status::TimedOut,
        }
    }
}

fn deadline(judge: &Judge, tests: &UnitTests) -> std::time::Duration {
    tests
        .timeout_sec
        .map_or(judge.task.spec.policy().deadline, |seconds| seconds.duration())
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
    async fn open(
        judge: &Judge,
        tests: &UnitTests,
        source: &str,
        seed: u64,
    ) -> Result<Result<Self, Failed>, Unscored> {
        let policy = mipu_sandbox::Policy {
            deadline: deadline(judge, tests),
            ..judge.task.spec.policy()
        };
        let timeout_sec = policy.deadline.as_secs_f64();
        let mut session = judge
            .sandbox
            .session(&policy, seed::derive(seed, Purpose::Sandbox, &[3]))
            .await?;
        let outcome = session.exec(source, b"").await?;
        let raised = matches!(outcome.status, Status::Raised { .. });
        if raised || !session.is_alive() {
            return Ok(Err(Failed::of(&outcome, timeout_sec)));
        }
        // A script that ends with `sys.exit()` has still defined its functions.
        Ok(Ok(Self { session, timeout_sec }))
    }

    /// What is wrong with the result of a case, if anything.
    async fn check(&mut self, case: &ReadyCase, tolerance: Tolerance) -> Result<Option<Failed>, Unscored> {
        let outcome = self.session.eval(&case.call).await?;
        let mut failed = match (&outcome.value, outcome.status.is_success()) {
            (Some(value), true) if python::equal(value, &case.expected, tolerance) => return Ok(None),
            (Some(value), true) => {
                let what = format!(
                    "expected {}, got {}",
                    python::show(&case.expected),
                    python::show(value)
                );
                Failed {
                    what,
                    timed_out: false,
                }
            }
            _ => Failed::of(&outcome, self.timeout_sec),
        };
        failed.what = format!("{}: {}", case.call, failed.what);
        Ok(Some(failed))
    }

    /// What is wrong according to assert-style code, if anything.
    async fn assert(
        &mut self,
        judge: &Judge,
        code: &str,
        entry: &str,
        seed: u64,
    ) -> Result<Option<Failed>, Unscored> {
        let policy = judge.task.spec.policy();
        let mut trusted = judge
            .sandbox
            .session(&policy, seed::derive(seed, Purpose::Sandbox, &[4]))
            .await?;
        let outcome = trusted.exec_against(code, entry, &mut self.session).await?;
        // What leaves the candidate, `SystemExit` included, arrives as an ordinary exception: only the end of the tests is success.
        if outcome.status.is_success() {
            return Ok(None);
        }
        // The candidate's own deadline ends it too, and that is the wall clock again.
        let timed_out = outcome.status == Status::TimedOut || !self.session.is_alive();
        Ok(Some(Failed {
            timed_out,
            ..Failed::of(&outcome, self.timeout_sec)
        }))
    }
}

/// The last line of what an execution came to.
pub(super) fn last_line(outcome: &Outcome, timeout_sec: f64) -> String {
    match &outcome.status {
        Status::Exited { code } | Status::Aborted { code } => {
            format!("left the interpreter with code {code}")
        }
        _ => observation(outcome, timeout_sec)
            .lines()
            .last()
            .unwrap_or_default()
            .to_owned(),
    }
}
