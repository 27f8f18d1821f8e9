//! Tasks in YAML, environments, tools and verifiable rewards.

pub mod env;
pub mod message;
pub mod seed;
pub mod task;

pub use env::{Env, StepResult, StopReason, Unscored};
pub use message::{Message, Reply, Role, ToolCall, ToolSpec};
pub use task::{Split, Task, TaskError, TaskSet};
