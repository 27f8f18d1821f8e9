//! The cache of compiled guests: damaged, foreign and unwritable.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use mipu_sandbox::{Policy, Sandbox, SandboxOptions};

use crate::{cache_dir, sandbox};

fn compiled(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("the directory is there");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "cwasm"));
    files.sort();
    files
}

fn good_file() -> PathBuf {
    let _ = sandbox(); // fills the shared cache
    let is_plain = |path: &PathBuf| path.to_string_lossy().contains("python-deadline-");
    let newest = compiled(&cache_dir())
        .into_iter()
        .filter(is_plain)
        .max_by_key(|path| {
            fs::metadata(path)
                .and_then(|meta| meta.modified())
                .expect("it has a time")
        });
    newest.expect("the shared cache has a guest")
}

/// Opens a sandbox on `dir`; tells whether it compiled.
fn open(dir: &Path) -> (Sandbox, bool) {
    let lines = std::sync::Arc::new(Mutex::new(Vec::new()));
    let told = std::sync::Arc::clone(&lines);
    let on_progress: mipu_sandbox::Progress =
        Box::new(move |line: &str| told.lock().expect("not poisoned").push(line.to_owned()));
    let options = SandboxOptions {
        cache_dir: Some(dir.to_owned()),
        on_progress: Some(on_progress),
    };
    let sandbox = Sandbox::open(options).expect("it opens");
    let compiled = lines
        .lock()
        .expect("not poisoned")
        .iter()
        .any(|line| line.starts_with("compiling"));
    (sandbox, compiled)
}

async fn works(sandbox: &Sandbox) {
    let outcome = sandbox
        .run("print(1 + 1)", b"", &Policy::default(), 1)
        .await
        .expect("the host is well");
    assert_eq!(outcome.stdout, "2\n");
}

#[tokio::test]
async fn damaged_and_foreign_files_are_dropped_and_a_sound_one_is_used() {
    let good = good_file();
    let name = good.file_name().unwrap().to_str().unwrap().to_owned();
    let (key, hash) = name.strip_suffix(".cwasm").unwrap().split_once('.').unwrap();
    let code = fs::read(&good).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let put = |hash: &str, content: &[u8]| {
        fs::write(dir.path().join(format!("{key}.{hash}.cwasm")), content).unwrap()
    };
    let mut flipped = code.clone();
    flipped[code.len() / 2] ^= 1;
    put(&"0".repeat(64), &code[..code.len() / 2]); // truncated
    put(&"1".repeat(64), &flipped); // damaged
    put(&"2".repeat(64), b""); // empty
    put(blake3::hash(b"foreign").to_hex().as_str(), b"foreign"); // its hash is right, it is not a guest
    put(hash, &code);
    let (sandbox, compiled_again) = open(dir.path());
    assert!(!compiled_again);
    works(&sandbox).await;
    let left = compiled(dir.path());
    assert!(left.contains(&dir.path().join(&name)), "{left:?}");
}

#[tokio::test]
async fn a_damaged_cache_is_rebuilt_once_by_two_that_open_it_together() {
    let good = good_file();
    let code = fs::read(&good).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let name = good.file_name().unwrap();
    fs::write(dir.path().join(name), &code[..code.len() - 1]).unwrap();
    let opened = std::thread::scope(|scope| {
        let both: Vec<_> = (0..2).map(|_| scope.spawn(|| open(dir.path()))).collect();
        both.into_iter()
            .map(|thread| thread.join().unwrap())
            .collect::<Vec<_>>()
    });
    assert_eq!(
        opened
            .iter()
            .filter(|(_, compiled_again)| *compiled_again)
            .count(),
        1
    );
    for (sandbox, _) in &opened {
        works(sandbox).await;
    }
    let left = compiled(dir.path());
    assert_eq!(left.len(), 1);
    let hash = blake3::hash(&fs::read(&left[0]).unwrap()).to_hex().to_string();
    assert!(left[0].to_string_lossy().contains(&hash));
    let (again, compiled_again) = open(dir.path());
    assert!(!compiled_again);
    works(&again).await;
}

#[tokio::test]
async fn an_unwritable_cache_is_only_slow() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("not-a-directory");
    fs::write(&file, b"x").unwrap();
    let (sandbox, compiled_again) = open(&file.join("guests"));
    assert!(compiled_again);
    works(&sandbox).await;
}
