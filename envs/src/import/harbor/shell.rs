//! A solution's shell script, as far as it writes files and runs Python.

use std::path::Path;

use super::{Reason, text};

/// One step of the solution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A file is written.
    Write {
        /// Relative path.
        path: String,
        /// Its text.
        content: String,
    },
    /// Python code is run.
    Python(String),
}

/// Reads `solution/solve.sh`; `home` replaces the container's directory.
pub(super) fn read(directory: &Path, home: &dyn Fn(&str) -> String) -> Result<Vec<Step>, Reason> {
    let script = directory.join("solve.sh");
    if !script.exists() {
        return Err("it has no solution/solve.sh, so nothing shows that it can be solved".to_owned());
    }
    let steps = parse(&home(&text(&script)?)).map_err(|reason| format!("solve.sh: {reason}"))?;
    match steps.is_empty() {
        true => Err("solve.sh does nothing".to_owned()),
        false => Ok(steps),
    }
}

/// What a line does.
enum Action {
    Write {
        path: String,
        content: String,
        append: bool,
    },
    Python(String),
}

fn parse(script: &str) -> Result<Vec<Step>, Reason> {
    let mut steps: Vec<Step> = Vec::new();
    let mut lines = script.lines();
    while let Some(line) = lines.next() {
        let line = line.trim();
        let harmless = ["#", "set ", "mkdir ", "cd /work", "exit 0", "chmod "];
        if line.is_empty() || harmless.iter().any(|start| line.starts_with(start)) {
            continue;
        }
        let action = match line.split_once("<<") {
            Some((before, after)) => {
                let (mark, behind) = split_word(after.trim_start());
                let body = here_document(&mut lines, mark)?;
                let command = format!("{} {behind}", before.trim());
                with_input(command.trim(), body)
            }
            None => plain(line),
        };
        match action.ok_or_else(|| format!("it runs `{line}`, which has no equivalent here"))? {
            Action::Python(code) => steps.push(Step::Python(code)),
            Action::Write {
                path,
                content,
                append: false,
            } => steps.push(Step::Write { path, content }),
            Action::Write {
                path,
                content,
                append: true,
            } => {
                let earlier = steps.iter_mut().find_map(|step| match step {
                    Step::Write { path: other, content } if *other == path => Some(content),
                    _ => None,
                });
                match earlier {
                    Some(before) => before.push_str(&content),
                    None => return Err(format!("it appends to {path}, which it did not write")),
                }
            }
        }
    }
    Ok(steps)
}

fn split_word(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (word, rest.trim())
}

/// The lines up to `mark`.
fn here_document(lines: &mut std::str::Lines<'_>, mark: &str) -> Result<String, Reason> {
    let quoted = mark.starts_with(['\'', '"', '\\']);
    let mark = mark.trim_matches(['\'', '"', '\\']);
    let mut body = String::new();
    for line in lines {
        if line.trim_end() == mark {
            return match !quoted && body.contains(['$', '`', '\\']) {
                true => Err(format!("the text before {mark} is expanded by the shell")),
                false => Ok(body),
            };
        }
        body.push_str(line);
        body.push('\n');
    }
    Err(format!("there is no {mark} after <<{mark}"))
}

/// `cat > path` or `python3 -` with the text that follows.
fn with_input(command: &str, body: String) -> Option<Action> {
    if let Some((before, append, path)) = redirection(command) {
        return (before == "cat").then_some(Action::Write {
            path: relative(path)?,
            content: body,
            append,
        });
    }
    match command.split_whitespace().collect::<Vec<_>>().as_slice() {
        ["python" | "python3"] | ["python" | "python3", "-"] => Some(Action::Python(body)),
        _ => None,
    }
}

/// `echo text > path`, `printf text > path` or `python path`.
fn plain(line: &str) -> Option<Action> {
    if let Some((before, append, path)) = redirection(line) {
        let (command, argument) = split_word(before);
        let text = unquote(argument)?;
        let content = match command {
            "echo" => format!("{text}\n"),
            "printf" if !text.contains('%') => text.replace("\\n", "\n"),
            _ => return None,
        };
        let path = relative(path)?;
        return Some(Action::Write {
            path,
            content,
            append,
        });
    }
    match line.split_whitespace().collect::<Vec<_>>().as_slice() {
        ["python" | "python3", path] if path.ends_with(".py") => Some(Action::Python(format!(
            "import runpy\nrunpy.run_path({:?}, run_name='__main__')\n",
            relative(path)?
        ))),
        _ => None,
    }
}

/// `command > path` or `command >> path`, the arrow outside quotes.
fn redirection(line: &str) -> Option<(&str, bool, &str)> {
    let mut quote = None;
    for (at, c) in line.char_indices() {
        match (quote, c) {
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            (None, '>') => {
                let rest = &line[at + 1..];
                let append = rest.starts_with('>');
                return Some((line[..at].trim(), append, rest.trim_start_matches('>').trim()));
            }
            _ => {}
        }
    }
    None
}

/// One word of text, as the shell would read it; `None` where it would expand something.
fn unquote(text: &str) -> Option<String> {
    let inner = |quote: char| {
        text.strip_prefix(quote)?
            .strip_suffix(quote)
            .filter(|inner| !inner.contains(quote))
    };
    if let Some(inner) = inner('\'') {
        return Some(inner.to_owned());
    }
    let inner = inner('"').unwrap_or(text);
    let special: &[char] = if inner.len() == text.len() {
        &['$', '`', '\\', '\'', '"', '|', '&', ';', '<', '*', '(', ')']
    } else {
        &['$', '`']
    };
    (!inner.contains(special)).then(|| inner.to_owned())
}

/// A path inside the agent's directory.
fn relative(path: &str) -> Option<String> {
    let path = path.trim_matches(['"', '\'']);
    let path = path
        .strip_prefix("/work/")
        .unwrap_or(path)
        .trim_start_matches("./");
    let plain = !path.is_empty()
        && !path.starts_with('/')
        && !path.contains(['$', '*', ' ', '|', '&', ';'])
        && path.split('/').all(|part| !matches!(part, "" | "." | ".."));
    plain.then(|| path.to_owned())
}

#[cfg(test)]
mod checks {
    use super::*;

    #[test]
    fn scripts_that_write_files_and_run_python() {
        let script = "#!/bin/bash\nset -e\ncd /work\nmkdir -p a\ncat > a/x.py << 'EOF'\nprint('$HOME > 1')\nEOF\ncat <<EOF >> /work/a/x.py\nplain\nEOF\necho \"Hello, world!\" > hello.txt\necho 'a > b' > ./b\nprintf 'x\\ny' > c\npython3 - <<'PY'\nprint(1)\nPY\npython a/x.py\n";
        let write = |path: &str, content: &str| Step::Write {
            path: path.to_owned(),
            content: content.to_owned(),
        };
        assert_eq!(
            parse(script).unwrap(),
            [
                write("a/x.py", "print('$HOME > 1')\nplain\n"),
                write("hello.txt", "Hello, world!\n"),
                write("b", "a > b\n"),
                write("c", "x\ny"),
                Step::Python("print(1)\n".to_owned()),
                Step::Python("import runpy\nrunpy.run_path(\"a/x.py\", run_name='__main__')\n".to_owned()),
            ]
        );
    }

    #[test]
    fn what_has_no_equivalent_is_named() {
        for (script, reason) in [
            ("sed -i s/a/b/ x", "it runs `sed -i s/a/b/ x`"),
            ("echo $HOME > x", "it runs `echo $HOME > x`"),
            ("cat > x <<EOF\n$HOME\nEOF", "expanded by the shell"),
            ("cat > x <<EOF\n", "there is no EOF"),
            ("echo a >> x", "it appends to x"),
            ("echo a > /etc/x", "it runs `echo a > /etc/x`"),
            ("echo a > ../x", "it runs"),
            ("python -m x", "it runs"),
        ] {
            let error = parse(script).unwrap_err();
            assert!(error.contains(reason), "{script}: {error}");
        }
    }
}
