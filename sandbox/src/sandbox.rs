//! The handle every episode of the process shares.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::OnceCell;
use wasmtime::PoolConcurrencyLimitError;
use wasmtime::component::{ComponentExportIndex, InstancePre};

use crate::engine::{Allocation, Machine, Metering};
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
    /// Called with one line when something slow starts (the first compilation takes 10-30 s).
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
///
/// Its futures need a tokio runtime with time enabled. They compute on the thread that polls them and yield every few
/// milliseconds; run many at once on a multi-threaded runtime.
#[derive(Clone)]
pub struct Sandbox(Arc<Shared>);

impl std::fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sandbox").finish_non_exhaustive()
    }
}

struct Shared {
    options: SandboxOptions,
    /// By metering; the first is filled when the sandbox opens.
    runtimes: [OnceCell<Arc<Runtime>>; 2],
    /// The same without a pool, for instances beyond its size.
    overflow: [OnceCell<Arc<Runtime>>; 2],
}

/// A guest ready to be copied.
pub(crate) struct Runtime {
    pub(crate) machine: Machine,
    pub(crate) pre: InstancePre<Host>,
    pub(crate) handle: ComponentExportIndex,
}

impl Runtime {
    fn load(
        metering: Metering,
        allocation: Allocation,
        options: &SandboxOptions,
    ) -> Result<Arc<Self>, SandboxError> {
        let machine = match Machine::new(metering, allocation) {
            Err(error) if allocation == Allocation::Pooled => {
                tracing::warn!(%error, "no address space for an instance pool: instances are mapped one by one");
                Machine::new(metering, Allocation::OnDemand)?
            }
            made => made?,
        };
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
        let runtime = Runtime::load(Metering::Deadline, Allocation::Pooled, &options)?;
        let runtimes = [OnceCell::new_with(Some(runtime)), OnceCell::new()];
        Ok(Self(Arc::new(Shared {
            options,
            runtimes,
            overflow: [OnceCell::new(), OnceCell::new()],
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
        let metering = if policy.fuel.is_some() {
            Metering::Fuel
        } else {
            Metering::Deadline
        };
        let runtime = self.runtime(metering, Allocation::Pooled).await?;
        let made = match Instance::new(runtime, policy, seed).await {
            Err(error) if error.is::<PoolConcurrencyLimitError>() => {
                Instance::new(self.runtime(metering, Allocation::OnDemand).await?, policy, seed).await
            }
            made => made,
        };
        made.map_err(|error| SandboxError::Instantiate(format!("{error:#}")))
    }

    /// The runtime of a kind, loaded when it is first asked for.
    async fn runtime(
        &self,
        metering: Metering,
        allocation: Allocation,
    ) -> Result<&Arc<Runtime>, SandboxError> {
        let cells = match allocation {
            Allocation::Pooled => &self.0.runtimes,
            Allocation::OnDemand => &self.0.overflow,
        };
        let load = || async {
            let shared = Arc::clone(&self.0);
            let loaded =
                tokio::task::spawn_blocking(move || Runtime::load(metering, allocation, &shared.options))
                    .await;
            loaded.map_err(|error| SandboxError::Task(error.to_string()))?
        };
        cells[metering as usize].get_or_try_init(load).await
    }
}
