//! Code under test, in untrusted sandbox sessions of its own; what it did is compared on the host.

use std::time::Duration;

use mipu_sandbox::{Outcome, Policy, Session, Status};

use super::Judge;
use super::cases::{ReadyCase, ReadyDemand};
use super::printed;
use crate::env::Unscored;
use crate::python::{self, Tolerance};
use crate::seed::{self, Purpose};
use crate::spec::UnitTests;
use crate::tools::cap;
use crate::tools::python::observation;

/// Longest part of a value or text shown in a failure.
const SHOWN_BYTES: usize = 300;

/// Why a test failed.
pub(super) struct Failed {
    /// For the agent.
    pub what: String,
    /// The wall clock had a say.
    pub timed_out: bool,
}

impl Failed {
    fn of(outcome: &Outcome, deadline: Duration) -> Self {
        Self {
            what: last_line(outcome, deadline),
            timed_out: outcome.status == Status::TimedOut,
        }
    }

    fn told(what: String) -> Self {
        Self {
            what,
            timed_out: false,
        }
    }
}

/// The limit of a case that has none of its own.
pub(super) fn deadline(judge: &Judge, tests: &UnitTests) -> Duration {
    let own = tests.timeout_sec.map(|seconds| judge.within(seconds.duration()));
    own.unwrap_or(judge.policy().deadline)
}

/// A candidate's source, and the session that has executed it once a case has called it.
pub(super) struct Candidate<'a> {
    judge: &'a Judge,
    /// It is a file of the episode directory: the others lie beside it, to be imported.
    with_files: bool,
    source: &'a str,
    seed: u64,
    policy: Policy,
    session: Option<Session>,
}

impl<'a> Candidate<'a> {
    /// Nothing is run before a case needs it.
    pub(super) fn new(judge: &'a Judge, tests: &UnitTests, source: &'a str, seed: u64) -> Self {
        let policy = Policy {
            deadline: deadline(judge, tests),
            ..judge.policy()
        };
        Self {
            judge,
            with_files: tests.file.is_some(),
            source,
            seed,
            policy,
            session: None,
        }
    }

    /// A session that has executed the source, a fresh one if the last has ended; the inner error is for the agent.
    async fn session(&mut self) -> Result<Result<&mut Session, Failed>, Unscored> {
        // One endless case must not cost the others their credit.
        if self.session.as_ref().is_none_or(|session| !session.is_alive()) {
            let seed = seed::derive(self.seed, Purpose::Sandbox, &[3]);
            let mut session = open(self.judge, self.with_files, &self.policy, seed).await?;
            let outcome = session.exec(self.source, b"").await?;
            // A script that ends with `sys.exit()` has still defined its functions.
            if matches!(outcome.status, Status::Raised { .. }) || !session.is_alive() {
                return Ok(Err(Failed::of(&outcome, self.policy.deadline)));
            }
            self.session = Some(session);
        }
        Ok(Ok(self.session.as_mut().expect("opened above")))
    }

    /// What is wrong with the result of a case, if anything.
    pub(super) async fn check(&mut self, case: &ReadyCase, index: usize) -> Result<Option<Failed>, Unscored> {
        let (head, failed) = match &case.demand {
            ReadyDemand::Returns { call, expected } => {
                let outcome = match self.call(call, case.deadline).await? {
                    Ok(outcome) => outcome,
                    Err(failed) => return Ok(Some(failed)),
                };
                let tolerance = Tolerance {
                    absolute: case.tolerance,
                    relative: 0.0,
                };
                let failed = match (&outcome.value, outcome.status.is_success()) {
                    (Some(value), true) if python::equal(value, expected, tolerance) => None,
                    (Some(value), true) => Some(Failed::told(format!(
                        "expected {}, got {}",
                        python::show(expected),
                        python::show(value)
                    ))),
                    _ => Some(Failed::of(&outcome, case.deadline)),
                };
                (call.clone(), failed)
            }
            ReadyDemand::Raises { call, class, message } => {
                let outcome = match self.call(call, case.deadline).await? {
                    Ok(outcome) => outcome,
                    Err(failed) => return Ok(Some(failed)),
                };
                (
                    call.clone(),
                    wrong_exception(&outcome, call, class, message.as_ref(), case.deadline),
                )
            }
            ReadyDemand::Prints { stdin, stdout } => {
                let shown = cap(
                    python::show(&mipu_sandbox::Plain::Str(stdin.clone())),
                    SHOWN_BYTES,
                );
                let failed = self.run_program(stdin, stdout, case, index).await?;
                (format!("with input {shown}"), failed)
            }
        };
        Ok(failed.map(|failed| Failed {
            what: format!("{head}: {}", failed.what),
            ..failed
        }))
    }

    async fn call(
        &mut self,
        expression: &str,
        deadline: Duration,
    ) -> Result<Result<Outcome, Failed>, Unscored> {
        match self.session().await? {
            Ok(session) => Ok(Ok(session.eval_within(expression, deadline).await?)),
            Err(failed) => Ok(Err(failed)),
        }
    }

    /// Runs the source as a program, in an interpreter that no other case has touched.
    async fn run_program(
        &mut self,
        stdin: &str,
        stdout: &str,
        case: &ReadyCase,
        index: usize,
    ) -> Result<Option<Failed>, Unscored> {
        let policy = Policy {
            deadline: case.deadline,
            ..self.policy.clone()
        };
        let seed = seed::derive(self.seed, Purpose::Sandbox, &[6, index as u64]);
        let mut session = open(self.judge, self.with_files, &policy, seed).await?;
        let outcome = session.exec(self.source, stdin.as_bytes()).await?;
        Ok(match &outcome.status {
            // However it left: what it printed counts, its exit code says nothing.
            Status::Exited { .. } | Status::Aborted { .. } if outcome.truncated => Some(Failed::told(
                format!("it printed more than {} bytes", policy.output_bytes),
            )),
            Status::Exited { .. } | Status::Aborted { .. } => {
                printed::difference(&outcome.stdout, stdout, case.tolerance)
                    .map(|what| Failed::told(cap(what, SHOWN_BYTES)))
            }
            _ => Some(Failed {
                what: last_line(
                    &Outcome {
                        stdout: String::new(),
                        ..outcome.clone()
                    },
                    case.deadline,
                ),
                timed_out: outcome.status == Status::TimedOut,
            }),
        })
    }

    /// What is wrong according to assert-style code, if anything.
    pub(super) async fn assert(&mut self, code: &str, entry: &str) -> Result<Option<Failed>, Unscored> {
        let policy = self.judge.policy();
        let seed = seed::derive(self.seed, Purpose::Sandbox, &[4]);
        let sandbox = self.judge.sandbox.clone();
        let candidate = match self.session().await? {
            Ok(candidate) => candidate,
            Err(failed) => return Ok(Some(failed)),
        };
        let mut trusted = sandbox.session(&policy, seed).await?;
        let outcome = trusted.exec_against(code, entry, candidate).await?;
        // What leaves the candidate, `SystemExit` included, arrives as an ordinary exception: only the end of the tests is success.
        if outcome.status.is_success() {
            return Ok(None);
        }
        // The candidate's own deadline ends it too, and that is the wall clock again.
        let timed_out = outcome.status == Status::TimedOut || !candidate.is_alive();
        Ok(Some(Failed {
            timed_out,
            ..Failed::of(&outcome, self.policy.deadline)
        }))
    }
}

/// A fresh untrusted session, with the files that the source may import.
async fn open(judge: &Judge, with_files: bool, policy: &Policy, seed: u64) -> Result<Session, Unscored> {
    let session = judge.sandbox.session(policy, seed).await?;
    for (path, content) in judge.files.iter().filter(|_| with_files) {
        session.files().write(path, content).map_err(|error| Unscored {
            reason: format!("cannot set up the candidate's files: {error}"),
        })?;
    }
    Ok(session)
}

/// What is wrong with how a call ended that should have raised `class`, if anything.
fn wrong_exception(
    outcome: &Outcome,
    call: &str,
    class: &str,
    pattern: Option<&regex::Regex>,
    deadline: Duration,
) -> Option<Failed> {
    let (kind, message) = match (&outcome.status, &outcome.value) {
        (Status::Exited { .. }, Some(value)) => {
            return Some(Failed::told(format!(
                "expected {class}, got {}",
                python::show(value)
            )));
        }
        (Status::Exited { .. }, None) => ("SystemExit", ""),
        (Status::Raised { kind, message }, _) => (kind.as_str(), message.as_str()),
        _ => return Some(Failed::of(outcome, deadline)),
    };
    let is_one = match BUILTIN.contains(&class) {
        // A class of the candidate's own that only has the name is not it.
        true => outcome.bases.iter().any(|base| base == class) || kind == class && outcome.bases.is_empty(),
        false => kind == class,
    };
    // A function that does not exist raises nothing.
    let absent = kind == "NameError"
        && class != "NameError"
        && message
            .strip_prefix("name '")
            .and_then(|rest| rest.strip_suffix("' is not defined"))
            .is_some_and(|name| has_word(call, name));
    if is_one && !absent && kind != "NotPlain" && pattern.is_none_or(|pattern| pattern.is_match(message)) {
        return None;
    }
    let wanted = match pattern {
        Some(pattern) if is_one => format!("{class} with a message like {:?}", pattern.as_str()),
        _ => class.to_owned(),
    };
    Some(Failed::told(format!(
        "expected {wanted}, got {}",
        last_line(outcome, deadline)
    )))
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|part| part == word)
}

/// The last line of what an execution came to.
pub(super) fn last_line(outcome: &Outcome, deadline: Duration) -> String {
    match &outcome.status {
        Status::Exited { code } | Status::Aborted { code } => {
            format!("left the interpreter with code {code}")
        }
        Status::Raised { kind, message } if kind == "NotPlain" => not_plain(message),
        _ => observation(outcome, deadline.as_secs_f64())
            .lines()
            .last()
            .unwrap_or_default()
            .to_owned(),
    }
}

/// What to do about a value that cannot leave the candidate.
fn not_plain(message: &str) -> String {
    let name = message.split('\'').nth(1).unwrap_or_default();
    let lazy = LAZY.contains(&name) || name.ends_with("_iterator");
    let advice = match (lazy, message.starts_with("a value of type")) {
        (true, _) => "; return a list, not an iterator",
        (false, true) => "; return None, bool, int, float, str, bytes, list, tuple, set or dict",
        (false, false) => "",
    };
    format!("{message}{advice}")
}

/// Iterators that candidates return for lists.
const LAZY: [&str; 20] = [
    "generator",
    "map",
    "filter",
    "zip",
    "enumerate",
    "reversed",
    "range",
    "dict_keys",
    "dict_values",
    "dict_items",
    "chain",
    "islice",
    "product",
    "permutations",
    "combinations",
    "accumulate",
    "groupby",
    "takewhile",
    "dropwhile",
    "coroutine",
];

/// Builtin exceptions, which are matched with their subclasses.
const BUILTIN: [&str; 65] = [
    "ArithmeticError",
    "AssertionError",
    "AttributeError",
    "BaseException",
    "BaseExceptionGroup",
    "BlockingIOError",
    "BrokenPipeError",
    "BufferError",
    "BytesWarning",
    "ChildProcessError",
    "ConnectionAbortedError",
    "ConnectionError",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "DeprecationWarning",
    "EOFError",
    "EncodingWarning",
    "EnvironmentError",
    "Exception",
    "ExceptionGroup",
    "FileExistsError",
    "FileNotFoundError",
    "FloatingPointError",
    "FutureWarning",
    "GeneratorExit",
    "IOError",
    "ImportError",
    "ImportWarning",
    "IndentationError",
    "IndexError",
    "InterruptedError",
    "IsADirectoryError",
    "KeyError",
    "KeyboardInterrupt",
    "LookupError",
    "MemoryError",
    "ModuleNotFoundError",
    "NameError",
    "NotADirectoryError",
    "NotImplementedError",
    "OSError",
    "OverflowError",
    "PendingDeprecationWarning",
    "PermissionError",
    "ProcessLookupError",
    "RecursionError",
    "ReferenceError",
    "ResourceWarning",
    "RuntimeError",
    "RuntimeWarning",
    "StopAsyncIteration",
    "StopIteration",
    "SyntaxError",
    "SyntaxWarning",
    "SystemError",
    "SystemExit",
    "TabError",
    "TimeoutError",
    "TypeError",
    "UnboundLocalError",
    "UnicodeError",
    "UserWarning",
    "ValueError",
    "Warning",
    "ZeroDivisionError",
];
