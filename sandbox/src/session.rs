//! A session: one instance over the turns of one episode.

use std::time::Duration;

use crate::against::{Against, GONE};
use crate::error::SandboxError;
use crate::fs::Files;
use crate::instance::{Instance, Request};
use crate::outcome::{Outcome, Status};
use crate::plain::Plain;

/// One live instance: interpreter state, files, virtual clock and RNG of one episode. Dropping it leaves nothing running.
///
/// A call whose future is dropped before its end, and a call that ended in a fatal status, leave the session dead: later calls
/// answer [`Status::Trapped`] at once. Its [`Files`] can still be read.
pub struct Session {
    instance: Option<Box<Instance>>,
    files: Files,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("is_alive", &self.is_alive())
            .finish_non_exhaustive()
    }
}

impl Session {
    pub(crate) fn new(instance: Instance) -> Self {
        let files = instance.store.data().files.clone();
        Self {
            instance: Some(Box::new(instance)),
            files,
        }
    }

    /// Executes `code` in the session's `__main__`; the value of a last bare expression is *not* echoed.
    ///
    /// # Errors
    /// Only when the host fails; whatever the code does is in the [`Outcome`].
    pub async fn exec(&mut self, code: &str, stdin: &[u8]) -> Result<Outcome, SandboxError> {
        self.request(&Request::Exec { code }, stdin).await
    }

    /// Evaluates an expression in `__main__`; `Outcome::value` is its plain value (`Raised { kind: "NotPlain" }` otherwise).
    ///
    /// # Errors
    /// Only when the host fails.
    pub async fn eval(&mut self, expression: &str) -> Result<Outcome, SandboxError> {
        self.request(&Request::Eval { code: expression }, &[]).await
    }

    /// As [`Session::eval`], within a deadline of its own instead of the policy's.
    ///
    /// # Errors
    /// Only when the host fails.
    pub async fn eval_within(
        &mut self,
        expression: &str,
        deadline: Duration,
    ) -> Result<Outcome, SandboxError> {
        let request = Request::Eval { code: expression };
        self.request_within(&request, &[], Some(deadline)).await
    }

    /// Calls the global `function` with plain arguments; `Outcome::value` is the plain result.
    ///
    /// A dotted or called form (`Solution().solve`) is evaluated in `__main__` first.
    ///
    /// # Errors
    /// Only when the host fails.
    pub async fn call(&mut self, function: &str, args: &[Plain]) -> Result<Outcome, SandboxError> {
        let args = args.iter().map(Plain::to_wire).collect();
        self.request(
            &Request::Call {
                function,
                args,
                kwargs: None,
                return_args: false,
            },
            &[],
        )
        .await
    }

    /// Runs assert-style test code in *this* (trusted) session against `candidate` (untrusted): inside the test code the
    /// global `name` is a proxy whose calls cross through the host as plain data.
    ///
    /// The tests see what the candidate does to list, set and dict arguments, and its exceptions as the nearest builtin
    /// `Exception` class (`CandidateError` where there is none, `SystemExit` included). All calls together have the candidate's
    /// deadline, and their time is not charged to the tests. A candidate that ends (deadline, memory, `os._exit`) ends the tests:
    /// the status is then `Raised { kind: "CandidateGone" }` whatever the test code made of it, and `candidate` is dead. What a
    /// candidate returns or leaves in an argument that is not plain data ends them too, as `Raised { kind: "NotPlain" }`.
    ///
    /// Only `Exited { code: 0 }` means that every assertion held.
    ///
    /// # Errors
    /// Only when the host fails.
    pub async fn exec_against(
        &mut self,
        tests: &str,
        name: &str,
        candidate: &mut Session,
    ) -> Result<Outcome, SandboxError> {
        let Some(mut instance) = self.instance.take() else {
            return Ok(dead());
        };
        let Some(lent) = candidate.instance.take() else {
            self.instance = Some(instance);
            let how = "the candidate's session had ended before the tests began".to_owned();
            return Ok(over(GONE, how, dead()));
        };
        let against = Against::new(name, lent);
        let budget = against.budget();
        let deadline = instance.policy.deadline;
        instance.store.data_mut().against = Some(Box::new(against));
        let answer = instance
            .request_within(&Request::ExecAgainst { code: tests, name }, &[], deadline, budget)
            .await?;
        let outcome = instance.outcome(answer);
        let against = instance.store.data_mut().against.take();
        let ended = match against {
            Some(against) => {
                let ended = against.verdict();
                candidate.instance = against.candidate;
                if let Some(candidate) = &candidate.instance {
                    candidate.store.data().stdout.take(); // what it printed during tests is nobody's output
                    candidate.store.data().stderr.take();
                }
                ended
            }
            None => None,
        };
        if !outcome.status.is_fatal() {
            self.instance = Some(instance);
        }
        Ok(match ended {
            Some((kind, how)) => over(kind, how, outcome),
            None => outcome,
        })
    }

    /// The files of the episode (`/work` in the guest). They live in memory and go with the last handle.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// False once a fatal status was returned, or a call was dropped before its end.
    pub fn is_alive(&self) -> bool {
        self.instance.is_some()
    }

    async fn request(&mut self, request: &Request<'_>, stdin: &[u8]) -> Result<Outcome, SandboxError> {
        self.request_within(request, stdin, None).await
    }

    async fn request_within(
        &mut self,
        request: &Request<'_>,
        stdin: &[u8],
        deadline: Option<Duration>,
    ) -> Result<Outcome, SandboxError> {
        // Taken out for the duration: if this future is dropped, the instance is dropped with it.
        let Some(mut instance) = self.instance.take() else {
            return Ok(dead());
        };
        let deadline = deadline.unwrap_or(instance.policy.deadline);
        let answer = instance
            .request_within(request, stdin, deadline, Duration::ZERO)
            .await?;
        let outcome = instance.outcome(answer);
        if !outcome.status.is_fatal() {
            self.instance = Some(instance);
        }
        Ok(outcome)
    }
}

fn dead() -> Outcome {
    Outcome {
        status: Status::Trapped {
            message: "the session has ended".to_owned(),
        },
        stdout: String::new(),
        stderr: String::new(),
        truncated: false,
        value: None,
        bases: Vec::new(),
        wall: Duration::ZERO,
        fuel: None,
    }
}

fn over(kind: &str, how: String, outcome: Outcome) -> Outcome {
    Outcome {
        status: Status::Raised {
            kind: kind.to_owned(),
            message: how,
        },
        value: None,
        bases: Vec::new(),
        ..outcome
    }
}
