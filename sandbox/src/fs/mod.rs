//! The files of one episode. They live in memory, never on the host's disk: quotas are exact, times are virtual, listings are
//! sorted, no path or link can lead out, and nothing is left behind when an episode ends in any way.

mod stream;
mod tree;
mod wasi;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use wasmtime_wasi::p2::bindings::filesystem::types::ErrorCode;

use crate::clock::Clock;
pub(crate) use tree::Quota;
use tree::{Content, NodeId, Tree};
pub(crate) use wasi::{FilesView, HasFiles};

/// A file of an episode, as [`Files::list`] tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileEntry {
    /// Path below `/work`, `notes/plan.txt`.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// Why a file operation was refused; fit to be shown to a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// Nothing has this path.
    #[error("no such file: {0}")]
    NotFound(String),
    /// A directory where a file was expected, or the other way round.
    #[error("not a file: {0}")]
    NotFile(String),
    /// The path is empty, has `..` above `/work`, or holds a NUL.
    #[error("not a path below /work: {0:?}")]
    BadPath(String),
    /// Over the bytes or files that [`crate::Policy`] grants.
    #[error("no space left for {0}")]
    NoSpace(String),
}

/// The episode directory (`/work` in the guest), as the host and its tools see it. Cheap to clone; paths are relative to `/work`.
#[derive(Clone, Debug)]
pub struct Files(Arc<Mutex<Tree>>);

impl Files {
    pub(crate) fn new(quota: Quota, clock: Clock) -> Self {
        Self(Arc::new(Mutex::new(Tree::new(quota, clock))))
    }

    /// Every file below `/work`, sorted by path.
    pub fn list(&self) -> Vec<FileEntry> {
        let tree = self.lock();
        let mut files = Vec::new();
        let mut open = vec![(String::new(), "work".to_owned(), Tree::ROOT)];
        while let Some((prefix, name, parent)) = open.pop() {
            let Some(&id) = tree.entries(parent).ok().and_then(|entries| entries.get(&name)) else {
                continue;
            };
            match &tree.node(id).content {
                Content::File(bytes) => files.push(FileEntry {
                    path: prefix,
                    bytes: bytes.len() as u64,
                }),
                Content::Directory(entries) => {
                    let below = |child: &String| match prefix.as_str() {
                        "" => child.clone(),
                        prefix => format!("{prefix}/{child}"),
                    };
                    open.extend(entries.keys().map(|child| (below(child), child.clone(), id)));
                }
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        files
    }

    /// Content of the file at `path`.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn read(&self, path: &str) -> Result<Vec<u8>, FileError> {
        let tree = self.lock();
        let inside = relative(path)?;
        tree.find(Tree::ROOT, &inside)
            .and_then(|id| tree.file(id).map(<[u8]>::to_vec))
            .map_err(|code| refusal(code, path))
    }

    /// Replaces the content of the file at `path`, making it and the directories above it as needed.
    ///
    /// # Errors
    /// When the quota would be passed (the old content then stays) or `path` names a directory.
    pub fn write(&self, path: &str, content: &[u8]) -> Result<(), FileError> {
        let mut tree = self.lock();
        let inside = relative(path)?;
        write(&mut tree, &inside, content).map_err(|code| refusal(code, path))
    }

    /// Removes the file at `path`.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn remove(&self, path: &str) -> Result<(), FileError> {
        let mut tree = self.lock();
        let inside = relative(path)?;
        let removed = tree
            .locate(Tree::ROOT, &inside)
            .and_then(|(parent, name)| match name {
                Some(name) => tree.unlink(parent, name),
                None => Err(ErrorCode::IsDirectory),
            });
        removed.map_err(|code| refusal(code, path))
    }

    /// Bytes that all files of the instance hold.
    pub fn bytes(&self) -> u64 {
        self.lock().bytes()
    }

    fn lock(&self) -> MutexGuard<'_, Tree> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `/work/a`, `./a` and `a` all name `work/a`; `..` may not climb out of `/work`.
fn relative(path: &str) -> Result<String, FileError> {
    let bad = || FileError::BadPath(path.to_owned());
    let path = match path.strip_prefix('/') {
        Some(rest) => rest.strip_prefix("work/").ok_or_else(bad)?,
        None => path,
    };
    let mut parts: Vec<&str> = vec!["work"];
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.len() > 1 => drop(parts.pop()),
            ".." => return Err(bad()),
            name => parts.push(name),
        }
    }
    if parts.len() < 2 || path.contains('\0') {
        Err(bad())
    } else {
        Ok(parts.join("/"))
    }
}

fn write(tree: &mut Tree, path: &str, content: &[u8]) -> Result<(), ErrorCode> {
    let mut parent: NodeId = Tree::ROOT;
    let (folders, name) = path.rsplit_once('/').ok_or(ErrorCode::Invalid)?;
    for folder in folders.split('/') {
        let known = tree.entries(parent)?.get(folder).copied();
        parent = match known {
            Some(id) => id,
            None => tree.create(parent, folder, Content::Directory(BTreeMap::new()))?,
        };
    }
    let known = tree.entries(parent)?.get(name).copied();
    let id = match known {
        Some(id) => id,
        None => tree.create(parent, name, Content::File(Vec::new()))?,
    };
    let old = tree.file(id)?.len() as u64;
    let size = content.len() as u64;
    if size > old {
        tree.set_size(id, size)?; // all or nothing: asks the quota before anything is replaced
    }
    tree.write(id, 0, content)?;
    tree.set_size(id, size)
}

fn refusal(code: ErrorCode, path: &str) -> FileError {
    let path = path.to_owned();
    match code {
        ErrorCode::NoEntry => FileError::NotFound(path),
        ErrorCode::InsufficientSpace | ErrorCode::FileTooLarge => FileError::NoSpace(path),
        ErrorCode::IsDirectory | ErrorCode::NotDirectory => FileError::NotFile(path),
        _ => FileError::BadPath(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_listed_read_replaced_and_removed() {
        let files = Files::new(
            Quota {
                bytes: 20,
                file_bytes: 20,
                files: 8,
            },
            Clock::default(),
        );
        files.write("b.txt", b"bb").unwrap();
        files.write("/work/a/x.txt", b"0123456789").unwrap();
        files.write("a/./y/../x.txt", b"01234").unwrap();
        let paths: Vec<_> = files.list().into_iter().map(|f| (f.path, f.bytes)).collect();
        assert_eq!(paths, [("a/x.txt".to_owned(), 5), ("b.txt".to_owned(), 2)]);
        assert_eq!(files.read("a/x.txt").unwrap(), b"01234");
        assert_eq!(
            files.write("a/x.txt", &[0; 30]),
            Err(FileError::NoSpace("a/x.txt".to_owned()))
        );
        assert_eq!(
            files.read("a/x.txt").unwrap(),
            b"01234",
            "a refused write changes nothing"
        );
        assert_eq!(
            files.read("../etc/passwd"),
            Err(FileError::BadPath("../etc/passwd".to_owned()))
        );
        assert_eq!(
            files.read("/etc/passwd"),
            Err(FileError::BadPath("/etc/passwd".to_owned()))
        );
        assert_eq!(files.read("a"), Err(FileError::NotFile("a".to_owned())));
        assert_eq!(
            files.write("b.txt/c", b""),
            Err(FileError::NotFile("b.txt/c".to_owned()))
        );
        files.remove("b.txt").unwrap();
        assert_eq!(
            files.remove("b.txt"),
            Err(FileError::NotFound("b.txt".to_owned()))
        );
        assert_eq!(files.bytes(), 5);
    }
}
