//! Candidates that attack their tests score 0, and the host goes on.

use std::sync::Arc;

use mipu_envs::Task;
use mipu_envs::doctor::attacks;

use crate::{answer, call, close, reward, rewarded, sandbox};

const LIMITS: &str = "limits: {timeout_sec: 0.5, memory_mb: 64}\n";
const HONEST: &str = "def f(a, b): return a + b";

/// Every attack scores 0, in the next episode too, and an honest answer after it still scores 1.
async fn withstands(task: &Arc<Task>) {
    for (index, attack) in attacks().iter().enumerate() {
        let (name, tries) = (&attack.name, &attack.tries);
        for episode in 0..2 {
            // A comment of its own, so that the second is run and not remembered.
            let candidate = format!("{}\n# {episode}", attack.candidate(&["f"]));
            let got = reward(task, &candidate).await;
            assert!(close(got, 0.0), "{name}, which tries to {tries}, scored {got}");
        }
        let honest = format!("{HONEST}  # {index}");
        assert!(close(reward(task, &honest).await, 1.0), "after {name}");
    }
}

#[tokio::test]
async fn attacks_on_cases_score_zero() {
    withstands(&rewarded(&format!("{LIMITS}reward: {{partial: true, unit_tests: {{cases: [{{call: 'f(3, 7)', expect: '10'}}, {{call: 'f([1], [2])', expect: [1, 2]}}]}}}}")).await).await;
}

#[tokio::test]
async fn attacks_on_assertions_score_zero() {
    let tests = "def check(candidate):\n        try:\n          assert candidate(3, 7) == 10\n        except Exception:\n          raise AssertionError('no')\n        assert candidate([1], [2]) == [1, 2]\n      check(f)\n";
    withstands(
        &rewarded(&format!(
            "{LIMITS}reward:\n  unit_tests:\n    entry: f\n    tests: |\n      {tests}"
        ))
        .await,
    )
    .await;
}

#[tokio::test]
async fn attacks_on_programs_score_zero() {
    let task = rewarded(&format!(
        "{LIMITS}reward: {{unit_tests: {{cases: [{{stdin: '3 7', stdout: '10'}}]}}}}"
    ))
    .await;
    for attack in attacks() {
        let candidate = format!("{}\nprint(f())", attack.candidate(&["f"]));
        let got = reward(&task, &candidate).await;
        assert!(close(got, 0.0), "{} scored {got}", attack.name);
    }
    assert!(close(
        reward(&task, "print(sum(map(int, input().split())))").await,
        1.0
    ));
}

/// The agent's own interpreter and files survive between turns, the judge's do not come from there.
#[tokio::test]
async fn attacks_from_the_agents_interpreter_do_not_reach_the_verdict() {
    let task = crate::task(&format!(
        "version: 1\nname: t\ninstruction: go\ntools: [python, files]\ndata: {{rows: [{{n: 3}}]}}\n{LIMITS}reward: {{unit_tests: {{file: f.py, cases: [{{call: 'f(3, 7)', expect: '10'}}]}}}}"
    ))
    .await;
    for attack in attacks() {
        let mut env = task.env(sandbox(), 7);
        env.start().await.unwrap();
        env.step(&call("python", &[("code", attack.code.as_str())]))
            .await
            .unwrap();
        let result = env.step(&answer("done")).await.unwrap();
        assert!(
            close(result.reward, 0.0),
            "{} scored {}",
            attack.name,
            result.reward
        );
    }
    let mut env = task.env(sandbox(), 7);
    env.start().await.unwrap();
    env.step(&call("write_file", &[("path", "f.py"), ("content", HONEST)]))
        .await
        .unwrap();
    let result = env.step(&answer("done")).await.unwrap();
    assert!(close(result.reward, 1.0), "{result:?}");
    for path in [
        "/etc/mipu-attack",
        "/root/mipu-attack",
        "/home/mipu-attack",
        "/tmp/x",
    ] {
        assert!(!std::path::Path::new(path).exists(), "{path}");
    }
}

#[tokio::test]
async fn one_endless_case_costs_its_own_credit_only() {
    let task = rewarded(
        "limits: {timeout_sec: 0.3}\nreward: {partial: true, unit_tests: {cases: [{call: 'f(0)', expect: 0}, {call: 'f(1)', expect: 1}, {call: 'f(2)', expect: 2}, {call: 'f(3)', expect: 3}]}}",
    )
    .await;
    let candidate = "def f(n):\n    while n == 1: pass\n    return n";
    assert!(close(reward(&task, candidate).await, 0.75));
}
