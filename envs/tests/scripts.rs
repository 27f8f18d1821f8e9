//! Scripted agents.

use mipu_envs::{Demonstrator, Message, Reply};
use serde_json::Value;

use crate::{sandbox, task};

const HEAD: &str = "version: 1\nname: t\ninstruction: go\ntools: [python, files]\nreward: {exact: x}\ndata: {rows: [{n: 3, items: [1, 2.5, null]}]}\n";

async fn say(script: &mut dyn Demonstrator, observation: &str) -> Reply {
    let observations = if observation.is_empty() {
        vec![]
    } else {
        vec![Message::tool("python", observation)]
    };
    script.next(&observations).await.unwrap()
}

fn argument(reply: &Reply, name: &str) -> Value {
    reply.tool_calls[0].arguments[name].clone()
}

#[tokio::test]
async fn fixed_turns_see_the_observation_and_retry_failures() {
    let task = task(&format!(
        "{HEAD}solution:\n  turns:\n    - python: 'print({{{{ n }}}})'\n    - write_file: {{path: a.txt, content: '{{{{ observation }}}}'}}\n    - answer: 'got {{{{ observation }}}}'\n"
    ))
    .await;
    let mut script = task.solution(sandbox(), 1);
    assert_eq!(argument(&say(script.as_mut(), "").await, "code"), "print(3)");
    assert_eq!(argument(&say(script.as_mut(), "busy").await, "code"), "print(3)");
    let write = say(script.as_mut(), "3").await;
    assert_eq!(
        (argument(&write, "path"), argument(&write, "content")),
        ("a.txt".into(), "3".into())
    );
    assert_eq!(say(script.as_mut(), "busy").await, write);
    assert_eq!(say(script.as_mut(), "ok").await.answer.as_deref(), Some("got ok"));
    assert!(script.next(&[]).await.is_err(), "no turn is left");
}

const PYTHON: &str = "demonstration:\n  python: |\n    def demonstrate(row, rng):\n        draw = rng.random()\n        seen = yield {'python': f'print({row[\"n\"]})'}\n        while seen == 'busy':\n            seen = yield {'python': {'code': 'again'}}\n        yield {'answer': f'{seen} {draw} {row[\"items\"]}'}\n";

#[tokio::test]
async fn generator_functions_are_driven_by_observations() {
    let task = task(&format!("{HEAD}{PYTHON}")).await;
    let mut answers = Vec::new();
    for seed in [1, 1, 2] {
        let mut script = task.demonstration(sandbox(), seed);
        assert_eq!(argument(&say(script.as_mut(), "").await, "code"), "print(3)");
        assert_eq!(argument(&say(script.as_mut(), "busy").await, "code"), "again");
        answers.push(say(script.as_mut(), "3").await.answer.unwrap());
        assert!(
            script
                .next(&[])
                .await
                .unwrap_err()
                .reason
                .contains("ended without an answer")
        );
    }
    assert!(
        answers[0].starts_with("3 0.") && answers[0].ends_with(" [1, 2.5, None]"),
        "{answers:?}"
    );
    assert_eq!(
        answers[0], answers[1],
        "the same seed gives the same turns, also in a session used before"
    );
    assert_ne!(answers[0], answers[2]);
}

#[tokio::test]
async fn scripts_at_once_do_not_mix() {
    let task = task(&format!("{HEAD}{PYTHON}")).await;
    let mut scripts: Vec<_> = (0..4).map(|seed| task.demonstration(sandbox(), seed)).collect();
    for script in &mut scripts {
        say(script.as_mut(), "").await;
    }
    let mut draws = Vec::new();
    for (i, script) in scripts.iter_mut().enumerate() {
        let answer = say(script.as_mut(), &format!("seen{i}")).await.answer.unwrap();
        assert!(answer.starts_with(&format!("seen{i} ")), "{answer}");
        draws.push(answer.split(' ').nth(1).unwrap().to_owned());
    }
    draws.dedup();
    assert_eq!(draws.len(), 4, "every seed draws its own number");
}

#[tokio::test]
async fn scripts_that_fail_say_why() {
    for (body, reason) in [
        ("yield 3", "a turn is {\"tool\": ..} or {\"answer\": ..}; got 3"),
        (
            "yield {'pyton': 'x'}",
            "the script calls `pyton`, which is not a tool of this task",
        ),
        (
            "yield {'answer': 1 / 0}",
            "`solve` failed: ZeroDivisionError: division by zero",
        ),
        ("return; yield", "ended without an answer"),
    ] {
        let task = task(&format!(
            "{HEAD}solution:\n  python: |\n    def solve(row, rng):\n      {body}\n"
        ))
        .await;
        let error = task.solution(sandbox(), 1).next(&[]).await.unwrap_err();
        assert!(error.reason.contains(reason), "{body}: {}", error.reason);
    }
    let without = task(HEAD).await;
    assert!(
        without
            .solution(sandbox(), 1)
            .next(&[])
            .await
            .unwrap_err()
            .reason
            .contains("has no `solution`")
    );
}
