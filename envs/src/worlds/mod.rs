//! Worlds: environments with a state of their own that the agent's tool calls change.
//!
//! A [`Kind`] is read from a task file's `environment` (or written in Rust) and opens one [`World`] an episode. The shared turn loop does
//! the rest: budgets, mistakes, failures, noise, `submit`, scoring. A world therefore holds nothing but its state and its rules.
//!
//! The transition probabilities of the built-in worlds are plain data: each implements [`Mdp`], and what is played is drawn from the
//! very outcomes that [`Mdp::outcomes`] lists. [`optimal_value`] computes from them what the best policy earns.
//!
//! # A world in Rust
//! A task file names it, `environment: { custom: countdown }`, and whoever loads the file brings it along:
//!
//! ```
//! use std::sync::Arc;
//!
//! use mipu_envs::worlds::{Chance, Effect, Kind, World};
//! use mipu_envs::{Task, TaskSet, ToolCall, ToolSpec, Unscored};
//! use mipu_sandbox::Sandbox;
//! use rand::RngExt;
//!
//! /// Press the button until the counter is 0; it sometimes jams.
//! #[derive(Debug)]
//! struct Countdown;
//!
//! impl Kind for Countdown {
//!     fn name(&self) -> &str {
//!         "countdown"
//!     }
//!
//!     fn tools(&self) -> Vec<ToolSpec> {
//!         vec![ToolSpec {
//!             name: "press".to_owned(),
//!             description: "Presses the button.".to_owned(),
//!             parameters: serde_json::json!({ "type": "object", "properties": {}, "required": [] }),
//!         }]
//!     }
//!
//!     fn open(&self, task: &Arc<Task>, _: &Sandbox, _seed: u64) -> Result<Box<dyn World>, Unscored> {
//!         let left = task.row["from"].as_u64().unwrap_or_default();
//!         Ok(Box::new(Counter(left)))
//!     }
//! }
//!
//! struct Counter(u64);
//!
//! #[async_trait::async_trait]
//! impl World for Counter {
//!     async fn call(&mut self, _: &ToolCall, chance: &mut Chance) -> Result<Effect, Unscored> {
//!         if chance.random::<f64>() < 0.9 {
//!             self.0 -= 1;
//!         }
//!         Ok(if self.0 == 0 { Effect::end("0", 1.0) } else { Effect::say(self.0.to_string()) })
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("countdown.yaml");
//! std::fs::write(&path, "\
//! version: 1
//! name: countdown
//! instruction: Press until the counter is 0.
//! environment: { custom: countdown }
//! data: { rows: [{ from: 3 }] }
//! reward: { environment: {} }
//! ")?;
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let sandbox = Sandbox::open(Default::default())?;
//! let set = TaskSet::load_with(&[path], &sandbox, 0, &[Arc::new(Countdown)]).await?;
//! // `mipu_agent::rollout_groups` plays these tasks as it plays any other; one turn by hand:
//! let task = [&set.train[..], &set.validation, &set.test].concat().remove(0);
//! let mut env = task.env(&sandbox, 7);
//! let press = ToolCall { name: "press".to_owned(), arguments: Default::default() };
//! let reply = mipu_envs::Reply { tool_calls: vec![press], ..Default::default() };
//! let result = env.step(&reply).await?;
//! assert_eq!(result.observations[0].content, "2");
//! # Ok(()) })
//! # }
//! ```

mod actions;
pub mod bandit;
pub mod bm25;
pub mod chat_user;
pub mod grid;
mod mdp;
pub mod python;
pub mod search;
pub mod sokoban;
pub mod treasure;

use std::sync::Arc;

use mipu_sandbox::Sandbox;

use crate::env::Unscored;
use crate::message::{ToolCall, ToolSpec};
use crate::task::Task;

pub use actions::Direction;
pub use mdp::{Mdp, Outcome, best_action, optimal_value};

/// The random numbers of one turn, a function of the episode's seed and the turn.
pub type Chance = rand_chacha::ChaCha8Rng;

/// A kind of environment: what all its episodes share.
pub trait Kind: std::fmt::Debug + Send + Sync {
    /// Its name in a task file.
    fn name(&self) -> &str;

    /// The tools it adds to those of the task file.
    fn tools(&self) -> Vec<ToolSpec>;

    /// Builds the world of one episode; cheap, and without chance. `seed` is for interpreters of the world's own.
    ///
    /// # Errors
    /// When the row does not describe a world.
    fn open(&self, task: &Arc<Task>, sandbox: &Sandbox, seed: u64) -> Result<Box<dyn World>, Unscored>;
}

/// The live state of one episode. Mistakes of the agent are observations; an `Err` means that the world itself failed.
#[async_trait::async_trait]
pub trait World: Send {
    /// Draws what chance decides before the first turn; returns what stands below the instruction.
    ///
    /// # Errors
    /// When the world failed.
    async fn start(&mut self, chance: &mut Chance) -> Result<Option<String>, Unscored> {
        let _ = chance;
        Ok(None)
    }

    /// Applies one call of a tool of [`Kind::tools`].
    ///
    /// # Errors
    /// When the world failed.
    async fn call(&mut self, call: &ToolCall, chance: &mut Chance) -> Result<Effect, Unscored>;

    /// Hears a final text. `None`, the default: nobody listens, the text is the episode's answer and ends it.
    ///
    /// # Errors
    /// When the world failed.
    async fn message(&mut self, text: &str, chance: &mut Chance) -> Result<Option<Effect>, Unscored> {
        let _ = (text, chance);
        Ok(None)
    }

    /// What the reward rules see as the answer when the world ended the episode.
    fn outcome(&self) -> String {
        String::new()
    }
}

/// What an action did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effect {
    /// What the agent sees of it.
    pub observation: String,
    /// Added to the environment's return; must be finite.
    pub reward: f64,
    /// The world has reached a terminal state.
    pub done: bool,
}

impl Effect {
    /// The episode goes on, without reward.
    pub fn say(observation: impl Into<String>) -> Self {
        Self {
            observation: observation.into(),
            ..Self::default()
        }
    }

    /// A terminal state.
    pub fn end(observation: impl Into<String>, reward: f64) -> Self {
        Self {
            observation: observation.into(),
            reward,
            done: true,
        }
    }
}
