//! Switching the algorithm in the configuration switches what happens.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::{borrow, run, small_run, succeed, succeed_json, text};

fn steps(dir: &Path) -> Vec<Value> {
    let ledger = fs::read_to_string(dir.join("ledger.jsonl")).unwrap();
    ledger
        .lines()
        .map(|l| serde_json::from_str::<Value>(l).unwrap())
        .filter_map(|line| line["entry"].get("step").cloned())
        .collect()
}

#[test]
fn the_gate_accepts_or_rolls_back_as_configured() {
    let home = tempfile::tempdir().unwrap();
    let always = home.path().join("always");
    let summary = succeed_json(&borrow(&small_run(
        &always,
        &["algorithm.gate={random: {reject_rate: 1.0}}", "steps=3"],
    )));
    assert_eq!(
        (summary["accepted"].as_u64(), summary["rejected"].as_u64()),
        (Some(0), Some(3))
    );
    for step in steps(&always) {
        let decision = &step["decision"];
        assert_eq!(decision["accepted"], false);
        assert_eq!(
            decision["hash_after"], decision["hash_before"],
            "a rollback restores the weights"
        );
        assert_ne!(
            decision["hash_candidate"], decision["hash_before"],
            "the update did something"
        );
    }
    let hashes: Vec<_> = steps(&always)
        .iter()
        .map(|s| s["decision"]["hash_candidate"].clone())
        .collect();
    assert_ne!(hashes[0], hashes[1], "a rejected batch must not replay");

    // Optimizer moments, packed sampler and schedule too: nothing moved in three rejected steps.
    let states: Vec<_> = steps(&always).iter().map(|s| s["hashes"].clone()).collect();
    assert_eq!(states[0]["schedule_step"], "0");
    assert!(
        states[0]["optimizer"].is_string() && states[0]["sampler"].is_string(),
        "{states:?}"
    );
    assert!(states.iter().all(|s| s == &states[0]), "{states:?}");

    let never = home.path().join("never");
    let summary = succeed_json(&borrow(&small_run(&never, &["algorithm.gate=never", "steps=3"])));
    assert_eq!(
        (summary["accepted"].as_u64(), summary["rejected"].as_u64()),
        (Some(3), Some(0))
    );
    for step in steps(&never) {
        assert_eq!(step["decision"]["hash_after"], step["decision"]["hash_candidate"]);
        assert_eq!(
            step["decision"]["n_episodes"], 0,
            "a gate that is off samples nothing"
        );
    }
}

#[test]
fn the_correction_changes_the_update_and_nothing_before_it() {
    let home = tempfile::tempdir().unwrap();
    let first = |name: &str, correction: &str| {
        let out = home.path().join(name);
        let correction = format!("algorithm.correction={correction}");
        succeed_json(&borrow(&small_run(
            &out,
            &[&correction, "algorithm.gate=never", "steps=1"],
        )));
        steps(&out)[0]["decision"].clone()
    };
    let names = [
        ("none", "none"),
        ("ppo_is", "ppo_is"),
        ("vanilla_is", "vanilla_is"),
        ("tis", "{tis: {w_max: 2.0}}"),
        ("mis", "{mis: {w_max: 1.0}}"),
    ];
    let decisions: Vec<_> = names
        .iter()
        .map(|(name, yaml)| (name, first(name, yaml)))
        .collect();
    for (name, decision) in &decisions {
        assert_eq!(decision["hash_before"], decisions[0].1["hash_before"], "{name}");
    }
    let hash = |name: &str| &decisions.iter().find(|(n, _)| **n == name).unwrap().1["hash_candidate"];
    assert_ne!(hash("none"), hash("vanilla_is"));
    assert_ne!(hash("none"), hash("ppo_is"));
    assert_ne!(hash("mis"), hash("tis"));
}

#[test]
fn a_seed_is_a_run() {
    let home = tempfile::tempdir().unwrap();
    let ledger = |name: &str, extra: &[&str]| {
        let out = home.path().join(name);
        succeed_json(&borrow(&small_run(&out, extra)));
        fs::read_to_string(out.join("ledger.jsonl")).unwrap()
    };
    let one = ledger("one", &["steps=2", "rollout.concurrency=1", "sampler.threads=1"]);
    let many = ledger("many", &["steps=2", "rollout.concurrency=64"]);
    assert_eq!(
        one, many,
        "the same seed gives the same bytes at any number of workers"
    );
    let other = ledger("other", &["steps=2", "seed=1"]);
    assert_ne!(one, other);
}

#[test]
fn a_dry_run_explains_and_writes_nothing() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("run");
    let mut args = small_run(&out, &["--dry-run"]);
    args.retain(|a| a != "--json");
    let told = succeed(&borrow(&args));
    for part in [
        "6 prompts x 4 = 24 episodes",
        "memory",
        "gate",
        "correction",
        "dry run",
    ] {
        assert!(told.contains(part), "`{part}` is missing in:\n{told}");
    }
    assert!(!out.exists());
}

#[test]
fn a_run_shows_its_arithmetic_and_a_line_a_step_when_not_on_a_terminal() {
    let home = tempfile::tempdir().unwrap();
    let output = run(&borrow(&small_run(&home.path().join("run"), &["steps=2"])));
    let told = text(&output.stderr);
    assert!(told.contains("6 prompts x 4 = 24 episodes"), "{told}");
    assert!(
        told.contains("step    1/2") && told.contains("step    2/2"),
        "{told}"
    );
    assert!(told.contains("J(mu) after step 0"), "{told}");
}
