//! The sandbox session of an episode: opened when first needed, reopened with its files when the interpreter died.

use std::collections::BTreeMap;

use mipu_sandbox::{Files, Policy, Sandbox, SandboxError, Session};

use super::files;
use crate::env::Unscored;
use crate::seed::{self, Purpose};

/// Interpreter and directory of one episode.
pub(crate) struct Workspace {
    sandbox: Sandbox,
    policy: Policy,
    seed: u64,
    files: BTreeMap<String, Vec<u8>>,
    session: Option<Session>,
    restarts: u64,
}

impl Workspace {
    /// A workspace that will hold `files`; nothing is opened yet.
    pub(crate) fn new(sandbox: Sandbox, policy: Policy, seed: u64, files: BTreeMap<String, Vec<u8>>) -> Self {
        Self {
            sandbox,
            policy,
            seed,
            files,
            session: None,
            restarts: 0,
        }
    }

    /// The live session. A dead one is replaced: its files move on, its variables are lost.
    pub(crate) async fn session(&mut self) -> Result<&mut Session, Unscored> {
        if self.session.as_ref().is_some_and(|session| !session.is_alive()) {
            self.files = self.snapshot();
            self.session = None;
            self.restarts += 1;
        }
        if self.session.is_none() {
            let seed = seed::derive(self.seed, Purpose::Sandbox, &[0, self.restarts]);
            let session = self.sandbox.session(&self.policy, seed).await?;
            for (path, content) in &self.files {
                session.files().write(path, content).map_err(|error| Unscored {
                    reason: format!("cannot set up the files: {error}"),
                })?;
            }
            self.session = Some(session);
        }
        Ok(self.session.as_mut().expect("opened above"))
    }

    /// The directory of the live session.
    pub(crate) async fn files(&mut self) -> Result<Files, Unscored> {
        Ok(self.session().await?.files().clone())
    }

    /// The files as they are now; opens nothing.
    pub(crate) fn snapshot(&self) -> BTreeMap<String, Vec<u8>> {
        match &self.session {
            Some(session) => files::collect(session.files()),
            None => self.files.clone(),
        }
    }
}

impl From<SandboxError> for Unscored {
    fn from(error: SandboxError) -> Self {
        Self {
            reason: format!("sandbox: {error}"),
        }
    }
}
