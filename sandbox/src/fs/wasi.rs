//! `wasi:filesystem` over a [`Tree`]: what the guest's C library calls.

use std::collections::BTreeMap;
use std::time::Duration;

use types::{
    Descriptor, DescriptorFlags, DescriptorStat, DescriptorType, DirectoryEntry, DirectoryEntryStream,
    ErrorCode, OpenFlags,
};
use wasmtime::component::{HasData, Resource, ResourceTable};
use wasmtime_wasi::p2::bindings::clocks::wall_clock::Datetime;
use wasmtime_wasi::p2::bindings::filesystem::{preopens, types};
use wasmtime_wasi::p2::{DynInputStream, DynOutputStream, FsError, FsResult};

use super::Files;
use super::stream::{FileStream, remainder};
use super::tree::{Content, NodeId, Tree};
use crate::stdio::CHUNK_BYTES;

/// The file system of one instance together with its handle table.
pub(crate) struct FilesView<'a> {
    pub(crate) files: &'a Files,
    pub(crate) table: &'a mut ResourceTable,
}

/// Names [`FilesView`] for the linker.
pub(crate) struct HasFiles;

impl HasData for HasFiles {
    type Data<'a> = FilesView<'a>;
}

/// What a `descriptor` of the guest stands for in the handle table.
///
/// The generated bindings name wasmtime-wasi's own descriptor type; a resource is only an index into the table, so the index is
/// re-typed at the edge ([`ours`], [`theirs`]) and wasmtime-wasi's type never exists here.
struct Handle {
    files: Files,
    node: NodeId,
    flags: DescriptorFlags,
}

impl Handle {
    fn open(files: &Files, tree: &mut Tree, node: NodeId, flags: DescriptorFlags) -> Self {
        tree.retain(node);
        Self {
            files: files.clone(),
            node,
            flags,
        }
    }
}

/// A directory listing being read.
struct Listing(std::vec::IntoIter<DirectoryEntry>);

fn ours<T: 'static, U: 'static>(theirs: &Resource<T>) -> Resource<U> {
    Resource::new_borrow(theirs.rep())
}

fn theirs<T: 'static, U: 'static>(ours: Resource<T>) -> Resource<U> {
    Resource::new_own(ours.rep())
}

impl FilesView<'_> {
    fn node(&self, fd: &Resource<Descriptor>) -> FsResult<NodeId> {
        Ok(self.table.get(&ours::<_, Handle>(fd))?.node)
    }

    fn writable(&self, fd: &Resource<Descriptor>) -> FsResult<NodeId> {
        let handle = self.table.get(&ours::<_, Handle>(fd))?;
        if handle.flags.contains(DescriptorFlags::WRITE) {
            Ok(handle.node)
        } else {
            Err(ErrorCode::BadDescriptor.into())
        }
    }

    fn readable(&self, fd: &Resource<Descriptor>) -> FsResult<NodeId> {
        let handle = self.table.get(&ours::<_, Handle>(fd))?;
        if handle.flags.contains(DescriptorFlags::READ) {
            Ok(handle.node)
        } else {
            Err(ErrorCode::BadDescriptor.into())
        }
    }

    fn push(&mut self, node: NodeId, flags: DescriptorFlags) -> FsResult<Resource<Descriptor>> {
        let handle = Handle::open(self.files, &mut self.files.lock(), node, flags);
        match self.table.push(handle) {
            Ok(resource) => Ok(theirs(resource)),
            Err(_) => {
                self.files.lock().release(node);
                Err(ErrorCode::InsufficientMemory.into()) // too many open files
            }
        }
    }

    fn named<'p>(
        &self,
        tree: &Tree,
        fd: &Resource<Descriptor>,
        path: &'p str,
    ) -> FsResult<(NodeId, &'p str)> {
        match tree.locate(self.node(fd)?, path)? {
            (parent, Some(name)) => Ok((parent, name)),
            (_, None) => Err(ErrorCode::Busy.into()),
        }
    }
}

fn stat(tree: &Tree, id: NodeId) -> DescriptorStat {
    let node = tree.node(id);
    let (type_, size) = match &node.content {
        Content::File(bytes) => (DescriptorType::RegularFile, bytes.len() as u64),
        Content::Directory(_) => (DescriptorType::Directory, 0),
    };
    DescriptorStat {
        type_,
        link_count: 1,
        size,
        data_access_timestamp: Some(datetime(node.accessed)),
        data_modification_timestamp: Some(datetime(node.modified)),
        status_change_timestamp: Some(datetime(node.changed)),
    }
}

fn datetime(time: Duration) -> Datetime {
    Datetime {
        seconds: time.as_secs(),
        nanoseconds: time.subsec_nanos(),
    }
}

fn timestamp(tree: &Tree, time: types::NewTimestamp) -> FsResult<Option<Duration>> {
    Ok(match time {
        types::NewTimestamp::NoChange => None,
        types::NewTimestamp::Now => Some(tree.now()),
        types::NewTimestamp::Timestamp(Datetime {
            nanoseconds: 1_000_000_000..,
            ..
        }) => return Err(ErrorCode::Invalid.into()),
        types::NewTimestamp::Timestamp(at) => Some(Duration::new(at.seconds, at.nanoseconds)),
    })
}

impl preopens::Host for FilesView<'_> {
    fn get_directories(&mut self) -> wasmtime::Result<Vec<(Resource<Descriptor>, String)>> {
        let flags = DescriptorFlags::READ | DescriptorFlags::MUTATE_DIRECTORY;
        let root = Handle::open(self.files, &mut self.files.lock(), Tree::ROOT, flags);
        Ok(vec![(theirs(self.table.push(root)?), "/".to_owned())])
    }
}

impl types::Host for FilesView<'_> {
    fn convert_error_code(&mut self, error: FsError) -> wasmtime::Result<ErrorCode> {
        error.downcast()
    }

    fn filesystem_error_code(
        &mut self,
        error: Resource<wasmtime::Error>,
    ) -> wasmtime::Result<Option<ErrorCode>> {
        Ok(self.table.get(&error)?.downcast_ref::<ErrorCode>().copied())
    }
}

impl types::HostDescriptor for FilesView<'_> {
    async fn advise(&mut self, fd: Resource<Descriptor>, _: u64, _: u64, _: types::Advice) -> FsResult<()> {
        self.node(&fd).map(drop)
    }

    async fn sync_data(&mut self, fd: Resource<Descriptor>) -> FsResult<()> {
        self.node(&fd).map(drop)
    }

    async fn sync(&mut self, fd: Resource<Descriptor>) -> FsResult<()> {
        self.node(&fd).map(drop)
    }

    async fn get_flags(&mut self, fd: Resource<Descriptor>) -> FsResult<DescriptorFlags> {
        Ok(self.table.get(&ours::<_, Handle>(&fd))?.flags)
    }

    async fn get_type(&mut self, fd: Resource<Descriptor>) -> FsResult<DescriptorType> {
        let node = self.node(&fd)?;
        Ok(stat(&self.files.lock(), node).type_)
    }

    async fn set_size(&mut self, fd: Resource<Descriptor>, size: u64) -> FsResult<()> {
        let node = self.writable(&fd)?;
        Ok(self.files.lock().set_size(node, size)?)
    }

    async fn set_times(
        &mut self,
        fd: Resource<Descriptor>,
        accessed: types::NewTimestamp,
        modified: types::NewTimestamp,
    ) -> FsResult<()> {
        let node = self.node(&fd)?;
        let mut tree = self.files.lock();
        let (accessed, modified) = (timestamp(&tree, accessed)?, timestamp(&tree, modified)?);
        tree.set_times(node, accessed, modified);
        Ok(())
    }

    async fn read(
        &mut self,
        fd: Resource<Descriptor>,
        length: u64,
        offset: u64,
    ) -> FsResult<(Vec<u8>, bool)> {
        let node = self.readable(&fd)?;
        let tree = self.files.lock();
        let rest = remainder(tree.file(node)?, offset);
        let length = usize::try_from(length)
            .unwrap_or(usize::MAX)
            .min(rest.len())
            .min(CHUNK_BYTES);
        Ok((rest[..length].to_vec(), rest.is_empty()))
    }

    async fn write(&mut self, fd: Resource<Descriptor>, bytes: Vec<u8>, offset: u64) -> FsResult<u64> {
        let node = self.writable(&fd)?;
        self.files.lock().write(node, offset, &bytes)?;
        Ok(bytes.len() as u64)
    }

    async fn read_directory(&mut self, fd: Resource<Descriptor>) -> FsResult<Resource<DirectoryEntryStream>> {
        let node = self.readable(&fd)?;
        let entries: Vec<_> = {
            let tree = self.files.lock();
            let entry = |(name, id): (&String, &NodeId)| DirectoryEntry {
                type_: stat(&tree, *id).type_,
                name: name.clone(),
            };
            tree.entries(node)?.iter().map(entry).collect()
        };
        let listing = self
            .table
            .push(Listing(entries.into_iter()))
            .map_err(|_| ErrorCode::InsufficientMemory)?;
        Ok(theirs(listing))
    }

    async fn create_directory_at(&mut self, fd: Resource<Descriptor>, path: String) -> FsResult<()> {
        let mut tree = self.files.lock();
        let base = self.node(&fd)?;
        let (parent, Some(name)) = tree.locate(base, &path)? else {
            return Err(ErrorCode::Exist.into());
        };
        tree.create(parent, name, Content::Directory(BTreeMap::new()))?;
        Ok(())
    }

    async fn stat(&mut self, fd: Resource<Descriptor>) -> FsResult<DescriptorStat> {
        let node = self.node(&fd)?;
        Ok(stat(&self.files.lock(), node))
    }

    async fn stat_at(
        &mut self,
        fd: Resource<Descriptor>,
        _: types::PathFlags,
        path: String,
    ) -> FsResult<DescriptorStat> {
        let tree = self.files.lock();
        let node = tree.find(self.node(&fd)?, &path)?;
        Ok(stat(&tree, node))
    }

    async fn set_times_at(
        &mut self,
        fd: Resource<Descriptor>,
        _: types::PathFlags,
        path: String,
        accessed: types::NewTimestamp,
        modified: types::NewTimestamp,
    ) -> FsResult<()> {
        let mut tree = self.files.lock();
        let node = tree.find(self.node(&fd)?, &path)?;
        let (accessed, modified) = (timestamp(&tree, accessed)?, timestamp(&tree, modified)?);
        tree.set_times(node, accessed, modified);
        Ok(())
    }

    async fn link_at(
        &mut self,
        _: Resource<Descriptor>,
        _: types::PathFlags,
        _: String,
        _: Resource<Descriptor>,
        _: String,
    ) -> FsResult<()> {
        Err(ErrorCode::Unsupported.into())
    }

    async fn open_at(
        &mut self,
        fd: Resource<Descriptor>,
        _: types::PathFlags,
        path: String,
        open: OpenFlags,
        flags: DescriptorFlags,
    ) -> FsResult<Resource<Descriptor>> {
        let base = self.node(&fd)?;
        let node = {
            let mut tree = self.files.lock();
            open_node(&mut tree, base, &path, open, flags)?
        };
        self.push(node, flags)
    }

    fn drop(&mut self, fd: Resource<Descriptor>) -> wasmtime::Result<()> {
        let handle = self.table.delete(theirs::<_, Handle>(fd))?;
        handle.files.lock().release(handle.node);
        Ok(())
    }

    async fn readlink_at(&mut self, fd: Resource<Descriptor>, path: String) -> FsResult<String> {
        let tree = self.files.lock();
        tree.find(self.node(&fd)?, &path)?;
        Err(ErrorCode::Invalid.into()) // nothing is a link
    }

    async fn remove_directory_at(&mut self, fd: Resource<Descriptor>, path: String) -> FsResult<()> {
        let mut tree = self.files.lock();
        let (parent, name) = self.named(&tree, &fd, &path)?;
        Ok(tree.remove_directory(parent, name)?)
    }

    async fn rename_at(
        &mut self,
        fd: Resource<Descriptor>,
        path: String,
        new_fd: Resource<Descriptor>,
        new_path: String,
    ) -> FsResult<()> {
        let mut tree = self.files.lock();
        let from = self.named(&tree, &fd, &path)?;
        let to = self.named(&tree, &new_fd, &new_path)?;
        Ok(tree.rename(from, to)?)
    }

    async fn symlink_at(&mut self, _: Resource<Descriptor>, _: String, _: String) -> FsResult<()> {
        Err(ErrorCode::Unsupported.into())
    }

    async fn unlink_file_at(&mut self, fd: Resource<Descriptor>, path: String) -> FsResult<()> {
        let mut tree = self.files.lock();
        let (parent, name) = self.named(&tree, &fd, &path)?;
        Ok(tree.unlink(parent, name)?)
    }

    fn read_via_stream(
        &mut self,
        fd: Resource<Descriptor>,
        offset: u64,
    ) -> FsResult<Resource<DynInputStream>> {
        let node = self.readable(&fd)?;
        self.files.lock().file(node)?;
        let stream: DynInputStream = Box::new(FileStream::open(self.files, node, Some(offset)));
        self.table
            .push(stream)
            .map_err(|_| ErrorCode::InsufficientMemory.into())
    }

    fn write_via_stream(
        &mut self,
        fd: Resource<Descriptor>,
        offset: u64,
    ) -> FsResult<Resource<DynOutputStream>> {
        let node = self.writable(&fd)?;
        self.files.lock().file(node)?;
        let stream: DynOutputStream = Box::new(FileStream::open(self.files, node, Some(offset)));
        self.table
            .push(stream)
            .map_err(|_| ErrorCode::InsufficientMemory.into())
    }

    fn append_via_stream(&mut self, fd: Resource<Descriptor>) -> FsResult<Resource<DynOutputStream>> {
        let node = self.writable(&fd)?;
        self.files.lock().file(node)?;
        let stream: DynOutputStream = Box::new(FileStream::open(self.files, node, None));
        self.table
            .push(stream)
            .map_err(|_| ErrorCode::InsufficientMemory.into())
    }

    async fn is_same_object(
        &mut self,
        a: Resource<Descriptor>,
        b: Resource<Descriptor>,
    ) -> wasmtime::Result<bool> {
        Ok(self.table.get(&ours::<_, Handle>(&a))?.node == self.table.get(&ours::<_, Handle>(&b))?.node)
    }

    async fn metadata_hash(&mut self, fd: Resource<Descriptor>) -> FsResult<types::MetadataHashValue> {
        Ok(types::MetadataHashValue {
            lower: self.node(&fd)? as u64,
            upper: 0,
        })
    }

    async fn metadata_hash_at(
        &mut self,
        fd: Resource<Descriptor>,
        _: types::PathFlags,
        path: String,
    ) -> FsResult<types::MetadataHashValue> {
        let tree = self.files.lock();
        let node = tree.find(self.node(&fd)?, &path)?;
        Ok(types::MetadataHashValue {
            lower: node as u64,
            upper: 0,
        })
    }
}

impl types::HostDirectoryEntryStream for FilesView<'_> {
    async fn read_directory_entry(
        &mut self,
        stream: Resource<DirectoryEntryStream>,
    ) -> FsResult<Option<DirectoryEntry>> {
        Ok(self.table.get_mut(&ours::<_, Listing>(&stream))?.0.next())
    }

    fn drop(&mut self, stream: Resource<DirectoryEntryStream>) -> wasmtime::Result<()> {
        self.table.delete(theirs::<_, Listing>(stream))?;
        Ok(())
    }
}

fn open_node(
    tree: &mut Tree,
    base: NodeId,
    path: &str,
    open: OpenFlags,
    flags: DescriptorFlags,
) -> Result<NodeId, ErrorCode> {
    let node = match tree.find(base, path) {
        Ok(_) if open.contains(OpenFlags::EXCLUSIVE | OpenFlags::CREATE) => return Err(ErrorCode::Exist),
        Ok(node) => node,
        Err(ErrorCode::NoEntry) if open.contains(OpenFlags::CREATE) => {
            let (parent, name) = tree.locate(base, path)?;
            let name = name
                .filter(|_| !path.ends_with('/'))
                .ok_or(ErrorCode::IsDirectory)?;
            if open.contains(OpenFlags::DIRECTORY) {
                return Err(ErrorCode::Invalid);
            }
            tree.create(parent, name, Content::File(Vec::new()))?
        }
        Err(error) => return Err(error),
    };
    match &tree.node(node).content {
        Content::File(_) if open.contains(OpenFlags::DIRECTORY) => return Err(ErrorCode::NotDirectory),
        Content::Directory(_) if flags.contains(DescriptorFlags::WRITE) => {
            return Err(ErrorCode::IsDirectory);
        }
        _ => {}
    }
    if open.contains(OpenFlags::TRUNCATE) {
        if !flags.contains(DescriptorFlags::WRITE) {
            return Err(ErrorCode::Invalid);
        }
        tree.set_size(node, 0)?;
    }
    Ok(node)
}
