//! What is left behind: nothing.

use std::time::{Duration, Instant};

use mipu_sandbox::{Policy, Status};

use crate::{run, sandbox};

/// CPU time of this thread, in milliseconds, as the kernel counts it.
fn thread_cpu() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux tells it");
    let fields: Vec<_> = stat
        .rsplit(')')
        .next()
        .expect("after the name")
        .split_whitespace()
        .collect();
    (11..13)
        .map(|i| fields[i].parse::<u64>().expect("a number"))
        .sum::<u64>()
        * 10
}

#[tokio::test]
async fn a_dropped_call_stops_at_once_and_the_session_is_dead() {
    let policy = Policy {
        deadline: Duration::from_secs(60),
        ..Policy::default()
    };
    let mut session = sandbox().session(&policy, 1).await.unwrap();
    session
        .exec("open('before.txt', 'w').write('x')", b"")
        .await
        .unwrap();
    let cancelled =
        tokio::time::timeout(Duration::from_millis(50), session.exec("while True: pass", b"")).await;
    assert!(
        cancelled.is_err(),
        "the deadline of 60 s did not end it: the drop did"
    );
    assert!(!session.is_alive());
    let begun = (Instant::now(), thread_cpu());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(
        thread_cpu() - begun.1 <= 100,
        "something still computes on this thread"
    );
    let after = session.exec("print(1)", b"").await.unwrap();
    assert_eq!(
        after.status,
        Status::Trapped {
            message: "the session has ended".to_owned()
        }
    );
    assert_eq!(session.files().read("before.txt").unwrap(), b"x");
    assert_eq!(run("print(1)").await.stdout, "1\n");
}

#[tokio::test]
async fn a_long_guest_lets_other_tasks_run() {
    // One thread: the timer below only fires because the guest yields.
    let guest = tokio::spawn(async {
        let policy = Policy {
            deadline: Duration::from_millis(600),
            ..Policy::default()
        };
        sandbox()
            .run("while True: pass", b"", &policy, 1)
            .await
            .expect("the host is well")
            .status
    });
    let mut ticks = 0;
    while !guest.is_finished() {
        tokio::time::sleep(Duration::from_millis(10)).await;
        ticks += 1;
    }
    assert_eq!(guest.await.unwrap(), Status::TimedOut);
    assert!(ticks >= 5, "{ticks} ticks in 600 ms");
}

#[tokio::test]
async fn a_dropped_judgement_ends_both_sessions() {
    let mut trusted = sandbox().session(&Policy::default(), 1).await.unwrap();
    let mut untrusted = sandbox().session(&Policy::default(), 2).await.unwrap();
    untrusted
        .exec("def f():\n    while True: pass", b"")
        .await
        .unwrap();
    let judged = trusted.exec_against("f()", "f", &mut untrusted);
    assert!(
        tokio::time::timeout(Duration::from_millis(50), judged)
            .await
            .is_err()
    );
    assert!(!trusted.is_alive() && !untrusted.is_alive());
}

#[tokio::test]
async fn more_instances_than_the_pool_holds_still_open() {
    let mut sessions = Vec::new();
    for seed in 0..300 {
        sessions.push(sandbox().session(&Policy::default(), seed).await.unwrap());
    }
    for session in sessions.iter_mut().rev().take(60) {
        assert_eq!(session.exec("print(1 + 1)", b"").await.unwrap().stdout, "2\n");
    }
}

#[tokio::test]
async fn a_policy_that_cannot_be_honoured_is_refused() {
    let policy = Policy {
        memory_bytes: 1 << 20,
        ..Policy::default()
    };
    let error = sandbox().run("1", b"", &policy, 1).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "policy: memory_bytes must be at least 50331648, got 1048576"
    );
    let policy = Policy {
        memory_bytes: 48 << 20,
        ..Policy::default()
    };
    assert_eq!(
        sandbox().run("print(1)", b"", &policy, 1).await.unwrap().stdout,
        "1\n"
    );
}
