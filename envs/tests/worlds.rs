//! Worlds: what is played has the value that was computed, and every reward is accounted for.

use std::sync::Arc;

use mipu_envs::worlds::grid::Grid;
use mipu_envs::worlds::{best_action, optimal_value};
use mipu_envs::{Reply, StopReason, Task};

use crate::{answer, call, close, contents, sandbox, task};

/// What is left of a running mean's claims: the mean over `returns`, and its standard error.
fn mean(returns: &[f64]) -> (f64, f64) {
    let count = returns.len() as f64;
    let mean = returns.iter().sum::<f64>() / count;
    let variance = returns.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, (variance / count).sqrt())
}

/// Sum of the rewards and the end of an episode whose turns are written by `policy` from the last observation and the turn.
pub(crate) async fn episode(
    task: &Arc<Task>,
    seed: u64,
    mut policy: impl FnMut(&str, usize) -> Reply,
) -> (f64, StopReason) {
    let mut env = task.env(sandbox(), seed);
    let mut seen = env.start().await.unwrap().pop().unwrap().content;
    let mut sum = 0.0;
    for turn in 0.. {
        let result = env.step(&policy(&seen, turn)).await.unwrap();
        sum += result.reward;
        if let Some(stop) = result.stop {
            return (sum, stop);
        }
        seen = result.observations.last().unwrap().content.clone();
    }
    unreachable!("an episode has a turn limit")
}

/// `true` when the mean return of many episodes is the value, within 4 standard errors.
pub(crate) fn agrees(returns: &[f64], value: f64) -> bool {
    let (mean, error) = mean(returns);
    (mean - value).abs() <= 4.0 * error.max(1e-12)
}

const LAKE: &str = "SFFF/FHFH/FFFH/HFFG";

fn grid_task(map: &str, slip: f64, turns: usize, more: &str) -> String {
    let map = map.replace('/', "\n      ");
    format!(
        "version: 1\nname: t\ninstruction: go\nlimits: {{max_turns: {turns}}}\ndata: {{rows: [{{n: 3}}]}}\nreward: {{environment: {{}}, partial: true}}\nenvironment:\n  grid:\n    view: position\n    compact: true\n    slip: {slip}\n    map: |\n      {map}\n{more}"
    )
}

#[tokio::test]
async fn an_optimal_policy_on_ice_earns_what_was_computed() {
    let lines: Vec<String> = LAKE.split('/').map(str::to_owned).collect();
    let horizon = 40;
    let grid = Grid::new(&lines, 0.5, [0.0, 1.0, 0.0]).unwrap();
    let value = optimal_value(&grid, &grid.start(), horizon);
    let task = task(&grid_task(LAKE, 0.5, horizon, "")).await;
    let mut returns = Vec::new();
    for seed in 0..600 {
        let (sum, stop) = episode(&task, seed, |seen, turn| {
            let (row, column) = seen.lines().last().unwrap().split_once(',').unwrap();
            let at = (row.parse().unwrap(), column.parse().unwrap());
            let direction = best_action(&grid, &at, horizon - turn).unwrap();
            call("move", &[("direction", direction.name())])
        })
        .await;
        assert!(stop == StopReason::Terminal || close(sum, 0.0), "{stop:?} {sum}");
        returns.push(sum);
    }
    assert!(
        value > 0.3 && value < 0.9,
        "the task must be hard and possible: {value}"
    );
    assert!(agrees(&returns, value), "{:?} is not {value}", mean(&returns));
}

#[tokio::test]
async fn a_move_shows_the_world_and_the_last_turn_counts() {
    let yaml = grid_task("S.G", 0.0, 2, "");
    let task = task(&yaml).await;
    let mut env = task.env(sandbox(), 1);
    assert_eq!(env.tools()[0].name, "move");
    assert_eq!(contents(&env.start().await.unwrap()), ["go\n0,0"]);
    let right = call("move", &[("direction", "right")]);
    let first = env.step(&right).await.unwrap();
    assert_eq!(contents(&first.observations), ["0,1"]);
    let last = env.step(&right).await.unwrap();
    assert_eq!(
        (last.stop, last.observations.len()),
        (Some(StopReason::Terminal), 0)
    );
    assert!(close(last.reward, 1.0));
    assert!(env.step(&right).await.is_err(), "an episode ends once");

    let mut env = task.env(sandbox(), 1);
    for (reply, expected) in [
        (
            call("move", &[("direction", "north")]),
            "error: no direction `north`; use up, right, down or left",
        ),
        (call("mvoe", &[]), "error: no tool `mvoe`; tools: move"),
    ] {
        // The first is not the last turn.
        let result = env.step(&reply).await.unwrap();
        match result.stop {
            None => assert_eq!(contents(&result.observations), [expected]),
            Some(stop) => assert_eq!((stop, result.reward), (StopReason::MaxTurns, 0.0)),
        }
    }
    let given_up = task.env(sandbox(), 1).step(&answer("done")).await.unwrap();
    assert_eq!(
        (given_up.stop, given_up.reward),
        (Some(StopReason::Answered), 0.0)
    );
}

/// The rewards of all turns add up to the verdict, whether they are paid by turn or at the end.
#[tokio::test]
async fn rewards_add_up_to_the_verdict() {
    let right = |_: &str, _: usize| call("move", &[("direction", "right")]);
    for (settings, reward, expected) in [
        // 4 moves: 1 - 4 * 0.05.
        ("    step_reward: -0.05\n", "environment: {}, partial: true", 0.8),
        // Not quite 1 is nothing without `partial`.
        ("    step_reward: -0.05\n", "environment: {}", 0.0),
        ("", "environment: {}", 1.0),
        ("    goal_reward: 7\n", "environment: {}, partial: true", 1.0),
        ("    goal_reward: -7\n", "environment: {}, partial: true", 0.0),
        // 3 turns after the first.
        ("", "environment: {}, turn_penalty: 0.1", 0.7),
        (
            "    step_reward: 0.125\n",
            "environment: {}, partial: true, turn_penalty: 0.1",
            0.7,
        ),
        ("", "all: [{environment: {}}, {exact: ''}]", 1.0),
        (
            "    goal_reward: 0.5\n",
            "weighted: [{weight: 1, rule: {environment: {}}}, {weight: 1, rule: {exact: x}}], partial: true",
            0.25,
        ),
        ("", "exact: x", 0.0),
    ] {
        let yaml = grid_task("S...G", 0.0, 9, settings)
            .replace("environment: {}, partial: true}", &format!("{reward}}}"));
        let (sum, stop) = episode(&task(&yaml).await, 3, right).await;
        assert_eq!(stop, StopReason::Terminal);
        assert!(close(sum, expected), "{settings} {reward}: {sum}");
    }
}

#[tokio::test]
async fn a_cut_episode_keeps_what_it_earned() {
    let yaml = grid_task("S..G", 0.0, 2, "    step_reward: 0.25\n");
    let task = task(&yaml).await;
    let right = call("move", &[("direction", "r")]);
    let (sum, stop) = episode(&task, 1, |_, _| right.clone()).await;
    assert_eq!(stop, StopReason::MaxTurns);
    assert!(close(sum, 0.5));
    let mut env = task.env(sandbox(), 1);
    let paid = env.step(&right).await.unwrap().reward;
    let last = env.finish(StopReason::MaxTokens).await.unwrap();
    assert!(
        close(paid, 0.25) && close(last.reward, 0.0),
        "{paid} {}",
        last.reward
    );
    assert_eq!(last.stop, Some(StopReason::MaxTokens));
}
