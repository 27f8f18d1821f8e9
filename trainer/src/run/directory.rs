//! Where a run keeps its files, and which run `--resume` means.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use super::RunError;

/// File whose presence tells that a run reached its last step.
const FINISHED: &str = "finished";

/// What `--resume` asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Resume {
    /// Start a new run.
    #[default]
    Never,
    /// Continue the newest unfinished run of this configuration, else start a new one.
    Auto,
    /// Continue the newest run of this configuration.
    Latest,
    /// Continue the run in this directory.
    Path(PathBuf),
}

impl From<&str> for Resume {
    fn from(text: &str) -> Self {
        match text {
            "auto" => Self::Auto,
            "latest" => Self::Latest,
            "never" => Self::Never,
            path => Self::Path(path.into()),
        }
    }
}

/// A run directory that this process holds the lock of.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    _lock: File,
}

impl RunDirectory {
    /// Opens the directory that `resume`, `out` and `name` select below `root`, creating it when a new run starts.
    ///
    /// # Errors
    /// When another process works in it, nothing is there to resume, or `out` holds a run that was not asked to be resumed.
    pub fn select(root: &Path, name: &str, out: Option<&Path>, resume: &Resume) -> Result<Self, RunError> {
        if let Resume::Path(path) = resume {
            if !path.is_dir() {
                return Err(RunError::NothingToResume {
                    what: path.display().to_string(),
                });
            }
            return Self::open(path);
        }
        if let Some(out) = out {
            let used = out.join("config.yaml").exists();
            return match resume {
                Resume::Never if used => Err(RunError::DirectoryInUse { path: out.to_owned() }),
                Resume::Latest if !used => Err(RunError::NothingToResume {
                    what: out.display().to_string(),
                }),
                _ => Self::open(out),
            };
        }
        let runs = numbered(root, name)?;
        match (resume, runs.last()) {
            (Resume::Auto, Some((_, path))) if !path.join(FINISHED).exists() => Self::open(path),
            (Resume::Latest, Some((_, path))) => Self::open(path),
            (Resume::Latest, None) => Err(RunError::NothingToResume {
                what: format!("{}-*", root.join(name).display()),
            }),
            (_, last) => {
                let mut number = last.map_or(1, |(n, _)| n + 1);
                // Another process may take the number between the listing and the creation.
                loop {
                    let path = root.join(format!("{name}-{number:03}"));
                    fs::create_dir_all(root).map_err(RunError::io(root))?;
                    match fs::create_dir(&path) {
                        Ok(()) => return Self::open(&path),
                        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
                        Err(e) => return Err(RunError::io(&path)(e)),
                    }
                }
            }
        }
    }

    fn open(path: &Path) -> Result<Self, RunError> {
        fs::create_dir_all(path).map_err(RunError::io(path))?;
        let file = path.join(".lock");
        let lock = File::create(&file).map_err(RunError::io(&file))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                path: path.to_owned(),
                _lock: lock,
            }),
            Err(TryLockError::WouldBlock) => Err(RunError::Locked {
                path: path.to_owned(),
            }),
            Err(TryLockError::Error(e)) => Err(RunError::io(&file)(e)),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `checkpoints/`.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// `trajectories/<kind>-<step>.jsonl`.
    pub fn trajectories(&self, kind: &str, step: u64) -> PathBuf {
        self.path
            .join("trajectories")
            .join(format!("{kind}-{step:06}.jsonl"))
    }

    /// True when the run reached its last step.
    pub fn is_finished(&self) -> bool {
        self.path.join(FINISHED).exists()
    }

    /// Marks the run as complete.
    ///
    /// # Errors
    /// When the mark cannot be written.
    pub fn finish(&self) -> Result<(), RunError> {
        let path = self.path.join(FINISHED);
        fs::write(&path, "").map_err(RunError::io(&path))
    }
}

/// `<root>/<name>-<number>` directories by number.
fn numbered(root: &Path, name: &str) -> Result<Vec<(u64, PathBuf)>, RunError> {
    let entries = match fs::read_dir(root) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(RunError::io(root)(e)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(RunError::io(root))?;
        let file_name = entry.file_name();
        let number = file_name
            .to_str()
            .and_then(|f| f.strip_prefix(name)?.strip_prefix('-'))
            .and_then(|n| n.parse().ok());
        if let Some(number) = number {
            found.push((number, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(root: &Path, resume: Resume) -> Result<RunDirectory, RunError> {
        RunDirectory::select(root, "quick", None, &resume)
    }

    #[test]
    fn new_runs_are_numbered_and_unfinished_ones_found_again() {
        let root = tempfile::tempdir().unwrap();
        let first = select(root.path(), Resume::Never).unwrap();
        assert!(first.path().ends_with("quick-001"));
        drop(first);
        let again = select(root.path(), Resume::Auto).unwrap();
        assert!(again.path().ends_with("quick-001"));
        again.finish().unwrap();
        drop(again);
        assert!(
            select(root.path(), Resume::Auto)
                .unwrap()
                .path()
                .ends_with("quick-002")
        );
        assert!(
            select(root.path(), Resume::Latest)
                .unwrap()
                .path()
                .ends_with("quick-002")
        );
    }

    #[test]
    fn a_directory_in_use_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let held = select(root.path(), Resume::Never).unwrap();
        let error = select(root.path(), Resume::Auto).unwrap_err();
        assert!(matches!(error, RunError::Locked { .. }), "{error}");
        drop(held);
    }

    #[test]
    fn nothing_to_resume_is_an_error_with_a_hint() {
        let root = tempfile::tempdir().unwrap();
        let error = select(root.path(), Resume::Latest).unwrap_err().to_string();
        assert!(error.contains("hint:"), "{error}");
    }
}
