//! The wasmtime engine and the thread that lets it interrupt guests.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use wasmtime::{Config, Enabled, Engine, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig};

use crate::error::SandboxError;

/// Time between two ticks: how long a guest may compute before it yields to the runtime and its deadline is looked at.
pub(crate) const TICK: Duration = Duration::from_millis(5);

/// WebAssembly stack of an instance. Python raises `RecursionError` long before it is used up; C code of the interpreter may not.
const WASM_STACK_BYTES: usize = 4 << 20;
/// Stack of the fiber an instance runs on: the above, and room for host functions.
const FIBER_STACK_BYTES: usize = WASM_STACK_BYTES + (2 << 20);

/// How CPU use of a guest is limited. Each kind is compiled separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metering {
    /// By wall-clock deadline alone.
    Deadline,
    /// By deadline and by fuel, which counts the same on every machine and costs a little speed.
    Fuel,
}

/// Where instances take their memory from. Compiled code is the same for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allocation {
    /// From slots that are kept warm: quicker, and at most [`POOL_SLOTS`] at once.
    Pooled,
    /// Mapped for each instance.
    OnDemand,
}

/// Instances that the pool holds at once. Address space is reserved for each (4 GiB), memory is not.
const POOL_SLOTS: u32 = 256;
/// Bytes of a used slot that are put back by copying instead of being given back to the system, which would cost faults.
const POOL_KEEP_BYTES: usize = 16 << 20;
/// Bounds on what one instance of the guest consists of; beyond them it would not load, which the tests would tell.
const POOL_CORE_INSTANCES: u32 = 64;
const POOL_MEMORIES: u32 = 2;
const POOL_TABLES: u32 = 4;
const POOL_TABLE_ENTRIES: usize = 100_000;

fn pool() -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(POOL_SLOTS)
        .total_core_instances(POOL_SLOTS * POOL_CORE_INSTANCES)
        .total_memories(POOL_SLOTS)
        .total_tables(POOL_SLOTS * POOL_TABLES)
        .total_stacks(POOL_SLOTS * 2)
        .max_core_instances_per_component(POOL_CORE_INSTANCES)
        .max_memories_per_component(POOL_MEMORIES)
        .max_tables_per_component(POOL_TABLES)
        .max_component_instance_size(8 << 20)
        .max_core_instance_size(8 << 20)
        .table_elements(POOL_TABLE_ENTRIES)
        .max_memory_size(1 << 32)
        .linear_memory_keep_resident(POOL_KEEP_BYTES)
        .table_keep_resident(1 << 20)
        .async_stack_keep_resident(64 << 10)
        .pagemap_scan(Enabled::Auto);
    pool
}

/// An engine with its ticker.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) engine: Engine,
    _ticker: Ticker,
}

impl Machine {
    pub(crate) fn new(metering: Metering, allocation: Allocation) -> Result<Self, SandboxError> {
        let mut config = Config::new();
        config
            .wasm_component_model(true)
            .cranelift_opt_level(OptLevel::Speed)
            .memory_init_cow(true)
            .max_wasm_stack(WASM_STACK_BYTES)
            .async_stack_size(FIBER_STACK_BYTES)
            .epoch_interruption(true)
            .consume_fuel(metering == Metering::Fuel);
        if allocation == Allocation::Pooled {
            config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool()));
        }
        let engine = Engine::new(&config).map_err(|error| SandboxError::Engine(format!("{error:#}")))?;
        let ticker = Ticker::start(&engine)?;
        Ok(Self {
            engine,
            _ticker: ticker,
        })
    }
}

/// The thread that advances the engine's epoch. It ends, and is joined, when this is dropped.
#[derive(Debug)]
struct Ticker {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    fn start(engine: &Engine) -> Result<Self, SandboxError> {
        let (stop, stopped) = mpsc::channel::<()>();
        let engine = engine.weak();
        let tick = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(TICK) {
                match engine.upgrade() {
                    Some(engine) => engine.increment_epoch(),
                    None => return,
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("mipu-epoch".to_owned())
            .spawn(tick)
            .map_err(|error| SandboxError::Engine(format!("cannot start the epoch thread: {error}")))?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop = None; // hangs up
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_machine_leaves_no_thread_and_no_engine() {
        for metering in [Metering::Deadline, Metering::Fuel] {
            let machine = Machine::new(metering, Allocation::OnDemand).unwrap();
            let engine = machine.engine.weak();
            std::thread::sleep(TICK * 2);
            assert!(engine.upgrade().is_some());
            drop(machine); // joins the thread
            assert!(engine.upgrade().is_none());
        }
    }
}
