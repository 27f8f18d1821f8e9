//! The environment: tools, budgets, seeded failures, and what mistakes look like.

use mipu_envs::{Reply, StopReason};
use mipu_sandbox::Sandbox;

use crate::{answer, call, close, contents, sandbox, task};

const TOOLS: &str = "version: 1\nname: t\ninstruction: go\nsystem: be brief\ntools: [python, files, submit]\nreward: {exact: '42'}\ndata: {rows: [{n: 3}]}\nworkspace: {'in/data.txt': 'n = {{ n }}'}\n";

#[tokio::test]
async fn state_and_files_survive_between_turns() {
    let task = task(&format!("{TOOLS}limits: {{max_turns: 20}}\n")).await;
    let mut env = task.env(sandbox(), 1);
    assert_eq!(contents(&env.start().await.unwrap()), ["be brief", "go"]);
    for (tool, arguments, expected) in [
        ("python", vec![("code", "x = 40\nprint('hi')")], "hi"),
        ("python", vec![("code", "print(x + 2)")], "42"),
        (
            "python",
            vec![("code", "print('a'); 1 / 0")],
            "a\nZeroDivisionError: division by zero",
        ),
        ("list_files", vec![], "in/data.txt 5"),
        ("read_file", vec![("path", "in/data.txt")], "n = 3"),
        (
            "edit_file",
            vec![("path", "in/data.txt"), ("old", "3"), ("new", "4")],
            "ok",
        ),
        (
            "python",
            vec![("code", "print(open('/work/in/data.txt').read())")],
            "n = 4",
        ),
        (
            "python",
            vec![("code", "open('out.txt', 'w').write('from python')")],
            "",
        ),
        ("read_file", vec![("path", "out.txt")], "from python"),
        (
            "edit_file",
            vec![("path", "out.txt"), ("old", "o"), ("new", "0")],
            "error: `old` occurs 2 times in out.txt; it must be unique",
        ),
        (
            "edit_file",
            vec![("path", "out.txt"), ("old", "x"), ("new", "y")],
            "error: `old` does not occur in out.txt",
        ),
        ("write_file", vec![("path", "a/b.txt"), ("content", "new")], "ok"),
        (
            "search_files",
            vec![("pattern", "n.w|from|= \\d")],
            "a/b.txt:1: new\nin/data.txt:1: n = 4\nout.txt:1: from python",
        ),
        ("search_files", vec![("pattern", "^w")], "(no match)"),
        (
            "search_files",
            vec![("pattern", "[a-")],
            "error: not a regular expression: unclosed character class",
        ),
    ] {
        let result = env.step(&call(tool, &arguments)).await.unwrap();
        assert_eq!(contents(&result.observations), [expected], "{tool} {arguments:?}");
        assert_eq!(result.observations[0].name.as_deref(), Some(tool));
    }
    let result = env.step(&call("submit", &[("answer", "42")])).await.unwrap();
    assert_eq!(result.stop, Some(StopReason::Answered));
    assert!(close(result.reward, 1.0));
    assert!(env.step(&answer("42")).await.is_err(), "an episode ends once");
}

#[tokio::test]
async fn an_interpreter_that_died_comes_back_with_its_files() {
    let task = task(&format!("{TOOLS}limits: {{timeout_sec: 0.3}}\n")).await;
    let mut env = task.env(sandbox(), 1);
    env.step(&call(
        "python",
        &[("code", "open('kept.txt', 'w').write('kept')")],
    ))
    .await
    .unwrap();
    let result = env
        .step(&call("python", &[("code", "x = 1\nwhile True: pass")]))
        .await
        .unwrap();
    assert_eq!(contents(&result.observations), ["error: timed out after 0.3 s"]);
    let result = env
        .step(&call(
            "python",
            &[("code", "print(open('kept.txt').read())\nprint(x)")],
        ))
        .await
        .unwrap();
    assert_eq!(
        contents(&result.observations),
        ["kept\nNameError: name 'x' is not defined"]
    );
}

#[tokio::test]
async fn mistakes_become_observations() {
    let task = task(TOOLS).await;
    let malformed = Reply {
        malformed: Some("no closing tag".to_owned()),
        ..Reply::default()
    };
    let truncated = Reply {
        truncated: true,
        ..Reply::default()
    };
    for (reply, expected) in [
        (malformed, "error: no closing tag"),
        (truncated, "error: the turn was cut at its token limit"),
        (Reply::default(), "error: no tool call and no answer"),
        (
            call("pyton", &[]),
            "error: no tool `pyton`; tools: python, list_files, read_file, write_file, edit_file, search_files, submit",
        ),
        (call("python", &[]), "error: missing argument `code`"),
        (
            call("read_file", &[("path", "../etc/passwd")]),
            "error: not a path below /work: \"../etc/passwd\"",
        ),
        (
            call("read_file", &[("path", "nothing")]),
            "error: no such file: nothing",
        ),
    ] {
        let result = task.env(sandbox(), 1).step(&reply).await.unwrap();
        assert_eq!(contents(&result.observations), [expected]);
        assert_eq!((result.stop, result.reward), (None, 0.0));
    }
}

#[tokio::test]
async fn budgets_end_the_episode_with_zero() {
    let task = task(&format!(
        "{TOOLS}limits: {{max_turns: 2, observation_bytes: 8}}\n"
    ))
    .await;
    let mut env = task.env(sandbox(), 1);
    let cut = env
        .step(&call("python", &[("code", "print('x' * 100)")]))
        .await
        .unwrap();
    assert_eq!(contents(&cut.observations), ["xxxxx..."]);
    let last = env.step(&call("python", &[("code", "print(1)")])).await.unwrap();
    assert_eq!(
        (last.stop, last.reward, last.observations.len()),
        (Some(StopReason::MaxTurns), 0.0, 0)
    );
    let mut env = task.env(sandbox(), 1);
    env.step(&Reply::default()).await.unwrap();
    let last = env.step(&answer("42")).await.unwrap();
    assert!(close(last.reward, 1.0), "the last turn may answer");
    let finished = task
        .env(sandbox(), 1)
        .finish(StopReason::MaxTokens)
        .await
        .unwrap();
    assert_eq!(
        (finished.stop, finished.reward),
        (Some(StopReason::MaxTokens), 0.0)
    );
}

const STOCHASTIC: &str = "version: 1\nname: t\ninstruction: go\ntools: [python]\nreward: {exact: x}\ndata: {rows: [{n: 3}]}\nlimits: {max_turns: 500}\nstochastic: {tool_failure: 0.3, latency_ms: {mean: 50, sd: 10}, observation_noise: 0.2}\n";

async fn play(yaml: &str, seed: u64, turns: usize) -> Vec<(String, u64)> {
    let task = task(yaml).await;
    let mut env = task.env(sandbox(), seed);
    let mut seen = Vec::new();
    for _ in 0..turns {
        let result = env
            .step(&call(
                "python",
                &[("code", "import random\nprint(random.random())")],
            ))
            .await
            .unwrap();
        seen.push((
            result.observations[0].content.clone(),
            result.latency_ms.to_bits(),
        ));
    }
    seen
}

#[tokio::test]
async fn an_episode_is_a_function_of_its_seed() {
    let (a, b, c) = (
        play(STOCHASTIC, 5, 30).await,
        play(STOCHASTIC, 5, 30).await,
        play(STOCHASTIC, 6, 30).await,
    );
    assert_eq!(a, b);
    assert_ne!(a, c);
    let failures = |seen: &[(String, u64)]| seen.iter().map(|(text, _)| text == "busy").collect::<Vec<_>>();
    let quiet = play(
        &STOCHASTIC.replace("observation_noise: 0.2", "observation_noise: 0.0"),
        5,
        30,
    )
    .await;
    assert_eq!(failures(&a), failures(&quiet), "one knob does not move another");
}

#[tokio::test]
async fn failures_come_at_their_rate() {
    let seen = play(STOCHASTIC, 11, 400).await;
    let share = seen.iter().filter(|(text, _)| text == "busy").count() as f64 / 400.0;
    // 4 standard deviations of a share of 0.3 over 400 draws are 0.092.
    assert!((share - 0.3).abs() < 0.092, "{share}");
}

#[tokio::test]
async fn an_answer_without_tools_opens_no_interpreter() {
    // A thousand scored episodes in a second: an interpreter costs more than a millisecond each.
    let task = task(TOOLS).await;
    let started = std::time::Instant::now();
    for seed in 0..1000 {
        let mut env = task.env(sandbox(), seed);
        env.start().await.unwrap();
        assert!(close(env.step(&answer("42")).await.unwrap().reward, 1.0));
    }
    assert!(started.elapsed().as_secs_f64() < 1.0, "{:?}", started.elapsed());
}

#[tokio::test]
async fn run_tests_shows_what_failed() {
    let yaml = "version: 1\nname: t\ninstruction: go\ntools:\n  - run_tests: {cases: [{call: 'f(2)', expect: 4}, {call: 'f(3)', expect: 9}], details: DETAILS}\nreward: {exact: x}\ndata: {rows: [{n: 3}]}\n";
    for (details, candidate, expected) in [
        ("true", "def f(n): return n * n", "pass"),
        ("true", "def f(n): return n + 2", "fail\nf(3): expected 9, got 5"),
        (
            "true",
            "def f(n): return n / 0",
            "fail\nf(2): ZeroDivisionError: division by zero",
        ),
        ("true", "def f(n)", "fail\nSyntaxError"),
        ("false", "def f(n): return n + 2", "fail"),
    ] {
        let task = task(&yaml.replace("DETAILS", details)).await;
        let spec = &task.env(sandbox(), 1).tools()[0].clone();
        assert_eq!(spec.parameters["required"], serde_json::json!(["answer"]));
        let result = task
            .env(sandbox(), 1)
            .step(&call("run_tests", &[("answer", candidate)]))
            .await
            .unwrap();
        let observation = &result.observations[0].content;
        assert!(
            observation.starts_with(expected) && (details == "true" || observation == expected),
            "{observation}"
        );
    }
}

#[tokio::test]
async fn the_same_candidate_gets_the_same_verdict_in_every_episode() {
    let yaml = "version: 1\nname: t\ninstruction: go\ntools:\n  - run_tests: {cases: [{call: 'f(2)', expect: 4}]}\nreward: {exact: x}\ndata: {rows: [{n: 3}]}\n";
    let candidate = "import random, time\ndef f(n): return [random.random(), time.time(), id(n)]";
    let run = call("run_tests", &[("answer", candidate)]);
    let (mut seen, tasks) = (Vec::new(), [task(yaml).await, task(yaml).await]);
    // Two loads of the file share nothing in memory, three seeds share no draw of the environment.
    for task in &tasks {
        for seed in 0..3 {
            let result = task.env(sandbox(), seed).step(&run).await.unwrap();
            seen.push(result.observations[0].content.clone());
        }
    }
    assert!(
        seen[0].starts_with("fail\nf(2): expected 4, got [0."),
        "{}",
        seen[0]
    );
    assert!(seen.iter().all(|text| *text == seen[0]), "{seen:?}");
}

#[tokio::test]
async fn episodes_may_run_at_once() {
    fn spawnable<T: Send>(future: T) -> T {
        future
    }
    let task = task(TOOLS).await;
    let sandbox: Sandbox = sandbox().clone();
    let runs: Vec<_> = (0..8)
        .map(|seed| {
            let (task, sandbox) = (task.clone(), sandbox.clone());
            tokio::spawn(spawnable(async move {
                let mut env = task.env(&sandbox, seed);
                env.step(&call("python", &[("code", "print(6 * 7)")]))
                    .await
                    .unwrap();
                env.step(&answer("42")).await.unwrap().reward
            }))
        })
        .collect();
    for run in runs {
        assert!(close(run.await.unwrap(), 1.0));
    }
}
