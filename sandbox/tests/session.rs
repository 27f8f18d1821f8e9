//! What a session keeps, and how values leave it.

use mipu_sandbox::{Plain, Policy, Status};

use crate::{raised, run, sandbox};

#[tokio::test]
async fn a_run_prints_and_ends() {
    let outcome = run("print(1 + 1)").await;
    assert_eq!(
        (outcome.status, outcome.stdout.as_str()),
        (Status::Exited { code: 0 }, "2\n")
    );
}

#[tokio::test]
async fn state_and_files_survive_between_turns() {
    let mut session = sandbox().session(&Policy::default(), 7).await.unwrap();
    let first = session
        .exec("x = 41\nopen('note.txt', 'w').write('kept')\n", &[])
        .await
        .unwrap();
    assert!(first.status.is_success(), "{first:?}");
    let second = session
        .exec("x += 1\nprint(x, open('/work/note.txt').read())", &[])
        .await
        .unwrap();
    assert_eq!(second.stdout, "42 kept\n");
    assert_eq!(session.files().read("note.txt").unwrap(), b"kept");
    session.files().write("from_host/a.txt", b"hello").unwrap();
    let third = session
        .exec(
            "import os\nprint(os.listdir(), open('from_host/a.txt').read(), os.getcwd())",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(third.stdout, "['from_host', 'note.txt'] hello /work\n");
    let value = session.eval("x").await.unwrap();
    assert_eq!(value.value, Some(Plain::Int("42".to_owned())));
}

#[tokio::test]
async fn exceptions_and_exits_leave_the_session_alive() {
    let mut session = sandbox().session(&Policy::default(), 7).await.unwrap();
    let outcome = session
        .exec("def f():\n    return 1 / 0\nf()", &[])
        .await
        .unwrap();
    raised("ZeroDivisionError", &outcome);
    assert!(
        outcome
            .stderr
            .starts_with("Traceback (most recent call last):\n  File \"<python-1>\", line 3"),
        "{}",
        outcome.stderr
    );
    assert!(
        outcome.stderr.ends_with("ZeroDivisionError: division by zero\n"),
        "{}",
        outcome.stderr
    );
    raised("SyntaxError", &session.exec("def g(:", &[]).await.unwrap());
    let exit = session
        .exec("import sys; print('x'); sys.exit(3)", &[])
        .await
        .unwrap();
    assert_eq!(
        (exit.status, exit.stdout.as_str()),
        (Status::Exited { code: 3 }, "x\n")
    );
    assert_eq!(
        session.exec("sys.exit('why')", &[]).await.unwrap().stderr,
        "why\n"
    );
    assert!(session.is_alive());
    raised("NotPlain", &session.eval("f").await.unwrap());
    raised(
        "NotPlain",
        &session
            .eval("__import__('enum').IntEnum('E', 'A').A")
            .await
            .unwrap(),
    );
    assert_eq!(
        session
            .eval("[1, (None, True), {'a': {3, 2}}]")
            .await
            .unwrap()
            .value
            .map(|v| v.to_wire().to_string())
            .as_deref(),
        Some(r#"[{"i":"1"},{"t":[null,true]},{"d":[["a",{"s":[{"i":"2"},{"i":"3"}]}]]}]"#)
    );
}

#[tokio::test]
async fn stdin_is_per_turn() {
    let mut session = sandbox().session(&Policy::default(), 7).await.unwrap();
    for (input, code, expected) in [
        ("a\nb\n", "print(input())", "a\n"),
        ("c\nd", "import sys; print(sys.stdin.read())", "c\nd\n"),
        ("3 4", "print(sum(map(int, open(0).read().split())))", "7\n"),
    ] {
        let outcome = session.exec(code, input.as_bytes()).await.unwrap();
        assert_eq!(outcome.stdout, expected, "{outcome:?}");
    }
    raised("EOFError", &session.exec("input()", &[]).await.unwrap());
}
