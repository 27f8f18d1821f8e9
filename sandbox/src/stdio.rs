//! Standard streams of an instance: input from memory, output captured up to a cap and discarded beyond it.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use wasmtime_wasi::cli::{IsTerminal, StdinStream, StdoutStream};
use wasmtime_wasi::p2::{InputStream, OutputStream, Pollable, StreamError, StreamResult};

/// Largest chunk a guest moves in one host call.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;

/// What an execution may read as standard input.
#[derive(Clone, Debug, Default)]
pub(crate) struct Feed(Arc<Mutex<Bytes>>);

impl Feed {
    /// Replaces what is left of the input.
    pub(crate) fn set(&self, input: &[u8]) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Bytes::copy_from_slice(input);
    }
}

/// Captured output of one stream.
#[derive(Clone, Debug)]
pub(crate) struct Capture(Arc<Mutex<Captured>>);

#[derive(Debug)]
struct Captured {
    bytes: Vec<u8>,
    cap: usize,
    cut: bool,
}

impl Capture {
    /// An empty capture of at most `cap` bytes between two [`Capture::take`] calls.
    pub(crate) fn new(cap: usize) -> Self {
        Self(Arc::new(Mutex::new(Captured {
            bytes: Vec::new(),
            cap,
            cut: false,
        })))
    }

    /// What was written since the last call, and whether some of it was discarded.
    pub(crate) fn take(&self) -> (String, bool) {
        let mut captured = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = std::mem::take(&mut captured.bytes);
        let cut = std::mem::take(&mut captured.cut);
        let text = match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => lossy(error.as_bytes(), cut),
        };
        (text, cut)
    }

    fn write(&self, bytes: &[u8]) {
        let mut captured = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = captured.cap - captured.bytes.len();
        captured.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        captured.cut |= bytes.len() > room;
    }
}

/// Decodes with replacement characters, except that a character split by the cap is dropped.
fn lossy(bytes: &[u8], cut: bool) -> String {
    let keep = match std::str::from_utf8(bytes) {
        Err(error) if cut && error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    };
    String::from_utf8_lossy(&bytes[..keep]).into_owned()
}

impl IsTerminal for Feed {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdinStream for Feed {
    fn async_stream(&self) -> Box<dyn tokio::io::AsyncRead + Send + Sync> {
        Box::new(tokio::io::empty()) // only asked for by WASI 0.3, which is not linked
    }

    fn p2_stream(&self) -> Box<dyn InputStream> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Feed {
    async fn ready(&mut self) {}
}

#[wasmtime_wasi::async_trait]
impl InputStream for Feed {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if left.is_empty() {
            return Err(StreamError::Closed);
        }
        let size = size.min(left.len()).min(CHUNK_BYTES);
        Ok(left.split_to(size))
    }
}

impl IsTerminal for Capture {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Capture {
    fn async_stream(&self) -> Box<dyn tokio::io::AsyncWrite + Send + Sync> {
        Box::new(tokio::io::sink()) // only asked for by WASI 0.3, which is not linked
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Capture {
    async fn ready(&mut self) {}
}

#[wasmtime_wasi::async_trait]
impl OutputStream for Capture {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        Capture::write(self, &bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(CHUNK_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_cut_at_the_cap_on_a_character_boundary() {
        let capture = Capture::new(5);
        capture.write("abcd".as_bytes());
        capture.write("é and more".as_bytes());
        assert_eq!(capture.take(), ("abcd".to_owned(), true));
        capture.write(b"ok");
        assert_eq!(capture.take(), ("ok".to_owned(), false));
        capture.write(&[b'a', 0xff, b'b']);
        assert_eq!(capture.take(), ("a\u{fffd}b".to_owned(), false));
    }
}
