//! One live instance of the guest: requests in, answers out, every way to end typed.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use wasmtime::component::TypedFunc;
use wasmtime::{Store, Trap};
use wasmtime_wasi::I32Exit;

use crate::error::SandboxError;
use crate::host::{DeadlinePassed, Host};
use crate::outcome::{Outcome, Status};
use crate::plain::Plain;
use crate::policy::Policy;
use crate::sandbox::Runtime;

/// How long after its deadline an execution is dropped even if it never reaches an epoch check.
const GRACE: Duration = Duration::from_millis(100);
/// Longest deadline that is honoured, so that sums of times never overflow.
const LONGEST_DEADLINE: Duration = Duration::from_secs(365 * 86_400);
/// Longest name of an exception class that is believed.
const MAX_KIND_CHARS: usize = 100;
/// Longest exception message that is kept.
const MAX_MESSAGE_CHARS: usize = 500;

/// One request, as the guest reads it (`guest/README.md`).
#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum Request<'a> {
    /// Run statements in `__main__`.
    Exec { code: &'a str },
    /// Evaluate an expression in `__main__`.
    Eval { code: &'a str },
    /// Call a global with plain arguments.
    Call {
        function: &'a str,
        args: Vec<Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        kwargs: Option<serde_json::Map<String, Value>>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        return_args: bool,
    },
    /// Run statements with a proxy for a candidate in another instance.
    ExecAgainst { code: &'a str, name: &'a str },
}

#[derive(Serialize)]
struct Envelope<'a> {
    nonce: &'a str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stdin: bool,
    #[serde(flatten)]
    request: &'a Request<'a>,
}

/// What the guest claims. It comes from an interpreter that ran foreign code: a claim, not a fact.
#[derive(Deserialize)]
struct Claim {
    nonce: String,
    status: String,
    #[serde(default)]
    code: i64,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    bases: Vec<String>,
    #[serde(default, deserialize_with = "present")]
    value: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    args: Option<Value>,
}

/// A field that is there, `null` included: that is Python's `None`.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// An answer of the guest, checked.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: Status,
    pub(crate) value: Option<Plain>,
    /// Arguments after the call, when they were asked for.
    pub(crate) args: Option<Plain>,
    /// Builtin exception classes the raised one derives from, nearest first.
    pub(crate) bases: Vec<String>,
    pub(crate) wall: Duration,
    pub(crate) fuel: Option<u64>,
}

impl Answer {
    fn of(status: Status) -> Self {
        Self {
            status,
            value: None,
            args: None,
            bases: Vec::new(),
            wall: Duration::ZERO,
            fuel: None,
        }
    }

    fn raised(kind: &str, message: String) -> Self {
        Self::of(Status::Raised {
            kind: kind.to_owned(),
            message,
        })
    }
}

/// A live instance. It owns everything it uses; dropping it, at any moment, ends it.
pub(crate) struct Instance {
    pub(crate) store: Store<Host>,
    handle: TypedFunc<(String,), (String,)>,
    pub(crate) policy: Policy,
    _runtime: Arc<Runtime>, // keeps the epoch thread running
}

impl Instance {
    /// Copies the booted interpreter.
    pub(crate) async fn new(runtime: &Arc<Runtime>, policy: &Policy, seed: u64) -> wasmtime::Result<Self> {
        let mut store = Host::store(&runtime.machine.engine, policy, seed);
        if policy.fuel.is_some() {
            store.set_fuel(u64::MAX)?; // linking is not charged
        }
        let instance = runtime.pre.instantiate_async(&mut store).await?;
        let handle = instance.get_typed_func(&mut store, runtime.handle)?;
        Ok(Self {
            store,
            handle,
            policy: policy.clone(),
            _runtime: Arc::clone(runtime),
        })
    }

    /// Sends one request and waits for its end, within the policy's deadline.
    pub(crate) async fn request(
        &mut self,
        request: &Request<'_>,
        stdin: &[u8],
    ) -> Result<Answer, SandboxError> {
        self.request_within(request, stdin, self.policy.deadline, Duration::ZERO)
            .await
    }

    /// As [`Instance::request`], within `deadline`; `lent` is time that host calls may add to it.
    pub(crate) async fn request_within(
        &mut self,
        request: &Request<'_>,
        stdin: &[u8],
        deadline: Duration,
        lent: Duration,
    ) -> Result<Answer, SandboxError> {
        let (deadline, lent) = (deadline.min(LONGEST_DEADLINE), lent.min(LONGEST_DEADLINE));
        let nonce = one_time_nonce();
        let envelope = Envelope {
            nonce: &nonce,
            stdin: !stdin.is_empty(),
            request,
        };
        let text = serde_json::to_string(&envelope).map_err(|error| SandboxError::Task(error.to_string()))?;
        let begun = Instant::now();
        let host = self.store.data_mut();
        host.stdin.set(stdin);
        host.limits.refused = false;
        host.deadline = begun + deadline;
        if let Some(against) = &mut host.against {
            against.nonce.clone_from(&nonce);
        }
        self.store.set_epoch_deadline(1);
        if let Some(fuel) = self.policy.fuel {
            self.store
                .set_fuel(fuel)
                .map_err(|error| SandboxError::Instantiate(format!("{error:#}")))?;
        }
        let call = self.handle.call_async(&mut self.store, (text,));
        let ended = tokio::time::timeout(deadline + lent + GRACE, call).await;
        let mut answer = match ended {
            Err(_) => Answer::of(Status::TimedOut),
            Ok(Err(error)) => Answer::of(self.status_of(&error)),
            Ok(Ok((claim,))) => read_claim(&claim, &nonce),
        };
        answer.wall = begun.elapsed();
        answer.fuel = self
            .policy
            .fuel
            .map(|fuel| fuel - self.store.get_fuel().unwrap_or(0).min(fuel));
        Ok(answer)
    }

    /// Joins an answer with the output that was captured meanwhile.
    pub(crate) fn outcome(&mut self, answer: Answer) -> Outcome {
        let host = self.store.data();
        let (stdout, cut_out) = host.stdout.take();
        let (stderr, cut_err) = host.stderr.take();
        Outcome {
            status: answer.status,
            stdout,
            stderr,
            truncated: cut_out || cut_err,
            value: answer.value,
            bases: answer.bases,
            wall: answer.wall,
            fuel: answer.fuel,
        }
    }

    fn status_of(&self, error: &wasmtime::Error) -> Status {
        if let Some(I32Exit(code)) = error.downcast_ref() {
            return Status::Aborted { code: *code };
        }
        if error.downcast_ref::<DeadlinePassed>().is_some() {
            return Status::TimedOut;
        }
        match error.downcast_ref::<Trap>() {
            Some(Trap::OutOfFuel) => Status::OutOfFuel,
            Some(Trap::Interrupt) => Status::TimedOut,
            Some(Trap::StackOverflow) => Status::StackOverflow,
            _ if self.store.data().limits.refused => Status::OutOfMemory,
            _ => Status::Trapped {
                message: cut(&error.root_cause().to_string(), MAX_MESSAGE_CHARS),
            },
        }
    }
}

/// Unpredictable, used once: an answer or a host call that lacks it was not made for this request.
fn one_time_nonce() -> String {
    let word = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", word(), word())
}

fn read_claim(text: &str, nonce: &str) -> Answer {
    let broken = |what: &str| {
        Answer::of(Status::Trapped {
            message: format!("guest broke the protocol: {what}"),
        })
    };
    let claim: Claim = match serde_json::from_str(text) {
        Ok(claim) => claim,
        Err(_) => return broken("answer is not what was agreed"),
    };
    if claim.nonce != nonce {
        return broken("answer is not for this request");
    }
    match claim.status.as_str() {
        "ok" => {
            let mut answer = Answer::of(Status::Exited { code: 0 });
            for (wire, slot) in [(claim.value, &mut answer.value), (claim.args, &mut answer.args)] {
                match wire.as_ref().map(Plain::from_wire).transpose() {
                    Ok(plain) => *slot = plain,
                    Err(error) => return Answer::raised("NotPlain", error.to_string()),
                }
            }
            answer
        }
        "exited" => Answer::of(Status::Exited {
            code: i32::try_from(claim.code).unwrap_or(1),
        }),
        "raised" => {
            let kind = cut(&claim.kind, MAX_KIND_CHARS);
            let mut answer = Answer::raised(&kind, cut(&claim.message, MAX_MESSAGE_CHARS));
            answer.bases = claim
                .bases
                .iter()
                .take(16)
                .map(|base| cut(base, MAX_KIND_CHARS))
                .collect();
            answer
        }
        _ => broken("unknown status"),
    }
}

fn cut(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
