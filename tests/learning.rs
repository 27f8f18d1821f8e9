//! The one slow test: a real, shortened run of the quick start must learn.

use crate::support::succeed_json;

#[test]
fn a_dozen_steps_of_the_quick_start_raise_the_held_out_reward() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("run");
    let summary = succeed_json(&[
        "train",
        "configs/quickstart.yaml",
        "--out",
        out.to_str().unwrap(),
        "--json",
        "--",
        "steps=12",
        "eval.every=0",
    ]);
    let (before, after) = (
        summary["eval"]["mu_before"].as_f64().unwrap(),
        summary["eval"]["mu_after"].as_f64().unwrap(),
    );
    // Over 256 episodes a standard error is about 0.03: 0.15 is out of chance's reach, and full runs gain 0.4.
    assert!(
        before < 0.65,
        "the starting point has something to learn: {before}"
    );
    assert!(after > before + 0.15, "J(mu) {before} -> {after}");
}
