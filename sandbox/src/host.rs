//! What the host keeps for one instance, and what it links into it.

use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;
use wasmtime::component::{Linker, ResourceTable};
use wasmtime::{Engine, ResourceLimiter, Store, UpdateDeadline};
use wasmtime_wasi::p2::bindings::{clocks, filesystem};
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

use crate::against::{self, Against};
use crate::clock::{Clock, ClockView, HasClock};
use crate::fs::{Files, FilesView, HasFiles, Quota};
use crate::policy::Policy;
use crate::stdio::{Capture, Feed};

/// Open files, streams and pollables of one instance.
const MAX_HANDLES: usize = 1024;
/// Bytes one call may move from the guest to the host.
const MAX_TRANSFER_BYTES: usize = 16 << 20;
/// Most random bytes of one request.
const MAX_RANDOM_BYTES: u64 = 1 << 20;
/// Entries of all tables; the guest's function table has a few ten thousand.
const MAX_TABLE_ENTRIES: usize = 1 << 20;

/// Store data of one instance.
pub(crate) struct Host {
    wasi: WasiCtx,
    table: ResourceTable,
    clock: Clock,
    pub(crate) files: Files,
    pub(crate) stdin: Feed,
    pub(crate) stdout: Capture,
    pub(crate) stderr: Capture,
    pub(crate) limits: Limits,
    /// End of the current execution, looked at every tick.
    pub(crate) deadline: Instant,
    /// The candidate that the code of the current execution may call.
    pub(crate) against: Option<Box<Against>>,
}

/// The guest computed past its deadline.
#[derive(Debug, thiserror::Error)]
#[error("deadline passed")]
pub(crate) struct DeadlinePassed;

impl Host {
    /// A store whose limits, clocks, files and random numbers follow `policy` and `seed`.
    pub(crate) fn store(engine: &Engine, policy: &Policy, seed: u64) -> Store<Self> {
        let clock = Clock::default();
        let quota = Quota {
            bytes: policy.disk_bytes,
            file_bytes: policy.file_bytes,
            files: policy.disk_files,
        };
        let (stdin, stdout, stderr) = (
            Feed::default(),
            Capture::new(policy.output_bytes),
            Capture::new(policy.output_bytes),
        );
        let random = |stream: u64| {
            let mut rng = ChaCha12Rng::seed_from_u64(seed);
            rng.set_stream(stream);
            rng
        };
        let wasi = WasiCtxBuilder::new()
            .stdin(stdin.clone())
            .stdout(stdout.clone())
            .stderr(stderr.clone())
            .secure_random(random(0))
            .insecure_random(random(1))
            .insecure_random_seed(u128::from(seed))
            .max_random_size(MAX_RANDOM_BYTES)
            .wall_clock(clock.clone())
            .allow_tcp(false)
            .allow_udp(false)
            .allow_ip_name_lookup(false)
            .build();
        let mut table = ResourceTable::new();
        table.set_max_capacity(MAX_HANDLES);
        let host = Self {
            wasi,
            table,
            files: Files::new(quota, clock.clone()),
            clock,
            stdin,
            stdout,
            stderr,
            limits: Limits {
                memory_bytes: policy.memory_bytes,
                held: 0,
                table_entries: 0,
                refused: false,
            },
            deadline: Instant::now() + policy.deadline,
            against: None,
        };
        let mut store = Store::new(engine, host);
        store.limiter(|host| &mut host.limits);
        store.set_hostcall_fuel(MAX_TRANSFER_BYTES);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|store| match Instant::now() < store.data().deadline {
            // Lets timers and other tasks of the runtime have the thread.
            true => Ok(UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now()))),
            false => Err(DeadlinePassed.into()),
        });
        store
    }

    /// Moves the deadline by time that was not the guest's.
    pub(crate) fn extend_deadline(&mut self, by: Duration) {
        self.deadline += by;
    }
}

impl WasiView for Host {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView {
            ctx: &mut self.wasi,
            table: &mut self.table,
        }
    }
}

/// Everything an instance may import: WASI 0.2 with its files and monotonic clock replaced by ours, and `mipu:sandbox/host`.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker<Host>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    linker.allow_shadowing(true);
    clocks::monotonic_clock::add_to_linker::<Host, HasClock>(&mut linker, |host| ClockView {
        clock: &host.clock,
        table: &mut host.table,
    })?;
    filesystem::types::add_to_linker::<Host, HasFiles>(&mut linker, |host| FilesView {
        files: &host.files,
        table: &mut host.table,
    })?;
    filesystem::preopens::add_to_linker::<Host, HasFiles>(&mut linker, |host| FilesView {
        files: &host.files,
        table: &mut host.table,
    })?;
    linker.allow_shadowing(false);
    linker
        .instance("mipu:sandbox/host@1.0.0")?
        .func_wrap_async("call", |store, (request,): (String,)| {
            Box::new(async move { Ok((against::answer(store, request).await,)) })
        })?;
    Ok(linker)
}

/// Memory limit of an instance; remembers that it refused, to tell an exhausted memory from other traps.
pub(crate) struct Limits {
    memory_bytes: usize,
    held: usize,
    table_entries: usize,
    pub(crate) refused: bool,
}

impl ResourceLimiter for Limits {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let held = self.held.saturating_add(desired.saturating_sub(current));
        let granted = held <= self.memory_bytes;
        if granted {
            self.held = held;
        } else {
            self.refused = true;
        }
        Ok(granted)
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let entries = self.table_entries.saturating_add(desired.saturating_sub(current));
        let granted = entries <= MAX_TABLE_ENTRIES;
        if granted {
            self.table_entries = entries;
        }
        Ok(granted)
    }
}
