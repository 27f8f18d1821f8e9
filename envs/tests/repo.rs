//! A directory under repair: candidates of several files, and tests that nobody sees.

use crate::{call, close, contents, sandbox, task};

const REPO: &str = "version: 1
name: t
instruction: go
tools: [files, python, submit, {run_tests: {file: shop.py, cases: [{call: 'total([2, 3])', expect: 5}]}}]
limits: {max_turns: 30}
data: {rows: [{n: 3}]}
workspace:
  shop.py: \"from lib.sums import add\\n\\ndef total(items):\\n    return add(items)\\n\"
  lib/sums.py: \"def add(items):\\n    return len(items)\\n\"
  notes.txt: \"hello\\n\"
reward:
  unit_tests: {file: shop.py, cases: [{call: 'total([700000, 77777])', expect: 777777}, {call: 'total([])', expect: 0}]}
";

#[tokio::test]
async fn a_candidate_imports_the_other_files() {
    let task = task(REPO).await;
    let mut env = task.env(sandbox(), 1);
    for (tool, arguments, expected) in [
        ("run_tests", vec![], "fail\ntotal([2, 3]): expected 5, got 2"),
        (
            "search_files",
            vec![("pattern", "len\\(")],
            "lib/sums.py:2:     return len(items)",
        ),
        (
            "edit_file",
            vec![
                ("path", "lib/sums.py"),
                ("old", "len(items)"),
                ("new", "sum(items)"),
            ],
            "ok",
        ),
        // The same entry file, another file beside it: nothing remembered may answer.
        ("run_tests", vec![], "pass"),
        (
            "edit_file",
            vec![("path", "lib/sums.py"), ("old", "sum"), ("new", "smu")],
            "ok",
        ),
        (
            "run_tests",
            vec![],
            "fail\ntotal([2, 3]): NameError: name 'smu' is not defined",
        ),
        (
            "edit_file",
            vec![("path", "lib/sums.py"), ("old", "smu"), ("new", "sum")],
            "ok",
        ),
    ] {
        let result = env.step(&call(tool, &arguments)).await.unwrap();
        assert_eq!(contents(&result.observations), [expected], "{tool}");
    }
    assert!(close(env.step(&call("submit", &[])).await.unwrap().reward, 1.0));
    assert!(close(
        task.env(sandbox(), 1)
            .step(&call("submit", &[]))
            .await
            .unwrap()
            .reward,
        0.0
    ));
}

/// Looks wherever Python can look for six sevens: in files, live objects, frames.
const SPY: &str = "import gc, os, re, sys
def spy():
    found = []
    def look(where, text):
        if re.search('7{6}', text):
            found.append(where)
    for top, _, names in os.walk('/'):
        for name in names:
            try:
                look(name, open(os.path.join(top, name), errors='replace').read())
            except OSError:
                pass
    for thing in gc.get_objects():
        if isinstance(thing, (dict, list, tuple)):
            try:
                look(type(thing).__name__, repr(thing))
            except Exception:
                pass
    frame = sys._getframe()
    while frame:
        look('frame', repr(frame.f_locals))
        frame = frame.f_back
    return found
";

/// Neither the agent nor the code it leaves behind can see what the hidden tests expect.
#[tokio::test]
async fn hidden_tests_are_hidden() {
    let task = task(REPO).await;
    let mut env = task.env(sandbox(), 1);
    let mut observed = contents(&env.start().await.unwrap()).join("\n");
    for (tool, arguments) in [
        // The spy is no blind one: it sees what is there.
        (
            "python",
            vec![(
                "code",
                format!("{SPY}\nseen = ['7777' + str(77)]\nprint(spy())\ndel seen"),
            )],
        ),
        (
            "python",
            vec![(
                "code",
                format!("{SPY}\nprint(spy(), sorted(os.environ), sys.argv)"),
            )],
        ),
        ("list_files", vec![]),
        ("search_files", vec![("pattern", "7777".to_owned())]),
        ("run_tests", vec![]),
        // The candidate looks, too, and would be right if it found anything.
        (
            "write_file",
            vec![
                ("path", "shop.py".to_owned()),
                (
                    "content",
                    format!("{SPY}\ndef total(items):\n    return sum(items) if spy() else 0\n"),
                ),
            ],
        ),
        ("run_tests", vec![]),
    ] {
        let arguments: Vec<(&str, &str)> = arguments
            .iter()
            .map(|(name, text)| (*name, text.as_str()))
            .collect();
        let result = env.step(&call(tool, &arguments)).await.unwrap();
        observed.push_str(&contents(&result.observations).join("\n"));
    }
    assert!(
        observed.contains("['") && observed.contains("[] ["),
        "the spy ran: {observed}"
    );
    assert!(
        !observed.contains("777777") && !observed.contains("7777]"),
        "{observed}"
    );
    let reward = env.step(&call("submit", &[])).await.unwrap().reward;
    assert!(close(reward, 0.0), "the candidate found the expected value");
}
