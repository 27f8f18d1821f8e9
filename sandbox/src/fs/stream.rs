//! Streams over a file of the tree.

use bytes::Bytes;
use wasmtime_wasi::p2::{InputStream, OutputStream, Pollable, StreamError, StreamResult};

use super::Files;
use super::tree::NodeId;
use crate::stdio::CHUNK_BYTES;

/// An open stream over a file, at an offset of its own or at the end (`None`).
pub(super) struct FileStream {
    files: Files,
    node: NodeId,
    offset: Option<u64>,
}

impl FileStream {
    pub(super) fn open(files: &Files, node: NodeId, offset: Option<u64>) -> Self {
        files.lock().retain(node);
        Self {
            files: files.clone(),
            node,
            offset,
        }
    }
}

impl Drop for FileStream {
    fn drop(&mut self) {
        self.files.lock().release(self.node);
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for FileStream {
    async fn ready(&mut self) {}
}

#[wasmtime_wasi::async_trait]
impl InputStream for FileStream {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        let tree = self.files.lock();
        let offset = self.offset.unwrap_or(0);
        let rest = tree
            .file(self.node)
            .map(|bytes| remainder(bytes, offset))
            .unwrap_or_default();
        if rest.is_empty() {
            return Err(StreamError::Closed);
        }
        let length = size.min(rest.len()).min(CHUNK_BYTES);
        self.offset = Some(offset + length as u64);
        Ok(Bytes::copy_from_slice(&rest[..length]))
    }
}

#[wasmtime_wasi::async_trait]
impl OutputStream for FileStream {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        let mut tree = self.files.lock();
        let end = tree.file(self.node).map_or(0, |content| content.len() as u64);
        let offset = self.offset.unwrap_or(end);
        tree.write(self.node, offset, &bytes)
            .map_err(|code| StreamError::LastOperationFailed(code.into()))?;
        self.offset = self.offset.map(|offset| offset + bytes.len() as u64);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(CHUNK_BYTES)
    }
}

/// What a file holds from `offset` on.
pub(super) fn remainder(bytes: &[u8], offset: u64) -> &[u8] {
    usize::try_from(offset)
        .ok()
        .and_then(|offset| bytes.get(offset..))
        .unwrap_or_default()
}
