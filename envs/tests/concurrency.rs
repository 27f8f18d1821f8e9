//! The same seed gives the same episode, however many are played at once.

use std::sync::Arc;

use mipu_envs::{Message, Task};

use crate::{sandbox, task};

/// Chance in every place, and a solution that meets it.
const CHANCE: &str = "stochastic: {tool_failure: 0.2, observation_noise: 0.02, truncation: {probability: 0.2, keep_bytes: 40}, latency_ms: {mean: 5, sd: 2}}\n";

/// One file of each kind: environment, reward, script.
const KINDS: [(&str, &str); 8] = [
    (
        "grid",
        "environment: {grid: {slip: 0.4, map: ['S...', '.H..', '...G']}}\nreward: {environment: {}, partial: true}\nsolution:\n  python: |\n    def solve(row, rng):\n        while True:\n            yield {'move': rng.choice(['down', 'right'])}\n",
    ),
    (
        "sokoban",
        "environment: {sokoban: {slip: 0.4, level: ['@--', '-$-', '--.']}}\nreward: {environment: {}, partial: true}\nsolution:\n  python: |\n    def solve(row, rng):\n        while True:\n            yield {'move': rng.choice(['up', 'down', 'left', 'right'])}\n",
    ),
    (
        "treasure",
        "environment:\n  treasure: {stumble: 0.4, rooms: {a: {exits: {n: b}}, b: {exits: {s: a, e: c}}, c: {exits: {w: b}}}, start: a, items: {gold: [a, b, c]}, goal: gold}\nreward: {environment: {}, partial: true}\nsolution:\n  python: |\n    def solve(row, rng):\n        while True:\n            yield rng.choice([{'go': 'n'}, {'go': 'e'}, {'take': 'gold'}, {'look': ''}])\n",
    ),
    (
        "bandit",
        "environment: {bandit: {arms: {count: 3, prior: [1, 2]}, horizon: 6}}\nreward: {environment: {}, partial: true}\nsolution:\n  python: |\n    def solve(row, rng):\n        while True:\n            yield {'pull': str(rng.randrange(3))}\n",
    ),
    (
        "search",
        "environment: {search: {documents: [{id: a, text: one two}, {id: b, text: two three}]}}\nreward: {exact: x}\nsolution:\n  turns: [{search: two}, {open: a}, {search: one}, {answer: x}]\n",
    ),
    (
        "chat_user",
        "environment: {chat_user: {opening: hi, terse: 0.5, volunteer: 0.5, facts: [{name: day, value: Monday, says: On Monday., asked_by: [day], reveal: 0.5}, {name: time, value: noon, says: At noon., asked_by: [time], reveal: 0.5}]}}\nreward: {exact: x}\nsolution:\n  turns: [{answer: day}, {answer: time}, {answer: day}, {answer: time}, {submit: x}]\n",
    ),
    (
        "python",
        "environment:\n  python:\n    tools: [{name: roll, parameters: {}}]\n    source: |\n      import random\n      def reset(row, rng):\n          global dice\n          dice = rng\n          return str([dice.random(), random.random(), hash('x')])\n      def step(tool, arguments):\n          return str([dice.random(), random.random(), id(object()) % 97]), dice.random() / 8, False\nreward: {environment: {}, partial: true}\nsolution:\n  turns: [{roll: ''}, {roll: ''}, {roll: ''}, {answer: x}]\n",
    ),
    (
        "repo",
        "workspace: {main.py: 'import random, time\\n\\ndef f(): return 1\\n'}\nreward: {unit_tests: {file: main.py, cases: [{call: f(), expect: 1}]}}\nsolution:\n  turns: [{list_files: ''}, {python: 'import random, time, uuid; print(random.random(), time.time(), uuid.uuid4(), {str(i) for i in range(9)})'}, {submit: ''}]\n",
    ),
];

/// Everything that can be told of an episode.
type Record = (Vec<Message>, Vec<u64>, String);

async fn play(task: Arc<Task>, seed: u64) -> Record {
    let mut env = task.env(sandbox(), seed);
    let mut script = task.solution(sandbox(), seed);
    let mut messages = env.start().await.unwrap();
    let (mut numbers, mut observations) = (Vec::new(), Vec::new());
    loop {
        let reply = script.next(&observations).await.unwrap();
        let result = env.step(&reply).await.unwrap();
        messages.push(Message::new(mipu_envs::Role::Assistant, reply.content));
        messages.extend(result.observations.iter().cloned());
        numbers.extend([result.reward.to_bits(), result.latency_ms.to_bits()]);
        if let Some(stop) = result.stop {
            return (messages, numbers, format!("{stop:?} {:?}", result.metrics));
        }
        observations = result.observations;
    }
}

/// All episodes, `at_once` of them at a time, in the order of the seeds.
async fn play_all(tasks: &[Arc<Task>], seeds: u64, at_once: usize) -> Vec<Record> {
    let permits = Arc::new(tokio::sync::Semaphore::new(at_once));
    let jobs: Vec<_> = (0..seeds)
        .flat_map(|seed| tasks.iter().map(move |task| (Arc::clone(task), seed)))
        .map(|(task, seed)| {
            let permits = Arc::clone(&permits);
            tokio::spawn(async move {
                let _permit = permits.acquire_owned().await.unwrap();
                play(task, seed).await
            })
        })
        .collect();
    let mut records = Vec::new();
    for job in jobs {
        records.push(job.await.unwrap());
    }
    records
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_same_seed_gives_the_same_episode_at_any_concurrency() {
    let mut tasks = Vec::new();
    for (name, rest) in KINDS {
        let head = format!(
            "version: 1\nname: {name}\ninstruction: go\nlimits: {{max_turns: 12}}\ntools: [files, python, submit]\ndata: {{rows: [{{n: 1}}]}}\n"
        );
        tasks.push(task(&format!("{head}{CHANCE}{rest}")).await);
    }
    let seeds = 6;
    let alone = play_all(&tasks, seeds, 1).await;
    for at_once in [4, 16] {
        let together = play_all(&tasks, seeds, at_once).await;
        for (index, (one, other)) in alone.iter().zip(&together).enumerate() {
            let name = KINDS[index % KINDS.len()].0;
            assert_eq!(
                one,
                other,
                "{name}, seed {}, {at_once} at once",
                index / KINDS.len()
            );
        }
    }
    // Seeds matter: otherwise the comparison would say nothing.
    for (index, (name, _)) in KINDS.iter().enumerate() {
        let differ = (1..seeds as usize).any(|seed| alone[seed * KINDS.len() + index] != alone[index]);
        assert!(differ, "{name} is the same for every seed");
    }
}
