//! `--json`: one object with documented keys on standard output.

use crate::support::{borrow, fail, small_run, succeed, succeed_json};

fn has(value: &serde_json::Value, keys: &[&str]) {
    for key in keys {
        assert!(!value[key].is_null(), "`{key}` is missing in {value}");
    }
}

#[test]
fn train_report_and_ledger() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("run");
    let summary = succeed_json(&borrow(&small_run(&out, &["steps=2"])));
    has(
        &summary,
        &["run", "accepted", "rejected", "wall_s", "weights_hash"],
    );
    has(&summary["eval"], &["mu_before", "mu_after"]);
    for file in [
        "config.yaml",
        "metrics.jsonl",
        "ledger.jsonl",
        "report.html",
        "trajectories",
        "checkpoints",
    ] {
        assert!(out.join(file).exists(), "{file} is missing");
    }
    let directory = out.to_str().unwrap();
    has(&succeed_json(&["report", directory, "--json"]), &["report"]);
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(
        page.contains("<svg") && !page.contains("src=\"http"),
        "the report is one self-contained page"
    );
    has(
        &succeed_json(&["ledger", "verify", directory, "--json"]),
        &["entries", "head"],
    );

    // A checkpoint is a model directory.
    let model = out.join("checkpoints/step-000002");
    let model = model.to_str().unwrap();
    let report = succeed_json(&["eval", "-m", model, "-t", "tasks/calc.yaml", "-n", "8", "--json"]);
    has(
        &report,
        &[
            "mean_return",
            "interval",
            "pass_at_1",
            "episodes",
            "by_task",
            "stop",
        ],
    );
    assert_eq!(report["episodes"], 16);
    has(
        &succeed_json(&["model", "info", model, "--json"]),
        &["parameters"],
    );

    let episodes = home.path().join("episodes.jsonl");
    let rollout = succeed_json(&[
        "rollout",
        "-m",
        model,
        "-t",
        "tasks/calc.yaml",
        "-n",
        "2",
        "-k",
        "3",
        "--out",
        episodes.to_str().unwrap(),
        "--json",
    ]);
    assert_eq!(rollout["episodes"], 6);
    assert_eq!(std::fs::read_to_string(&episodes).unwrap().lines().count(), 6);
}

#[test]
fn task_check_and_show() {
    let checked = succeed_json(&["task", "check", "tasks/calc.yaml", "--rows", "2", "--json"]);
    has(&checked, &["ok", "reports"]);
    assert_eq!(checked["ok"], true);
    let shown = succeed_json(&[
        "task",
        "show",
        "tasks/calc.yaml",
        "-m",
        "configs/base-tiny",
        "--json",
    ]);
    has(&shown, &["id", "messages", "tokens", "return"]);
    let (ids, mask) = (&shown["tokens"]["ids"], &shown["tokens"]["loss_mask"]);
    assert_eq!(ids.as_array().unwrap().len(), mask.as_array().unwrap().len());
    assert_eq!(
        shown["return"], 1.0,
        "the reference solution earns the full reward"
    );
}

#[test]
fn a_new_task_passes_its_own_check_and_is_never_overwritten() {
    let home = tempfile::tempdir().unwrap();
    for kind in ["tool", "code", "repo", "world", "search", "chat-user", "python"] {
        let path = home.path().join(format!("{kind}.yaml"));
        let path = path.to_str().unwrap();
        succeed(&["task", "new", path, "--kind", kind]);
        succeed(&["task", "check", path, "--rows", "2"]);
        let error = fail(&["task", "new", path, "--kind", kind]);
        assert!(error.contains("exists"), "{error}");
    }
}

#[test]
fn the_task_in_the_readme_passes_its_check() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("task.yaml");
    let readme = std::fs::read_to_string(crate::support::path("README.md")).unwrap();
    let yaml = readme
        .split("```yaml")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    std::fs::write(&file, yaml).unwrap();
    let checked = succeed_json(&["task", "check", file.to_str().unwrap(), "--json"]);
    assert_eq!(checked["ok"], true, "{checked}");
    let findings = checked["reports"][0]["findings"].as_array().unwrap();
    assert!(findings.is_empty(), "{findings:?}");
}

#[test]
fn benches_name_their_figures_with_units() {
    let sandbox = succeed_json(&["bench", "sandbox", "--runs", "5", "--json"]);
    has(&sandbox["fresh_execution_ms"], &["median"]);
    let home = tempfile::tempdir().unwrap();
    let page = home.path().join("mismatch.html");
    let mismatch = succeed_json(&[
        "bench",
        "mismatch",
        "-m",
        "configs/base-tiny",
        "-t",
        "tasks/calc.yaml",
        "-n",
        "8",
        "--out",
        page.to_str().unwrap(),
        "--json",
    ]);
    has(&mismatch, &["page", "ladder"]);
    assert!(std::fs::read_to_string(page).unwrap().contains("<svg"));
}
