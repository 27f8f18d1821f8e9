//! Malformed task files: every error says where, what was expected and found, and what to do.

use std::fmt::Write;

use crate::TaskFile;

const GOOD: &str = r#"version: 1
name: good
instruction: "{{ expr }}?"
tools: [python]
limits: { max_turns: 4 }
data:
  rows:
    - { expr: 1+1, gold: "2" }
reward: { exact: "{{ gold }}" }
solution:
  turns:
    - answer: "{{ gold }}"
"#;

/// What is wrong, the line of the good file to replace, and its replacement.
const MISTAKES: [(&str, &str, &str); 16] = [
    (
        "a key that does not exist",
        "limits: { max_turns: 4 }",
        "limits: { max_truns: 4 }",
    ),
    (
        "a top-level key that does not exist",
        "tools: [python]",
        "tool: [python]",
    ),
    ("a missing key", "name: good\n", ""),
    ("an unknown tool", "tools: [python]", "tools: [pyton]"),
    (
        "an unknown rule",
        "reward: { exact: \"{{ gold }}\" }",
        "reward: { exakt: \"{{ gold }}\" }",
    ),
    (
        "two rules",
        "reward: { exact: \"{{ gold }}\" }",
        "reward: { exact: x, contains: y }",
    ),
    (
        "a number out of range",
        "limits: { max_turns: 4 }",
        "limits: { max_turns: 0 }",
    ),
    (
        "a probability above 1",
        "tools: [python]",
        "stochastic: { tool_failure: 15 }",
    ),
    (
        "a number where text stands",
        "limits: { max_turns: 4 }",
        "limits: { max_turns: many }",
    ),
    ("a future version", "version: 1", "version: 2"),
    (
        "a field the row does not have",
        "instruction: \"{{ expr }}?\"",
        "instruction: \"{{ exprr }}?\"",
    ),
    (
        "a template that does not end",
        "instruction: \"{{ expr }}?\"",
        "instruction: \"{{ expr \"",
    ),
    (
        "a filter that does not exist",
        "reward: { exact: \"{{ gold }}\" }",
        "reward: { exact: \"{{ gold | trimm }}\" }",
    ),
    (
        "a pattern that does not compile",
        "reward: { exact: \"{{ gold }}\" }",
        "reward: { format: '[a-' }",
    ),
    (
        "a script that calls no tool",
        "    - answer: \"{{ gold }}\"",
        "    - pythn: \"print({{ expr }})\"",
    ),
    ("YAML that is none", "tools: [python]", "tools: [python"),
];

#[tokio::test]
async fn malformed_files_give_useful_errors() {
    let mut page = String::new();
    for (what, line, replacement) in MISTAKES {
        let yaml = GOOD.replace(line, replacement);
        assert_ne!(yaml, GOOD, "{what}");
        let file = TaskFile::new(&yaml);
        let error = file.load(0).await.expect_err(what).to_string();
        let error = error.replace(&file.directory.path().display().to_string(), "tasks");
        assert!(error.starts_with("tasks/task.yaml:"), "{what}: {error}");
        writeln!(page, "## {what}\n{error}\n").unwrap();
    }
    insta::assert_snapshot!("malformed_task_files", page);
}

#[tokio::test]
async fn the_good_file_is_good() {
    assert_eq!(TaskFile::new(GOOD).load(0).await.unwrap().warnings, [""; 0]);
}

#[tokio::test]
async fn generators_and_json_lines_are_blamed_where_they_stand() {
    let head = "version: 1\nname: t\ninstruction: x\nreward: {exact: y}\n";
    for (data, expected) in [
        (
            "data: {jsonl: rows.jsonl}",
            "rows.jsonl:2:7: not JSON: EOF while parsing an object\n",
        ),
        ("data: {jsonl: none.jsonl}", "none.jsonl: cannot be read: "),
        (
            "data:\n  count: 3\n  python: |\n    def generate(rng, count):\n      yield 1",
            "task.yaml:5:1: `generate` must yield dictionaries; got 1",
        ),
        (
            "data:\n  count: 3\n  python: |\n    def generate(rng, count):\n      yield {'x': 1 / 0}",
            "the data generator failed: ZeroDivisionError: division by zero",
        ),
        (
            "data:\n  count: 3\n  python: |\n    def generate(rng, count):\n      yield {'x': {1}}",
            "TypeError: Object of type set is not JSON serializable",
        ),
        (
            "data:\n  count: 3\n  python: |\n    def generate(rng, count)\n      yield {}",
            "the data generator failed: SyntaxError",
        ),
        (
            "data:\n  count: 3\n  python: |\n    def generate(rng, count): return []",
            "the data has no row",
        ),
        (
            "data:\n  count: 3\n  python: |\n    def generate(rng, count):\n      yield {'x': [2**70]}",
            "`x` holds [1.1805916207174113e+21], which does not fit 64 bits\n",
        ),
        (
            "data:\n  count: 3\n  python: |\n    def generate(rng, count):\n      yield {'x': float('nan')}",
            "ValueError: Out of range float values are not JSON compliant",
        ),
        ("data: {rows: []}", "the data has no row"),
        ("data: {count: 3}", "`count` belongs to `python`"),
        (
            "data: {python: 'def generate(rng, count): return []'}",
            "`python` needs `count`",
        ),
    ] {
        let file = TaskFile::new(&format!("{head}{data}\n"));
        std::fs::write(
            file.directory.path().join("rows.jsonl"),
            "{\"a\": 1}\n{\"a\": 1\n",
        )
        .unwrap();
        let error = file.load(0).await.expect_err(data).to_string();
        assert!(error.contains(expected), "{data}\n{error}");
    }
}
