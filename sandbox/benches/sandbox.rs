//! Criterion benchmarks: a fresh execution, a session's turn, a call of a candidate across two instances.

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use mipu_sandbox::{Plain, Policy, Sandbox, SandboxOptions};
use tokio::runtime::Builder;

fn sandbox(criterion: &mut Criterion) {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime starts");
    let cache_dir = Some(std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("guests"));
    let sandbox = Sandbox::open(SandboxOptions {
        cache_dir,
        on_progress: None,
    })
    .expect("the guest loads");
    let policy = Policy::default();
    let mut group = criterion.benchmark_group("sandbox");
    group
        .measurement_time(Duration::from_secs(3))
        .warm_up_time(Duration::from_millis(500));

    group.bench_function("fresh_execution", |bencher| {
        bencher.iter(|| {
            runtime
                .block_on(sandbox.run("print(1 + 1)", &[], &policy, 1))
                .expect("it runs")
        });
    });

    let mut session = runtime.block_on(sandbox.session(&policy, 1)).expect("it opens");
    runtime
        .block_on(session.exec("def add(a, b):\n    return a + b", &[]))
        .expect("it runs");
    group.bench_function("session_turn", |bencher| {
        bencher.iter(|| {
            runtime
                .block_on(session.exec("print(1 + 1)", &[]))
                .expect("it runs")
        });
    });

    let args = [Plain::Int("3".to_owned()), Plain::Int("7".to_owned())];
    group.bench_function("session_call", |bencher| {
        bencher.iter(|| runtime.block_on(session.call("add", &args)).expect("it runs"));
    });

    let mut trusted = runtime.block_on(sandbox.session(&policy, 2)).expect("it opens");
    group.bench_function("exec_against_10_calls", |bencher| {
        let tests = "for i in range(10): assert add(i, 7) == i + 7";
        bencher.iter(|| {
            runtime
                .block_on(trusted.exec_against(tests, "add", &mut session))
                .expect("it runs")
        });
    });
    group.finish();
}

criterion_group!(benches, sandbox);
criterion_main!(benches);
