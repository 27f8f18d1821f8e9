//! Tests in one instance, the code they test in another: the calls between them, decided by the host.

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use wasmtime::StoreContextMut;

use crate::host::Host;
use crate::instance::{Instance, Request};
use crate::outcome::Status;
use crate::plain::Plain;

/// Calls of a candidate during one execution of its tests.
const MAX_CALLS: usize = 1_000_000;

/// What tests end with when the candidate's instance has ended.
pub(crate) const GONE: &str = "CandidateGone";
/// What they end with when the candidate did something that cannot cross.
const NOT_PLAIN: &str = "NotPlain";

/// A candidate lent to the instance that tests it.
pub(crate) struct Against {
    /// Nonce of the execution that may call.
    pub(crate) nonce: String,
    /// The one function that may be called.
    name: String,
    /// The untrusted instance, until it ends.
    pub(crate) candidate: Option<Box<Instance>>,
    /// How the candidate ended, if it did.
    ended: Option<Status>,
    /// What it did that cannot be told to the tests: they must not go on as if it had not happened.
    refused: Option<String>,
    /// What is left of the candidate's deadline, for all calls together.
    budget: Duration,
    calls: usize,
}

impl Against {
    pub(crate) fn new(name: &str, candidate: Box<Instance>) -> Self {
        let budget = candidate.policy.deadline;
        Self {
            nonce: String::new(),
            name: name.to_owned(),
            candidate: Some(candidate),
            ended: None,
            refused: None,
            budget,
            calls: 0,
        }
    }

    /// Time that calls of the candidate may add to an execution of the tests.
    pub(crate) fn budget(&self) -> Duration {
        self.budget
    }
}

/// A call that test code makes through its proxy.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    nonce: String,
    function: String,
    args: Vec<Value>,
    #[serde(default)]
    kwargs: Map<String, Value>,
}

/// Answers `mipu:sandbox/host.call` of the instance that `store` belongs to.
pub(crate) async fn answer(mut store: StoreContextMut<'_, Host>, request: String) -> String {
    // Taken out while the candidate runs: dropped with this future, it cannot outlive the execution that it serves.
    let Some(mut against) = store.data_mut().against.take() else {
        return json!({"refused": "there is no candidate to call"}).to_string();
    };
    let begun = Instant::now();
    let reply = against.call(&request).await;
    store.data_mut().extend_deadline(begun.elapsed());
    store.data_mut().against = Some(against);
    reply.to_string()
}

/// What a call was made with, on the wire.
struct Sent {
    args: Vec<Value>,
    named: Map<String, Value>,
}

impl Sent {
    /// The reply for a value and the arguments after the call; what the tests could not see happen is refused.
    fn returned(&self, value: Option<Plain>, args: Option<Plain>) -> Result<Value, String> {
        let (value, args) = if self.named.is_empty() {
            (value, args)
        } else {
            let Some(Plain::Tuple(parts)) = value else {
                return Err("what the candidate returned is not what was asked for".to_owned());
            };
            let Ok([value, args, named]) = <[Plain; 3]>::try_from(parts) else {
                return Err("what the candidate returned is not what was asked for".to_owned());
            };
            self.same_named(&named)?;
            (Some(value), Some(args))
        };
        let (Some(value), Some(Plain::List(args))) = (value, args) else {
            return Err("an argument that the candidate changed is not plain data".to_owned());
        };
        let (value, after): (_, Vec<Value>) = (value.to_wire(), args.iter().map(Plain::to_wire).collect());
        if after == self.args {
            return Ok(json!({ "value": value }));
        }
        // The proxy refills lists, sets and dicts; it cannot reach into a tuple.
        let inside_a_tuple = |(before, after): (&Value, &Value)| before != after && before.get("t").is_some();
        match self.args.iter().zip(&after).any(inside_a_tuple) {
            true => Err(
                "the candidate changed a list inside a tuple in place, which the tests cannot see; \
                         let them pass a list"
                    .to_owned(),
            ),
            false => Ok(json!({"value": value, "args": after})),
        }
    }

    fn same_named(&self, named: &Plain) -> Result<(), String> {
        let Plain::Dict(pairs) = named else {
            return Err("what the candidate returned is not what was asked for".to_owned());
        };
        for (key, item) in pairs {
            let Plain::Str(key) = key else { continue };
            if self.named.get(key).is_some_and(|sent| *sent != item.to_wire()) {
                return Err(format!(
                    "the candidate changed the keyword argument `{key}` in place, which the tests cannot see; \
                     let them pass it by position"
                ));
            }
        }
        Ok(())
    }
}

impl Against {
    async fn call(&mut self, request: &str) -> Value {
        let Ok(call) = serde_json::from_str::<Call>(request) else {
            return json!({"refused": "not a call"});
        };
        if call.nonce != self.nonce || call.function != self.name {
            return json!({"refused": "not a call of this execution's candidate"});
        }
        if let Some(why) = &self.refused {
            return json!({"gone": why});
        }
        self.calls += 1;
        if self.calls > MAX_CALLS {
            return self.refuse(format!(
                "the tests call the candidate more than {MAX_CALLS} times"
            ));
        }
        let plain = |wire: &Value| Plain::from_wire(wire).map(|plain| plain.to_wire());
        let args: Result<Vec<_>, _> = call.args.iter().map(plain).collect();
        let kwargs: Result<Map<_, _>, _> = call
            .kwargs
            .iter()
            .map(|(key, wire)| Ok((key.clone(), plain(wire)?)))
            .collect();
        let (args, kwargs) = match (args, kwargs) {
            (Ok(args), Ok(kwargs)) => (args, kwargs),
            (Err(error), _) | (_, Err(error)) => return json!({"refused": error.to_string()}),
        };
        let sent = Sent {
            args: args.clone(),
            named: kwargs,
        };
        if sent.named.is_empty() {
            let request = Request::Call {
                function: &call.function,
                args,
                kwargs: None,
                return_args: true,
            };
            return self.forward(&request, &sent).await;
        }
        // Keyword arguments come back beside the value, so that the host sees what became of them.
        let function = format!("(lambda a, k: ({}(*a, **k), a, k))", call.function);
        let named = sent.named.iter().map(|(key, item)| json!([key, item]));
        let named = json!({"d": named.collect::<Vec<_>>()});
        let request = Request::Call {
            function: &function,
            args: vec![Value::Array(args), named],
            kwargs: None,
            return_args: false,
        };
        self.forward(&request, &sent).await
    }

    async fn forward(&mut self, request: &Request<'_>, sent: &Sent) -> Value {
        let Some(candidate) = &mut self.candidate else {
            return json!({"gone": self.how_it_ended()});
        };
        let answer = match candidate
            .request_within(request, &[], self.budget, Duration::ZERO)
            .await
        {
            Ok(answer) => answer,
            Err(error) => return json!({"refused": error.to_string()}),
        };
        self.budget = self.budget.saturating_sub(answer.wall);
        match answer.status {
            status if status.is_fatal() => {
                self.ended = Some(status);
                self.candidate = None;
                json!({"gone": self.how_it_ended()})
            }
            Status::Raised { kind, message } if kind == NOT_PLAIN => self.refuse(message),
            Status::Raised { kind, message } => {
                // A class of its own that is merely an `Exception` is told as `CandidateError`, with its name.
                let says_little = |base: &String| {
                    kind != "Exception" && matches!(base.as_str(), "Exception" | "BaseException")
                };
                let bases: Vec<_> = answer.bases.iter().filter(|base| !says_little(base)).collect();
                json!({"raised": kind, "message": message, "bases": bases})
            }
            Status::Exited { .. } => match (answer.value, answer.args) {
                (None, _) => json!({"raised": "SystemExit", "message": "the candidate exited", "bases": []}),
                (value, args) => match sent.returned(value, args) {
                    Ok(reply) => reply,
                    Err(why) => self.refuse(why),
                },
            },
            _ => json!({"refused": "no answer"}),
        }
    }

    /// Ends the tests, in a way that no `except Exception` of theirs holds up.
    fn refuse(&mut self, why: String) -> Value {
        let reply = json!({"gone": why});
        self.refused.get_or_insert(why);
        reply
    }

    /// What the execution came to whatever the test code made of it: an exception's name and message.
    pub(crate) fn verdict(&self) -> Option<(&'static str, String)> {
        match &self.refused {
            _ if self.ended.is_some() => Some((GONE, self.how_it_ended())),
            Some(why) => Some((NOT_PLAIN, why.clone())),
            None => None,
        }
    }

    /// One line for a traceback.
    fn how_it_ended(&self) -> String {
        let how = match &self.ended {
            Some(Status::TimedOut) => "timed out".to_owned(),
            Some(Status::Aborted { code }) => format!("ended its process with code {code}"),
            Some(Status::OutOfMemory) => "ran out of memory".to_owned(),
            Some(Status::OutOfFuel) => "ran out of fuel".to_owned(),
            Some(Status::StackOverflow) => "overflowed its stack".to_owned(),
            Some(Status::Trapped { message }) => format!("trapped: {message}"),
            Some(Status::Exited { .. } | Status::Raised { .. }) | None => "ended".to_owned(),
        };
        format!("the candidate {how}")
    }
}
