//! Measures the sandbox, side by side with a native interpreter where there is one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::error::SandboxError;
use crate::policy::Policy;
use crate::sandbox::Sandbox;

/// What each execution runs.
const CODE: &str = "print(1 + 1)";

/// Spread of one figure, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Smallest: the figure least disturbed by other work on the machine.
    pub min: f64,
    /// Tenth percentile.
    pub p10: f64,
    /// Median.
    pub median: f64,
    /// Ninetieth percentile.
    pub p90: f64,
}

/// Figures of [`bench_sandbox`]; every time is wall time in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SandboxReport {
    /// How often each was measured (the native interpreter: a tenth of it, at least 5 times).
    pub samples: usize,
    /// `print(1 + 1)` in a fresh instance: instance made, code run, instance dropped.
    pub fresh_execution_ms: Spread,
    /// Opening a session.
    pub session_open_ms: Spread,
    /// `print(1 + 1)` as a turn of a live session, from its second turn on.
    pub session_turn_ms: Spread,
    /// `python3 -I -S -c 'print(1 + 1)'`; `null` without a `python3` on the path.
    pub native_python_ms: Option<Spread>,
}

/// Measures fresh executions, session opening, session turns and the native interpreter in turn, `samples` times, so that other
/// work on the machine disturbs each alike.
///
/// # Errors
/// When the host fails, or an execution did not print what it should.
pub async fn bench_sandbox(sandbox: &Sandbox, samples: usize) -> Result<SandboxReport, SandboxError> {
    let samples = samples.max(2);
    let every = (samples / 10).clamp(1, samples.div_ceil(5));
    let policy = Policy::default();
    let python = tokio::task::spawn_blocking(native_python)
        .await
        .map_err(|error| SandboxError::Task(error.to_string()))?;
    let (mut fresh, mut open, mut turn, mut native) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut live = sandbox.session(&policy, 0).await?;
    live.exec(CODE, &[]).await?;
    for sample in 0..samples {
        let seed = sample as u64;

        let begun = Instant::now();
        let outcome = sandbox.run(CODE, &[], &policy, seed).await?;
        fresh.push(begun.elapsed());
        expect_two(&outcome.stdout)?;

        let begun = Instant::now();
        let session = sandbox.session(&policy, seed).await?;
        open.push(begun.elapsed());
        drop(session);

        let begun = Instant::now();
        let outcome = live.exec(CODE, &[]).await?;
        turn.push(begun.elapsed());
        expect_two(&outcome.stdout)?;

        if let Some(python) = python.clone().filter(|_| sample % every == 0) {
            let spawned = tokio::task::spawn_blocking(move || native_execution(&python)).await;
            native.extend(spawned.map_err(|error| SandboxError::Task(error.to_string()))?);
        }
    }
    Ok(SandboxReport {
        samples,
        fresh_execution_ms: spread(&mut fresh),
        session_open_ms: spread(&mut open),
        session_turn_ms: spread(&mut turn),
        native_python_ms: (!native.is_empty()).then(|| spread(&mut native)),
    })
}

fn expect_two(stdout: &str) -> Result<(), SandboxError> {
    match stdout {
        "2\n" => Ok(()),
        other => Err(SandboxError::Task(format!(
            "the benchmark's code printed {other:?}, expected \"2\\n\""
        ))),
    }
}

/// The interpreter itself: `python3` on the path may be a version manager's script, which would not be a fair comparison.
fn native_python() -> Option<PathBuf> {
    let output = Command::new("python3")
        .args(["-I", "-c", "import sys; print(sys.executable)"])
        .output()
        .ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    Some(PathBuf::from(path.trim())).filter(|path| path.is_file())
}

/// Time of one native execution with the least start-up a stock interpreter has.
fn native_execution(python: &Path) -> Option<Duration> {
    let begun = Instant::now();
    let output = Command::new(python)
        .args(["-I", "-S", "-c", CODE])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    (output.stdout == b"2\n").then(|| begun.elapsed())
}

fn spread(times: &mut [Duration]) -> Spread {
    times.sort_unstable();
    let at = |quantile: f64| {
        let index = ((times.len() - 1) as f64 * quantile).round() as usize;
        times[index].as_secs_f64() * 1e3
    };
    Spread {
        min: at(0.0),
        p10: at(0.1),
        median: at(0.5),
        p90: at(0.9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks() {
        let mut times: Vec<_> = (0..=10).rev().map(Duration::from_millis).collect();
        let found = spread(&mut times);
        let expected = Spread {
            min: 0.0,
            p10: 1.0,
            median: 5.0,
            p90: 9.0,
        };
        for (found, expected) in [
            (found.min, expected.min),
            (found.p10, expected.p10),
            (found.median, expected.median),
            (found.p90, expected.p90),
        ] {
            assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        }
    }
}
