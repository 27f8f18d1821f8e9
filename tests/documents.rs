//! The documents say what the program does.

use std::fs;
use std::path::Path;

use crate::support::{path, succeed, succeed_json};

/// A generated file is what its command prints now.
fn is_generated(file: &str, command: &[&str]) {
    let printed = succeed(command);
    let committed = fs::read_to_string(path(file)).unwrap_or_default();
    assert!(
        committed == printed,
        "{file} is out of date; write it again: mipu {} > {file}",
        command.join(" ")
    );
}

#[test]
fn the_reference_and_the_schema_are_those_of_the_code() {
    is_generated("docs/task-reference.md", &["task", "schema", "--markdown"]);
    is_generated("docs/task.schema.json", &["task", "schema"]);
}

#[test]
fn the_guide_shows_every_file_to_start_from() {
    let guide = fs::read_to_string(path("docs/tasks.md")).unwrap();
    let mut shown = 0;
    for entry in fs::read_dir(path("src/templates")).unwrap() {
        let file = entry.unwrap().path();
        let yaml = fs::read_to_string(&file).unwrap();
        assert!(
            guide.contains(&format!("```yaml\n{yaml}```")),
            "docs/tasks.md does not show {} as it is",
            file.display()
        );
        shown += 1;
    }
    assert!(shown >= 7, "{shown} kinds");
}

/// Writes the files of a document, the blocks that follow a line such as "`clock.yaml`:", into `home`; returns how many.
fn write_files(document: &str, home: &Path) -> usize {
    let mut written = 0;
    for (before, block) in document
        .split("```yaml\n")
        .zip(document.split("```yaml\n").skip(1))
    {
        let Some(name) = before
            .trim_end()
            .lines()
            .last()
            .and_then(|line| line.strip_prefix('`')?.strip_suffix("`:"))
        else {
            continue;
        };
        fs::write(home.join(name), block.split("```").next().unwrap()).unwrap();
        written += 1;
    }
    written
}

#[test]
fn the_files_of_the_tutorial_load_and_its_task_passes_the_check() {
    let home = tempfile::tempdir().unwrap();
    let tutorial = fs::read_to_string(path("docs/tutorial.md")).unwrap();
    assert_eq!(write_files(&tutorial, home.path()), 3);
    let base = home.path().join("base-tiny");
    fs::create_dir(&base).unwrap();
    for entry in fs::read_dir(path("configs/base-tiny")).unwrap() {
        let file = entry.unwrap().path();
        fs::copy(&file, base.join(file.file_name().unwrap())).unwrap();
    }
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let checked = succeed_json(&["task", "check", &at("clock.yaml"), "--rows", "16", "--json"]);
    assert_eq!(checked["ok"], true, "{checked}");
    let warm = at("clock-base");
    let cloned = succeed_json(&[
        "sft",
        &at("warm.yaml"),
        "--out",
        &warm,
        "--json",
        "--",
        "steps=1",
        "batch=4",
        "eval.prompts=2",
    ]);
    assert!(cloned["loss"].as_f64().unwrap().is_finite(), "{cloned}");
    let plan = succeed(&["train", &at("run.yaml"), "--dry-run"]);
    assert!(plan.contains("192 episodes"), "{plan}");
}
