//! A small file tree in memory, with exact quotas.

use std::collections::BTreeMap;
use std::time::Duration;

use wasmtime_wasi::p2::bindings::filesystem::types::ErrorCode;

use crate::clock::Clock;

/// Longest name of one file, as on most file systems.
const MAX_NAME_BYTES: usize = 255;
/// Longest path a guest may pass.
const MAX_PATH_BYTES: usize = 4096;

/// Index of a node; stable while the node has a name or an open handle.
pub(crate) type NodeId = usize;

/// What the tree may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota {
    /// Bytes of all files together.
    pub(crate) bytes: u64,
    /// Bytes of one file.
    pub(crate) file_bytes: u64,
    /// Files and directories, those of the bare tree not counted.
    pub(crate) files: usize,
}

/// Content of a node.
#[derive(Debug)]
pub(crate) enum Content {
    File(Vec<u8>),
    Directory(BTreeMap<String, NodeId>),
}

/// A file or directory.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) content: Content,
    pub(crate) accessed: Duration,
    pub(crate) modified: Duration,
    pub(crate) changed: Duration,
    handles: usize,
    named: bool,
}

/// The tree: nodes by id, bytes and nodes counted exactly, orphans (unlinked but open) included.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: Vec<Option<Node>>,
    free: Vec<NodeId>,
    quota: Quota,
    bytes: u64,
    files: usize,
    clock: Clock,
}

impl Tree {
    /// Id of `/`.
    pub(crate) const ROOT: NodeId = 0;

    /// A tree with `/work` and `/tmp`, both empty.
    pub(crate) fn new(quota: Quota, clock: Clock) -> Self {
        let mut tree = Self {
            nodes: Vec::new(),
            free: Vec::new(),
            quota,
            bytes: 0,
            files: 0,
            clock,
        };
        let root = tree.insert(Content::Directory(BTreeMap::new()));
        debug_assert_eq!(root, Self::ROOT);
        for name in ["work", "tmp"] {
            let id = tree.insert(Content::Directory(BTreeMap::new()));
            if let Content::Directory(entries) = &mut tree.node_mut(root).content {
                entries.insert(name.to_owned(), id);
            }
        }
        tree.files = 0;
        tree
    }

    /// The node of an id that a handle or an entry holds.
    pub(crate) fn node(&self, id: NodeId) -> &Node {
        self.nodes[id]
            .as_ref()
            .expect("a node lives as long as its entry and its handles")
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id]
            .as_mut()
            .expect("a node lives as long as its entry and its handles")
    }

    /// Bytes held by all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn entries(&self, id: NodeId) -> Result<&BTreeMap<String, NodeId>, ErrorCode> {
        match &self.node(id).content {
            Content::Directory(entries) => Ok(entries),
            Content::File(_) => Err(ErrorCode::NotDirectory),
        }
    }

    fn entries_mut(&mut self, id: NodeId) -> Result<&mut BTreeMap<String, NodeId>, ErrorCode> {
        match &mut self.node_mut(id).content {
            Content::Directory(entries) => Ok(entries),
            Content::File(_) => Err(ErrorCode::NotDirectory),
        }
    }

    pub(crate) fn file(&self, id: NodeId) -> Result<&[u8], ErrorCode> {
        match &self.node(id).content {
            Content::File(bytes) => Ok(bytes),
            Content::Directory(_) => Err(ErrorCode::IsDirectory),
        }
    }

    /// Finds the node at `path`, below `base`.
    pub(crate) fn find(&self, base: NodeId, path: &str) -> Result<NodeId, ErrorCode> {
        let (parent, name) = self.locate(base, path)?;
        let found = match name {
            Some(name) => *self.entries(parent)?.get(name).ok_or(ErrorCode::NoEntry)?,
            None => parent,
        };
        if path.ends_with('/') {
            self.entries(found)?;
        }
        Ok(found)
    }

    /// Resolves all but the last component; no name when the path ends in `.`, `..` or names `base` itself.
    pub(crate) fn locate<'p>(
        &self,
        base: NodeId,
        path: &'p str,
    ) -> Result<(NodeId, Option<&'p str>), ErrorCode> {
        if path.is_empty() {
            return Err(ErrorCode::NoEntry);
        }
        if path.starts_with('/') {
            return Err(ErrorCode::NotPermitted);
        }
        if path.len() > MAX_PATH_BYTES {
            return Err(ErrorCode::NameTooLong);
        }
        if path.contains('\0') {
            return Err(ErrorCode::Invalid);
        }
        let mut way = vec![base];
        let mut last: Option<&str> = None;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            if part.len() > MAX_NAME_BYTES {
                return Err(ErrorCode::NameTooLong);
            }
            let here = way[way.len() - 1];
            let here = match last.take() {
                Some(name) => {
                    let next = *self.entries(here)?.get(name).ok_or(ErrorCode::NoEntry)?;
                    way.push(next);
                    next
                }
                None => here,
            };
            match part {
                "." => {
                    self.entries(here)?;
                }
                ".." => {
                    self.entries(here)?;
                    way.pop();
                    if way.is_empty() {
                        return Err(ErrorCode::NotPermitted); // above the handle
                    }
                }
                name => last = Some(name),
            }
        }
        Ok((way[way.len() - 1], last))
    }

    /// Makes an empty file or directory called `name`.
    pub(crate) fn create(
        &mut self,
        parent: NodeId,
        name: &str,
        content: Content,
    ) -> Result<NodeId, ErrorCode> {
        if !self.node(parent).named && parent != Self::ROOT {
            return Err(ErrorCode::NoEntry); // an unlinked directory
        }
        if self.entries(parent)?.contains_key(name) {
            return Err(ErrorCode::Exist);
        }
        if self.files >= self.quota.files {
            return Err(ErrorCode::InsufficientSpace);
        }
        let id = self.insert(content);
        self.entries_mut(parent)?.insert(name.to_owned(), id);
        self.touch(parent);
        Ok(id)
    }

    /// Removes a file's name; its bytes stay counted until the last handle closes.
    pub(crate) fn unlink(&mut self, parent: NodeId, name: &str) -> Result<(), ErrorCode> {
        let id = *self.entries(parent)?.get(name).ok_or(ErrorCode::NoEntry)?;
        self.file(id)?;
        self.forget(parent, name, id)
    }

    /// Removes an empty directory.
    pub(crate) fn remove_directory(&mut self, parent: NodeId, name: &str) -> Result<(), ErrorCode> {
        let id = *self.entries(parent)?.get(name).ok_or(ErrorCode::NoEntry)?;
        if !self.entries(id)?.is_empty() {
            return Err(ErrorCode::NotEmpty);
        }
        if parent == Self::ROOT {
            return Err(ErrorCode::NotPermitted); // /work and /tmp stay
        }
        self.forget(parent, name, id)
    }

    /// Moves an entry, replacing a file by a file or an empty directory by a directory.
    pub(crate) fn rename(&mut self, from: (NodeId, &str), to: (NodeId, &str)) -> Result<(), ErrorCode> {
        let id = *self.entries(from.0)?.get(from.1).ok_or(ErrorCode::NoEntry)?;
        if from.0 == Self::ROOT || to.0 == Self::ROOT && self.entries(to.0)?.contains_key(to.1) {
            return Err(ErrorCode::NotPermitted);
        }
        let is_directory = self.entries(id).is_ok();
        if is_directory && self.contains(id, to.0) {
            return Err(ErrorCode::Invalid);
        }
        match self.entries(to.0)?.get(to.1).copied() {
            Some(same) if same == id => return Ok(()),
            Some(_) if is_directory => self.remove_directory(to.0, to.1)?,
            Some(_) => self.unlink(to.0, to.1)?,
            None => {}
        }
        self.entries_mut(from.0)?.remove(from.1);
        self.entries_mut(to.0)?.insert(to.1.to_owned(), id);
        self.touch(from.0);
        self.touch(to.0);
        Ok(())
    }

    /// Writes at `offset`, filling a gap with zeros. All or nothing.
    pub(crate) fn write(&mut self, id: NodeId, offset: u64, bytes: &[u8]) -> Result<(), ErrorCode> {
        let end = offset
            .checked_add(bytes.len() as u64)
            .ok_or(ErrorCode::FileTooLarge)?;
        if end > self.file(id)?.len() as u64 {
            self.set_size(id, end)?;
        }
        let start = usize::try_from(offset).map_err(|_| ErrorCode::FileTooLarge)?;
        if let Content::File(content) = &mut self.node_mut(id).content {
            content[start..start + bytes.len()].copy_from_slice(bytes);
        }
        self.touch(id);
        Ok(())
    }

    /// Cuts a file or extends it with zeros.
    pub(crate) fn set_size(&mut self, id: NodeId, size: u64) -> Result<(), ErrorCode> {
        let old = self.file(id)?.len() as u64;
        if size > old {
            if size > self.quota.file_bytes {
                return Err(ErrorCode::FileTooLarge);
            }
            if self.bytes - old + size > self.quota.bytes {
                return Err(ErrorCode::InsufficientSpace);
            }
        }
        let length = usize::try_from(size).map_err(|_| ErrorCode::FileTooLarge)?;
        if let Content::File(content) = &mut self.node_mut(id).content {
            content.resize(length, 0);
            if size < old {
                content.shrink_to(length.saturating_mul(2));
            }
        }
        self.bytes = self.bytes - old + size;
        self.touch(id);
        Ok(())
    }

    /// Counts one more open handle on a node.
    pub(crate) fn retain(&mut self, id: NodeId) {
        self.node_mut(id).handles += 1;
    }

    /// Closes a handle; frees the node if that was the last thing that held it.
    pub(crate) fn release(&mut self, id: NodeId) {
        let node = self.node_mut(id);
        node.handles = node.handles.saturating_sub(1);
        self.collect(id);
    }

    /// Marks a node as changed now. The clock moves, so that no two changes of a directory look the same to an import cache.
    pub(crate) fn touch(&mut self, id: NodeId) {
        self.clock.tick();
        let now = self.clock.wall();
        let node = self.node_mut(id);
        (node.modified, node.changed) = (now, now);
    }

    /// Sets the times of a node; `None` leaves one as it is.
    pub(crate) fn set_times(&mut self, id: NodeId, accessed: Option<Duration>, modified: Option<Duration>) {
        let now = self.clock.wall();
        let node = self.node_mut(id);
        node.accessed = accessed.unwrap_or(node.accessed);
        node.modified = modified.unwrap_or(node.modified);
        node.changed = now;
    }

    /// Virtual time, for `now` timestamps.
    pub(crate) fn now(&self) -> Duration {
        self.clock.wall()
    }

    fn contains(&self, outer: NodeId, inner: NodeId) -> bool {
        let mut open = vec![outer];
        while let Some(id) = open.pop() {
            if id == inner {
                return true;
            }
            if let Content::Directory(entries) = &self.node(id).content {
                open.extend(entries.values());
            }
        }
        false
    }

    fn insert(&mut self, content: Content) -> NodeId {
        let now = self.clock.wall();
        let node = Node {
            content,
            accessed: now,
            modified: now,
            changed: now,
            handles: 0,
            named: true,
        };
        self.files += 1;
        match self.free.pop() {
            Some(id) => {
                self.nodes[id] = Some(node);
                id
            }
            None => {
                self.nodes.push(Some(node));
                self.nodes.len() - 1
            }
        }
    }

    fn forget(&mut self, parent: NodeId, name: &str, id: NodeId) -> Result<(), ErrorCode> {
        self.entries_mut(parent)?.remove(name);
        self.node_mut(id).named = false;
        self.touch(parent);
        self.collect(id);
        Ok(())
    }

    fn collect(&mut self, id: NodeId) {
        let node = self.node(id);
        if node.named || node.handles > 0 {
            return;
        }
        if let Content::File(bytes) = &node.content {
            self.bytes -= bytes.len() as u64;
        }
        self.files -= 1;
        self.nodes[id] = None;
        self.free.push(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        Tree::new(
            Quota {
                bytes: 100,
                file_bytes: 60,
                files: 3,
            },
            Clock::default(),
        )
    }

    fn file() -> Content {
        Content::File(Vec::new())
    }

    fn folder() -> Content {
        Content::Directory(BTreeMap::new())
    }

    #[test]
    fn paths_never_climb_above_their_handle() {
        let mut tree = tree();
        let work = tree.find(Tree::ROOT, "work").unwrap();
        tree.create(work, "a", folder()).unwrap();
        for (base, path, expected) in [
            (work, "..", Err(ErrorCode::NotPermitted)),
            (work, "a/../..", Err(ErrorCode::NotPermitted)),
            (work, "a/../../tmp", Err(ErrorCode::NotPermitted)),
            (work, "a/..", Ok(work)),
            (work, "./a/.././", Ok(work)),
            (Tree::ROOT, "/work", Err(ErrorCode::NotPermitted)),
            (Tree::ROOT, "etc/passwd", Err(ErrorCode::NoEntry)),
            (Tree::ROOT, "", Err(ErrorCode::NoEntry)),
            (Tree::ROOT, "work\0", Err(ErrorCode::Invalid)),
        ] {
            assert_eq!(
                tree.find(base, path).map_err(|e| e.to_string()),
                expected.map_err(|e| e.to_string()),
                "{path}"
            );
        }
    }

    #[test]
    fn quota_counts_bytes_files_and_orphans() {
        let mut tree = tree();
        let work = tree.find(Tree::ROOT, "work").unwrap();
        let a = tree.create(work, "a", file()).unwrap();
        let b = tree.create(work, "b", file()).unwrap();
        tree.write(a, 0, &[1; 60]).unwrap();
        assert!(matches!(tree.write(a, 59, &[1; 2]), Err(ErrorCode::FileTooLarge)));
        assert!(matches!(
            tree.write(b, u64::MAX, &[1; 2]),
            Err(ErrorCode::FileTooLarge)
        ));
        assert!(matches!(
            tree.write(b, 0, &[1; 41]),
            Err(ErrorCode::InsufficientSpace)
        ));
        tree.write(b, 30, &[1; 10]).unwrap();
        assert_eq!(
            (tree.bytes(), tree.file(b).unwrap()[..30].iter().all(|&x| x == 0)),
            (100, true)
        );
        tree.retain(a);
        tree.unlink(work, "a").unwrap();
        assert_eq!(tree.bytes(), 100, "an open orphan still counts");
        tree.create(work, "c", file()).unwrap();
        assert!(matches!(
            tree.create(work, "d", file()),
            Err(ErrorCode::InsufficientSpace)
        ));
        tree.release(a);
        assert_eq!(tree.bytes(), 40);
        tree.create(work, "d", file()).unwrap();
    }

    #[test]
    fn rename_replaces_and_refuses_cycles() {
        let mut tree = tree();
        let work = tree.find(Tree::ROOT, "work").unwrap();
        let a = tree.create(work, "a", folder()).unwrap();
        let b = tree.create(a, "b", folder()).unwrap();
        assert!(matches!(
            tree.rename((work, "a"), (b, "x")),
            Err(ErrorCode::Invalid)
        ));
        assert!(matches!(
            tree.rename((Tree::ROOT, "work"), (a, "x")),
            Err(ErrorCode::NotPermitted)
        ));
        tree.rename((a, "b"), (work, "c")).unwrap();
        tree.rename((work, "c"), (work, "a")).unwrap();
        assert_eq!(tree.find(work, "a").unwrap(), b);
        assert!(tree.find(work, "c").is_err());
        assert!(matches!(
            tree.remove_directory(Tree::ROOT, "work"),
            Err(ErrorCode::NotEmpty)
        ));
        tree.remove_directory(work, "a").unwrap();
        assert!(matches!(
            tree.remove_directory(Tree::ROOT, "work"),
            Err(ErrorCode::NotPermitted)
        ));
    }
}
