//! The wasmtime engine and the thread that lets it interrupt guests.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use wasmtime::{Config, Engine, OptLevel};

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

/// An engine with its ticker.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) engine: Engine,
    _ticker: Ticker,
}

impl Machine {
    pub(crate) fn new(metering: Metering) -> Result<Self, SandboxError> {
        let mut config = Config::new();
        config
            .wasm_component_model(true)
            .cranelift_opt_level(OptLevel::Speed)
            .memory_init_cow(true)
            .max_wasm_stack(WASM_STACK_BYTES)
            .async_stack_size(FIBER_STACK_BYTES)
            .epoch_interruption(true)
            .consume_fuel(metering == Metering::Fuel);
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
