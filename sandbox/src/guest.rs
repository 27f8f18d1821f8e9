//! The Python guest: embedded, verified by hash, compiled once per machine, cached.
//!
//! A compiled guest is native code, so a cache file is only used when three things agree: its name carries the key of this guest,
//! this wasmtime and these engine settings; its name carries the blake3 of its content; and wasmtime accepts it. Anything else is
//! compiled again. Files appear by rename, so a reader never sees half of one.

use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use wasmtime::Engine;
use wasmtime::component::Component;

use crate::engine::Metering;
use crate::error::SandboxError;

/// The component, zstd-compressed: recipe in `guest/README.md`.
const GUEST_ZST: &[u8] = include_bytes!("../guest/guest.wasm.zst");
/// blake3 of the unpacked component, in hex.
const GUEST_BLAKE3: &str = include_str!("../guest/guest.blake3");
/// Bound on the unpacked component, against a damaged header.
const GUEST_MAX_BYTES: usize = 256 << 20;

/// Compiled guests kept in a cache directory, over all versions and settings (50 MB each).
const KEPT_FILES: usize = 6;

/// Tells the caller that something slow started.
pub(crate) type Progress<'a> = &'a (dyn Fn(&str) + Send + Sync);

/// The user's cache directory of compiled guests, `None` when the platform names none.
pub(crate) fn default_cache_dir() -> Option<PathBuf> {
    directories::ProjectDirs::from("", "", "mipu").map(|dirs| dirs.cache_dir().join("guests"))
}

/// Loads the guest for `engine` from `cache_dir`, or compiles it (and fills the cache when that can be written).
pub(crate) fn load(
    engine: &Engine,
    metering: Metering,
    cache_dir: Option<&Path>,
    progress: Progress<'_>,
) -> Result<Component, SandboxError> {
    let Some(dir) = cache_dir else {
        return compile(engine, progress).and_then(|code| from_memory(engine, &code));
    };
    let cache = Cache {
        dir,
        key: key(engine, metering),
    };
    if let Some(component) = cache.find(engine) {
        return Ok(component);
    }
    let _lock = cache.lock(progress); // one process compiles, the others wait for its file
    if let Some(component) = cache.find(engine) {
        return Ok(component);
    }
    let code = compile(engine, progress)?;
    match cache.store(&code) {
        Ok(()) => cache.find(engine).map_or_else(|| from_memory(engine, &code), Ok),
        Err(error) => {
            tracing::warn!(dir = %dir.display(), %error, "cannot cache the compiled guest: every start compiles it again");
            from_memory(engine, &code)
        }
    }
}

/// Unpacks the embedded component and checks it against its recorded hash.
fn unpack() -> Result<Vec<u8>, SandboxError> {
    let wasm = zstd::bulk::decompress(GUEST_ZST, GUEST_MAX_BYTES).map_err(|error| SandboxError::Prepare {
        action: "unpack",
        reason: error.to_string(),
    })?;
    let found = blake3::hash(&wasm).to_hex().to_string();
    let expected = GUEST_BLAKE3.trim();
    if found == expected {
        Ok(wasm)
    } else {
        Err(SandboxError::Guest {
            expected: expected.to_owned(),
            found,
        })
    }
}

fn compile(engine: &Engine, progress: Progress<'_>) -> Result<Vec<u8>, SandboxError> {
    progress("compiling the Python guest (once per machine, 10-30 s)");
    let wasm = unpack()?;
    engine
        .precompile_component(&wasm)
        .map_err(|error| SandboxError::Prepare {
            action: "compile",
            reason: format!("{error:#}"),
        })
}

fn from_memory(engine: &Engine, code: &[u8]) -> Result<Component, SandboxError> {
    native::component_from_memory(engine, code).map_err(|error| SandboxError::Prepare {
        action: "load",
        reason: format!("{error:#}"),
    })
}

/// Everything that decides whether compiled code fits: guest, wasmtime, its settings, the machine's instruction set.
fn key(engine: &Engine, metering: Metering) -> String {
    let mut hasher = KeyHasher(blake3::Hasher::new());
    GUEST_BLAKE3.trim().hash(&mut hasher);
    engine.precompile_compatibility_hash().hash(&mut hasher);
    let hash = hasher.0.finalize().to_hex();
    let kind = match metering {
        Metering::Deadline => "deadline",
        Metering::Fuel => "fuel",
    };
    format!("python-{kind}-{}", &hash[..16])
}

/// Feeds `std::hash` input to blake3: unlike the default hasher its result means the same in every process.
struct KeyHasher(blake3::Hasher);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        let hash = self.0.finalize();
        u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("a hash has 32 bytes"))
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
}

/// Compiled guests of one key in one directory.
struct Cache<'a> {
    dir: &'a Path,
    key: String,
}

impl Cache<'_> {
    /// A sound compiled guest; unsound files of this key are removed on the way.
    fn find(&self, engine: &Engine) -> Option<Component> {
        let entries = fs::read_dir(self.dir).ok()?;
        for path in entries.flatten().map(|entry| entry.path()) {
            let Some(hash) = self.claimed_hash(&path) else {
                continue;
            };
            match self.open(engine, &path, &hash) {
                Ok(component) => return Some(component),
                Err(reason) => {
                    tracing::warn!(path = %path.display(), reason, "dropping an unusable compiled guest");
                    let _ = fs::remove_file(&path);
                }
            }
        }
        None
    }

    /// The content hash in a file's name, when the name is `<key>.<64 hex digits>.cwasm`.
    fn claimed_hash(&self, path: &Path) -> Option<String> {
        let name = path.file_name()?.to_str()?;
        let hash = name
            .strip_prefix(&self.key)?
            .strip_prefix('.')?
            .strip_suffix(".cwasm")?;
        (hash.len() == 64).then(|| hash.to_owned())
    }

    fn open(&self, engine: &Engine, path: &Path, claimed: &str) -> Result<Component, String> {
        let mut file = File::open(path).map_err(|error| error.to_string())?;
        refuse_shared(&file)?;
        let mut hasher = blake3::Hasher::new();
        let mut chunk = vec![0; 1 << 20];
        loop {
            match file.read(&mut chunk).map_err(|error| error.to_string())? {
                0 => break,
                n => hasher.update(&chunk[..n]),
            };
        }
        if hasher.finalize().to_hex().as_str() != claimed {
            return Err("content does not match its hash".to_owned());
        }
        native::component_from_file(engine, path).map_err(|error| format!("{error:#}"))
    }

    /// Writes beside the target, flushes, renames.
    fn store(&self, code: &[u8]) -> std::io::Result<()> {
        fs::create_dir_all(self.dir)?;
        let mut file = tempfile::NamedTempFile::new_in(self.dir)?;
        file.write_all(code)?;
        file.as_file().sync_all()?;
        let name = format!("{}.{}.cwasm", self.key, blake3::hash(code).to_hex());
        file.persist(self.dir.join(name)).map_err(|error| error.error)?;
        self.prune();
        Ok(())
    }

    /// Removes the oldest compiled guests beyond [`KEPT_FILES`]. A process that has one mapped keeps it.
    fn prune(&self) {
        let Ok(entries) = fs::read_dir(self.dir) else {
            return;
        };
        let guests = entries.flatten().filter(|entry| {
            let name = entry.file_name();
            name.to_str()
                .is_some_and(|name| name.starts_with("python-") && name.ends_with(".cwasm"))
        });
        let mut dated: Vec<_> = guests
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        dated.sort_unstable_by(|a, b| b.cmp(a));
        for (_, path) in dated.drain(..).skip(KEPT_FILES) {
            let _ = fs::remove_file(path);
        }
    }

    /// Waits for any other process that compiles the same guest. The lock goes with the process, however it ends.
    fn lock(&self, progress: Progress<'_>) -> Option<File> {
        fs::create_dir_all(self.dir).ok()?;
        let file = File::create(self.dir.join(format!("{}.lock", self.key))).ok()?;
        if file.try_lock().is_err() {
            progress("waiting for another process that compiles the Python guest");
            file.lock().ok()?;
        }
        Some(file)
    }
}

/// Native code that any user may replace is not run.
#[cfg(unix)]
fn refuse_shared(file: &File) -> Result<(), String> {
    use std::os::unix::fs::MetadataExt;
    let mode = file.metadata().map_err(|error| error.to_string())?.mode();
    if mode & 0o002 == 0 {
        Ok(())
    } else {
        Err("anyone may write to it".to_owned())
    }
}

#[cfg(not(unix))]
fn refuse_shared(_file: &File) -> Result<(), String> {
    Ok(())
}

/// The two calls that take compiled code on trust.
mod native {
    use std::path::Path;

    use wasmtime::component::Component;
    use wasmtime::{Engine, Result};

    pub(super) fn component_from_file(engine: &Engine, path: &Path) -> Result<Component> {
        // SAFETY: the caller has just checked that the file's content has the blake3 under which this crate stored the output of
        // `precompile_component`, and that other users may not write to it. Files here are never written in place.
        unsafe { Component::deserialize_file(engine, path) }
    }

    pub(super) fn component_from_memory(engine: &Engine, code: &[u8]) -> Result<Component> {
        // SAFETY: `code` is the output of `precompile_component` of this process.
        unsafe { Component::deserialize(engine, code) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_guest_is_the_recorded_one() {
        let wasm = unpack().unwrap();
        assert!(wasm.starts_with(b"\0asm"), "not WebAssembly");
    }

    #[test]
    fn the_oldest_compiled_guests_are_pruned() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache {
            dir: dir.path(),
            key: "python-deadline-0".to_owned(),
        };
        for age in 0..KEPT_FILES as u64 + 3 {
            let file = File::create(dir.path().join(format!("python-deadline-{age}.x.cwasm"))).unwrap();
            let written = std::time::SystemTime::now() - std::time::Duration::from_secs(1000 * (age + 1));
            file.set_modified(written).unwrap();
        }
        fs::write(dir.path().join("mine.txt"), b"x").unwrap();
        cache.store(b"code").unwrap();
        let mut left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left.len(), KEPT_FILES + 1, "{left:?}");
        assert!(
            left[0] == "mine.txt" && left[1].starts_with("python-deadline-0."),
            "{left:?}"
        );
        assert!(
            !left.iter().any(|name| name.starts_with("python-deadline-8")),
            "{left:?}"
        );
    }
}
