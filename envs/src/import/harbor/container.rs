//! The environment of a Harbor task, as far as it is files.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Reason, entries, text};

/// Where an image starts when its Dockerfile does not say.
const DEFAULT_HOME: &str = "/app";
/// Packages that are for the harness or are of no use to Python code.
const HARMLESS: [&str; 16] = [
    "asciinema",
    "bash",
    "ca-certificates",
    "coreutils",
    "curl",
    "git",
    "less",
    "nano",
    "pip",
    "procps",
    "pytest",
    "python3",
    "python3-pip",
    "tmux",
    "uv",
    "vim",
];

/// Files and the directory they stand in.
#[derive(Debug)]
pub(super) struct Environment {
    /// Absolute working directory of the container, without a slash at its end.
    pub home: String,
    /// Text files by relative path.
    pub files: BTreeMap<String, String>,
}

/// Reads `environment/`.
pub(super) fn read(directory: &Path, image: Option<&str>) -> Result<Environment, Reason> {
    for name in ["docker-compose.yaml", "docker-compose.yml", "compose.yaml"] {
        if directory.join(name).exists() {
            return Err(format!("{name}: it needs several containers"));
        }
    }
    let mut environment = Environment {
        home: DEFAULT_HOME.to_owned(),
        files: BTreeMap::new(),
    };
    let dockerfile = directory.join("Dockerfile");
    if dockerfile.exists() {
        environment.follow(&text(&dockerfile)?, directory)?;
    } else if let Some(image) = image {
        base(image)?;
        if directory.is_dir() {
            environment.copy(directory, "")?;
        }
    }
    Ok(environment)
}

/// Images that bring nothing but a Python or a shell.
fn base(image: &str) -> Result<(), Reason> {
    let name = image.rsplit('/').next().unwrap_or_default();
    let name = name.split([':', '@']).next().unwrap_or_default();
    match ["python", "ubuntu", "debian", "alpine", "busybox"].contains(&name) {
        true => Ok(()),
        false => Err(format!("it needs the container image {image}")),
    }
}

impl Environment {
    fn follow(&mut self, dockerfile: &str, directory: &Path) -> Result<(), Reason> {
        let joined = dockerfile.replace("\\\n", " ");
        let mut froms = 0;
        for line in joined.lines().map(str::trim) {
            let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let rest = rest.trim();
            match word.to_ascii_uppercase().as_str() {
                "" => {}
                comment if comment.starts_with('#') => {}
                "FROM" => {
                    froms += 1;
                    if froms > 1 {
                        return Err("its Dockerfile has several stages".to_owned());
                    }
                    let image = rest.split_whitespace().find(|word| !word.starts_with("--"));
                    base(image.unwrap_or_default())?;
                }
                "WORKDIR" => self.home = format!("/{}", rest.trim_matches(['/', '"'])),
                "COPY" | "ADD" => self.place(rest, directory)?,
                "RUN" => harmless(rest)?,
                "ENV" | "ARG" | "LABEL" | "CMD" | "ENTRYPOINT" | "SHELL" | "USER" | "EXPOSE" => {}
                other => return Err(format!("its Dockerfile has {other}")),
            }
        }
        Ok(())
    }

    /// `COPY source.. target`.
    fn place(&mut self, rest: &str, directory: &Path) -> Result<(), Reason> {
        let words: Vec<&str> = rest.split_whitespace().collect();
        if words
            .iter()
            .any(|word| word.starts_with("--from") || word.starts_with('[') || word.contains('*'))
        {
            return Err(format!("its Dockerfile copies {rest}"));
        }
        let words: Vec<&str> = words.into_iter().filter(|word| !word.starts_with("--")).collect();
        let Some((target, sources)) = words.split_last() else {
            return Err("its Dockerfile copies nothing".to_owned());
        };
        let inside = match target.strip_prefix(self.home.as_str()) {
            Some(inside) if inside.is_empty() || inside.starts_with('/') => inside,
            _ if !target.starts_with('/') => target,
            _ => {
                return Err(format!(
                    "its Dockerfile copies files to {target}, outside {}",
                    self.home
                ));
            }
        };
        let inside = inside
            .trim_start_matches("./")
            .trim_matches('/')
            .trim_start_matches('.');
        for source in sources {
            let source = source.trim_start_matches("./").trim_end_matches('/');
            if source.split('/').any(|part| part == "..") || source.starts_with('/') {
                return Err(format!("its Dockerfile copies {source} from outside"));
            }
            let from = directory.join(source);
            if from.is_dir() {
                self.copy(&from, inside)?;
                continue;
            }
            let name = source.rsplit('/').next().unwrap_or_default();
            let to_directory = inside.is_empty() || target.ends_with('/') || sources.len() > 1;
            let path = if to_directory {
                join(inside, name)
            } else {
                inside.to_owned()
            };
            self.files.insert(path, text(&from)?);
        }
        Ok(())
    }

    /// A directory's files, to `target`.
    fn copy(&mut self, directory: &Path, target: &str) -> Result<(), Reason> {
        let listed = entries(directory).map_err(|error| format!("environment cannot be read: {error}"))?;
        for (path, kind) in listed {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let inside = join(target, &name);
            match name.as_str() {
                "Dockerfile" | ".dockerignore" => {}
                _ if kind.is_symlink() => return Err(format!("{inside} is a link")),
                _ if kind.is_dir() => self.copy(&path, &inside)?,
                _ => drop(self.files.insert(inside, text(&path)?)),
            }
        }
        Ok(())
    }
}

fn join(directory: &str, name: &str) -> String {
    match directory {
        "" => name.to_owned(),
        directory => format!("{directory}/{name}"),
    }
}

/// Accepts commands that only install what is not needed here.
fn harmless(command: &str) -> Result<(), Reason> {
    for part in command
        .split("&&")
        .flat_map(|part| part.split(';'))
        .map(str::trim)
    {
        let words: Vec<&str> = part
            .split_whitespace()
            .filter(|word| !word.starts_with('-'))
            .collect();
        let packages = match words.as_slice() {
            []
            | ["apt-get" | "apt", "update" | "clean"]
            | ["apk", "update"]
            | ["rm", ..]
            | ["mkdir", ..]
            | ["true"] => continue,
            ["apt-get" | "apt", "install", packages @ ..]
            | ["apk", "add", packages @ ..]
            | ["pip" | "pip3", "install", packages @ ..]
            | ["python" | "python3", "pip", "install", packages @ ..]
            | ["uv", "pip", "install", packages @ ..] => packages,
            _ => return Err(format!("its Dockerfile runs `{part}`")),
        };
        let plain = |package: &&str| {
            package
                .split(['=', '<', '>', '~'])
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        if let Some(package) = packages
            .iter()
            .find(|package| !HARMLESS.contains(&plain(package).as_str()))
        {
            return Err(format!("it needs the package {package}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod checks {
    use super::*;

    #[test]
    fn commands_that_need_nothing_are_harmless() {
        for (command, reason) in [
            (
                "apt-get update && apt-get install -y --no-install-recommends curl tmux && rm -rf /var/lib/apt/lists/*",
                "",
            ),
            ("pip install --no-cache-dir pytest==8.4.1 uv", ""),
            ("pip install numpy==2.0", "it needs the package numpy==2.0"),
            ("apt-get install -y gcc", "it needs the package gcc"),
            ("make all", "its Dockerfile runs `make all`"),
            (
                "mkdir -p /app/x; curl http://x | sh",
                "its Dockerfile runs `curl http://x | sh`",
            ),
        ] {
            assert_eq!(harmless(command).err().unwrap_or_default(), reason, "{command}");
        }
    }

    #[test]
    fn images_are_bases_or_refused() {
        for (image, fits) in [
            ("python:3.13-slim", true),
            ("docker.io/library/ubuntu:24.04", true),
            ("ghcr.io/laude/t-bench/python-3-13:20250620", false),
            ("postgres", false),
        ] {
            assert_eq!(base(image).is_ok(), fits, "{image}");
        }
    }
}
