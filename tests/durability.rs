//! A run killed at any moment and resumed is the run that was not killed.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::support::{borrow, fail, mipu, run, small_run, succeed, succeed_json, text};

fn ledger(dir: &Path) -> String {
    fs::read_to_string(dir.join("ledger.jsonl")).unwrap()
}

/// Hash the newest checkpoint's manifest records for the weights and the optimizer.
fn final_state(dir: &Path) -> (String, String) {
    let mut steps: Vec<_> = fs::read_dir(dir.join("checkpoints"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    steps.sort();
    let manifest: serde_json::Value = serde_json::from_slice(
        &fs::read(
            steps
                .iter()
                .rev()
                .find(|p| p.file_name().unwrap().to_str().unwrap().starts_with("step-"))
                .unwrap()
                .join("manifest.json"),
        )
        .unwrap(),
    )
    .unwrap();
    let hash = |file: &str| manifest["files"][file]["blake3"].as_str().unwrap().to_owned();
    (
        manifest["state"]["weights_hash"].as_str().unwrap().to_owned(),
        hash("optimizer.safetensors"),
    )
}

#[test]
fn a_run_killed_at_random_points_ends_as_if_it_had_not_been() {
    let home = tempfile::tempdir().unwrap();
    let (whole, killed) = (home.path().join("whole"), home.path().join("killed"));
    // Two weighted tasks under a curriculum: what was drawn and learned of each must survive too.
    let tasks = "tasks=[../tasks/calc.yaml, {path: ../tasks/fix-op.yaml, weight: 2}]";
    let changes = [
        "steps=6",
        tasks,
        "curriculum={floor: 0.2}",
        "validation.audit_every=1",
    ];
    let args = small_run(&whole, &changes);
    let expected = succeed_json(&borrow(&args));

    // Kill a real process with SIGKILL at points that differ from run to run; a failure prints them.
    let mut seed = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .subsec_nanos();
    let mut points = Vec::new();
    let args = small_run(&killed, &[&["--resume=auto"], &changes[..]].concat());
    for attempt in 0..8u64 {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Later attempts live longer, so that the kills land in different steps.
        let point = Duration::from_millis(150 + 120 * attempt + u64::from(seed % 400));
        points.push(point);
        let mut child = mipu(&borrow(&args)).spawn().unwrap();
        sleep(point);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let output = run(&borrow(&args));
    assert!(
        output.status.success(),
        "after kills at {points:?}: {}",
        text(&output.stderr)
    );
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();

    assert_eq!(ledger(&whole), ledger(&killed), "kills at {points:?}");
    assert_eq!(final_state(&whole), final_state(&killed), "kills at {points:?}");
    for key in ["weights_hash", "ledger_head", "accepted", "rejected", "eval"] {
        assert_eq!(expected[key], found[key], "`{key}`, kills at {points:?}");
    }
    succeed(&["ledger", "verify", killed.to_str().unwrap()]);
    for key in [
        "curriculum/calc/pass_rate",
        "curriculum/fix-op/share",
        "task/fix-op/reward",
        "gate/audit_rank_correlation",
    ] {
        assert!(ledger(&whole).contains(key), "`{key}`");
    }
}

#[test]
fn ctrl_c_stops_cleanly_and_the_run_goes_on_from_there() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("run");
    let args = small_run(&out, &["--resume=auto", "steps=40"]);
    let child = mipu(&borrow(&args)).spawn().unwrap();
    let started = std::time::Instant::now();
    while !out.join("checkpoints/step-000001").exists() {
        assert!(
            started.elapsed() < Duration::from_secs(120),
            "no checkpoint was written"
        );
        sleep(Duration::from_millis(20));
    }
    // SIGINT to the child alone, as a terminal would send it.
    let status = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(status.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).contains("--resume auto"),
        "{}",
        text(&output.stderr)
    );
    succeed(&["ledger", "verify", out.to_str().unwrap()]);
    let before = fs::read_to_string(out.join("ledger.jsonl")).unwrap();
    let steps = before.lines().count() + 2;
    let args = small_run(&out, &["--resume=auto", "steps=40"]);
    let child = mipu(&borrow(&args)).spawn().unwrap();
    let started = std::time::Instant::now();
    while ledger(&out).lines().count() < steps {
        assert!(
            started.elapsed() < Duration::from_secs(120),
            "the resumed run does not go on"
        );
        sleep(Duration::from_millis(20));
    }
    std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    child.wait_with_output().unwrap();
    assert!(ledger(&out).starts_with(&before), "a resumed run only appends");
}

#[test]
fn a_damaged_checkpoint_is_passed_over_and_the_ledger_still_agrees() {
    let home = tempfile::tempdir().unwrap();
    let (whole, damaged) = (home.path().join("whole"), home.path().join("damaged"));
    // Groups of two have no spread half of the time, so that replacing them has work to do.
    let changes = ["steps=5", "preset=dapo", "rollout.group_size=2"];
    succeed_json(&borrow(&small_run(&whole, &changes)));
    succeed_json(&borrow(&small_run(&damaged, &changes)));
    fs::remove_file(damaged.join("finished")).unwrap();
    let weights = damaged.join("checkpoints/step-000005/model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    fs::write(&weights, &bytes[..bytes.len() - 100]).unwrap();
    let output = run(&borrow(&small_run(
        &damaged,
        &[&["--resume=auto"], &changes[..]].concat(),
    )));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).contains("passing over"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(ledger(&whole), ledger(&damaged));
    let resampled =
        |line: &str| line.contains("\"group/resampled\":") && !line.contains("\"group/resampled\":0.0");
    assert!(ledger(&whole).lines().any(resampled), "no group was replaced");
}

#[test]
fn an_altered_ledger_is_found_out() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("run");
    succeed_json(&borrow(&small_run(&out, &["steps=2"])));
    let path = out.join("ledger.jsonl");
    let altered = ledger(&out).replacen("\"seed\":0", "\"seed\":7", 1);
    assert_ne!(altered, ledger(&out), "the test must alter something");
    fs::write(&path, altered).unwrap();
    let error = fail(&["ledger", "verify", out.to_str().unwrap()]);
    assert!(error.contains("line 1"), "{error}");
}

#[test]
fn another_configuration_does_not_continue_a_run() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("run");
    succeed_json(&borrow(&small_run(&out, &["steps=2"])));
    let error = fail(&borrow(&small_run(
        &out,
        &["--resume=auto", "steps=2", "optimizer.lr=1e-5"],
    )));
    assert!(
        error.contains("another configuration") && error.contains("hint:"),
        "{error}"
    );
    let error = fail(&borrow(&small_run(&out, &["steps=2"])));
    assert!(error.contains("already holds a run"), "{error}");
}
