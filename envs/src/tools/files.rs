//! The `files` tools: list, read, write and edit, never outside the episode directory and never through a link.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Longest file the tools read or write, in bytes.
pub(crate) const MAX_FILE_BYTES: u64 = 1 << 20;
/// Directories nested deeper are not listed: no task needs them, and a guest can make thousands.
const MAX_DEPTH: usize = 16;

/// A path that stays inside a directory.
///
/// # Errors
/// When it is empty, absolute, has `..`, or characters that no portable file name has.
pub(crate) fn relative(path: &str) -> Result<PathBuf, String> {
    let inside = Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let clean: PathBuf = Path::new(path).components().filter(|part| matches!(part, Component::Normal(_))).collect();
    if !inside || clean.as_os_str().is_empty() || path.contains(['\0', '\\']) || path.len() > 255 {
        return Err(format!("the path must stay inside the working directory; got {path:?}"));
    }
    Ok(clean)
}

/// The file `path` of `root`, refusing links on the way.
fn inside(root: &Path, path: &str) -> Result<PathBuf, String> {
    // The guest sees the directory as `/work`; agents write that too.
    let path = path.strip_prefix("/work/").unwrap_or(path);
    let mut full = root.to_owned();
    for part in relative(path)?.components() {
        full.push(part);
        match full.symlink_metadata() {
            Ok(meta) if meta.file_type().is_symlink() => return Err(format!("{path:?} is a link")),
            _ => {}
        }
    }
    Ok(full)
}

/// Text of a file.
///
/// # Errors
/// With the reason for the agent.
pub(crate) fn read(root: &Path, path: &str) -> Result<String, String> {
    let full = inside(root, path)?;
    let meta = full.symlink_metadata().map_err(|_| format!("no file {path:?}"))?;
    if !meta.is_file() {
        return Err(format!("{path:?} is not a file"));
    }
    if meta.len() > MAX_FILE_BYTES {
        return Err(format!("{path:?} has {} bytes; the limit is {MAX_FILE_BYTES}", meta.len()));
    }
    let bytes = std::fs::read(full).map_err(|error| reason(path, &error))?;
    String::from_utf8(bytes).map_err(|_| format!("{path:?} is not UTF-8 text"))
}

/// Writes a file within the directory's quota.
///
/// # Errors
/// With the reason for the agent.
pub(crate) fn write(root: &Path, path: &str, content: &[u8], quota: Quota) -> Result<(), String> {
    let full = inside(root, path)?;
    if content.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("{} bytes; the limit of a file is {MAX_FILE_BYTES}", content.len()));
    }
    let listing = walk(root).map_err(|error| reason(path, &error))?;
    let name = full.strip_prefix(root).map_err(|_| format!("{path:?} leaves the directory"))?.to_owned();
    let others: u64 = listing.iter().filter(|(other, _)| **other != name).map(|(_, size)| size).sum();
    if others + content.len() as u64 > quota.bytes || listing.len() >= quota.files && !listing.contains_key(&name) {
        return Err(format!("the directory is full ({} files, {} bytes)", quota.files, quota.bytes));
    }
    if let Some(parent) = full.parent() {
        std::fs::create_dir_all(parent).map_err(|error| reason(path, &error))?;
    }
    std::fs::write(full, content).map_err(|error| reason(path, &error))
}

/// Replaces the only occurrence of `old`.
///
/// # Errors
/// With the reason for the agent.
pub(crate) fn edit(root: &Path, path: &str, old: &str, new: &str, quota: Quota) -> Result<(), String> {
    let text = read(root, path)?;
    match text.matches(old).count() {
        _ if old.is_empty() => Err("`old` is empty".to_owned()),
        1 => write(root, path, text.replacen(old, new, 1).as_bytes(), quota),
        0 => Err(format!("`old` does not occur in {path:?}")),
        count => Err(format!("`old` occurs {count} times in {path:?}; it must be unique")),
    }
}

/// One line a file, sorted: path and bytes.
///
/// # Errors
/// With the reason for the agent.
pub(crate) fn list(root: &Path) -> Result<String, String> {
    let files = walk(root).map_err(|error| reason(".", &error))?;
    let lines: Vec<String> = files.iter().map(|(path, size)| format!("{} {size}", path.display())).collect();
    Ok(if lines.is_empty() { "(no files)".to_owned() } else { lines.join("\n") })
}

/// Every regular file with its content.
///
/// # Errors
/// When the directory cannot be read.
pub(crate) fn collect(root: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let files = walk(root)?;
    files
        .into_iter()
        .filter(|(_, size)| *size <= MAX_FILE_BYTES)
        .map(|(path, _)| Ok((path.to_string_lossy().into_owned(), std::fs::read(root.join(&path))?)))
        .collect()
}

/// Bytes and files a directory may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota {
    /// Bytes.
    pub bytes: u64,
    /// Files.
    pub files: usize,
}

/// Regular files by relative path, with sizes; links are not followed.
fn walk(root: &Path) -> io::Result<BTreeMap<PathBuf, u64>> {
    let mut found = BTreeMap::new();
    let mut open = vec![(root.to_owned(), 0)];
    while let Some((directory, depth)) = open.pop() {
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() && depth < MAX_DEPTH {
                open.push((entry.path(), depth + 1));
            } else if kind.is_file() {
                let path = entry.path();
                let name = path.strip_prefix(root).unwrap_or(&path).to_owned();
                found.insert(name, entry.metadata()?.len());
            }
        }
    }
    Ok(found)
}

/// What went wrong, without the host's path.
fn reason(path: &str, error: &io::Error) -> String {
    format!("{path:?}: {}", error.kind())
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUOTA: Quota = Quota { bytes: 100, files: 3 };

    #[test]
    fn paths_that_leave_are_refused() {
        for path in ["", ".", "/etc/passwd", "../x", "a/../../x", "a\\b", "a\0b", "/work/../x"] {
            assert!(inside(Path::new("/nowhere"), path).is_err(), "{path:?}");
        }
        for (path, expected) in [("a.py", "/n/a.py"), ("./a/b", "/n/a/b"), ("/work/a", "/n/a")] {
            assert_eq!(inside(Path::new("/n"), path).unwrap(), Path::new(expected));
        }
    }

    #[test]
    fn files_are_written_read_edited_and_listed() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(root, "pkg/a.py", b"x = 1\ny = 1\n", QUOTA).unwrap();
        edit(root, "pkg/a.py", "x = 1", "x = 2", QUOTA).unwrap();
        assert_eq!(read(root, "pkg/a.py").unwrap(), "x = 2\ny = 1\n");
        assert_eq!(edit(root, "pkg/a.py", "=", "==", QUOTA).unwrap_err(), "`old` occurs 2 times in \"pkg/a.py\"; it must be unique");
        assert_eq!(edit(root, "pkg/a.py", "z", "", QUOTA).unwrap_err(), "`old` does not occur in \"pkg/a.py\"");
        assert_eq!(list(root).unwrap(), "pkg/a.py 12");
        assert!(read(root, "pkg").is_err());
        assert!(read(root, "nothing").is_err());
    }

    #[test]
    fn the_quota_holds() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(root, "a", &[b'x'; 60], QUOTA).unwrap();
        assert!(write(root, "b", &[b'x'; 60], QUOTA).is_err());
        write(root, "a", &[b'x'; 100], QUOTA).unwrap();
        write(root, "a", b"", QUOTA).unwrap();
        write(root, "b", b"", QUOTA).unwrap();
        write(root, "c", b"", QUOTA).unwrap();
        assert!(write(root, "d", b"", QUOTA).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn links_are_not_followed() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        std::os::unix::fs::symlink(outside.path(), root.path().join("out")).unwrap();
        std::os::unix::fs::symlink(outside.path().join("secret"), root.path().join("s")).unwrap();
        for path in ["s", "out/secret"] {
            assert!(read(root.path(), path).unwrap_err().contains("is a link"));
            assert!(write(root.path(), path, b"", QUOTA).is_err());
        }
        assert_eq!(list(root.path()).unwrap(), "(no files)");
        assert!(collect(root.path()).unwrap().is_empty());
    }
}
