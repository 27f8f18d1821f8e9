//! Tasks in YAML, environments, tools and verifiable rewards.
//!
//! `tasks/*.yaml` is read into a [`TaskSet`] of [`Task`]s; [`Task::env`] makes one single-use [`Env`] per episode; a
//! [`Demonstrator`] plays scripted turns in it; [`doctor::check`] tells whether a task file can be trusted.
//!
//! Invariants:
//! - A task is valid by construction: every template was checked against the rows, every range while reading.
//! - Splits cannot overlap: a row's split is a function of what the agent sees of it.
//! - Everything random is a function of the seed and the turn; an episode is the same at any worker count.
//! - Verdicts are made on the host. A candidate runs in a sandbox session of its own, never sees an expected value, and its results
//!   come back as plain data. An exit code is never a verdict.
//! - What the agent does wrong is an observation or a reward; what the host does wrong is [`Unscored`].
//!
//! Deliberately absent: models, tokens, gradients, network access of tools.

#![forbid(unsafe_code)]

mod data;
pub mod diagnostic;
pub mod doctor;
pub mod env;
mod episode;
pub mod import;
pub mod message;
mod python;
mod reward;
mod script;
pub mod seed;
pub mod spec;
mod stochastic;
pub mod task;
mod taskset;
mod template;
mod tools;
pub mod worlds;

pub use diagnostic::Diagnostic;
pub use env::{Env, StepResult, StopReason, Unscored};
pub use message::{Message, Reply, Role, ToolCall, ToolSpec};
pub use script::Demonstrator;
pub use spec::json_schema;
pub use task::{Split, Task, TaskError, TaskSpec};
pub use taskset::TaskSet;
pub use template::{Template, ValueTemplate};
