//! The tests of a Harbor task, as far as they are plain Python functions.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use super::{Reason, entries, text};

/// Tests that can be carried out here.
#[derive(Debug)]
pub(super) enum Tests {
    /// A checker of the files that the agent leaves.
    Files(String),
    /// Tests of one function of one file, for an interpreter apart from the agent's code.
    Function {
        /// The file.
        file: String,
        /// The function.
        entry: String,
        /// The tests, which call it.
        code: String,
    },
}

/// Runs the test functions over the files; what pytest counts as a failure is one.
const CHECKER: &str = r#"
def reward(row, answer, files):
    import os
    for path, content in files.items():
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
    tests = [test for name, test in list(globals().items()) if name.startswith("test_") and callable(test)]
    passed = 0
    for test in tests:
        try:
            test()
            passed += 1
        except Exception:
            pass
    return passed / len(tests)
"#;

/// Modules of the standard library that tests may use here.
const MODULES: &str = "ast base64 collections copy csv dataclasses datetime decimal difflib enum fractions functools glob hashlib heapq \
    html io itertools json math operator os pathlib random re sqlite3 statistics string struct sys textwrap time tomllib typing \
    unicodedata xml zlib";

/// Reads `tests/`.
pub(super) fn read(directory: &Path, home: &dyn Fn(&str) -> String) -> Result<Tests, Reason> {
    let listed = entries(directory).map_err(|_| "it has no tests".to_owned())?;
    let (mut code, mut other) = (Vec::new(), Vec::new());
    for (path, kind) in listed {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        match name.as_str() {
            "test.sh" => launcher(&text(&path)?)?,
            "__init__.py" => {}
            _ if kind.is_file() && name.ends_with(".py") => code.push(text(&path)?),
            _ => other.push(name),
        }
    }
    match (code.as_slice(), other.first()) {
        (_, Some(name)) => Err(format!("its tests need the file tests/{name}")),
        ([], _) => Err("its tests are not Python".to_owned()),
        ([only], _) => convert(&home(only)),
        _ => Err("its tests have several files".to_owned()),
    }
}

/// Accepts a `test.sh` that does nothing but have pytest run.
fn launcher(script: &str) -> Result<(), Reason> {
    let runs = script
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with('#'));
    match runs.into_iter().any(|line| line.contains("pytest")) {
        true => Ok(()),
        false => Err("tests/test.sh does more than run pytest".to_owned()),
    }
}

fn convert(code: &str) -> Result<Tests, Reason> {
    static IMPORT: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"(?m)^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(.+)|import[ \t]+(.+))$")
            .expect("a valid pattern")
    });
    static TEST: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(?m)^(?:async )?def (test_\w*)\(([^)]*)\)").expect("a valid pattern"));
    for (what, reason) in [
        ("subprocess", "its tests start processes"),
        ("os.system", "its tests start processes"),
        ("pytest.", "its tests use pytest's own functions"),
        ("@pytest", "its tests use pytest's own functions"),
        ("__file__", "its tests read files beside them"),
    ] {
        if code.contains(what) {
            return Err(reason.to_owned());
        }
    }
    if Regex::new(r"(?m)^class Test")
        .expect("a valid pattern")
        .is_match(code)
    {
        return Err("its tests are methods of classes".to_owned());
    }
    let tests: Vec<(&str, &str)> = TEST
        .captures_iter(code)
        .map(|found| (found.get(1), found.get(2)))
        .filter_map(|(name, arguments)| Some((name?.as_str(), arguments?.as_str())))
        .collect();
    if tests.is_empty() {
        return Err("its tests have no function `test_..`".to_owned());
    }
    if let Some((name, arguments)) = tests.iter().find(|(_, arguments)| !arguments.trim().is_empty()) {
        return Err(format!("{name} takes fixtures: {arguments}"));
    }
    let mut own = BTreeSet::new();
    for found in IMPORT.captures_iter(code) {
        let line = found[0].to_owned();
        let modules: Vec<String> = match (found.get(1), found.get(3)) {
            (Some(module), _) => vec![module.as_str().to_owned()],
            (_, Some(list)) => list
                .as_str()
                .split(',')
                .map(|item| item.trim().to_owned())
                .collect(),
            _ => Vec::new(),
        };
        for module in modules {
            let module = module.split([' ', '#']).next().unwrap_or_default();
            let top = module.split('.').next().unwrap_or_default();
            if !MODULES.split_whitespace().any(|known| known == top) {
                let names = found.get(2).map(|names| names.as_str().trim().to_owned());
                own.insert((line.clone(), module.to_owned(), names));
            }
        }
    }
    let Some((line, module, names)) = own.pop_first() else {
        return Ok(Tests::Files(format!(
            "{}{CHECKER}",
            without(code, "import pytest")
        )));
    };
    let single = names.filter(|names| names.chars().all(|c| c.is_alphanumeric() || c == '_'));
    let (Some(entry), true) = (single, own.is_empty()) else {
        return Err(format!(
            "its tests import {module}, which would run the agent's code in the judge's interpreter; one `from file import function` can be \
             kept apart"
        ));
    };
    if ["open(", "Path(", "os.path", "listdir"]
        .iter()
        .any(|what| code.contains(what))
    {
        return Err(format!("its tests both import {module} and look at files"));
    }
    let calls: String = tests.iter().map(|(name, _)| format!("{name}()\n")).collect();
    Ok(Tests::Function {
        file: format!("{}.py", module.replace('.', "/")),
        entry,
        code: format!("{}\n{calls}", without(code, line.trim()).trim_end()),
    })
}

/// The code without a line.
fn without(code: &str, line: &str) -> String {
    let kept = code.lines().filter(|other| other.trim() != line);
    kept.map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod checks {
    use super::*;

    #[test]
    fn tests_are_converted_or_refused() {
        for (code, expected) in [
            ("def test_a():\n    assert open('x').read()\n", "Files"),
            (
                "import json, re\nfrom pathlib import Path\ndef test_a(): pass\n",
                "Files",
            ),
            (
                "import sys\nsys.path.insert(0, '/work')\nfrom calc import add\ndef test_a():\n    assert add(1, 2) == 3\n",
                "Function { file: \"calc.py\", entry: \"add\"",
            ),
            (
                "from calc import add, sub\ndef test_a(): pass\n",
                "its tests import calc",
            ),
            ("import calc\ndef test_a(): pass\n", "its tests import calc"),
            (
                "from calc import add\ndef test_a(): open('x')\n",
                "both import calc and look at files",
            ),
            (
                "import requests\ndef test_a(): pass\n",
                "its tests import requests",
            ),
            (
                "import subprocess\ndef test_a(): pass\n",
                "its tests start processes",
            ),
            ("def test_a(tmp_path): pass\n", "test_a takes fixtures: tmp_path"),
            (
                "class TestA:\n    def test_a(self): pass\n",
                "its tests are methods of classes",
            ),
            ("def check(): pass\n", "have no function"),
        ] {
            let got = format!("{:?}", convert(code));
            assert!(got.contains(expected), "{code}: {got}");
        }
    }
}
