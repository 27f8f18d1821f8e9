//! Nothing that comes from outside makes the host panic: bytes of task files, answers, what a guest says.

use std::path::Path;

use mipu_envs::TaskSet;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::{rewarded, score};

/// Task files to damage: those of the repository that bring their rows.
fn originals() -> Vec<String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tasks");
    let files = std::fs::read_dir(directory).unwrap();
    let mut texts: Vec<String> = files
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    texts.push(
        "version: 1\nname: t\ninstruction: '{{ a | upper }} {% for x in b %}{{ x }}{% endfor %}'\ndata: {rows: [{a: x, b: [1, {c: &k [2]}]}, {a: *k, b: []}]}\nreward: {all: [{json: {equals: {k: '{{ b }}'}}}, {unit_tests: {cases: [{call: 'f({{ a }})', expect: '{{ b }}'}]}}]}\nsolution: {turns: [{answer: '{{ a }}'}]}\n".to_owned(),
    );
    texts.sort();
    texts
}

/// A text with pieces cut, doubled, moved and replaced.
fn damaged() -> impl Strategy<Value = String> {
    let originals = originals();
    let edit = (
        any::<prop::sample::Index>(),
        0..40_usize,
        any::<prop::sample::Index>(),
        "\\PC{0,6}|[{}\\[\\]:,&*!|>'\"%@`#?\\- \n\t\\\\]{0,6}",
    );
    (prop::sample::select(originals), prop::collection::vec(edit, 1..6)).prop_map(|(text, edits)| {
        let mut text: Vec<char> = text.chars().collect();
        for (at, length, to, inserted) in edits {
            let start = at.index(text.len() + 1);
            let end = (start + length).min(text.len());
            let piece: Vec<char> = text.drain(start..end).collect();
            let to = to.index(text.len() + 1);
            let piece: Vec<char> = if length % 2 == 0 {
                piece
            } else {
                inserted.chars().collect()
            };
            text.splice(to..to, piece);
        }
        text.into_iter().collect()
    })
}

fn load(text: &str) {
    if let Err(error) = TaskSet::from_text(Path::new("task.yaml"), text, 0) {
        let shown = error.to_string();
        assert!(shown.starts_with("task.yaml"), "{shown}");
    }
}

proptest! {
    #![proptest_config(Config { cases: 512, ..Config::default() })]

    #[test]
    fn any_bytes_load_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        load(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn damaged_files_load_or_are_refused(text in damaged()) {
        load(&text);
    }
}

/// `future`, driven on a runtime of its own: proptest is not asynchronous.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

#[test]
fn any_answer_is_scored() {
    for rule in [
        "reward: {exact: '{{ gold }}'}",
        "reward: {numeric: {expected: '{{ gold }}', relative: 0.1}}",
        "reward: {regex: '(a|b)*{{ gold }}'}",
        "reward: {format: '\\d{1,3}'}",
        "reward: {contains: ['{{ gold }}', x]}",
        "reward: {json: {equals: {n: '{{ n }}'}, types: {n: integer}}}",
        "reward: {python: \"def reward(row, answer, files):\\n  return answer == row['gold']\"}",
        "reward: {unit_tests: {cases: [{call: 'f(1)', expect: 1}, {stdin: x, stdout: y}]}}",
    ] {
        let task = block_on(rewarded(rule));
        let cases = if rule.contains("unit_tests") || rule.contains("python") {
            48
        } else {
            256
        };
        let mut runner = TestRunner::new(Config {
            cases,
            ..Config::default()
        });
        let answers = prop_oneof![
            "\\PC{0,40}",
            "[-+0-9.eE_nai]{0,12}",
            "[\\[\\]{}\",:0-9a-z\\\\u ]{0,30}",
            any::<String>()
        ];
        runner
            .run(&answers, |answer| {
                let result = block_on(score(&task, &answer));
                prop_assert!(
                    result.is_ok_and(|result| (0.0..=1.0).contains(&result.reward)),
                    "{}",
                    rule
                );
                Ok(())
            })
            .unwrap();
    }
}

/// A guest that says what it likes in place of an answer: nonsense, half of the protocol, values of every shape.
#[test]
fn any_guest_output_is_scored() {
    let word = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        "-?[0-9]{1,30}(\\.[0-9]{1,3})?(e[0-9]{1,4})?",
        "\"\\PC{0,10}\"",
        "\"(ok|exited|raised|i|f|t|s|d|b|nonce|status|value|args|kind|bases)\"",
        "\\PC{0,10}",
    ];
    let value = word.prop_recursive(6, 40, 4, |inner| {
        let tag = prop::sample::select(vec!["i", "f", "b", "t", "s", "d", "x"]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(","))),
            (tag, inner.clone()).prop_map(|(tag, body)| format!("{{\"{tag}\":{body}}}")),
            (inner.clone(), inner).prop_map(|(key, body)| format!("{{{key}:{body}}}")),
        ]
    });
    let field = prop::sample::select(vec![
        "status", "value", "args", "code", "kind", "message", "bases", "other",
    ]);
    let answers = prop_oneof![
        value.clone().prop_map(|text| (false, text)),
        prop::collection::vec((field, value), 0..5).prop_map(|fields| {
            let fields: Vec<String> = fields
                .into_iter()
                .map(|(key, value)| format!("\"{key}\":{value}"))
                .collect();
            (true, fields.join(","))
        }),
    ];
    let cases = block_on(rewarded(
        "reward: {unit_tests: {cases: [{call: 'f()', expect: '(1, [2.5], {3: b\"x\"})'}]}}",
    ));
    let asserted = block_on(rewarded(
        "reward: {unit_tests: {entry: f, tests: 'assert f([1], {2}) == [[3]]'}}",
    ));
    let mut runner = TestRunner::new(Config {
        cases: 96,
        ..Config::default()
    });
    runner
        .run(&answers, |(in_form, text)| {
            let text = serde_json::to_string(&text).unwrap();
            let said = match in_form {
                true => format!("'{{\"nonce\":\"' + json.loads(request)['nonce'] + '\",' + {text} + '}}'"),
                false => text,
            };
            let candidate = format!("import app, json\ndef f(*a): return 1\ndef forged(request):\n    app.handle = real\n    return {said}\nreal = app.handle\napp.handle = forged\n");
            for task in [&cases, &asserted] {
                let result = block_on(score(task, &candidate));
                prop_assert!(result.is_ok(), "{}", candidate);
            }
            Ok(())
        })
        .unwrap();
}
