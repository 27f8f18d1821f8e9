//! Models from a Hugging Face hub: every file is checked against the hash that the hub names, then the directory is loaded once.

use std::path::{Path, PathBuf};

use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, CacheRepo, Repo, RepoType};
use serde::Serialize;
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::{LoadedModel, ModelError};

/// What a model directory cannot do without.
const NEEDED: [&str; 2] = ["config.json", "tokenizer.json"];

/// What is taken where there is one.
const OPTIONAL: [&str; 3] = [
    "generation_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];

const INDEX: &str = "model.safetensors.index.json";

/// Where models are pulled from.
#[derive(Clone, Debug, Default)]
pub struct Hub {
    /// Address. Default: `HF_ENDPOINT`, else huggingface.co.
    pub endpoint: Option<String>,
    /// Directory of finished and half-finished downloads. Default: `HF_HOME`, else `~/.cache/huggingface`.
    pub cache: Option<PathBuf>,
    /// Access token for gated models. Default: the one of `huggingface-cli login`.
    pub token: Option<String>,
}

/// A file of a pulled model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PulledFile {
    /// Name in the repository.
    pub name: String,
    /// Size.
    pub bytes: u64,
    /// SHA-256, or git's SHA-1 for small files, as the hub names it and as it was found.
    pub hash: String,
}

/// What a pull brought.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PullReport {
    /// `ORG/NAME`.
    pub repo: String,
    /// Commit that the revision stood for.
    pub commit: String,
    /// Its files.
    pub files: Vec<PulledFile>,
    /// Parameters, tied weights counted once.
    pub parameters: usize,
    /// blake3 of the f32 weights.
    pub weights_hash: String,
}

/// Downloads a model into the directory `out`; what an earlier try left half-finished is continued. `on_progress` is told the
/// file, the bytes that are there and the file's size.
///
/// # Errors
/// When the name is not `ORG/NAME`, the hub cannot be reached or refuses, a needed file is missing, a hash is wrong (the file is
/// then removed), or the directory does not load as a model.
pub fn pull(
    hub: &Hub,
    repo: &str,
    revision: &str,
    out: &Path,
    on_progress: &dyn Fn(&str, u64, u64),
) -> Result<PullReport, ModelError> {
    let valid = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    let refuse = |reason: String| ModelError::Hub {
        repo: repo.to_owned(),
        reason,
    };
    if !repo
        .split_once('/')
        .is_some_and(|(org, name)| valid(org) && valid(name))
    {
        return Err(refuse(
            "a model is named ORG/NAME\nhint: for example HuggingFaceTB/SmolLM2-135M-Instruct".to_owned(),
        ));
    }
    let cache = hub.cache.clone().map_or_else(Cache::from_env, Cache::new);
    let mut builder = ApiBuilder::from_env()
        .with_cache_dir(cache.path().clone())
        .with_retries(3);
    if let Some(endpoint) = &hub.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    if let Some(token) = &hub.token {
        builder = builder.with_token(Some(token.clone()));
    }
    let failed = |e: ApiError| refuse(explain(&e));
    let api = builder.build().map_err(failed)?;
    let named = |revision: &str| Repo::with_revision(repo.to_owned(), RepoType::Model, revision.to_owned());
    let info = api.repo(named(revision)).info().map_err(failed)?;
    let names: Vec<&str> = info.siblings.iter().map(|s| s.rfilename.as_str()).collect();
    // The commit, so that all files are of one version.
    let source = Source {
        repo: api.repo(named(&info.sha)),
        cache: cache.repo(named(&info.sha)),
        api: &api,
        refuse: &refuse,
        on_progress,
    };
    std::fs::create_dir_all(out).map_err(ModelError::io(out))?;
    let mut files = Vec::new();
    for name in wanted(&names).map_err(refuse)? {
        files.push(source.fetch(name, out)?);
    }
    if files.iter().any(|file| file.name == INDEX) {
        let index = out.join(INDEX);
        let text = std::fs::read_to_string(&index).map_err(ModelError::io(&index))?;
        for shard in shards(&text).map_err(|reason| ModelError::file(&index, reason))? {
            if !names.contains(&shard.as_str()) {
                return Err(refuse(format!("the shard {shard} of {INDEX} is missing")));
            }
            files.push(source.fetch(&shard, out)?);
        }
    }
    let model = LoadedModel::load(out)?;
    Ok(PullReport {
        repo: repo.to_owned(),
        commit: info.sha,
        files,
        parameters: model.weights.config.parameters(),
        weights_hash: model.weights.hash(),
    })
}

/// The files of a repository to take, shards aside.
fn wanted<'a>(names: &[&'a str]) -> Result<Vec<&'a str>, String> {
    let find = |wanted: &str| names.iter().copied().find(|name| *name == wanted);
    let mut files = Vec::new();
    for needed in NEEDED {
        files
            .push(find(needed).ok_or_else(|| format!("the repository has no {needed}{}", gguf_hint(names)))?);
    }
    files.extend(OPTIONAL.iter().filter_map(|name| find(name)));
    let weights = find(INDEX).or_else(|| find("model.safetensors"));
    files.push(weights.ok_or_else(|| {
        format!(
            "the repository has no model.safetensors (other formats are not read){}",
            gguf_hint(names)
        )
    })?);
    Ok(files)
}

fn gguf_hint(names: &[&str]) -> String {
    match names.iter().find(|name| name.ends_with(".gguf")) {
        Some(name) => format!("\nhint: download {name} and run `mipu model import`"),
        None => String::new(),
    }
}

/// File names of an index, each once.
fn shards(index: &str) -> Result<Vec<String>, String> {
    let json: serde_json::Value = serde_json::from_str(index).map_err(|e| e.to_string())?;
    let map = json["weight_map"]
        .as_object()
        .ok_or("`weight_map` must be an object")?;
    let mut names = Vec::new();
    for (tensor, name) in map {
        let name = name.as_str().filter(|s| !s.contains(['/', '\\']));
        let name = name.ok_or_else(|| format!("the shard of `{tensor}` must be a file name"))?;
        names.push(name.to_owned());
    }
    names.sort();
    names.dedup();
    Ok(names)
}

struct Source<'a> {
    repo: ApiRepo,
    cache: CacheRepo,
    api: &'a Api,
    refuse: &'a dyn Fn(String) -> ModelError,
    on_progress: &'a dyn Fn(&str, u64, u64),
}

impl Source<'_> {
    /// Downloads a file unless the cache has it, checks its hash, and copies it to `out`.
    fn fetch(&self, name: &str, out: &Path) -> Result<PulledFile, ModelError> {
        let failed = |e: ApiError| (self.refuse)(format!("{name}: {}", explain(&e)));
        let metadata = self.api.metadata(&self.repo.url(name)).map_err(failed)?;
        let told = metadata.etag().trim_start_matches("W/").trim_matches('"');
        let meter = Meter {
            name: name.to_owned(),
            done: 0,
            size: metadata.size() as u64,
            tell: self.on_progress,
        };
        // The pointer of a finished download, else the network.
        let path = match self.cache.get(name) {
            Some(path) => path,
            None => self.repo.download_with_progress(name, meter).map_err(failed)?,
        };
        let blob = std::fs::canonicalize(&path).map_err(ModelError::io(&path))?;
        let bytes = std::fs::metadata(&blob).map_err(ModelError::io(&blob))?.len();
        let hash = match told.len() {
            64 => hash_of(&blob, Sha256::new())?,
            40 => {
                let mut git = Sha1::new();
                git.update(format!("blob {bytes}\0"));
                hash_of(&blob, git)?
            }
            _ => {
                return Err((self.refuse)(format!(
                    "{name}: the hub names no hash that is known; got `{told}`"
                )));
            }
        };
        if hash != told {
            for damaged in [&path, &blob] {
                let _ = std::fs::remove_file(damaged);
            }
            return Err((self.refuse)(format!(
                "{name}: the hash must be {told}; got {hash} of {bytes} of {} bytes\nhint: the damaged file was removed; pull again",
                metadata.size()
            )));
        }
        let target = out.join(name);
        std::fs::copy(&blob, &target).map_err(ModelError::io(&target))?;
        Ok(PulledFile {
            name: name.to_owned(),
            bytes,
            hash,
        })
    }
}

fn hash_of<D: Digest + std::io::Write>(path: &Path, mut digest: D) -> Result<String, ModelError> {
    let mut file = std::fs::File::open(path).map_err(ModelError::io(path))?;
    std::io::copy(&mut file, &mut digest).map_err(ModelError::io(path))?;
    Ok(digest
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

struct Meter<'a> {
    name: String,
    done: u64,
    size: u64,
    tell: &'a dyn Fn(&str, u64, u64),
}

impl Progress for Meter<'_> {
    fn init(&mut self, size: usize, _filename: &str) {
        self.done = 0;
        self.size = size as u64;
    }

    fn update(&mut self, size: usize) {
        self.done += size as u64;
        (self.tell)(&self.name, self.done, self.size);
    }

    fn finish(&mut self) {
        (self.tell)(&self.name, self.size, self.size);
    }
}

/// An error of the hub with what to do about it.
fn explain(error: &ApiError) -> String {
    let mut inner = error;
    while let ApiError::TooManyRetries(cause) = inner {
        inner = cause;
    }
    let ApiError::RequestError(request) = inner else {
        return error.to_string();
    };
    match &**request {
        ureq::Error::StatusCode(code @ (401 | 403 | 404)) => format!(
            "the hub answers {code}: no such model or revision, or it is not open to all\nhint: check the name; a gated model \
             needs its terms accepted and a token (HF_TOKEN, or huggingface-cli login)"
        ),
        ureq::Error::StatusCode(code) => {
            format!("the hub answers {code}\nhint: try again later; what is there is kept")
        }
        other => format!(
            "the hub cannot be reached: {other}\nhint: a model directory needs no network, and `mipu model import` makes one of a \
             GGUF file; behind a proxy set HTTPS_PROXY"
        ),
    }
}
