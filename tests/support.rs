//! Runs the binary.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The binary with its caches under the target directory, so that tests leave nothing in the user's home.
pub(crate) fn mipu(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mipu"));
    command
        .args(args)
        .current_dir(root())
        .env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"))
        .env_remove("RUST_LOG")
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs to the end.
pub(crate) fn run(args: &[&str]) -> Output {
    mipu(args).output().expect("the binary starts")
}

/// Runs to a success and returns standard output.
pub(crate) fn succeed(args: &[&str]) -> String {
    let output = run(args);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success(),
        "mipu {args:?} failed\nstdout: {out}\nstderr: {err}"
    );
    out
}

/// Runs to a success and reads the single JSON object on standard output.
pub(crate) fn succeed_json(args: &[&str]) -> serde_json::Value {
    let out = succeed(args);
    assert_eq!(
        out.trim().lines().count(),
        1,
        "exactly one line of JSON, got: {out}"
    );
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("not JSON ({e}): {out}"))
}

/// Runs to a failure and returns standard error.
pub(crate) fn fail(args: &[&str]) -> String {
    let output = run(args);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(
        !output.status.success(),
        "mipu {args:?} succeeded\nstdout: {out}\nstderr: {err}"
    );
    assert!(!err.contains("panicked"), "mipu {args:?} panicked: {err}");
    err
}

/// Bytes as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A small real run of the quick start: every part works, in a few seconds.
pub(crate) fn small_run(out: &Path, extra: &[&str]) -> Vec<String> {
    let mut args = vec!["train".to_owned(), "configs/quickstart.yaml".to_owned()];
    args.extend(["--out".to_owned(), out.display().to_string(), "--json".to_owned()]);
    let (flags, overrides): (Vec<&&str>, Vec<&&str>) = extra.iter().partition(|e| e.starts_with("--"));
    args.extend(flags.into_iter().map(|s| (*s).to_owned()));
    args.push("--".to_owned());
    args.extend(
        [
            "rollout.prompts=6",
            "rollout.group_size=4",
            "validation.prompts=4",
            "validation.group_size=4",
            "eval.prompts=8",
            "eval.every=0",
            "steps=4",
        ]
        .map(str::to_owned),
    );
    args.extend(overrides.into_iter().map(|s| (*s).to_owned()));
    args
}

/// Path of a file in the repository.
pub(crate) fn path(relative: &str) -> PathBuf {
    root().join(relative)
}

/// Borrows owned arguments.
pub(crate) fn borrow(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}
