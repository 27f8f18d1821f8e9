//! The `unit_tests` rule and the `run_tests` tool.
//!
//! The candidate is executed in an untrusted session of its own, used for nothing else. Calls go in as text, results come out as plain
//! data, and the host compares them with values the candidate never saw. Leaving the interpreter, patching `builtins` or returning
//! objects with their own `__eq__` therefore gains nothing. Assert-style code runs in a second, trusted session against a proxy.

use std::collections::{BTreeSet, HashMap};
use std::sync::{LazyLock, Mutex, PoisonError};

use regex::Regex;

use super::Judge;
use super::candidate::{Candidate, Failed, deadline};
use super::cases;
use crate::env::Unscored;
use crate::spec::{Case, Demand, UnitTests};
use crate::template::Template;

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
    cases: Vec<Case<String>>,
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
        for (path, content) in judge.files.iter().filter(|_| tests.file.is_some()) {
            part(path);
            part(&blake3::hash(content).to_hex());
        }
        match &self.code {
            Some((code, entry)) => [code, entry].into_iter().for_each(|text| part(text)),
            None => part("no code"),
        }
        for case in &self.cases {
            part(&format!("{case:?}"));
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
    let cases = cases::ready(judge, tests, cases, seed).await?;
    let mut report = Report {
        passed: 0,
        total: cases.len() + usize::from(code.is_some()),
        failure: None,
        timed_out: false,
    };
    let mut candidate = Candidate::new(judge, tests, &source, seed);
    for (index, case) in cases.iter().enumerate() {
        report = report.with(candidate.check(case, index).await?);
        if report.failure.is_some() && !partial {
            return Ok(report);
        }
    }
    if let Some((code, entry)) = code {
        report = report.with(candidate.assert(&code, &entry).await?);
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

/// What a candidate is to the tests, for the doctor's attacks.
pub(crate) struct Surface {
    /// The functions that the tests call.
    pub names: Vec<String>,
    /// The file that holds the candidate; `None`: the answer does.
    pub file: Option<String>,
    /// Whether the answer is the whole source, not a part that the task wraps.
    pub whole: bool,
    /// Assert-style code.
    pub code: Option<String>,
}

/// The surface of these tests.
///
/// # Errors
/// As scoring.
pub(crate) fn surface(judge: &Judge, tests: &UnitTests) -> Result<Surface, Unscored> {
    let render = |template: &Option<Template>| template.as_ref().map(|text| judge.render(text)).transpose();
    let mut names = BTreeSet::new();
    if let Some(entry) = render(&tests.entry)? {
        names.extend(entry.split(['.', '(']).next().map(str::to_owned));
    }
    for case in cases::written(judge, tests)? {
        if let Demand::Returns { call, .. } | Demand::Raises { call, .. } = &case.demand {
            names.extend(called(call));
        }
    }
    Ok(Surface {
        names: names.into_iter().collect(),
        file: render(&tests.file)?,
        whole: tests.file.is_some() || tests.source.source().trim() == "{{ answer }}",
        code: render(&tests.tests)?,
    })
}

/// The names that an expression calls.
fn called(expression: &str) -> Vec<String> {
    static CALL: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\b([A-Za-z_]\w*)\s*\(").expect("a valid pattern"));
    let keyword = |name: &str| {
        matches!(
            name,
            "lambda" | "and" | "or" | "not" | "in" | "is" | "if" | "else" | "for"
        )
    };
    CALL.captures_iter(expression)
        .filter_map(|found| found.get(1))
        .filter(|name| !expression[..name.start()].ends_with('.') && !keyword(name.as_str()))
        .map(|name| name.as_str().to_owned())
        .collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_that_a_call_calls() {
        for (expression, expected) in [
            ("f(1)", vec!["f"]),
            ("list(g(x.h(3)))", vec!["list", "g"]),
            ("Solution().solve(1)", vec!["Solution"]),
            ("[x for x in (f (2))]", vec!["f"]),
            ("x", vec![]),
        ] {
            assert_eq!(called(expression), expected, "{expression}");
        }
    }
}
