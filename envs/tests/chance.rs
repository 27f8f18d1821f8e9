//! Worlds with chance in them: what is drawn has the documented probabilities, and the best policy earns the computed value.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mipu_envs::worlds::bandit::{BanditSpec, Beliefs};
use mipu_envs::worlds::sokoban::{Sokoban, SokobanSpec};
use mipu_envs::worlds::treasure::{Action, Hunt, TreasureSpec};
use mipu_envs::worlds::{Mdp, best_action, optimal_value};
use mipu_envs::{Reply, StopReason, Task};

use crate::worlds::{agrees, episode};
use crate::{answer, call, contents, sandbox, task};

/// A task with this `environment` (YAML indented by two), turn by turn paid.
fn world(environment: &str, turns: usize) -> String {
    format!(
        "version: 1\nname: t\ninstruction: go\ntools: [submit]\nlimits: {{max_turns: {turns}}}\ndata: {{rows: [{{n: 3}}]}}\nreward: {{environment: {{}}, partial: true}}\nenvironment:\n{environment}"
    )
}

/// How often each last observation comes after these turns, over many seeds.
async fn frequencies(task: &Arc<Task>, seeds: u64, turns: &[Reply]) -> BTreeMap<String, f64> {
    let mut counts = BTreeMap::new();
    for seed in 0..seeds {
        let mut env = task.env(sandbox(), seed);
        let mut seen = env.start().await.unwrap().pop().unwrap().content;
        for turn in turns {
            let result = env.step(turn).await.unwrap();
            seen = match result.observations.last() {
                Some(message) => message.content.clone(),
                None => format!("{:?}", result.stop.unwrap()),
            };
        }
        *counts.entry(seen).or_default() += 1.0;
    }
    counts
}

/// Pearson's statistic of the counts against these probabilities, which must name everything seen.
fn chi_square(counts: &BTreeMap<String, f64>, expected: &[(&str, f64)]) -> f64 {
    let total: f64 = counts.values().sum();
    let known = |seen: &String| expected.iter().any(|(name, _)| name == seen);
    assert!(counts.keys().all(known), "{counts:?} against {expected:?}");
    let sum: f64 = expected.iter().map(|(_, p)| p).sum();
    assert!((sum - 1.0).abs() < 1e-9, "the probabilities add up to {sum}");
    let term = |(name, p): &(&str, f64)| {
        let mean = p * total;
        (counts.get(*name).copied().unwrap_or_default() - mean).powi(2) / mean
    };
    expected.iter().map(term).sum()
}

/// The 0.9999 quantile of the chi-square distribution with 1, 2, .. degrees of freedom.
const LIMIT: [f64; 6] = [15.14, 18.42, 21.11, 23.51, 25.74, 27.86];

/// An environment, the turns played in it, and what may come of them.
type Case<'a> = (&'a str, Vec<Reply>, Vec<(&'a str, f64)>);

#[tokio::test]
async fn transitions_have_the_documented_probabilities() {
    let go = |direction: &str| call("go", &[("direction", direction)]);
    let step = |direction: &str| call("move", &[("direction", direction)]);
    let hunt = "  treasure:
    compact: true
    stumble: 0.3
    jam: 0.4
    rooms: {hall: {exits: {e: vault, n: attic}}, attic: {exits: {s: hall}}, vault: {exits: {w: hall}}}
    start: hall
    items: {gold: [attic, vault, hall], key: hall}
    goal: gold
    locks: {vault: key}
";
    let take = call("take", &[("item", "key")]);
    let unlock = call("open", &[("direction", "e")]);
    let pull = call("pull", &[("arm", "0")]);
    let user = "  chat_user:
    opening: hi
    terse: 0.25
    volunteer: 0.5
    facts:
      - {name: day, value: Monday, says: On Monday., asked_by: [day], reveal: 0.4, evade: Hm.}
      - {name: time, value: noon, asked_by: [time], after: [day]}
";
    let cases: Vec<Case<'_>> = vec![
        // 1 - slip ahead, slip / 2 to each side.
        (
            "  grid: {view: position, compact: true, slip: 0.3, map: ['...', '.S.', '..G']}\n",
            vec![step("right")],
            vec![("1,2", 0.7), ("0,1", 0.15), ("2,1", 0.15)],
        ),
        // Ahead a box on the goal side; sideways walls, where the player stays.
        (
            "  sokoban: {compact: true, slip: 0.4, level: ['#####', '#@$-.', '#####']}\n",
            vec![step("right")],
            vec![("#####/#-@$./#####", 0.6), ("#####/#@$-./#####", 0.4)],
        ),
        // Where the gold lies: in each of three rooms alike.
        (
            hunt,
            vec![],
            vec![
                ("go\nhall;e!,n;gold,key;", 1.0 / 3.0),
                ("go\nhall;e!,n;key;", 2.0 / 3.0),
            ],
        ),
        // 1 - stumble to the attic, where the gold is in one of three cases.
        (
            hunt,
            vec![go("n")],
            vec![
                ("attic;s;gold;", 0.7 / 3.0),
                ("attic;s;;", 1.4 / 3.0),
                ("hall;e!,n;gold,key;", 0.1),
                ("hall;e!,n;key;", 0.2),
            ],
        ),
        (
            hunt,
            vec![take, unlock],
            vec![("The lock opens.", 0.6), ("The lock jams.", 0.4)],
        ),
        (
            "  bandit: {compact: true, arms: [0.2, 0.7], horizon: 5}\n",
            vec![pull.clone()],
            vec![("1", 0.2), ("0", 0.8)],
        ),
        // The mean of Beta(2, 5).
        (
            "  bandit: {compact: true, arms: {count: 2, prior: [2, 5]}, horizon: 5}\n",
            vec![pull],
            vec![("1", 2.0 / 7.0), ("0", 5.0 / 7.0)],
        ),
        // Told 0.4, in a word 0.1 of it; then with 0.5 the time too, which has no sentence. Else evaded, and the day volunteered.
        (
            user,
            vec![answer("What day?")],
            vec![
                ("On Monday.", 0.4 * 0.75 * 0.5),
                ("On Monday. noon", 0.4 * 0.75 * 0.5),
                ("Monday", 0.4 * 0.25 * 0.5),
                ("Monday noon", 0.4 * 0.25 * 0.5),
                ("Hm.", 0.6 * 0.5),
                ("Hm. On Monday.", 0.6 * 0.5 * 0.75),
                ("Hm. Monday", 0.6 * 0.5 * 0.25),
            ],
        ),
    ];
    for (environment, turns, expected) in cases {
        let task = task(&world(environment, 9)).await;
        let counts = frequencies(&task, 4000, &turns).await;
        let statistic = chi_square(&counts, &expected);
        let limit = LIMIT[expected.len() - 2];
        assert!(
            statistic < limit,
            "{statistic} over {limit}: {counts:?} against {expected:?}"
        );
    }
}

/// After a win an arm wins with (a + 1) / (a + b + 1): the draws of an episode share its arm.
#[tokio::test]
async fn an_episode_keeps_the_arms_it_drew() {
    let task = task(&world(
        "  bandit: {compact: true, arms: {count: 1, prior: [2, 5]}, horizon: 5}\n",
        9,
    ))
    .await;
    let pull = call("pull", &[("arm", "0")]);
    let (mut wins, mut both) = (0.0, 0.0);
    for seed in 0..6000 {
        let mut env = task.env(sandbox(), seed);
        let first = env.step(&pull).await.unwrap();
        if contents(&first.observations) == ["1"] {
            wins += 1.0;
            both += f64::from(contents(&env.step(&pull).await.unwrap().observations) == ["1"]);
        }
    }
    let (share, p) = (both / wins, 3.0 / 8.0);
    let error = (p * (1.0_f64 - p) / wins).sqrt();
    assert!(
        (share - p).abs() < 4.0 * error,
        "{share} is not {p} within {error}"
    );
}

#[tokio::test]
async fn an_optimal_pusher_earns_what_was_computed() {
    const LEVEL: &str = "######/#@---#/#-$$-#/#-..-#/######";
    let horizon = 14;
    let lines: Vec<String> = LEVEL.split('/').map(str::to_owned).collect();
    let level = Sokoban::new(&lines, 0.25).unwrap();
    let value = optimal_value(&level, level.start(), horizon);
    let yaml = format!("  sokoban: {{compact: true, slip: 0.25, level: {:?}}}\n", lines);
    let task = task(&world(&yaml, horizon)).await;
    let spec: SokobanSpec = serde_saphyr::from_str(&format!("{{slip: 0.25, level: {lines:?}}}")).unwrap();
    assert_eq!(spec.of(&task.row).unwrap().start(), level.start());
    let mut returns = Vec::new();
    let mut plan = HashMap::new();
    for seed in 0..400 {
        let (sum, _) = episode(&task, seed, |seen, turn| {
            let seen = seen.lines().last().unwrap();
            let direction = plan.entry((seen.to_owned(), turn)).or_insert_with(|| {
                // What is seen is all there is; a level read again has the same best actions, its rewards are scaled alike.
                let lines: Vec<String> = seen.split('/').map(str::to_owned).collect();
                let level = Sokoban::new(&lines, 0.25).unwrap();
                best_action(&level, level.start(), horizon - turn).unwrap()
            });
            call("move", &[("direction", direction.name())])
        })
        .await;
        returns.push(sum);
    }
    assert!(value > 0.5 && value < 0.999, "{value}");
    assert!(agrees(&returns, value), "not {value}");
}

#[tokio::test]
async fn an_optimal_hunter_earns_what_was_computed() {
    let yaml =
        "rooms: {hall: {exits: {e: vault, n: attic}}, attic: {exits: {s: hall}}, vault: {exits: {w: hall}}}
    start: hall
    items: {gold: vault, key: attic}
    goal: gold
    locks: {vault: key}
    stumble: 0.3
    jam: 0.4
";
    let horizon = 9;
    let task = task(&world(&format!("  treasure:\n    {yaml}"), horizon)).await;
    let spec: TreasureSpec = serde_saphyr::from_str(&yaml.replace("\n    ", "\n")).unwrap();
    let treasure = spec.of(&task.row).unwrap();
    let [(_, start)] = treasure.starts().try_into().unwrap();
    let value = optimal_value(&treasure, &start, horizon);
    // Exits by name: in the hall e, n; elsewhere one. Items by name: gold, key.
    let reply = |hunt: &Hunt, action: Action| match (action, hunt.room) {
        (Action::Go(0), 0) => call("go", &[("direction", "s")]),
        (Action::Go(0), 2) => call("go", &[("direction", "w")]),
        (Action::Go(0), _) => call("go", &[("direction", "e")]),
        (Action::Go(_), _) => call("go", &[("direction", "n")]),
        (Action::Open(_), _) => call("open", &[("direction", "e")]),
        (Action::Take(0), _) => call("take", &[("item", "gold")]),
        (Action::Take(_), _) => call("take", &[("item", "key")]),
    };
    let mut returns = Vec::new();
    for seed in 0..600 {
        let (mut hunt, mut doing) = (start.clone(), None);
        let (sum, _) = episode(&task, seed, |seen, turn| {
            if let Some(action) = doing {
                let failed = seen.starts_with("You stumble") || seen == "The lock jams.";
                let [happens, nothing] = treasure.outcomes(&hunt, &action).try_into().unwrap();
                hunt = if failed { nothing.state } else { happens.state };
            }
            let action = best_action(&treasure, &hunt, horizon - turn).unwrap();
            doing = Some(action);
            reply(&hunt, action)
        })
        .await;
        returns.push(sum);
    }
    assert!(value > 0.2 && value < 0.9, "{value}");
    assert!(agrees(&returns, value), "not {value}");
}

#[tokio::test]
async fn an_optimal_gambler_earns_what_was_computed() {
    let horizon = 6;
    let spec: BanditSpec = serde_saphyr::from_str("{arms: {count: 2}, horizon: 6}").unwrap();
    let task = task(&world(
        "  bandit: {compact: true, arms: {count: 2}, horizon: 6}\n",
        9,
    ))
    .await;
    spec.of(&task.row).unwrap();
    let beliefs = Beliefs {
        prior: [1, 1],
        horizon,
    };
    let nothing = vec![(0, 0), (0, 0)];
    let value = optimal_value(&beliefs, &nothing, horizon);
    let mut returns = Vec::new();
    let mut plan = HashMap::new();
    for seed in 0..3000 {
        let (mut counts, mut last) = (nothing.clone(), None);
        let (sum, stop) = episode(&task, seed, |seen, turn| {
            if let Some(arm) = last {
                let (wins, losses): &mut (u32, u32) = &mut counts[arm];
                if seen == "1" { *wins += 1 } else { *losses += 1 }
            }
            let best = || best_action(&beliefs, &counts, horizon - turn).unwrap();
            let arm = *plan.entry(counts.clone()).or_insert_with(best);
            last = Some(arm);
            call("pull", &[("arm", &arm.to_string())])
        })
        .await;
        assert_eq!(stop, StopReason::Terminal);
        returns.push(sum);
    }
    // Pulling blindly earns 1/2; knowing the better arm of two would earn 2/3.
    assert!(value > 0.55 && value < 2.0 / 3.0, "{value}");
    assert!(agrees(&returns, value), "not {value}");
}
