//! Rewards by hand-computed cases, and what is unscored instead of 0.

use crate::{close, reward, rewarded, score};

#[tokio::test]
async fn rules_score_as_computed_by_hand() {
    for (rule, cases) in [
        (
            "reward: {exact: '{{ gold }}'}",
            vec![("133", 1.0), (" 133 ", 1.0), ("13", 0.0), ("", 0.0)],
        ),
        (
            "reward: {numeric: {expected: '{{ gold }}', tolerance: 0.5}}",
            vec![("133.4", 1.0), ("133.6", 0.0), ("x", 0.0)],
        ),
        (
            "reward: {regex: '\\b{{ gold }}\\b'}",
            vec![("it is 133.", 1.0), ("1334", 0.0)],
        ),
        (
            "reward: {format: '\\d+'}",
            vec![("12", 1.0), ("12a", 0.0), ("", 0.0)],
        ),
        (
            "reward: {contains: ['{{ gold }}', because]}",
            vec![("133 because", 1.0), ("133", 0.0)],
        ),
        (
            "reward: {contains: ['{{ gold }}', because], partial: true}",
            vec![("133 because", 1.0), ("133", 0.5)],
        ),
        (
            "reward: {json: {includes: {n: '{{ n }}'}}}",
            vec![("{\"n\": 3}", 1.0), ("{\"n\": 4}", 0.0), ("{", 0.0)],
        ),
        (
            "reward: {all: [{exact: '{{ gold }}'}, {format: '\\d+'}]}",
            vec![("133", 1.0), ("134", 0.0), ("x", 0.0)],
        ),
        (
            "reward: {any: [{exact: '{{ gold }}'}, {exact: 'yes'}]}",
            vec![("133", 1.0), ("yes", 1.0), ("no", 0.0)],
        ),
        (
            "reward: {weighted: [{weight: 0.7, rule: {regex: '133'}}, {weight: 0.3, rule: {format: '\\d+'}}], partial: true}",
            vec![("133", 1.0), ("=133", 0.7), ("5", 0.3), ("x", 0.0)],
        ),
        (
            "reward: {weighted: [{weight: 0.7, rule: {regex: '133'}}, {weight: 0.2, rule: {format: '\\d+'}}, {weight: 0.1, rule: {exact: '133'}}]}",
            vec![("133", 1.0), ("=133", 0.0)],
        ),
        // 5 bytes at 0.01 each.
        (
            "reward: {contains: '133', length_penalty: 0.01}",
            vec![("a 133", 0.95), ("nope!", 0.0)],
        ),
    ] {
        let task = rewarded(rule).await;
        for (answer, expected) in cases {
            let got = reward(&task, answer).await;
            assert!(close(got, expected), "{rule} {answer:?}: {got}");
        }
    }
}

#[tokio::test]
async fn unit_tests_score_candidates() {
    let cases = "cases: [{call: 'f(3, 7)', expect: '10'}, {call: 'f(-1, 1)', expect: 0}, {call: 'f(.1, .2)', expect: .3}, {call: \"f('a', 'b')\", expect: \"'ab'\"}]";
    let task = rewarded(&format!("reward: {{unit_tests: {{{cases}, tolerance: 1.0e-9}}}}")).await;
    for (answer, expected) in [
        ("def f(a, b):\n    return a + b", 1.0),
        ("def f(a, b):\n    return a - b", 0.0),
        ("def f(a, b):\n    return a + b\nimport sys\nsys.exit(3)", 1.0),
        ("def f(a, b) return a + b", 0.0),
        ("1 / 0", 0.0),
        ("", 0.0),
    ] {
        assert!(close(reward(&task, answer).await, expected), "{answer}");
    }
    let partial = rewarded(&format!("reward: {{unit_tests: {{{cases}}}, partial: true}}")).await;
    // 0.1 + 0.2 is not 0.3 without a tolerance; `int` refuses text; 3 * 7 and so on are all wrong.
    for (answer, expected) in [
        ("def f(a, b):\n    return a + b", 0.75),
        ("def f(a, b):\n    return int(a) + int(b)", 0.5),
        ("def f(a, b):\n    return None", 0.0),
    ] {
        assert!(close(reward(&partial, answer).await, expected), "{answer}");
    }
}

#[tokio::test]
async fn expectations_may_be_expressions_and_keep_python_types() {
    for (expect, answer, expected) in [
        ("'sum(range(5))'", "10", 1.0),
        ("'2**100'", "1 << 100", 1.0),
        ("'(1, 2)'", "[1, 2]", 0.0),
        ("'(1, 2)'", "1, 2", 1.0),
        ("'{1, 2}'", "{2, 1}", 1.0),
        ("[1, 2]", "[1.0, 2]", 1.0),
        ("{a: [1]}", "{'a': [True]}", 1.0),
        ("\"'1'\"", "1", 0.0),
        ("null", "None", 1.0),
    ] {
        let source = "\"def f():\\n    return {{ answer }}\"";
        let rule = format!(
            "reward: {{unit_tests: {{source: {source}, cases: [{{call: 'f()', expect: {expect}}}]}}}}"
        );
        let got = reward(&rewarded(&rule).await, answer).await;
        assert!(close(got, expected), "{expect} {answer}: {got}");
    }
}

#[tokio::test]
async fn assert_style_tests_run_against_a_proxy() {
    let task = rewarded(
        "reward:\n  unit_tests:\n    entry: add\n    tests: |\n      def check(candidate):\n          assert candidate(1, 2) == 3\n          assert candidate([1], [2]) == [1, 2]\n      check(add)\n",
    )
    .await;
    for (answer, expected) in [
        ("def add(a, b):\n    return a + b", 1.0),
        ("def add(a, b):\n    return 3", 0.0),
        ("def add(a, b):\n    raise SystemExit(0)", 0.0),
        ("def sub(a, b):\n    return a - b", 0.0),
        ("import os\ndef add(a, b):\n    os._exit(0)", 0.0),
    ] {
        assert!(close(reward(&task, answer).await, expected), "{answer}");
    }
}

#[tokio::test]
async fn checkers_return_a_number_or_the_episode_is_unscored() {
    let task = |body: &str| {
        let reward = format!(
            "reward:\n  partial: true\n  python: |\n    def reward(row, answer, files):\n      {body}\n"
        );
        async move { rewarded(&reward).await }
    };
    for (body, answer, expected) in [
        ("return 1.0 if answer == row['gold'] else 0.0", "133", 1.0),
        ("return answer == row['gold']", "134", 0.0),
        ("return len(answer) / 10", "12345", 0.5),
        ("return row['n'] == 3", "", 1.0),
    ] {
        assert!(close(reward(&task(body).await, answer).await, expected), "{body}");
    }
    for (body, reason) in [
        (
            "return float('nan')",
            "expected a number in [0, 1]; got float('nan')",
        ),
        ("return 1.5", "expected a number in [0, 1]; got 1.5"),
        ("return -0.1", "got -0.1"),
        ("return None", "got None"),
        ("return 'yes'", "got 'yes'"),
        ("return 1 / 0", "ZeroDivisionError: division by zero"),
    ] {
        let error = score(&task(body).await, "x").await.unwrap_err();
        assert!(error.reason.contains(reason), "{body}: {}", error.reason);
    }
}

/// In-place functions and generators are tested by a call that says so.
#[tokio::test]
async fn calls_may_look_at_arguments_and_consume_generators() {
    let task = rewarded("reward: {unit_tests: {cases: [{call: '[x := [3, 1, 2], f(x), x][1:]', expect: [null, [1, 2, 3]]}, {call: 'list(g(3))', expect: [0, 1, 2]}]}, partial: true}").await;
    for (answer, expected) in [
        ("def f(x): x.sort()\ndef g(n): yield from range(n)", 1.0),
        ("def f(x): return sorted(x)\ndef g(n): return range(n)", 0.5),
        ("def f(x): x = sorted(x)\ndef g(n): return 3", 0.0),
    ] {
        let got = reward(&task, answer).await;
        assert!(close(got, expected), "{answer}: {got}");
    }
}

/// An agent must not be able to have itself left out of its group.
#[tokio::test]
async fn an_answer_that_exhausts_its_checker_scores_zero() {
    let task = rewarded(
        r"
limits: {timeout_sec: 0.5, memory_mb: 64}
reward:
  python: |
    def nest(depth): return 1 + nest(depth - 1) if depth else 0
    def reward(row, answer, files):
      if answer == 'time':
        while True: pass
      if answer == 'memory': return len(bytearray(2 ** 30)) > 0
      if answer == 'stack': return nest(10 ** 6) > 0
      return answer == row['gold']
",
    )
    .await;
    for answer in ["time", "memory", "stack"] {
        let result = score(&task, answer).await.unwrap();
        assert!(close(result.reward, 0.0), "{answer}");
        let metric = ("checker/exhausted".to_owned(), 1.0);
        assert!(result.metrics.contains(&metric), "{answer}: {:?}", result.metrics);
    }
    assert!(close(reward(&task, "133").await, 1.0));
}

#[tokio::test]
async fn a_task_that_cannot_be_scored_is_unscored() {
    for (rule, reason) in [
        (
            "reward: {unit_tests: {cases: [{call: 'f()', expect: hello}]}}",
            "text needs quotes of its own",
        ),
        (
            "reward: {unit_tests: {cases: '{{ n }}'}}",
            "`cases` must be a list",
        ),
        ("reward: {numeric: {expected: one}}", "is not a number"),
    ] {
        let error = score(&rewarded(rule).await, "def f(): return 1")
            .await
            .unwrap_err();
        assert!(error.reason.contains(reason), "{rule}: {}", error.reason);
    }
}

#[tokio::test]
async fn metrics_name_the_rules_that_were_evaluated() {
    let task = rewarded("reward: {all: [{format: '\\d+'}, {exact: '{{ gold }}'}]}").await;
    let result = score(&task, "12").await.unwrap();
    let names: Vec<(&str, f64)> = result
        .metrics
        .iter()
        .map(|(name, value)| (name.as_str(), *value))
        .collect();
    assert_eq!(
        names,
        [
            ("reward/score", 0.0),
            ("reward/format", 1.0),
            ("reward/exact", 0.0),
            ("reward/all", 0.0),
            ("tool/calls", 0.0),
            ("tool/failures", 0.0),
            ("reply/malformed", 0.0)
        ]
    );
}

#[tokio::test]
async fn cases_may_expect_exceptions() {
    let cases = r#"[{call: 'f(-1)', raises: ValueError}, {call: 'f(-2)', raises: ValueError, match: 'negative.*-2'}]"#;
    let task = rewarded(&format!(
        "reward: {{unit_tests: {{cases: {cases}}}, partial: true}}"
    ))
    .await;
    for (answer, expected) in [
        ("def f(n): raise ValueError(f'negative number {n}')", 1.0),
        (
            "class Bad(ValueError): pass\ndef f(n): raise Bad(f'negative: {n}')",
            1.0,
        ),
        ("def f(n): return int('x')", 0.5),
        ("def f(n): raise Exception('negative -2')", 0.0),
        (
            "class ValueError(Exception): pass\ndef f(n): raise ValueError(f'negative {n}')",
            0.0,
        ),
        ("def f(n): return ValueError(f'negative {n}')", 0.0),
        ("def f(n): return 1", 0.0),
        ("import os\ndef f(n): os._exit(1)", 0.0),
        ("", 0.0),
    ] {
        assert!(close(reward(&task, answer).await, expected), "{answer}");
    }
    let any = rewarded("reward: {unit_tests: {cases: [{call: 'f(1)', raises: Exception}, {call: 'g(1)', raises: Mine}, {call: 'h()', raises: SystemExit}]}, partial: true}").await;
    for (answer, expected) in [
        // A function that does not exist is a NameError, which is an Exception, which it is not meant to be.
        ("", 0.0),
        ("def f(n): return undefined", 1.0 / 3.0),
        ("class Mine(Exception): pass\ndef g(n): raise Mine", 1.0 / 3.0),
        ("class Other(Exception): pass\ndef g(n): raise Other", 0.0),
        ("def h(): exit(0)", 1.0 / 3.0),
        ("def h(): raise SystemExit(0)", 1.0 / 3.0),
    ] {
        let got = reward(&any, answer).await;
        assert!(close(got, expected), "{answer}: {got}");
    }
}

#[tokio::test]
async fn programs_are_judged_by_what_they_print() {
    let task = rewarded(
        r#"reward: {partial: true, unit_tests: {cases: [{stdin: "3 4\n", stdout: "7"}, {stdin: "-1 1", stdout: "0\n"}]}}"#,
    )
    .await;
    for (answer, expected) in [
        ("a, b = map(int, input().split())\nprint(a + b)", 1.0),
        (
            "import sys\nprint(sum(map(int, sys.stdin.read().split())), end='  \\n\\n')",
            1.0,
        ),
        (
            "if __name__ == '__main__':\n    print(sum(map(int, input().split())))\n    raise SystemExit(3)",
            1.0,
        ),
        ("a, b = map(int, input().split())\nprint(a * b - 5)", 0.5),
        ("print(7)", 0.5),
        ("a, b = map(int, input().split())\nprint(a + b)\n1 / 0", 0.0),
        ("import os; os._exit(0)", 0.0),
        ("import sys\nsys.exit(0)", 0.0),
        (
            "n = globals().get('n', 0)\nopen('n', 'a').write('x')\nprint([7, 0][len(open('n').read()) - 1])",
            0.5,
        ),
        ("while True: print('7')", 0.0),
        ("", 0.0),
    ] {
        let got = reward(&task, answer).await;
        assert!(close(got, expected), "{answer}: {got}");
    }
}

#[tokio::test]
async fn a_case_may_have_its_own_tolerance_and_time() {
    let task = rewarded(
        "limits: {timeout_sec: 5}\nreward: {partial: true, unit_tests: {tolerance: 0.1, cases: [{call: 'f(0)', expect: 1.0, tolerance: 0.001}, {call: 'f(1)', expect: 1.0}, {call: 'f(2)', expect: 1.0, timeout_sec: 0.2}, {stdin: '', stdout: 'x 1.0', tolerance: 0.1}]}}",
    )
    .await;
    let started = std::time::Instant::now();
    let candidate = "def f(n):\n    while n == 2: pass\n    return 1.05\nprint('x 1.05')";
    assert!(close(reward(&task, candidate).await, 0.5));
    assert!(started.elapsed().as_secs_f64() < 3.0, "{:?}", started.elapsed());
}

#[tokio::test]
async fn cases_of_a_row_have_the_same_forms() {
    let yaml = "version: 1\nname: t\ninstruction: go\ntools: [run_tests: {cases: '{{ cases }}'}]\nreward: {unit_tests: {cases: '{{ cases }}'}}\ndata:\n  rows:\n    - cases: [{call: 'f(1)', expect: 'text'}, {call: 'f(0)', raises: ZeroDivisionError}, {stdin: '{{ n }}', stdout: '{{ n }}'}]\n";
    let task = crate::task(&yaml.replace("'text'", "\"'{{ n }}'\"")).await;
    let candidate = "def f(n): return n / n and '{{ n }}'\nprint('{{ n }}')";
    assert!(
        close(reward(&task, candidate).await, 1.0),
        "text of a row is not a template"
    );
    let broken = crate::task(&yaml.replace("call: 'f(1)'", "cal: 'f(1)'")).await;
    let error = score(&broken, "x").await.unwrap_err();
    assert!(
        error.reason.contains("unknown key `cal` in a case"),
        "{}",
        error.reason
    );
}

/// What the agent is told when a value cannot be compared, in both forms of tests.
#[tokio::test]
async fn what_cannot_be_compared_is_refused_with_advice() {
    let asserted = "reward: {exact: x}\ntools: [run_tests: {entry: f, tests: \"try:\\n    f([1])\\nexcept Exception:\\n    pass\"}]\n";
    let cases = "reward: {exact: x}\ntools: [run_tests: {cases: [{call: 'f([1])', expect: 1}]}]\n";
    let head = "version: 1\nname: t\ninstruction: go\ndata: {rows: [{n: 3}]}\n";
    for (candidate, told) in [
        (
            "def f(x): yield 1",
            "a value of type 'generator' is not plain data; return a list, not an iterator",
        ),
        (
            "def f(x): return map(str, x)",
            "a value of type 'map' is not plain data; return a list, not an iterator",
        ),
        (
            "def f(x): return x.__iter__()",
            "'list_iterator' is not plain data; return a list, not an iterator",
        ),
        ("def f(x): return {}.keys()", "return a list, not an iterator"),
        (
            "import decimal\ndef f(x): return decimal.Decimal(1)",
            "'Decimal' is not plain data; return None, bool, int",
        ),
        (
            "def f(x): return [x, object()]",
            "'object' is not plain data; return None, bool, int",
        ),
    ] {
        for form in [asserted, cases] {
            let task = crate::task(&format!("{head}{form}")).await;
            let result = task
                .env(crate::sandbox(), 1)
                .step(&crate::call("run_tests", &[("answer", candidate)]))
                .await
                .unwrap();
            let observation = &result.observations[0].content;
            assert!(
                observation.starts_with("fail") && observation.contains(told),
                "{candidate}: {observation}"
            );
        }
    }
    // A change of an argument that cannot be told to the tests ends them too.
    let task = crate::task(&format!("{head}{asserted}")).await;
    let spoil = crate::call("run_tests", &[("answer", "def f(x): x.append(object())")]);
    let result = task.env(crate::sandbox(), 1).step(&spoil).await.unwrap();
    let observation = &result.observations[0].content;
    assert!(
        observation.contains("an argument that the candidate changed is not plain data"),
        "{observation}"
    );
}
