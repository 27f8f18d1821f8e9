//! Every configuration in the repository loads; broken ones end in errors that say what to do.

use std::fs;
use std::path::PathBuf;

use crate::support::{fail, path, run, succeed, text};

fn files(dir: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(path(dir))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "yaml"))
        .collect();
    files.sort();
    files
}

#[test]
fn every_training_configuration_passes_a_dry_run() {
    let mut checked = 0;
    for file in files("configs") {
        let text = fs::read_to_string(&file).unwrap();
        if text.contains("\nrollout:") {
            let out = succeed(&["train", file.to_str().unwrap(), "--dry-run"]);
            assert!(out.contains("episodes"), "{out}");
            checked += 1;
        }
    }
    assert!(checked > 0, "no training configuration was found");
}

#[test]
fn every_task_passes_the_doctor() {
    let tasks = files("tasks");
    assert!(tasks.len() >= 2);
    let mut args = vec!["task", "check", "--rows", "2"];
    args.extend(tasks.iter().map(|p| p.to_str().unwrap()));
    succeed(&args);
}

/// The error of a configuration with `change` made to the quick start, its path shortened.
fn broken(from: &str, to: &str) -> String {
    let dir = tempfile::tempdir_in(path("configs")).unwrap();
    let good = fs::read_to_string(path("configs/quickstart.yaml")).unwrap();
    let good = good
        .replace("model: base-tiny", "model: ../base-tiny")
        .replace("../tasks/", "../../tasks/");
    let bad = good.replacen(from, to, 1);
    assert_ne!(good, bad, "`{from}` is not in the quick start");
    let file = dir.path().join("run.yaml");
    fs::write(&file, bad).unwrap();
    let error = fail(&["train", file.to_str().unwrap(), "--dry-run"]);
    error.replace(dir.path().to_str().unwrap(), "DIR")
}

#[test]
fn ten_malformed_configurations_give_ten_useful_errors() {
    let cases = [
        ("an unknown key", "steps: 60", "stepz: 60"),
        ("a misspelt section", "rollout:\n", "rolout:\n"),
        ("a word for a number", "steps: 60", "steps: forty"),
        ("zero steps", "steps: 60", "steps: 0"),
        ("a negative temperature", "temperature: 1.0", "temperature: -1"),
        ("an unknown gate", "    mipu: ", "    mippu: "),
        ("an unknown number format", "weights: fp8", "weights: fp9"),
        ("a broken indentation", "  prompts: 24 ", " - prompts: 24 "),
        (
            "a missing task file",
            "../../tasks/calc.yaml",
            "../../tasks/clac.yaml",
        ),
        ("a group of one", "group_size: 8  ", "group_size: 1  "),
        ("a missing model", "../base-tiny", "../base-tinny"),
    ];
    let mut told = String::new();
    for (name, from, to) in cases {
        told.push_str(&format!("## {name}\n{}\n\n", broken(from, to).trim_end()));
    }
    insta::assert_snapshot!(told);
}

#[test]
fn bad_overrides_are_explained() {
    let dry = |item: &str| {
        let output = run(&["train", "configs/quickstart.yaml", "--dry-run", "--", item]);
        assert!(!output.status.success(), "{item}");
        text(&output.stderr)
    };
    let mut told = String::new();
    for item in ["steps", "rollout.promts=3", "rollout.group_size=many", "=3"] {
        told.push_str(&format!("## {item}\n{}\n\n", dry(item).trim_end()));
    }
    insta::assert_snapshot!(told);
}

#[test]
fn the_committed_model_is_the_one_its_readme_names() {
    let info: serde_json::Value =
        serde_json::from_str(&succeed(&["model", "info", "configs/base-tiny", "--json"])).unwrap();
    let readme = fs::read_to_string(path("configs/base-tiny/README.md")).unwrap();
    let hash = info["weights_hash"].as_str().unwrap();
    assert!(
        readme.contains(hash),
        "configs/base-tiny/README.md does not name {hash}"
    );
}

#[test]
fn the_help_teaches() {
    let help = succeed(&["--help"]);
    for command in [
        "train", "eval", "rollout", "sft", "report", "task", "ledger", "model", "bench",
    ] {
        assert!(help.contains(command), "{help}");
    }
    assert!(succeed(&["train", "--help"]).contains("--resume auto"));
}
