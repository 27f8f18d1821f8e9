//! Episodes with a real policy or a scripted one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mipu_agent::policy::Scripted;
use mipu_agent::rollout::{GroupStart, Players, rollout_envs};
use mipu_agent::tokenizer::Tokenizer;
use mipu_agent::{EngineConfig, Group, PROMPT_TURN, PolicyError, RolloutConfig, Tokens, Trajectory};
use mipu_envs::StopReason;
use proptest::prelude::*;
use tokio_util::sync::CancellationToken;

use crate::support::{Sums, block_on, engine, players, rollout_config, starts};

const STOPS: [u32; 2] = [261, 265];
const QUESTIONS: [&str; 3] = ["1+2", "30+4", "5+60+7"];

fn bytes(open: u32, text: &str, close: u32) -> Vec<u32> {
    std::iter::once(open)
        .chain(text.bytes().map(u32::from))
        .chain([close])
        .collect()
}

/// Calls the tool until it is not busy, then repeats what it said.
fn solver(context: &[u32]) -> Vec<u32> {
    match context.iter().rposition(|&id| id == 262) {
        None => bytes(258, "sum", 261),
        Some(at) => {
            let text: String = context[at + 1..context.len() - 1]
                .iter()
                .map(|&b| b as u8 as char)
                .collect();
            if text == "busy" {
                bytes(258, "again", 261)
            } else {
                bytes(264, &text, 265)
            }
        }
    }
}

fn play(
    players: &Players,
    starts: Vec<GroupStart>,
    config: &RolloutConfig,
) -> Result<Vec<Group>, PolicyError> {
    block_on(async { rollout_envs(players, starts, config, &CancellationToken::new(), &|| ()).await })
}

fn roll(turn: impl Fn(&[u32]) -> Vec<u32> + Send + Sync + 'static, config: RolloutConfig) -> Vec<Group> {
    let players = players(Scripted::new(&STOPS, turn));
    play(&players, starts(&QUESTIONS), &config).unwrap()
}

#[test]
fn a_solver_is_rewarded_and_recorded() {
    let groups = roll(solver, rollout_config());
    assert_eq!(groups.len(), 3);
    let all: Vec<&Trajectory> = groups.iter().flat_map(|g| &g.trajectories).collect();
    assert_eq!(all.len(), 12);
    for t in &all {
        let solved = t.stop == StopReason::Answered;
        assert_eq!(t.ret().to_bits(), f64::from(u8::from(solved)).to_bits());
        assert_eq!(
            t.turn_rewards.len(),
            t.messages
                .iter()
                .filter(|m| m.role == mipu_envs::Role::Assistant)
                .count()
        );
        assert_eq!(t.tokens.turn()[0], PROMPT_TURN);
        assert!(!t.tokens.loss_mask()[0] && *t.tokens.loss_mask().last().unwrap());
    }
    // Failures are seeded: some of these episodes met a busy tool, some did not.
    let busy = all
        .iter()
        .filter(|t| t.metrics.iter().any(|(name, n)| name == "tool/busy" && *n > 0.0))
        .count();
    assert!(busy > 0 && busy < 12, "{busy}");
}

#[test]
fn same_seed_same_bytes_at_any_concurrency_and_thread_count() {
    let run = |concurrency, threads, share_prefixes, max_cached_tokens, seed| {
        let players = players(engine(
            EngineConfig {
                threads,
                share_prefixes,
                max_cached_tokens,
                ..Default::default()
            },
            3,
        ));
        let config = RolloutConfig {
            concurrency,
            seed,
            ..rollout_config()
        };
        let counted = AtomicUsize::new(0);
        let count = || {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        let groups = block_on(rollout_envs(
            &players,
            starts(&QUESTIONS),
            &config,
            &CancellationToken::new(),
            &count,
        ));
        assert_eq!(counted.into_inner(), 12);
        serde_json::to_string(&groups.unwrap()).unwrap()
    };
    let one = run(1, 1, true, 1 << 16, 11);
    assert_eq!(run(8, 1, true, 1 << 16, 11), one);
    assert_eq!(run(8, 3, false, 1 << 16, 11), one);
    assert_eq!(run(12, 2, true, 256, 11), one);
    assert_ne!(run(8, 1, true, 1 << 16, 12), one);
}

#[test]
fn a_task_drawn_twice_gets_fresh_episodes() {
    let players = players(engine(EngineConfig::default(), 3));
    let twice = starts(&["1+2", "1+2"]);
    let config = rollout_config();
    let groups = play(&players, twice, &config).unwrap();
    assert_ne!(groups[0].trajectories[0].tokens, groups[1].trajectories[0].tokens);
}

/// Bytes that are not UTF-8, and ids no encoder would choose, stay what the policy sampled.
#[test]
fn decode_and_reencode_between_turns_changes_ids() {
    let odd = vec![258, 0xff, 0xc3, 0x28, 261];
    let turn = odd.clone();
    let groups = roll(move |_| turn.clone(), rollout_config());
    let tokenizer = Tokenizer::compact().unwrap();
    assert_ne!(
        tokenizer.encode(&tokenizer.decode(&odd)).unwrap(),
        odd,
        "re-encoding would have changed them"
    );
    for t in groups.iter().flat_map(|g| &g.trajectories) {
        let sampled: Vec<u32> = sampled(&t.tokens).collect();
        assert_eq!(sampled, odd.repeat(3));
    }
}

fn sampled(tokens: &Tokens) -> impl Iterator<Item = u32> {
    tokens
        .ids()
        .iter()
        .zip(tokens.loss_mask())
        .filter(|(_, mask)| **mask)
        .map(|(id, _)| *id)
}

/// Only what the policy sampled has the mask; the observation's closing token, which it did not, has not.
#[test]
fn appended_end_tokens_that_were_not_sampled_have_mask_false() {
    for t in roll(solver, rollout_config())
        .iter()
        .flat_map(|g| &g.trajectories)
    {
        for (i, (id, mask)) in t.tokens.ids().iter().zip(t.tokens.loss_mask()).enumerate() {
            match id {
                257 | 262 | 263 => assert!(!mask, "token {i}"),
                258 | 261 | 264 | 265 => assert!(mask, "token {i}"),
                _ => (),
            }
            assert!(*mask || t.tokens.sampler_logprobs()[i].to_bits() == 0);
        }
    }
}

#[test]
fn a_failed_environment_is_unscored_not_zero() {
    let mut starts = starts(&["1+2"]);
    let down = AtomicUsize::new(0);
    starts[0].env = Arc::new(move |seed| {
        let mut env = Sums::new("1+2", seed);
        env.broken = down.fetch_add(1, Ordering::Relaxed) % 2 == 1;
        Box::new(env)
    });
    let players = players(Scripted::new(&STOPS, solver));
    let run = play(&players, starts, &rollout_config());
    let groups = run.unwrap();
    assert_eq!(groups[0].unscored, ["the tool's backend is down"; 2]);
    assert_eq!(groups[0].trajectories.len(), 2);
}

#[test]
fn empty_output_is_excluded() {
    let mut starts = starts(&["1+2"]);
    starts[0].max_tokens = 5;
    let players = players(Scripted::new(&STOPS, solver));
    let run = play(&players, starts, &rollout_config());
    let groups = run.unwrap();
    assert!(groups[0].trajectories.is_empty());
    assert_eq!(groups[0].unscored.len(), 4);
    assert!(groups[0].unscored[0].contains("prompt of 5 tokens leaves no room in the limit of 5"));
}

#[test]
fn a_spent_token_budget_lets_the_environment_finish() {
    // The first turn fits, its observation does not.
    let limited = |max_tokens| {
        let mut starts = starts(&["1+2"]);
        starts[0].max_tokens = max_tokens;
        let players = players(Scripted::new(&STOPS, |_: &[u32]| bytes(258, "sum", 261)));
        let run = play(&players, starts, &rollout_config());
        run.unwrap().remove(0).trajectories.remove(0)
    };
    let full = limited(10);
    assert_eq!(
        (full.stop, full.tokens.len(), full.turn_rewards.as_slice()),
        (StopReason::MaxTokens, 10, &[-0.25][..])
    );
    // The turn itself is cut.
    let cut = limited(8);
    assert_eq!(
        (cut.stop, cut.tokens.len(), cut.turn_rewards.as_slice()),
        (StopReason::MaxTokens, 8, &[-0.25][..])
    );
    assert_eq!((cut.tokens.sampled_len(), cut.malformed_turns), (3, 1));
}

#[test]
fn cancelling_ends_the_rollout() {
    let cancel = CancellationToken::new();
    cancel.cancel();
    let players = players(engine(EngineConfig::default(), 3));
    let run = async { rollout_envs(&players, starts(&QUESTIONS), &rollout_config(), &cancel, &|| ()).await };
    assert!(block_on(run).unwrap_err().to_string().contains("cancelled"));
}

#[test]
fn a_failed_policy_ends_the_rollout() {
    let players = players(engine(
        EngineConfig {
            max_cached_tokens: 32,
            ..Default::default()
        },
        3,
    ));
    let starts: Vec<GroupStart> = starts(&QUESTIONS);
    let run = play(&players, starts, &rollout_config());
    assert!(run.unwrap_err().to_string().contains("do not fit the cache"));
}

proptest! {
    /// Cutting an episode cuts every array, and what is read back is what was written.
    #[test]
    fn truncating_an_episode_forgets_one_of_the_masks(parts in prop::collection::vec((0usize..5, any::<bool>()), 0..6), cut in 0usize..30) {
        let mut tokens = Tokens::default();
        for (turn, (len, sampled)) in parts.iter().enumerate() {
            let ids: Vec<u32> = (0..*len as u32).collect();
            if *sampled {
                tokens.push_sampled(&ids, &vec![-0.5; *len], turn as u16);
            } else {
                tokens.push_context(&ids, turn as u16);
            }
        }
        let whole = tokens.clone();
        tokens.truncate(cut);
        let n = cut.min(whole.len());
        prop_assert_eq!(tokens.ids(), &whole.ids()[..n]);
        prop_assert_eq!(tokens.loss_mask(), &whole.loss_mask()[..n]);
        prop_assert_eq!(tokens.sampler_logprobs(), &whole.sampler_logprobs()[..n]);
        prop_assert_eq!(tokens.turn(), &whole.turn()[..n]);
        let again: Tokens = serde_json::from_str(&serde_json::to_string(&tokens).unwrap()).unwrap();
        prop_assert_eq!(again, tokens);
    }
}

#[test]
fn arrays_that_disagree_are_refused() {
    let text = r#"{"ids": [1, 2], "loss_mask": [true], "sampler_logprobs": [0.0, 0.0], "turn": [0, 0]}"#;
    let error = serde_json::from_str::<Tokens>(text).unwrap_err().to_string();
    assert!(error.contains("2 ids, 1 mask"), "{error}");
}
