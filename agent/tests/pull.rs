//! Models from a hub: a real little server on this machine that answers as a Hugging Face hub does, and misbehaves when told to.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mipu_agent::model::{Hub, PullReport, pull};
use mipu_agent::{LoadedModel, ModelConfig};
use sha1::{Digest, Sha1};
use sha2::Sha256;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

#[derive(Default)]
struct Manners {
    /// Most bytes of a file in one answer; the connection then ends early.
    cut: usize,
    /// The first answer with this file's end has its last byte changed.
    damage: Option<&'static str>,
    /// What every request is answered with.
    status: Option<u16>,
}

struct Server {
    address: String,
    sent: Arc<AtomicUsize>,
}

fn serve(files: HashMap<String, Vec<u8>>, manners: Manners) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    // The thread ends with the test process.
    std::thread::spawn(move || {
        let mut manners = manners;
        for stream in listener.incoming() {
            let _ = answer(stream.unwrap(), &files, &mut manners, &counted);
        }
    });
    Server { address, sent }
}

fn answer(
    mut stream: TcpStream,
    files: &HashMap<String, Vec<u8>>,
    manners: &mut Manners,
    sent: &AtomicUsize,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().unwrap()?;
    let path = first.split(' ').nth(1).unwrap().to_owned();
    let mut range = String::new();
    for line in lines {
        let line = line?.to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("range: bytes=") {
            range = value.to_owned();
        }
        if line.is_empty() {
            break;
        }
    }
    let plain = |status: u16, body: &str| {
        format!(
            "HTTP/1.1 {status} x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
    };
    if let Some(status) = manners.status {
        return stream.write_all(plain(status, "no").as_bytes());
    }
    if path == "/api/models/org/tiny/revision/main" {
        let siblings: Vec<_> = files
            .keys()
            .map(|name| serde_json::json!({ "rfilename": name }))
            .collect();
        let body = serde_json::json!({"sha": COMMIT, "siblings": siblings}).to_string();
        return stream.write_all(plain(200, &body).as_bytes());
    }
    let prefix = format!("/org/tiny/resolve/{COMMIT}/");
    let Some((name, bytes)) = path
        .strip_prefix(&prefix)
        .and_then(|name| files.get_key_value(name))
    else {
        return stream.write_all(plain(404, "no such file").as_bytes());
    };
    let (from, to) = range.split_once('-').unwrap();
    let from: usize = from.parse().unwrap();
    let to = to
        .parse()
        .map_or(bytes.len(), |last: usize| (last + 1).min(bytes.len()));
    // Large files are named by SHA-256, small ones as git names them.
    let etag = if name.ends_with(".safetensors") {
        hex(&Sha256::digest(bytes))
    } else {
        let mut git = Sha1::new();
        git.update(format!("blob {}\0", bytes.len()));
        git.update(bytes);
        hex(&git.finalize())
    };
    let mut body = bytes[from..to].to_vec();
    if to == bytes.len() && body.len() > 1 && manners.damage == Some(name.as_str()) {
        manners.damage = None;
        *body.last_mut().unwrap() ^= 1;
    }
    let head = format!(
        "HTTP/1.1 206 x\r\nContent-Length: {}\r\nContent-Range: bytes {from}-{}/{}\r\nETag: \"{etag}\"\r\nx-repo-commit: {COMMIT}\r\n\
         Connection: close\r\n\r\n",
        body.len(),
        to.max(1) - 1,
        bytes.len()
    );
    if manners.cut > 0 {
        body.truncate(manners.cut);
    }
    sent.fetch_add(body.len(), Ordering::Relaxed);
    stream.write_all(head.as_bytes())?;
    stream.write_all(&body)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The files of a tiny model.
fn tiny(dir: &Path) -> HashMap<String, Vec<u8>> {
    let model = LoadedModel::init_compact(ModelConfig::tiny(), 5).unwrap();
    model.save(dir).unwrap();
    let mut files: HashMap<String, Vec<u8>> = ["config.json", "tokenizer.json", "model.safetensors"]
        .map(|name| (name.to_owned(), std::fs::read(dir.join(name)).unwrap()))
        .into();
    files.insert("README.md".to_owned(), b"not wanted".to_vec());
    files
}

struct Place {
    home: tempfile::TempDir,
    files: HashMap<String, Vec<u8>>,
}

impl Place {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let files = tiny(&home.path().join("source"));
        Self { home, files }
    }

    fn out(&self) -> PathBuf {
        self.home.path().join("out")
    }

    fn pull(&self, server: &Server, repo: &str, told: &dyn Fn(&str, u64, u64)) -> Result<PullReport, String> {
        let hub = Hub {
            endpoint: Some(server.address.clone()),
            cache: Some(self.home.path().join("cache")),
            token: None,
        };
        pull(&hub, repo, "main", &self.out(), told).map_err(|e| e.to_string())
    }
}

#[test]
fn a_pulled_model_is_what_the_hub_has_and_is_pulled_once() {
    let place = Place::new();
    let server = serve(place.files.clone(), Manners::default());
    let told = RefCell::new(Vec::new());
    let report = place
        .pull(&server, "org/tiny", &|name, done, size| {
            told.borrow_mut().push((name.to_owned(), done, size))
        })
        .unwrap();
    let names: Vec<&str> = report.files.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["config.json", "tokenizer.json", "model.safetensors"]);
    assert_eq!((report.commit.as_str(), report.parameters), (COMMIT, 331_056));
    for name in names {
        assert_eq!(std::fs::read(place.out().join(name)).unwrap(), place.files[name]);
    }
    let size = place.files["model.safetensors"].len() as u64;
    assert!(
        told.borrow()
            .contains(&("model.safetensors".to_owned(), size, size))
    );
    let before = server.sent.load(Ordering::Relaxed);
    assert_eq!(place.pull(&server, "org/tiny", &|_, _, _| ()).unwrap(), report);
    assert_eq!(
        server.sent.load(Ordering::Relaxed) - before,
        3,
        "a byte of each file, for its hash"
    );
}

#[test]
fn an_interrupted_download_goes_on_where_it_stopped() {
    let place = Place::new();
    let size = place.files["model.safetensors"].len();
    let manners = Manners {
        cut: size / 6,
        ..Manners::default()
    };
    let server = serve(place.files.clone(), manners);
    let error = place.pull(&server, "org/tiny", &|_, _, _| ()).unwrap_err();
    assert!(error.contains("model.safetensors"), "{error}");
    place.pull(&server, "org/tiny", &|_, _, _| ()).unwrap();
    assert_eq!(
        std::fs::read(place.out().join("model.safetensors")).unwrap(),
        place.files["model.safetensors"]
    );
    let total: usize = ["config.json", "tokenizer.json", "model.safetensors"]
        .map(|n| place.files[n].len())
        .iter()
        .sum();
    let sent = server.sent.load(Ordering::Relaxed);
    assert!(
        (total..total + 100).contains(&sent),
        "nothing is sent twice: {sent} of {total}"
    );
}

#[test]
fn a_damaged_file_is_told_and_fetched_again() {
    for name in ["model.safetensors", "tokenizer.json"] {
        let place = Place::new();
        let manners = Manners {
            damage: Some(name),
            ..Manners::default()
        };
        let server = serve(place.files.clone(), manners);
        let error = place.pull(&server, "org/tiny", &|_, _, _| ()).unwrap_err();
        assert!(
            error.contains(name) && error.contains("the hash must be"),
            "{error}"
        );
        assert!(!place.out().join(name).exists());
        place.pull(&server, "org/tiny", &|_, _, _| ()).unwrap();
    }
}

#[test]
fn what_cannot_be_pulled_says_what_to_do() {
    let place = Place::new();
    let error = |files: HashMap<String, Vec<u8>>, status: Option<u16>, repo: &str| {
        let manners = Manners {
            status,
            ..Manners::default()
        };
        place
            .pull(&serve(files, manners), repo, &|_, _, _| ())
            .unwrap_err()
    };
    for repo in ["tiny", "a/b/c", "org/", "../x", "org/.."] {
        assert!(
            error(place.files.clone(), None, repo).contains("a model is named ORG/NAME"),
            "{repo}"
        );
    }
    let gated = error(place.files.clone(), Some(401), "org/tiny");
    assert!(
        gated.contains("answers 401") && gated.contains("HF_TOKEN"),
        "{gated}"
    );
    let busy = error(place.files.clone(), Some(503), "org/tiny");
    assert!(busy.contains("answers 503\nhint: try again later"), "{busy}");
    let mut files = place.files.clone();
    files.remove("model.safetensors");
    files.insert("tiny.Q8_0.gguf".to_owned(), vec![]);
    let other = error(files, None, "org/tiny");
    assert!(
        other.contains("no model.safetensors") && other.contains("hint: download tiny.Q8_0.gguf"),
        "{other}"
    );
    // Nobody listens there.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = Server {
        address: format!("http://{closed}"),
        sent: Arc::default(),
    };
    let offline = place.pull(&server, "org/tiny", &|_, _, _| ()).unwrap_err();
    assert!(
        offline.contains("org/tiny: the hub cannot be reached")
            && offline.contains("hint: a model directory needs no network"),
        "{offline}"
    );
}

#[test]
fn shards_are_pulled_by_their_index() {
    let place = Place::new();
    let mut files = place.files.clone();
    let weights = files.remove("model.safetensors").unwrap();
    let names = LoadedModel::init_compact(ModelConfig::tiny(), 5).unwrap();
    let map: serde_json::Map<String, serde_json::Value> = names
        .weights
        .tensors
        .iter()
        .map(|t| (t.0.clone(), "model-1.safetensors".into()))
        .collect();
    let index = serde_json::json!({ "weight_map": map }).to_string().into_bytes();
    files.insert("model.safetensors.index.json".to_owned(), index);
    let lost = place
        .pull(
            &serve(files.clone(), Manners::default()),
            "org/tiny",
            &|_, _, _| (),
        )
        .unwrap_err();
    assert!(
        lost.contains("the shard model-1.safetensors of model.safetensors.index.json is missing"),
        "{lost}"
    );
    files.insert("model-1.safetensors".to_owned(), weights);
    let report = place
        .pull(&serve(files, Manners::default()), "org/tiny", &|_, _, _| ())
        .unwrap();
    assert_eq!(report.weights_hash, names.weights.hash());
}
