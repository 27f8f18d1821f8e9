//! Integration tests of mipu-envs: task files, environments, rewards and scripts, in the real sandbox.

#![expect(clippy::unwrap_used, reason = "a helper of tests may panic")]

mod chance;
mod concurrency;
mod doctor;
mod environment;
mod hostile;
mod human_eval;
mod import;
mod kinds;
mod malformed;
mod reasoning_gym;
mod repo;
mod rewards;
mod robust;
mod rows;
mod scripts;
mod task_files;
mod worlds;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use mipu_envs::{Message, Reply, StepResult, StopReason, Task, TaskError, TaskSet, ToolCall, Unscored};
use mipu_sandbox::{Sandbox, SandboxOptions};
use serde_json::{Map, Value};

/// One sandbox for the process: opening it reads the compiled guest from disk.
fn sandbox() -> &'static Sandbox {
    static SANDBOX: OnceLock<Sandbox> = OnceLock::new();
    SANDBOX.get_or_init(|| Sandbox::open(SandboxOptions::default()).unwrap())
}

/// A task file in a directory of its own.
struct TaskFile {
    directory: tempfile::TempDir,
}

impl TaskFile {
    fn new(yaml: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("task.yaml"), yaml).unwrap();
        Self { directory }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("task.yaml")
    }

    async fn load(&self, seed: u64) -> Result<TaskSet, TaskError> {
        TaskSet::load(&[self.path()], sandbox(), seed).await
    }
}

/// The only task of a file with one row.
async fn task(yaml: &str) -> Arc<Task> {
    let set = TaskFile::new(yaml)
        .load(0)
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    [set.train, set.validation, set.test].concat().remove(0)
}

/// A task with this reward, one row `{gold: "133", n: 3}` and the Python tool.
async fn rewarded(reward: &str) -> Arc<Task> {
    let head = "version: 1\nname: t\ninstruction: go\ntools: [python]\ndata: {rows: [{gold: '133', n: 3}]}\n";
    task(&format!("{head}{reward}")).await
}

fn answer(text: &str) -> Reply {
    Reply {
        content: text.to_owned(),
        answer: Some(text.to_owned()),
        ..Reply::default()
    }
}

fn call(tool: &str, arguments: &[(&str, &str)]) -> Reply {
    let arguments: Map<String, Value> = arguments
        .iter()
        .map(|(name, value)| ((*name).to_owned(), Value::from(*value)))
        .collect();
    let content = format!("{arguments:?}");
    Reply {
        content,
        tool_calls: vec![ToolCall {
            name: tool.to_owned(),
            arguments,
        }],
        ..Reply::default()
    }
}

/// The result of answering at once.
async fn score(task: &Arc<Task>, text: &str) -> Result<StepResult, Unscored> {
    task.env(sandbox(), 1).step(&answer(text)).await
}

/// The reward of answering at once.
async fn reward(task: &Arc<Task>, text: &str) -> f64 {
    let result = score(task, text).await.unwrap();
    assert_eq!(result.stop, Some(StopReason::Answered));
    result.reward
}

fn contents(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| message.content.as_str()).collect()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}
