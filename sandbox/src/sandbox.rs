//! The handle every episode of the process shares.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::OnceCell;
use wasmtime::component::{ComponentExportIndex, InstancePre};

use crate::engine::{Machine, Metering};
use crate::error::SandboxError;
use crate::guest;
use crate::host::{self, Host};
use crate::instance::{Instance, Request};
use crate::outcome::Outcome;
use crate::policy::Policy;
use crate::session::Session;

/// Receives one line of progress.
pub type Progress = Box<dyn Fn(&str) + Send + Sync>;

/// Where the compiled guest is cached and how progress is told.
#[derive(Default)]
pub struct SandboxOptions {
    /// Directory of compiled guests; `None` is the user's cache directory.
    pub cache_dir: Option<PathBuf>,
    /// Called with one line when something slow starts (the first compilation takes 11-19 s).
    pub on_progress: Option<Progress>,
}

impl std::fmt::Debug for SandboxOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SandboxOptions")
            .field("cache_dir", &self.cache_dir)
            .finish_non_exhaustive()
    }
}

/// A compiled guest and the engine it runs on; cheap to clone, shared by every episode of the process.
#[derive(Clone)]
pub struct Sandbox(Arc<Shared>);

impl std::fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sandbox").finish_non_exhaustive()
    }
}

struct Shared {
    runtime: Arc<Runtime>,
    metered: OnceCell<Arc<Runtime>>,
    options: SandboxOptions,
}

/// A guest ready to be copied.
pub(crate) struct Runtime {
    pub(crate) machine: Machine,
    pub(crate) pre: InstancePre<Host>,
    pub(crate) handle: ComponentExportIndex,
}

impl Runtime {
    fn load(metering: Metering, options: &SandboxOptions) -> Result<Arc<Self>, SandboxError> {
        let machine = Machine::new(metering)?;
        let cache_dir = options.cache_dir.clone().or_else(guest::default_cache_dir);
        let progress = |line: &str| match &options.on_progress {
            Some(tell) => tell(line),
            None => tracing::info!("{line}"),
        };
        let component = guest::load(&machine.engine, metering, cache_dir.as_deref(), &progress)?;
        let link = |error: wasmtime::Error| SandboxError::Prepare {
            action: "link",
            reason: format!("{error:#}"),
        };
        let handle = component
            .get_export_index(None, "handle")
            .ok_or_else(|| SandboxError::Prepare {
                action: "link",
                reason: "no export `handle`".to_owned(),
            })?;
        let pre = host::linker(&machine.engine)
            .and_then(|linker| linker.instantiate_pre(&component))
            .map_err(link)?;
        Ok(Arc::new(Self { machine, pre, handle }))
    }
}

impl Sandbox {
    /// Loads the embedded guest, compiling it on first use (blocks for 10-30 s then, some 50 ms otherwise).
    ///
    /// # Errors
    /// When the guest cannot be unpacked, compiled or linked. A cache directory that cannot be used is only a warning.
    pub fn open(options: SandboxOptions) -> Result<Self, SandboxError> {
        let runtime = Runtime::load(Metering::Deadline, &options)?;
        Ok(Self(Arc::new(Shared {
            runtime,
            metered: OnceCell::new(),
            options,
        })))
    }

    /// Runs `code` once in a fresh instance and drops it.
    ///
    /// # Errors
    /// Only when the host fails; whatever the code does is in the [`Outcome`].
    pub async fn run(
        &self,
        code: &str,
        stdin: &[u8],
        policy: &Policy,
        seed: u64,
    ) -> Result<Outcome, SandboxError> {
        let mut instance = self.instance(policy, seed).await?;
        let answer = instance.request(&Request::Exec { code }, stdin).await?;
        Ok(instance.outcome(answer))
    }

    /// Opens an instance whose interpreter state and files survive between calls.
    ///
    /// # Errors
    /// When the policy cannot be honoured or the host fails.
    pub async fn session(&self, policy: &Policy, seed: u64) -> Result<Session, SandboxError> {
        Ok(Session::new(self.instance(policy, seed).await?))
    }

    async fn instance(&self, policy: &Policy, seed: u64) -> Result<Instance, SandboxError> {
        policy.check()?;
        match policy.fuel {
            None => Instance::new(&self.0.runtime, policy, seed).await,
            Some(_) => Instance::new(self.metered().await?, policy, seed).await,
        }
    }

    /// The runtime that counts fuel, loaded when a policy first asks for it.
    async fn metered(&self) -> Result<&Arc<Runtime>, SandboxError> {
        let load = || async {
            let shared = Arc::clone(&self.0);
            let loaded =
                tokio::task::spawn_blocking(move || Runtime::load(Metering::Fuel, &shared.options)).await;
            loaded.map_err(|error| SandboxError::Task(error.to_string()))?
        };
        self.0.metered.get_or_try_init(load).await
    }
}
