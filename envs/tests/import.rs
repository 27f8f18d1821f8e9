//! What is imported is an ordinary task that passes the doctor; what cannot run here is refused with the reason.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use mipu_envs::doctor::{self, DoctorOptions};
use mipu_envs::import::{self, Comparison, Format, ImportError, Options};

use crate::sandbox;

const HUMAN_EVAL: &str = concat!(
    r#"{"task_id": "X/0", "prompt": "from typing import List\n\ndef total(xs: List[int]) -> int:\n    \"\"\" Add them. {{ not a template }}\n    \"\"\"\n", "entry_point": "total", "canonical_solution": "    return sum(xs)\n", "test": "def check(candidate):\n    assert candidate([1, 2]) == 3\n    assert candidate([]) == 0\n"}"#,
    "\n",
    r#"{"task_id": "X/1", "prompt": "def double(x):\n    return 2 * x\n\ndef halve(x):\n    \"\"\" Undo double. \"\"\"\n", "entry_point": "halve", "canonical_solution": "    return x // 2\n", "test": "def check(candidate):\n    for x in range(1, 5):\n        assert candidate(double(x)) == x\n"}"#,
    "\n",
);

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

async fn passes_the_doctor(path: &Path) {
    let report = doctor::check(path, sandbox(), &DoctorOptions::default()).await;
    let found: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(
        report.passed(),
        "{}\n{}",
        fs::read_to_string(path).unwrap(),
        found.join("\n")
    );
    assert_eq!(report.reference.solved, report.reference.episodes);
}

#[tokio::test]
async fn human_eval_lines_become_a_task() {
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().join("HumanEval.jsonl");
    write(&plain, HUMAN_EVAL);
    let packed = directory.path().join("Packed.jsonl.gz");
    let mut encoder = GzEncoder::new(fs::File::create(&packed).unwrap(), Compression::fast());
    encoder.write_all(HUMAN_EVAL.as_bytes()).unwrap();
    encoder.finish().unwrap();
    let out = directory.path().join("out");
    for (source, name) in [(plain, "human-eval.yaml"), (packed, "packed.yaml")] {
        let report = import::run(&Options::new(Format::HumanEval, source, &out)).unwrap();
        assert_eq!(
            (report.rows, report.tasks.as_slice()),
            (2, [out.join(name)].as_slice())
        );
        passes_the_doctor(&report.tasks[0]).await;
    }
}

#[tokio::test]
async fn lines_of_any_shape_become_a_task() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("sums.jsonl");
    let lines: String = (1..30)
        .map(|n| {
            format!(
                "{{\"problem\": \"What is {n} + 3?\", \"n\": {n}, \"gold\": \"{}\"}}\n",
                n + 3
            )
        })
        .collect();
    write(&source, &lines);
    let out = directory.path().join("out");
    let plain = Options::new(Format::Jsonl, &source, &out);
    let report = import::run(&plain).unwrap();
    assert_eq!(report.rows, 29);
    passes_the_doctor(&report.tasks[0]).await;
    let mut own = plain.clone();
    own.name = Some("own".to_owned());
    own.instruction = Some("Add 3 to {{ n }}.".to_owned());
    own.answer = Some("{{ n + 3 }}".to_owned());
    own.comparison = Comparison::Numeric;
    let report = import::run(&own).unwrap();
    passes_the_doctor(&report.tasks[0]).await;
    let again = import::run(&plain).unwrap_err();
    assert!(matches!(again, ImportError::Exists { .. }), "{again}");
    own.name = Some("wrong".to_owned());
    own.instruction = Some("Add 3 to {{ m }}.".to_owned());
    let wrong = import::run(&own).unwrap_err().to_string();
    assert!(
        wrong.contains("the template reads `m`, which the row does not have"),
        "{wrong}"
    );
}

#[test]
fn sources_that_are_none_are_explained() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("x.jsonl");
    let out = directory.path().join("out");
    for (format, text, expected) in [
        (
            Format::HumanEval,
            "{\"prompt\": \"x\", \"entrypoint\": \"f\"}",
            "row 1 has no `entry_point`\nhint: did you mean `entrypoint`?",
        ),
        (
            Format::HumanEval,
            "{\"prompt\": 3}",
            "`prompt` of row 1 must be text; got 3",
        ),
        (Format::Jsonl, "{\"a\": 1}\n{", "x.jsonl:2:1: not JSON"),
        (Format::Jsonl, "[1]", "expected a JSON object on each line"),
        (Format::Jsonl, "\n", "it has no row"),
        (
            Format::Jsonl,
            "{\"a\": 1}",
            "no field of the rows is known to be the prompt: a\nhint: give a template",
        ),
        (
            Format::ReasoningGym,
            "{\"question\": \"x\"}",
            "row 1 has no `answer`",
        ),
        (Format::Harbor, "", "there is no `task.toml` in it"),
    ] {
        write(&source, text);
        let from = if format == Format::Harbor {
            directory.path()
        } else {
            &source
        };
        let error = import::run(&Options::new(format, from, &out))
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let mut options = Options::new(Format::HumanEval, &source, &out);
    options.answer = Some("x".to_owned());
    let error = import::run(&options).unwrap_err().to_string();
    assert!(
        error.contains("`answer` is not an option of this format\nhint: it belongs to jsonl"),
        "{error}"
    );
    assert!(
        "harbour"
            .parse::<Format>()
            .unwrap_err()
            .contains("did you mean `harbor`?")
    );
    assert!(!out.exists(), "nothing was written");
}

const TEST_SH: &str = "#!/bin/bash\ncurl -LsSf https://example.com/install.sh | sh\nuvx --with pytest pytest /tests/test_state.py\nif [ $? -eq 0 ]; then echo 1 > /logs/verifier/reward.txt; fi\n";

/// A Harbor task: Dockerfile, test and solution.
fn harbor(root: &Path, name: &str, dockerfile: &str, test: &str, solve: &str) -> PathBuf {
    let task = root.join(name);
    write(
        &task.join("task.toml"),
        "version = \"1.0\"\n[metadata]\ndifficulty = \"easy\"\n[verifier]\ntimeout_sec = 10.0\n[environment]\ncpus = 1\nmemory_mb = 2048\n",
    );
    write(
        &task.join("instruction.md"),
        "<!-- canary 123 -->\nWrite what is asked into /app/out.txt, {{ literally }}.\n",
    );
    write(&task.join("environment/Dockerfile"), dockerfile);
    write(&task.join("environment/data/numbers.txt"), "1\n2\n3\n");
    write(&task.join("tests/test.sh"), TEST_SH);
    write(&task.join("tests/test_state.py"), test);
    write(&task.join("solution/solve.sh"), solve);
    task
}

#[tokio::test]
async fn harbor_tasks_are_imported_or_refused() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("tasks");
    let python = "FROM python:3.13-slim\nWORKDIR /app\n";
    let files = "import os\nfrom pathlib import Path\ndef test_exists():\n    assert Path('/app/out.txt').exists()\ndef test_sum():\n    assert open('/app/out.txt').read().strip() == str(sum(map(int, open('/app/data/numbers.txt').read().split())))\n";
    let function = "import sys\nsys.path.insert(0, '/app')\nfrom calc import add\ndef test_add():\n    assert add(1, 2) == 3\ndef test_more():\n    assert add([1], [2]) == [1, 2]\n";
    harbor(
        &root,
        "sum-numbers",
        &format!("{python}COPY data /app/data\n"),
        files,
        "#!/bin/bash\ncd /app\npython3 - <<'EOF'\ntotal = sum(map(int, open('/app/data/numbers.txt').read().split()))\nopen('/app/out.txt', 'w').write(str(total))\nEOF\n",
    );
    harbor(
        &root,
        "Add Function",
        python,
        function,
        "cat > /app/calc.py <<'EOF'\ndef add(a, b):\n    return a + b\nEOF\n",
    );
    let write_out = "echo 6 > /app/out.txt\n";
    harbor(
        &root,
        "needs-gcc",
        &format!("{python}RUN apt-get update && apt-get install -y gcc\n"),
        files,
        write_out,
    );
    harbor(&root, "other-image", "FROM postgres:17\n", files, write_out);
    harbor(
        &root,
        "processes",
        python,
        "import subprocess\ndef test_a(): pass\n",
        write_out,
    );
    harbor(&root, "shell", python, files, "sed -i s/a/b/ /app/x\n");
    let steps = harbor(&root, "steps", python, files, write_out);
    write(
        &steps.join("task.toml"),
        "version = \"1.0\"\n[[steps]]\nname = \"a\"\n[[steps]]\nname = \"b\"\n",
    );
    let compose = harbor(&root, "compose", python, files, write_out);
    write(&compose.join("environment/docker-compose.yaml"), "services: {}\n");
    let script = harbor(&root, "script", python, files, write_out);
    write(
        &script.join("tests/test.sh"),
        "diff /app/out.txt /tests/expected && echo 1 > /logs/verifier/reward.txt\n",
    );

    let out = directory.path().join("out");
    let report = import::run(&Options::new(Format::Harbor, &root, &out)).unwrap();
    assert_eq!(
        report.tasks,
        [out.join("add-function.yaml"), out.join("sum-numbers.yaml")]
    );
    for task in &report.tasks {
        passes_the_doctor(task).await;
    }
    let refused: Vec<(&str, &str)> = report
        .refused
        .iter()
        .map(|r| (r.task.as_str(), r.reason.as_str()))
        .collect();
    assert_eq!(
        refused,
        [
            ("compose", "docker-compose.yaml: it needs several containers"),
            ("needs-gcc", "it needs the package gcc"),
            ("other-image", "it needs the container image postgres:17"),
            ("processes", "its tests start processes"),
            ("script", "tests/test.sh does more than run pytest"),
            (
                "shell",
                "solve.sh: it runs `sed -i s/a/b/ /work/x`, which has no equivalent here"
            ),
            ("steps", "it has 2 steps; an episode here has one"),
        ]
    );
}
