//! Tests in a trusted session against code in another: honest candidates pass, cheats do not.

use mipu_sandbox::{Outcome, Policy, Status};

use crate::{raised, sandbox};

const TESTS: &str = "
def check(candidate):
    assert candidate(3, 7) == 10
    assert candidate(-1, 1) == 0
    assert candidate(10 ** 30, 1) == 10 ** 30 + 1
check(candidate)
";

async fn judge(candidate: &str, tests: &str) -> Outcome {
    let mut trusted = sandbox()
        .session(&Policy::default(), 1)
        .await
        .expect("the host is well");
    let quick = Policy {
        deadline: std::time::Duration::from_millis(1500),
        memory_bytes: 64 << 20,
        ..Policy::default()
    };
    let mut untrusted = sandbox().session(&quick, 2).await.expect("the host is well");
    untrusted.exec(candidate, &[]).await.expect("the host is well");
    let outcome = trusted
        .exec_against(tests, "candidate", &mut untrusted)
        .await
        .expect("the host is well");
    assert!(trusted.is_alive(), "{outcome:?}");
    outcome
}

#[tokio::test]
async fn an_honest_candidate_passes() {
    let outcome = judge("def candidate(a, b):\n    return a + b", TESTS).await;
    assert!(outcome.status.is_success(), "{outcome:?}");
    assert_eq!(outcome.stdout, "");
}

#[tokio::test]
async fn cheats_do_not_pass() {
    let always_equal = "class E(int):\n    __eq__ = lambda self, other: True\n    __hash__ = int.__hash__\n";
    for (name, cheat, kind) in [
        ("wrong", "def candidate(a, b): return a - b", "AssertionError"),
        ("missing", "pass", "NameError"),
        (
            "always equal",
            &format!("{always_equal}def candidate(a, b): return E()"),
            "NotPlain",
        ),
        (
            "always equal inside a list",
            &format!("{always_equal}def candidate(a, b): return [E()]"),
            "NotPlain",
        ),
        (
            "int subclass",
            "class I(int): pass\ndef candidate(a, b): return I(a + b)",
            "NotPlain",
        ),
        (
            "bool for int",
            "def candidate(a, b): return True",
            "AssertionError",
        ),
        (
            "exit",
            "import os\ndef candidate(a, b): os._exit(0)",
            "CandidateGone",
        ),
        (
            "sys.exit",
            "import sys\ndef candidate(a, b): sys.exit(0)",
            "CandidateError",
        ),
        (
            "skip",
            "import unittest\ndef candidate(a, b): raise unittest.SkipTest('x')",
            "CandidateError",
        ),
        (
            "base exception",
            "class B(BaseException): pass\ndef candidate(a, b): raise B('x')",
            "CandidateError",
        ),
        (
            "forever",
            "def candidate(a, b):\n    while True: pass",
            "CandidateGone",
        ),
        (
            "memory",
            "def candidate(a, b):\n    x = []\n    while True: x.append(bytearray(10 ** 6))",
            "MemoryError",
        ),
        (
            "patched builtins",
            "import builtins\nbuiltins.type = lambda x: int\nbuiltins.len = lambda x: 0\nclass A:\n    __eq__ = lambda s, o: True\ndef candidate(a, b): return A()",
            "NotPlain",
        ),
        (
            "patched json",
            "import json\njson.dumps = lambda *a, **k: '{\"status\":\"ok\"}'\ndef candidate(a, b): return None",
            "AssertionError",
        ),
        (
            "raises the test's exception",
            "def candidate(a, b): raise AssertionError('no')",
            "AssertionError",
        ),
        (
            "calls the host",
            "from wit_world.imports import host\ndef candidate(a, b): return host.call('{\"nonce\":\"\",\"function\":\"candidate\",\"args\":[]}')",
            "AssertionError",
        ),
    ] {
        let outcome = judge(cheat, TESTS).await;
        match &outcome.status {
            Status::Raised { kind: found, .. } => assert_eq!(found, kind, "{name}: {outcome:?}"),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_forged_answer_can_only_be_a_plain_value() {
    // The candidate owns its interpreter: it finds the app's functions and makes `handle` say what it likes.
    let forge = r#"
import app, json
def candidate(a, b): return 0
def forged(request):
    nonce = json.loads(request)["nonce"]
    return '{"nonce":"%s","status":"ok","value":%s}' % (nonce, PAYLOAD)
app.handle = forged
"#;
    for (payload, kind) in [
        (r#"'{"i":"10"},"args":[{"i":"3"},{"i":"7"}]'"#, "AssertionError"),
        (r#"'{"i":"10"}'"#, "NotPlain"),
        (r#"'{"i":"1e1"}'"#, "NotPlain"),
        (r#"'{"x":1}'"#, "NotPlain"),
        (r#"'17'"#, "NotPlain"),
        (r#"'[' * 5000"#, "CandidateGone"),
        (r#"'null,"nonce":"0"'"#, "CandidateGone"),
    ] {
        let outcome = judge(&format!("PAYLOAD = {payload}\n{forge}"), TESTS).await;
        raised(kind, &outcome);
    }
}

#[tokio::test]
async fn a_dead_candidate_ends_tests_that_swallow_everything() {
    let tests = "for _ in range(3):\n    try: candidate()\n    except BaseException: pass";
    let outcome = judge("import os\ndef candidate(): os._exit(0)", tests).await;
    raised("CandidateGone", &outcome);
    let Status::Raised { message, .. } = outcome.status else {
        unreachable!()
    };
    assert_eq!(message, "the candidate ended its process with code 0");
}

#[tokio::test]
async fn exceptions_values_and_mutations_cross() {
    let candidate = r"
class Mine(KeyError): pass
def candidate(what, box=None):
    if what == 'mine': raise Mine('k')
    if what == 'value': raise ValueError('bad')
    if what == 'sort': box.sort()
    if what == 'types': return [None, True, 1.5, float('inf'), 'é\n', b'\x00\xff', (1, [2]), {1, 2}, {'a': {(1,): frozenset([3])}}]
";
    let tests = r"
def throws(kind, *args):
    try: candidate(*args)
    except kind as e: return str(e)
    raise AssertionError('did not raise')
assert throws(KeyError, 'mine') == repr(str(KeyError('k')))
assert throws(ValueError, 'value') == 'bad'
box = [3, 1, 2]
candidate('sort', box)
assert box == [1, 2, 3]
assert candidate(what='types', box=box)[0] is None
assert candidate('types') == [None, True, 1.5, float('inf'), 'é\n', b'\x00\xff', (1, [2]), {1, 2}, {'a': {(1,): {3}}}]
try: candidate(object())
except TypeError as e: assert 'plain data' in str(e)
";
    let outcome = judge(candidate, tests).await;
    assert!(outcome.status.is_success(), "{outcome:?}");
}

/// What a candidate does to its arguments is seen by the tests, or ends them with the reason: nothing is scored that did not happen.
#[tokio::test]
async fn changes_of_arguments_are_seen_or_refused() {
    let candidate = r"
def candidate(x, then=None, *, key=0):
    for box in (x, then):
        if type(box) is tuple: box = box[0]
        if type(box) is list: box.append(4); box[0] = [5]
        if type(box) is set: box.add(4)
        if type(box) is dict: box['k'] = {'new': [1]}
    return x
";
    for (tests, why) in [
        (
            "x = [1]\nassert candidate(x) == [[5], 4]\nassert x == [[5], 4]",
            None,
        ),
        (
            "x, y = {1}, {}\ncandidate(x, y)\nassert x == {1, 4} and y == {'k': {'new': [1]}}",
            None,
        ),
        ("x = [1]\ncandidate(x, key=3)\nassert x == [[5], 4]", None),
        ("x = [[1], [2]]\ncandidate(x)\nassert x == [[5], [2], 4]", None),
        ("assert candidate((1, 2), key={'a': [1]}) == (1, 2)", None),
        ("candidate(([1], 2))", Some("a list inside a tuple in place")),
        (
            "candidate(1, then=[1])",
            Some("the keyword argument `then` in place"),
        ),
        (
            "try: candidate(1, then={})\nexcept BaseException: pass",
            Some("the keyword argument `then` in place"),
        ),
    ] {
        let outcome = judge(candidate, tests).await;
        match (why, &outcome.status) {
            (None, status) => assert!(status.is_success(), "{tests}: {outcome:?}"),
            (Some(why), Status::Raised { message, .. }) => {
                assert!(message.contains(why), "{tests}: {message}");
            }
            (Some(_), status) => panic!("{tests}: {status:?}"),
        }
    }
}

#[tokio::test]
async fn the_candidates_time_is_not_charged_to_the_tests() {
    let tests_policy = Policy {
        deadline: std::time::Duration::from_millis(300),
        ..Policy::default()
    };
    let mut trusted = sandbox().session(&tests_policy, 1).await.unwrap();
    let mut untrusted = sandbox().session(&Policy::default(), 2).await.unwrap();
    untrusted
        .exec(
            "def candidate(n):\n    x = 0\n    while x < n: x += 1\n    return x",
            &[],
        )
        .await
        .unwrap();
    let tests = "assert candidate(6_000_000) == 6_000_000";
    let outcome = trusted
        .exec_against(tests, "candidate", &mut untrusted)
        .await
        .unwrap();
    assert!(outcome.status.is_success(), "{outcome:?}");
    assert!(
        outcome.wall > tests_policy.deadline,
        "the candidate was quicker than the deadline that this test needs passed"
    );
    let outcome = trusted
        .exec_against("while True: pass", "candidate", &mut untrusted)
        .await
        .unwrap();
    assert_eq!(outcome.status, Status::TimedOut);
    assert!(!trusted.is_alive() && untrusted.is_alive());
}
