//! The virtual clock of one instance: it moves when it is read and when the guest sleeps, never by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use wasmtime::component::{HasData, Resource, ResourceTable};
use wasmtime_wasi::p2::bindings::clocks::monotonic_clock;
use wasmtime_wasi::p2::{DynPollable, Pollable, subscribe};

/// Wall time at which every instance starts: 2026-01-01T00:00:00Z, in seconds since the epoch.
pub(crate) const START_SECONDS: u64 = 1_767_225_600;

/// How far one reading moves the clock. Large enough that code which busy-waits for a second ends in a moment.
const TICK_NANOS: u64 = 10_000;

/// Latest time of the clock, 100 years: a longer sleep stops here instead of overflowing.
const END_NANOS: u64 = 100 * 365 * 86_400 * 1_000_000_000;

/// Nanoseconds since the instance began, shared by its wall clock, monotonic clock, sleeps and files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock(Arc<AtomicU64>);

impl Clock {
    /// Reads the clock and moves it by one tick.
    pub(crate) fn tick(&self) -> u64 {
        self.0.fetch_add(TICK_NANOS, Ordering::Relaxed) + TICK_NANOS
    }

    /// Time since the Unix epoch, without moving the clock.
    pub(crate) fn wall(&self) -> Duration {
        Duration::from_secs(START_SECONDS) + Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn advance_to(&self, when: u64) {
        self.0.fetch_max(when.min(END_NANOS), Ordering::Relaxed);
    }
}

impl wasmtime_wasi::HostWallClock for Clock {
    fn resolution(&self) -> Duration {
        Duration::from_nanos(TICK_NANOS)
    }

    fn now(&self) -> Duration {
        self.tick();
        self.wall()
    }
}

/// `wasi:clocks/monotonic-clock` over a [`Clock`].
pub(crate) struct ClockView<'a> {
    pub(crate) clock: &'a Clock,
    pub(crate) table: &'a mut ResourceTable,
}

/// Names [`ClockView`] for the linker.
pub(crate) struct HasClock;

impl HasData for HasClock {
    type Data<'a> = ClockView<'a>;
}

impl ClockView<'_> {
    fn sleep_until(&mut self, when: u64) -> wasmtime::Result<Resource<DynPollable>> {
        let sleep = self.table.push(Sleep {
            clock: self.clock.clone(),
            when,
        })?;
        subscribe(self.table, sleep)
    }
}

impl monotonic_clock::Host for ClockView<'_> {
    fn now(&mut self) -> wasmtime::Result<u64> {
        Ok(self.clock.tick())
    }

    fn resolution(&mut self) -> wasmtime::Result<u64> {
        Ok(TICK_NANOS)
    }

    fn subscribe_instant(&mut self, when: u64) -> wasmtime::Result<Resource<DynPollable>> {
        self.sleep_until(when)
    }

    fn subscribe_duration(&mut self, nanos: u64) -> wasmtime::Result<Resource<DynPollable>> {
        self.sleep_until(self.clock.now().saturating_add(nanos))
    }
}

/// A sleep: it yields once, so that anything else being polled goes first, and then moves the clock instead of waiting.
struct Sleep {
    clock: Clock,
    when: u64,
}

#[wasmtime_wasi::async_trait]
impl Pollable for Sleep {
    async fn ready(&mut self) {
        tokio::task::yield_now().await;
        self.clock.advance_to(self.when);
    }
}
