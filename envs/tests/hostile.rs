//! Candidates that attack their tests score 0, and the host goes on.

use crate::{close, reward, rewarded};

const HOSTILE: [(&str, &str); 12] = [
    (
        "an object equal to everything",
        "class E:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\ndef f(a, b): return E()",
    ),
    (
        "an integer equal to everything",
        "class E(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\ndef f(a, b): return E(0)",
    ),
    ("leaving at once", "import os\nos._exit(0)"),
    ("leaving in the call", "import os\ndef f(a, b): os._exit(0)"),
    (
        "raising SystemExit in the call",
        "def f(a, b): raise SystemExit(0)",
    ),
    (
        "patched builtins",
        "import builtins\nbuiltins.repr = lambda x: '10'\nbuiltins.str = lambda x: '10'\nbuiltins.isinstance = lambda *a: True\nbuiltins.type = lambda x: int\ndef f(a, b): return 11",
    ),
    (
        "a patched json module",
        "import json\njson.dumps = lambda *a, **k: '{\"i\": \"10\"}'\njson.loads = lambda *a, **k: 10\ndef f(a, b): return 11",
    ),
    (
        "printing what a verdict looks like",
        "def f(a, b):\n    print('pass'); print('{\"status\": \"ok\", \"value\": {\"i\": \"10\"}}')\n    return 11",
    ),
    ("an endless loop", "def f(a, b):\n    while True: pass"),
    (
        "endless memory",
        "def f(a, b):\n    x = []\n    while True: x.append(bytearray(1 << 20))",
    ),
    ("endless recursion", "def f(a, b): return f(a, b)"),
    (
        "a trace function",
        "import sys\nsys.settrace(lambda *a: None)\nsys.modules.clear()\ndef f(a, b): return 11",
    ),
];

#[tokio::test]
async fn hostile_candidates_score_zero() {
    let task = rewarded(
        "limits: {timeout_sec: 0.5, memory_mb: 64}\nreward: {unit_tests: {cases: [{call: 'f(3, 7)', expect: '10'}, {call: 'f(1, 1)', expect: '2'}]}}",
    )
    .await;
    for (what, candidate) in HOSTILE {
        assert!(close(reward(&task, candidate).await, 0.0), "{what}");
        assert!(
            close(reward(&task, "def f(a, b): return a + b").await, 1.0),
            "after {what}"
        );
    }
}

#[tokio::test]
async fn hostile_candidates_fail_assert_style_tests() {
    let task = rewarded(
        "limits: {timeout_sec: 0.5, memory_mb: 64}\nreward:\n  unit_tests:\n    entry: f\n    tests: |\n      assert f(3, 7) == 10\n      assert f(1, 1) == 2\n",
    )
    .await;
    for (what, candidate) in HOSTILE {
        assert!(close(reward(&task, candidate).await, 0.0), "{what}");
    }
    assert!(close(reward(&task, "def f(a, b): return a + b").await, 1.0));
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
