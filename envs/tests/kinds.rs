//! Environments that are no decision process: a corpus, a user, a world in Python.

use mipu_envs::StopReason;

use crate::{TaskFile, answer, call, close, contents, sandbox, task};

const HEAD: &str =
    "version: 1\nname: t\ninstruction: go\ntools: [submit]\ndata: {rows: [{n: 3, who: Ada}]}\n";

/// A tool, its arguments, and what it answers.
type Call<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str);

/// What each call answers, in one episode.
async fn plays(yaml: &str, calls: &[Call<'_>]) {
    let task = task(yaml).await;
    let mut env = task.env(sandbox(), 1);
    env.start().await.unwrap();
    for (tool, arguments, expected) in calls {
        let result = env.step(&call(tool, arguments)).await.unwrap();
        assert_eq!(
            contents(&result.observations),
            [*expected],
            "{tool} {arguments:?}"
        );
    }
}

async fn refusal(yaml: &str) -> String {
    match TaskFile::new(yaml).load(0).await {
        Ok(_) => panic!("accepted: {yaml}"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn a_corpus_is_searched_and_opened() {
    let yaml = format!(
        "{HEAD}limits: {{max_turns: 20}}\nreward: {{exact: '1815'}}\nenvironment:
  search:
    results: 2
    snippet_bytes: 24
    documents:
      - {{id: ada, title: '{{{{ who }}}} Lovelace', text: Born in 1815 in London to a poet.}}
      - {{id: london, text: A city in England. London bridge is in London.}}
      - {{id: bridge, text: A bridge carries a road.}}
"
    );
    plays(
        &yaml,
        &[
            (
                "search",
                &[("query", "London, Ada?")],
                "[ada] Ada Lovelace: Born in 1815 in Londo...\n[london] A city in England. Lo...",
            ),
            ("search", &[("query", "zebra")], "(no document matches)"),
            (
                "open",
                &[("id", "[ada]")],
                "Ada Lovelace\nBorn in 1815 in London to a poet.",
            ),
            ("open", &[("id", "bridge")], "A bridge carries a road."),
            ("open", &[("id", "eve")], "error: no document `eve`; search first"),
            ("search", &[], "error: missing argument `query`"),
        ],
    )
    .await;
    let mut env = task(&yaml).await.env(sandbox(), 1);
    assert!(close(env.step(&answer("1815")).await.unwrap().reward, 1.0));
}

#[tokio::test]
async fn a_corpus_may_be_a_file() {
    let yaml = format!("{HEAD}reward: {{exact: x}}\nenvironment: {{search: {{jsonl: docs.jsonl}}}}\n");
    let file = TaskFile::new(&yaml);
    let error = file.load(0).await.unwrap_err().to_string();
    assert!(
        error.contains("docs.jsonl: the corpus cannot be read") && error.contains("hint:"),
        "{error}"
    );
    let corpus = file.path().with_file_name("docs.jsonl");
    std::fs::write(&corpus, "{\"id\": \"a\", \"text\": \"one\"}\n{\"id\": \"b\"}\n").unwrap();
    let error = file.load(0).await.unwrap_err().to_string();
    assert!(
        error.contains("docs.jsonl:2:") && error.contains("missing field `text`"),
        "{error}"
    );
    std::fs::write(&corpus, "{\"id\": \"a\", \"text\": \"one two\"}\n").unwrap();
    let set = file.load(0).await.unwrap();
    let task = [&set.train[..], &set.validation, &set.test].concat().remove(0);
    let mut env = task.env(sandbox(), 1);
    let result = env.step(&call("search", &[("query", "two")])).await.unwrap();
    assert_eq!(contents(&result.observations), ["[a] one two"]);
    std::fs::write(&corpus, "{\"id\": \"a\", \"text\": \"one three\"}\n").unwrap();
    assert_ne!(
        file.load(0).await.unwrap().content_hash,
        set.content_hash,
        "the corpus is part of the task"
    );
}

const USER: &str = "  chat_user:
    opening: I need a table.
    patience: 6
    facts:
      - {name: day, value: '{{ n }} May', says: 'On {{ n }} May, please.', asked_by: [day, date]}
      - {name: time, value: noon, asked_by: [time, when], after: [day], evade: First the day.}
";

#[tokio::test]
async fn a_user_tells_what_it_is_asked_in_its_order() {
    let yaml = format!(
        "{HEAD}reward: {{json: {{equals: {{day: '{{{{ n }}}} May', time: noon}}}}}}\nlimits: {{max_turns: 9}}\nenvironment:\n{USER}"
    );
    let task = task(&yaml).await;
    let mut env = task.env(sandbox(), 1);
    assert_eq!(
        contents(&env.start().await.unwrap()),
        ["go\nUser: I need a table."]
    );
    for (says, expected) in [
        ("Hello!", "I do not know what you mean."),
        ("What TIME?", "First the day."),
        // One fact a message.
        ("Which date and time?", "On 3 May, please."),
        ("When?", "noon"),
        ("The day again?", "On 3 May, please."),
    ] {
        let result = env.step(&answer(says)).await.unwrap();
        assert_eq!(
            (contents(&result.observations), result.stop),
            (vec![expected], None),
            "{says}"
        );
        assert_eq!(result.observations[0].role, mipu_envs::Role::User);
    }
    let form = "{\"day\": \"3 May\", \"time\": \"noon\"}";
    let done = env.step(&call("submit", &[("answer", form)])).await.unwrap();
    assert_eq!(done.stop, Some(StopReason::Answered));
    assert!(close(done.reward, 1.0));

    // Saying the right thing to the user is no submission, and patience ends.
    let mut env = task.env(sandbox(), 1);
    for turn in 0..6 {
        let result = env.step(&answer(form)).await.unwrap();
        assert_eq!(result.stop, (turn == 5).then_some(StopReason::Terminal));
        assert!(close(result.reward, 0.0));
    }
    let error = refusal(&yaml.replace("tools: [submit]\n", "")).await;
    assert!(
        error.contains("needs the tool `submit`") && error.contains("hint:"),
        "{error}"
    );
}

const COUNTDOWN: &str = "  python:
    tools:
      - {name: take, description: Takes some away., parameters: {by: {type: integer, minimum: 1}}}
    source: |
      left = None

      def reset(row, rng):
          global left, luck
          left, luck = row['n'], rng.random()
          return f'{left} left'

      def step(tool, arguments):
          global left
          left -= arguments['by']
          if left < 0:
              raise ValueError('below zero')
          return f'{left} left', 1 if left == 0 else 0.25, left == 0

      def message(text):
          return f'luck {luck}' if text == 'luck?' else None
";

fn countdown(change: &[(&str, &str)]) -> String {
    let mut world = COUNTDOWN.to_owned();
    for (old, new) in change {
        assert!(world.contains(old), "{old}");
        world = world.replacen(old, new, 1);
    }
    format!(
        "{HEAD}limits: {{timeout_sec: 0.5}}\nreward: {{environment: {{}}, partial: true}}\nenvironment:\n{world}"
    )
}

#[tokio::test]
async fn a_world_in_python_is_played() {
    let task = task(&countdown(&[])).await;
    let mut env = task.env(sandbox(), 1);
    assert_eq!(env.tools()[1].parameters["required"], serde_json::json!(["by"]));
    assert_eq!(contents(&env.start().await.unwrap()), ["go\n3 left"]);
    for (arguments, observation, reward) in [
        // An agent's mistakes never reach the code.
        (
            vec![("by", "x")],
            "error: argument `by` must be of type integer; got \"x\"",
            0.0,
        ),
        (
            vec![("by", "__import__('os')")],
            "error: argument `by` must be of type integer; got \"__import__('os')\"",
            0.0,
        ),
        (vec![], "error: missing argument `by`", 0.0),
        (vec![("by", "1"), ("more", "2")], "2 left", 0.25),
    ] {
        let result = env.step(&call("take", &arguments)).await.unwrap();
        assert_eq!(contents(&result.observations), [observation]);
        assert!(close(result.reward, reward));
    }
    let heard = env.step(&answer("luck?")).await.unwrap();
    assert!(heard.observations[0].content.starts_with("luck 0."), "{heard:?}");
    let last = env.step(&call("take", &[("by", "2")])).await.unwrap();
    assert_eq!(last.stop, Some(StopReason::Terminal));
    // 0.25 was paid, the sum is clipped to 1.
    assert!(close(last.reward, 0.75), "{}", last.reward);
    let said = task.env(sandbox(), 1).step(&answer("3")).await.unwrap();
    assert_eq!((said.stop, said.reward), (Some(StopReason::Answered), 0.0));
}

#[tokio::test]
async fn a_world_in_python_follows_the_seed() {
    let task = task(&countdown(&[])).await;
    let mut seen = Vec::new();
    for seed in [1, 2, 1] {
        let result = task.env(sandbox(), seed).step(&answer("luck?")).await.unwrap();
        seen.push(result.observations[0].content.clone());
    }
    assert!(seen[0] == seen[2] && seen[0] != seen[1], "{seen:?}");
}

/// What is wrong with the code is told when the file is loaded, with the line; what shows later leaves the episode unscored.
#[tokio::test]
async fn mistakes_in_python_are_named() {
    for (change, reasons) in [
        (
            (
                "return f'{left} left'\n\n      def step",
                "return f'{left} left' +\n\n      def step",
            ),
            vec!["SyntaxError", "(line 6: `return f'{left} left' +`)"],
        ),
        (
            ("row['n']", "row['m']"),
            vec!["`reset` failed: KeyError: 'm' (line 5: `left, luck = row['m'], rng.random()`)"],
        ),
        (
            ("return f'{left} left'", "return left"),
            vec!["`reset` returned 3", "hint: return the text"],
        ),
        (
            ("left, luck =", "while True: pass\n          left, luck ="),
            vec![
                "`reset` failed: error: timed out after 0.5 s",
                "hint: each call has `limits: {timeout_sec: ..}`",
            ],
        ),
        (
            ("left, luck = row", "x = bytearray(10**9); left, luck = row"),
            vec!["`reset` failed:", "emory"],
        ),
        (
            ("def step(", "def stop("),
            vec![
                "a python environment defines `step`",
                "hint: def step(tool, arguments)",
            ],
        ),
        (
            ("by: {type: integer, minimum: 1}", "by: int"),
            vec!["the parameter `by` has no known type", "hint: by: integer"],
        ),
    ] {
        let error = refusal(&countdown(&[change])).await;
        for reason in reasons {
            assert!(error.contains(reason), "{change:?}: {error}");
        }
    }
    for (change, reasons) in [
        (
            ("left -=", "left /= 0 #"),
            vec![
                "`step` failed: ZeroDivisionError",
                "(line 10: `left /= 0 # arguments['by']`)",
            ],
        ),
        (
            ("return f'{left} left', 1 if", "return left, 1 if"),
            vec![
                "`step` returned (2, 0.25, False)",
                "hint: return (observation, reward, done)",
            ],
        ),
        (
            ("1 if left == 0 else 0.25", "'a lot'"),
            vec!["`step` returned ('2 left', 'a lot', False)"],
        ),
        (
            ("1 if left == 0 else 0.25", "float('nan')"),
            vec!["reward is not finite"],
        ),
        (
            ("1 if left == 0 else 0.25", "object()"),
            vec!["is not plain data", "hint: return text, numbers"],
        ),
        (
            ("left -=", "import os; os._exit(0); left -="),
            vec!["`step` failed"],
        ),
        (
            ("left -=", "while True: pass\n          left -="),
            vec!["timed out after 0.5 s"],
        ),
    ] {
        let mut env = task(&countdown(&[change])).await.env(sandbox(), 1);
        let error = env
            .step(&call("take", &[("by", "1")]))
            .await
            .unwrap_err()
            .to_string();
        for reason in reasons {
            assert!(error.contains(reason), "{change:?}: {error}");
        }
    }
}

#[tokio::test]
async fn a_world_in_python_may_be_a_file() {
    let source: String = COUNTDOWN
        .lines()
        .skip(4)
        .map(|line| format!("{}\n", line.strip_prefix("      ").unwrap_or(line)))
        .collect();
    let head: String = COUNTDOWN
        .lines()
        .take(3)
        .map(|line| format!("{line}\n"))
        .collect();
    let yaml = format!("{HEAD}reward: {{environment: {{}}}}\nenvironment:\n{head}    file: world.py\n");
    let file = TaskFile::new(&yaml);
    let error = file.load(0).await.unwrap_err().to_string();
    assert!(
        error.contains("world.py: the environment cannot be read"),
        "{error}"
    );
    let path = file.path().with_file_name("world.py");
    std::fs::write(&path, "def reset(row, rng): pass\n").unwrap();
    let error = file.load(0).await.unwrap_err().to_string();
    assert!(
        error.contains("world.py: a python environment defines `step`"),
        "{error}"
    );
    std::fs::write(&path, &source).unwrap();
    let set = file.load(0).await.unwrap();
    let task = [&set.train[..], &set.validation, &set.test].concat().remove(0);
    assert_eq!(
        contents(&task.env(sandbox(), 1).start().await.unwrap()),
        ["go\n3 left"]
    );
    std::fs::write(&path, source.replace("left'", "remain'")).unwrap();
    assert_ne!(file.load(0).await.unwrap().content_hash, set.content_hash);
}
