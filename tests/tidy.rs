//! The shape of the workspace.

use std::fs;

use crate::support::{path, root};

/// `sandbox <- envs <- agent <- trainer <- mipu-gym`: a crate imports only what stands left of it.
#[test]
fn crates_import_only_downwards() {
    let order = ["sandbox", "envs", "agent", "trainer"];
    for (i, package) in order.iter().enumerate() {
        let manifest = fs::read_to_string(path(package).join("Cargo.toml")).unwrap();
        for (j, other) in order.iter().enumerate() {
            let imports = manifest.lines().any(|l| l.starts_with(&format!("mipu-{other}")));
            assert!(
                !imports || j < i,
                "mipu-{package} must not depend on mipu-{other}"
            );
        }
        assert!(
            !manifest.contains("mipu-gym"),
            "mipu-{package} must not depend on the command line"
        );
        assert!(!manifest.contains("clap"), "mipu-{package} knows no command line");
    }
    let envs = fs::read_to_string(path("envs/Cargo.toml")).unwrap();
    assert!(!envs.contains("candle"), "envs knows no model");
    let agent = fs::read_to_string(path("agent/Cargo.toml")).unwrap();
    assert!(!agent.contains("candle-nn"), "agent knows no gradient");
}

#[test]
fn the_readme_opens_with_the_two_commands() {
    let readme = fs::read_to_string(path("README.md")).unwrap();
    let first: Vec<&str> = readme
        .split("```")
        .nth(1)
        .unwrap()
        .lines()
        .skip(1)
        .filter(|l| !l.trim().is_empty())
        .collect();
    assert_eq!(first.len(), 2, "exactly two set-up commands: {first:?}");
    assert!(
        first[0].starts_with("cargo run --release -- train configs/quickstart.yaml"),
        "{first:?}"
    );
    let ci = fs::read_to_string(path(".ci/run")).unwrap();
    let test = first[1].split('#').next().unwrap().trim();
    assert!(
        ci.contains(test),
        "`.ci/run` must call the README's test command `{test}`"
    );
}

#[test]
fn every_package_is_a_default_member() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let line = manifest
        .lines()
        .find(|l| l.starts_with("default-members"))
        .unwrap();
    for package in [".", "sandbox", "envs", "agent", "trainer"] {
        assert!(
            line.contains(&format!("\"{package}\"")),
            "a bare `cargo test` would leave out {package}"
        );
    }
}
