//! What the doctor finds, one defect at a time, and that a sound file has none.

use mipu_envs::doctor::{self, DoctorOptions, DoctorReport, Severity};

use crate::{TaskFile, sandbox};

async fn examine(yaml: &str) -> (DoctorReport, String) {
    let file = TaskFile::new(yaml);
    let report = doctor::check(&file.path(), sandbox(), &DoctorOptions::default()).await;
    let lines: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    (report, lines.join("\n"))
}

/// A sound task about code: 12 rows, hidden cases, a workspace.
const CODE: &str = r#"version: 1
name: t
instruction: "Write add_{{ n }}(x), which adds {{ n }}."
tools: [python]
workspace: { readme.md: "Nothing to see for {{ n }}." }
data: { count: 12, python: "def generate(rng, count):\n  for n in range(count): yield {'n': n, 'code': f'def add_{n}(x):\\n    return x + {n}\\n'}" }
split: { validation: 0, test: 0 }
reward: { unit_tests: { entry: "add_{{ n }}", tests: "assert add_{{ n }}(1) == 1 + {{ n }}\nassert add_{{ n }}(-4) == {{ n }} - 4" } }
solution: { turns: [{ answer: "{{ code }}" }] }
"#;

#[tokio::test]
async fn a_sound_file_has_no_finding() {
    let (report, text) = examine(CODE).await;
    assert!(report.findings.is_empty(), "{text}");
    assert!(report.attacks >= 40);
    assert_eq!((report.reference.solved, report.reference.episodes), (12, 12));
    assert!(
        report.baselines.values().all(|mean| *mean <= 0.0),
        "{:?}",
        report.baselines
    );
}

#[tokio::test]
async fn each_defect_is_found() {
    for (from, to, expected) in [
        ("return x + {n}", "return x - {n}", "error: solution: 11 rows (t/"),
        ("return x + {n}", "return y", "error: solution: 12 rows (t/"),
        (
            "assert add_{{ n }}(1) == 1 + {{ n }}\\nassert add_{{ n }}(-4) == {{ n }} - 4",
            "assert add_{{ n }}(1)",
            "functions that return the text \"mipu\" scored 1",
        ),
        (
            "Nothing to see for {{ n }}.",
            "{{ code }}",
            "warning: leak: 12 rows (t/",
        ),
        (
            "Nothing to see for {{ n }}.",
            "assert add_{{ n }}(1) == 1 + {{ n }}",
            "the agent is shown an assertion of the hidden tests; \"assert add_",
        ),
        (
            "assert add_{{ n }}(1) == 1 + {{ n }}\\n",
            "import random\\nassert random.random() < 0.5\\n",
            "error: solution: ",
        ),
        (
            "tools: [python]",
            "tools: [python]\nlimits: { max_tokens: 8 }",
            "error: length: the longest solution has ",
        ),
        (
            "yield {'n': n,",
            "yield {'n': 1 + (n > 9),",
            "note: data: 10 rows (t/",
        ),
    ] {
        let yaml = CODE.replace(from, to);
        assert_ne!(yaml, CODE, "{from}");
        let (_, text) = examine(&yaml).await;
        assert!(text.contains(expected), "{to}:\n{text}");
        assert!(text.contains("hint: "), "{to}:\n{text}");
    }
}

/// A sound task about numbers: 12 rows, an answer each.
const SUM: &str = "version: 1\nname: t\ninstruction: '{{ n }} + 100?'\ndata: { count: 12, python: \"def generate(rng, count):\\n  for n in range(count): yield {'n': n}\" }\nsplit: { validation: 0, test: 0 }\nreward: { exact: '{{ n + 100 }}' }\nsolution: { turns: [{ answer: '{{ n + 100 }}' }] }\n";

#[tokio::test]
async fn rewards_and_rows_are_examined() {
    let (report, text) = examine(SUM).await;
    assert!(report.findings.is_empty() && report.attacks == 0, "{text}");
    let python =
        |body: &str| format!("reward:\n  python: |\n    def reward(row, answer, files):\n      {body}\n");
    let reward = "reward: { exact: '{{ n + 100 }}' }\n";
    for (from, to, expected) in [
        (
            reward,
            python("return 1.0"),
            "error: reward: every answer that was tried scored 1, the solution included",
        ),
        (
            reward,
            python("import random; return random.random() > 0.5 and answer == str(row['n'] + 100)"),
            "error: ",
        ),
        (
            reward,
            python("return int(answer) == row['n'] + 100"),
            "error: baseline: 12 rows (t/",
        ),
        (
            reward,
            python("return float(answer or 0) != 0"),
            "the wrong-type answer scored 1",
        ),
        (
            reward,
            python(
                "import time\n      import random; t = sum(i for i in range(2 * 10 ** 7)); return answer == str(row['n'] + 100)",
            ),
            "warning: slow: ",
        ),
        (
            "{{ n + 100 }}",
            "{{ (n > 10) | int }}".to_owned(),
            "warning: reward: the answer \"0\" is right for 11 of 12 rows",
        ),
        (
            "for n in range(count): yield {'n': n}",
            "for n in range(count): yield {'n': 'aA'[n % 2] + str(n // 2)}".to_owned(),
            "in training too, but for upper case and white space",
        ),
        (
            "solution: { turns",
            "solution: { min_reward: 0.9, turns".to_owned(),
            "",
        ),
        (
            "solution: { turns: [{ answer: '{{ n + 100 }}' }]",
            "solution: { min_reward: 0.9, turns: [{ answer: '{{ n + n % 2 + 100 }}' }]".to_owned(),
            "error: solution: the solution earns 0.500 on average of 48 episodes; `min_reward` is 0.9",
        ),
    ] {
        let mut yaml = SUM.replace(from, &to);
        if to.contains("'aA'") {
            yaml = yaml
                .replace("{{ n + 100 }}", "{{ n }}!")
                .replace("validation: 0,", "validation: 0.5,")
                .replace("{{ n }} + 100?", "say {{ n }}");
        }
        if to.contains("time") {
            yaml.push_str("limits: { timeout_sec: 1.2 }\n");
        }
        assert_ne!(yaml, SUM, "{from}");
        let (report, text) = examine(&yaml).await;
        assert!(text.contains(expected), "{to}:\n{text}");
        assert!(!expected.is_empty() || report.findings.is_empty(), "{text}");
        assert!(
            report.findings.iter().all(|f| f.severity == Severity::Note
                || f.rows > 0
                || f.hint.is_some()
                || f.check == "schema"),
            "{text}"
        );
    }
}
