//! Guests that mean harm: each ends in its typed outcome, and the next guest runs as if nothing had happened.

use std::time::{Duration, Instant};

use mipu_sandbox::{Outcome, Policy, Status};

use crate::{raised, run, sandbox};

fn quick() -> Policy {
    Policy {
        deadline: Duration::from_millis(400),
        memory_bytes: 96 << 20,
        ..Policy::default()
    }
}

/// Runs a hostile guest under tight limits, then an honest one.
async fn hostile(code: &str) -> Outcome {
    let begun = Instant::now();
    let outcome = sandbox()
        .run(code, b"", &quick(), 3)
        .await
        .expect("the host is well");
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "took {:?}",
        begun.elapsed()
    );
    let after = run("print(sum(range(10)))").await;
    assert_eq!(
        (after.stdout.as_str(), after.status),
        ("45\n", Status::Exited { code: 0 }),
        "after {code}"
    );
    outcome
}

#[tokio::test]
async fn endless_computation_meets_the_deadline() {
    for code in [
        "while True: pass",
        "7 ** 10 ** 8 % 3",
        "import re; re.match('(a+)+b', 'a' * 40)",
        "sum(x for x in iter(int, 1))",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "import time\nwhile True: time.sleep(3600)",
        "import select\nwhile True: select.select([], [], [], 1e6)",
    ] {
        assert_eq!(hostile(code).await.status, Status::TimedOut, "{code}");
    }
}

#[tokio::test]
async fn output_before_the_deadline_is_kept() {
    let outcome = hostile("print('thinking')\nwhile True: pass").await;
    assert_eq!(
        (outcome.status, outcome.stdout.as_str()),
        (Status::TimedOut, "thinking\n")
    );
}

#[tokio::test]
async fn a_sleep_takes_virtual_time_only() {
    let begun = Instant::now();
    let code = "import time\nt = time.monotonic(), time.time()\ntime.sleep(86400)\nprint(time.monotonic() - t[0] >= 86400, time.time() - t[1] >= 86400)";
    assert_eq!(hostile(code).await.stdout, "True True\n");
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[tokio::test]
async fn memory_is_limited() {
    raised(
        "MemoryError",
        &hostile("x = []\nwhile True: x.append(bytearray(1 << 20))").await,
    );
    raised("MemoryError", &hostile("'x' * (1 << 30)").await);
    let wild = hostile("x = [0]\nwhile True:\n    try: x += x\n    except MemoryError: pass").await;
    assert!(
        matches!(wild.status, Status::TimedOut | Status::OutOfMemory),
        "{wild:?}"
    );
}

#[tokio::test]
async fn recursion_is_limited() {
    raised(
        "RecursionError",
        &hostile("def f(n): return f(n + 1)\nf(0)").await,
    );
    let by_c = "import sys\nsys.setrecursionlimit(10 ** 9)\nclass A:\n    def __getattr__(self, name): return getattr(self, name)\nA().x";
    raised("RecursionError", &hostile(by_c).await);
}

#[tokio::test]
async fn a_stack_overflow_is_typed() {
    // Frees a million nested objects: C recursion past every guard of the interpreter.
    let policy = Policy {
        deadline: Duration::from_secs(30),
        ..Policy::default()
    };
    let code = "x = None\nfor _ in range(10 ** 6): x = {'a': x}\nimport gc\ndel x";
    let outcome = sandbox().run(code, b"", &policy, 1).await.unwrap();
    assert_eq!(outcome.status, Status::StackOverflow, "{outcome:?}");
    assert_eq!(run("print(1)").await.stdout, "1\n");
}

#[tokio::test]
async fn endless_output_is_cut_and_does_not_end_the_guest() {
    let policy = Policy {
        output_bytes: 1000,
        ..Policy::default()
    };
    let code = "import sys\nfor _ in range(20000): print('é' * 100)\nsys.stderr.write('e' * 5000)\nraise SystemExit(7)";
    let outcome = sandbox().run(code, b"", &policy, 1).await.unwrap();
    assert_eq!(outcome.status, Status::Exited { code: 7 });
    assert!(
        outcome.truncated && outcome.stdout.len() <= 1000 && outcome.stderr.len() == 1000,
        "{}",
        outcome.stdout.len()
    );
    assert_eq!(
        hostile("while True: print('x' * 10000)").await.status,
        Status::TimedOut
    );
}

#[tokio::test]
async fn disk_is_limited_in_bytes_files_and_size() {
    let three_gigabytes = "
f = open('big', 'wb')
chunk = b'x' * (1 << 20)
for _ in range(3000): f.write(chunk)";
    let outcome = hostile(three_gigabytes).await;
    raised("OSError", &outcome);
    let size = "import os\ntry:\n    with open('big', 'wb') as f:\n        while True: f.write(b'x' * (1 << 20))\nexcept OSError: print(os.stat('big').st_size)";
    assert_eq!(hostile(size).await.stdout, "16777216\n");
    let sparse = "import os\nfd = os.open('s', os.O_CREAT | os.O_RDWR)\nos.ftruncate(fd, 3 << 30)";
    raised("OSError", &hostile(sparse).await);
    let seek = "f = open('s', 'wb')\nf.seek(3 << 30)\nf.write(b'x')\nf.flush()";
    raised("OSError", &hostile(seek).await);
    let many = "for i in range(100_000): open(f'f{i}', 'w').close()";
    let outcome = hostile(many).await;
    raised("OSError", &outcome);
    assert!(outcome.stderr.contains("No space left"), "{}", outcome.stderr);
    let folders = "import os\nfor i in range(100_000):\n    os.mkdir('d')\n    os.chdir('d')";
    let outcome = hostile(folders).await;
    assert!(matches!(outcome.status, Status::Raised { .. }), "{outcome:?}");
}

#[tokio::test]
async fn unlinked_open_files_count_against_the_quota() {
    let code = "
import os
held = []
for i in range(100):
    f = open('x', 'wb')
    f.write(b'x' * (1 << 20))
    f.flush()
    os.unlink('x')
    held.append(f)";
    raised("OSError", &hostile(code).await);
    let churn = "
import os
for i in range(100):
    with open('x', 'wb') as f: f.write(b'x' * (1 << 20))
    os.unlink('x')
print('done')";
    assert_eq!(run(churn).await.stdout, "done\n");
}

#[tokio::test]
async fn open_handles_are_limited() {
    let code = "held = [open('x', 'w') for _ in range(100_000)]";
    let outcome = hostile(code).await;
    assert!(outcome.status != Status::Exited { code: 0 }, "{outcome:?}");
}

#[tokio::test]
async fn there_is_no_other_process_network_or_library() {
    for (code, kind) in [
        ("import os; os.fork()", "AttributeError"),
        ("import os; os.system('id')", "AttributeError"),
        ("import subprocess; subprocess.run(['id'])", "OSError"),
        ("import socket; socket.socket()", "PermissionError"),
        ("import socket; socket.getaddrinfo('example.com', 80)", "gaierror"),
        (
            "import threading; threading.Thread(target=print).start()",
            "RuntimeError",
        ),
        ("import ctypes", "ModuleNotFoundError"),
        ("import os; os.kill(1, 9)", "AttributeError"),
    ] {
        raised(kind, &hostile(code).await);
    }
}

#[tokio::test]
async fn paths_do_not_leave_the_episode() {
    for code in [
        "open('/etc/passwd')",
        "open('../etc/passwd')",
        "open('../../../../etc/passwd')",
        "open('/work/../../etc/passwd')",
        "open('/proc/self/environ')",
        "import os; os.symlink('/etc', 'e')",
        "import os; os.link('/etc/passwd', 'e')",
        "import os; os.rename('/work', '/elsewhere')",
        "import os; os.rmdir('/tmp')",
    ] {
        let outcome = hostile(code).await;
        assert!(
            matches!(outcome.status, Status::Raised { .. }),
            "{code}: {outcome:?}"
        );
    }
    let outcome = run("import os\nprint(sorted(os.listdir('/')), dict(os.environ), os.getcwd())").await;
    assert_eq!(outcome.stdout, "['tmp', 'work'] {} /work\n");
}

#[tokio::test]
async fn ending_the_process_is_told_apart_from_exiting() {
    assert_eq!(
        hostile("import os; os._exit(0)").await.status,
        Status::Aborted { code: 0 }
    );
    assert_eq!(
        hostile("import sys; sys.exit(0)").await.status,
        Status::Exited { code: 0 }
    );
    assert!(!Status::Aborted { code: 0 }.is_success());
    assert!(matches!(
        hostile("import os; os.abort()").await.status,
        Status::Trapped { .. } | Status::Aborted { .. }
    ));
}

#[tokio::test]
async fn patched_interpreters_answer_or_end_typed() {
    for code in [
        "import builtins\nfor n in ('type', 'len', 'str', 'int', 'dict', 'list', 'open', 'compile', 'exec', 'isinstance'): setattr(builtins, n, None)",
        "import json, _json\njson.loads = json.dumps = _json.make_scanner = None",
        "import sys\nsys.stdout = sys.stderr = sys.stdin = None",
        "import sys\nsys.stdout.close(); sys.stderr.close()",
        "import os\nos.close(1); os.close(2)",
        "import sys\nsys.modules.clear()",
        "import builtins\nbuiltins.BaseException = builtins.Exception = ZeroDivisionError",
        "import gc\ngc.set_threshold(1)",
        "import sys\nsys.settrace(lambda *a: None)",
    ] {
        let mut session = sandbox().session(&quick(), 5).await.unwrap();
        let first = session.exec(code, b"").await.unwrap();
        assert!(!first.status.is_fatal(), "{code}: {first:?}");
        let second = session.eval("40 + 2").await.unwrap();
        assert_eq!(
            second.value.map(|v| v.to_wire().to_string()).as_deref(),
            Some(r#"{"i":"42"}"#),
            "{code}"
        );
    }
}

#[tokio::test]
async fn evil_exceptions_are_told() {
    for (code, kind) in [
        (
            "class E(Exception):\n    def __str__(self): raise SystemExit(0)\nraise E",
            "E",
        ),
        (
            "class E(BaseException):\n    def __str__(self): return 'x' * 10 ** 7\nraise E",
            "E",
        ),
        (
            "class M(type):\n    __name__ = property(lambda s: 1 / 0)\nclass E(Exception, metaclass=M): pass\nraise E",
            "E",
        ),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("e = ValueError('a\\ud800b')\nraise e", "ValueError"),
    ] {
        let outcome = hostile(code).await;
        raised(kind, &outcome);
        let Status::Raised { message, .. } = outcome.status else {
            unreachable!()
        };
        assert!(message.chars().count() < 600, "{code}");
    }
}

#[tokio::test]
async fn the_stack_holds_nothing_worth_finding() {
    let code = "
import sys, gc
frame = sys._getframe()
while frame.f_back: frame = frame.f_back
print(sorted(k for k in frame.f_locals if k not in ('self', 'request')))
import app
from wit_world.imports import host
print(host.call('{\"nonce\":\"guess\",\"function\":\"candidate\",\"args\":[]}'))";
    let outcome = hostile(code).await;
    assert!(
        outcome
            .stdout
            .ends_with("{\"refused\":\"there is no candidate to call\"}\n"),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn fuel_ends_a_guest_and_counts_the_same_each_time() {
    let policy = Policy {
        fuel: Some(400_000_000),
        deadline: Duration::from_secs(60),
        ..Policy::default()
    };
    let spin = sandbox().run("while True: pass", b"", &policy, 1).await.unwrap();
    assert_eq!((spin.status, spin.fuel), (Status::OutOfFuel, Some(400_000_000)));
    let mut used = Vec::new();
    for _ in 0..3 {
        let outcome = sandbox()
            .run("print(sum(i * i for i in range(10_000)))", b"", &policy, 1)
            .await
            .unwrap();
        assert!(outcome.status.is_success(), "{outcome:?}");
        used.push(outcome.fuel);
    }
    assert!(
        used[0].is_some_and(|fuel| fuel > 0) && used.windows(2).all(|pair| pair[0] == pair[1]),
        "{used:?}"
    );
}
