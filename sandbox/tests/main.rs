//! The sandbox from outside: hostile guests, determinism, sessions, candidates, cache.

mod cache;
mod candidate;
mod cleanup;
mod determinism;
mod hostile;
mod session;

use std::path::PathBuf;
use std::sync::OnceLock;

use mipu_sandbox::{Outcome, Policy, Sandbox, SandboxOptions, Status};

/// Compiled guests are shared by all tests and test runs.
fn cache_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("guests")
}

fn sandbox() -> &'static Sandbox {
    static SANDBOX: OnceLock<Sandbox> = OnceLock::new();
    SANDBOX.get_or_init(|| {
        Sandbox::open(SandboxOptions {
            cache_dir: Some(cache_dir()),
            on_progress: None,
        })
        .expect("the guest loads")
    })
}

async fn run(code: &str) -> Outcome {
    sandbox()
        .run(code, &[], &Policy::default(), 1)
        .await
        .expect("the host is well")
}

fn raised(kind: &str, outcome: &Outcome) {
    match &outcome.status {
        Status::Raised { kind: found, .. } => assert_eq!(found, kind, "{outcome:?}"),
        other => panic!("expected {kind}, got {other:?}: {outcome:?}"),
    }
}
