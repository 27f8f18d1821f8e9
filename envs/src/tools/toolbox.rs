//! The tools that any environment may list: interpreter, files, visible tests.

use std::sync::Arc;

use mipu_sandbox::Sandbox;

use super::workspace::Workspace;
use super::{Tool, files, python, text};
use crate::env::Unscored;
use crate::message::ToolCall;
use crate::reward::{self, Judge};
use crate::seed::{self, Purpose};
use crate::task::Task;

/// The tools of one episode and the directory they share.
pub(crate) struct Toolbox {
    task: Arc<Task>,
    sandbox: Sandbox,
    seed: u64,
    workspace: Option<Workspace>,
}

impl Toolbox {
    /// The tools of `task`; no interpreter is opened before one needs it.
    pub(crate) fn new(task: Arc<Task>, sandbox: Sandbox, seed: u64) -> Self {
        Self {
            task,
            sandbox,
            seed,
            workspace: None,
        }
    }

    /// The tool of this name.
    pub(crate) fn find(&self, name: &str) -> Option<&Tool> {
        self.task.spec.toolbox.iter().find(|tool| tool.name() == name)
    }

    /// Whether `submit` is among them.
    pub(crate) fn submits(&self) -> bool {
        self.find(Tool::Submit.name()).is_some()
    }

    /// What a call answers, if one of these tools is called; the agent's mistakes are text. `turn` counts from 1.
    pub(crate) async fn call(&mut self, call: &ToolCall, turn: usize) -> Result<Option<String>, Unscored> {
        let task = Arc::clone(&self.task);
        let Some(tool) = task.spec.toolbox.iter().find(|tool| tool.name() == call.name) else {
            return Ok(None);
        };
        match self.run(tool, call, turn).await? {
            Ok(text) | Err(text) => Ok(Some(text)),
        }
    }

    /// The inner error is an observation too.
    async fn run(
        &mut self,
        tool: &Tool,
        call: &ToolCall,
        turn: usize,
    ) -> Result<Result<String, String>, Unscored> {
        let argument = |name: &str| text(&call.arguments, name);
        macro_rules! required {
            ($name:literal) => {
                match argument($name) {
                    Ok(text) => text,
                    Err(reason) => return Ok(Err(reason)),
                }
            };
        }
        let told = |result: Result<String, String>| result.map_err(|reason| format!("error: {reason}"));
        Ok(match tool {
            Tool::Python => {
                let code = required!("code");
                let timeout_sec = self.task.spec.file.limits.timeout_sec.get();
                let outcome = self.workspace()?.session().await?.exec(code, b"").await?;
                Ok(python::observation(&outcome, timeout_sec))
            }
            Tool::RunTests(tests) => {
                let with_files = tests.file.is_some();
                let answer = if with_files { "" } else { required!("answer") };
                let judge = self.judge(answer, with_files, turn as u64)?;
                Ok(reward::unit_tests::observe(&judge, tests).await?)
            }
            Tool::ListFiles => Ok(files::list(&self.workspace()?.files().await?)),
            Tool::ReadFile => {
                let path = required!("path");
                told(files::read(&self.workspace()?.files().await?, path))
            }
            Tool::WriteFile => {
                let (path, content) = (required!("path"), required!("content"));
                let directory = self.workspace()?.files().await?;
                told(files::write(&directory, path, content.as_bytes()).map(|()| "ok".to_owned()))
            }
            Tool::EditFile => {
                let (path, old, new) = (required!("path"), required!("old"), required!("new"));
                let directory = self.workspace()?.files().await?;
                told(files::edit(&directory, path, old, new).map(|()| "ok".to_owned()))
            }
            Tool::SearchFiles => {
                let pattern = required!("pattern");
                told(files::search(&self.workspace()?.files().await?, pattern))
            }
            Tool::Submit => unreachable!("`submit` ends the episode before tools run"),
        })
    }

    /// What a reward rule or a test looks at.
    pub(crate) fn judge(&mut self, answer: &str, with_files: bool, salt: u64) -> Result<Judge, Unscored> {
        let files = if with_files {
            self.workspace()?.snapshot()
        } else {
            Default::default()
        };
        let seed = seed::derive(self.seed, Purpose::Sandbox, &[1, salt]);
        Ok(Judge::new(
            Arc::clone(&self.task),
            self.sandbox.clone(),
            seed,
            answer.to_owned(),
            files,
        ))
    }

    fn workspace(&mut self) -> Result<&mut Workspace, Unscored> {
        if self.workspace.is_none() {
            let files = self.task.workspace()?;
            let policy = self.task.spec.policy();
            self.workspace = Some(Workspace::new(self.sandbox.clone(), policy, self.seed, files));
        }
        Ok(self.workspace.as_mut().expect("set above"))
    }
}
