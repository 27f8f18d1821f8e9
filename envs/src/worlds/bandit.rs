//! A bandit: which arm pays best must be found out by pulling.
//!
//! Arm `i` wins with probability `p_i`, independently of everything before. The `p_i` are given (`arms: [0.2, 0.8]`), or each is drawn
//! for every episode from a Beta distribution (`arms: {count: 2, prior: [1, 1]}`). A win pays `1 / horizon`, so that the return is the
//! share of wins; the episode ends after `horizon` pulls.
//!
//! With given arms the best policy earns `max p_i`. With a `Beta(a, b)` prior an arm that won `w` and lost `l` times wins next with
//! probability `(a + w) / (a + b + w + l)`: a decision process over those counts, which [`Beliefs`] is.

use std::sync::Arc;

use mipu_sandbox::Sandbox;
use rand::RngExt;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Chance, Effect, Kind, Mdp, Outcome, World};
use crate::env::Unscored;
use crate::message::{ToolCall, ToolSpec};
use crate::spec::{Probability, Setting, Turns};
use crate::task::Task;
use crate::template::{Fields, RenderError};

/// Arms a bandit may have.
const MAX_ARMS: usize = 64;
/// Largest parameter of a prior: an arm is drawn as an order statistic of that many uniforms.
const MAX_PRIOR: u32 = 64;

/// A bandit as written in a task file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BanditSpec {
    /// The arms: the chance of each to win, `[0.2, 0.8]`, or how many there are and the Beta distribution that each episode draws them
    /// from, `{count: 3, prior: [1, 1]}`.
    pub arms: Setting<Arms>,
    /// Pulls of an episode; each win pays `1 / horizon`.
    pub horizon: Turns,
    /// Observations `1` and `0`. Default false.
    #[serde(default)]
    pub compact: bool,
}

/// The arms.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(try_from = "RawArms")]
pub enum Arms {
    /// Given chances.
    Known(Vec<f64>),
    /// `count` arms from `Beta(prior[0], prior[1])`.
    Drawn {
        /// How many.
        count: usize,
        /// The two parameters.
        prior: [u32; 2],
    },
}

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum RawArms {
    /// The chance of each arm to win, `[0.2, 0.8]`.
    Known(Vec<Probability>),
    /// Arms whose chances are drawn anew for every episode, `{count: 3, prior: [1, 1]}`.
    Drawn {
        /// How many arms.
        count: usize,
        /// Parameters of the Beta distribution. Default `[1, 1]`, uniform.
        #[serde(default = "uniform")]
        prior: [u32; 2],
    },
}

fn uniform() -> [u32; 2] {
    [1, 1]
}

impl TryFrom<RawArms> for Arms {
    type Error = String;

    fn try_from(raw: RawArms) -> Result<Self, String> {
        let arms = match raw {
            RawArms::Known(chances) => Self::Known(chances.into_iter().map(Probability::get).collect()),
            RawArms::Drawn { count, prior } => Self::Drawn { count, prior },
        };
        if !(1..=MAX_ARMS).contains(&arms.count()) {
            return Err(format!("a bandit has 1..={MAX_ARMS} arms; got {}", arms.count()));
        }
        match arms {
            Self::Drawn { prior, .. } if prior.iter().any(|p| !(1..=MAX_PRIOR).contains(p)) => Err(format!(
                "a prior's parameters lie in 1..={MAX_PRIOR}; got {prior:?}"
            )),
            arms => Ok(arms),
        }
    }
}

impl Arms {
    fn count(&self) -> usize {
        match self {
            Self::Known(chances) => chances.len(),
            Self::Drawn { count, .. } => *count,
        }
    }

    /// The chances of one episode.
    fn draw(&self, chance: &mut Chance) -> Vec<f64> {
        match self {
            Self::Known(chances) => chances.clone(),
            Self::Drawn { count, prior } => (0..*count).map(|_| beta(*prior, chance)).collect(),
        }
    }
}

/// A draw from `Beta(a, b)` with whole parameters: the `a`-th smallest of `a + b - 1` uniforms.
fn beta([a, b]: [u32; 2], chance: &mut Chance) -> f64 {
    let mut uniforms: Vec<f64> = (0..a + b - 1).map(|_| chance.random()).collect();
    uniforms.sort_unstable_by(f64::total_cmp);
    uniforms[a as usize - 1]
}

/// What may be known of a bandit with drawn arms: wins and losses of each arm. Its [`Mdp`] is exact.
#[derive(Clone, Debug)]
pub struct Beliefs {
    /// Parameters of the prior of every arm.
    pub prior: [u32; 2],
    /// Pulls of an episode.
    pub horizon: usize,
}

impl Mdp for Beliefs {
    /// `(wins, losses)` of each arm.
    type State = Vec<(u32, u32)>;
    type Action = usize;

    fn actions(&self, counts: &Self::State) -> Vec<usize> {
        (0..counts.len()).collect()
    }

    fn outcomes(&self, counts: &Self::State, arm: &usize) -> Vec<Outcome<Self::State>> {
        let [a, b] = self.prior;
        let (wins, losses) = counts[*arm];
        let win = f64::from(a + wins) / f64::from(a + b + wins + losses);
        let pulled: u32 = counts.iter().map(|(wins, losses)| wins + losses).sum();
        let done = pulled as usize + 1 >= self.horizon;
        let after = |wins, losses| {
            let mut counts = counts.clone();
            counts[*arm] = (wins, losses);
            counts
        };
        vec![
            Outcome {
                probability: win,
                state: after(wins + 1, losses),
                reward: 1.0 / self.horizon as f64,
                done,
            },
            Outcome {
                probability: 1.0 - win,
                state: after(wins, losses + 1),
                reward: 0.0,
                done,
            },
        ]
    }
}

impl BanditSpec {
    /// The arms of a row, with its exact probabilities: for [`optimal_value`](super::optimal_value) and the like.
    ///
    /// # Errors
    /// When the row does not describe one.
    pub fn of(&self, row: &Map<String, Value>) -> Result<Arms, Unscored> {
        Ok(self.arms(&Fields::of(row))?)
    }

    /// The arms of a row.
    pub(crate) fn arms(&self, fields: &Fields) -> Result<Arms, RenderError> {
        self.arms.get(fields)
    }

    /// What the row decides.
    pub(crate) fn of_row(&self, fields: &Fields) -> Result<Value, RenderError> {
        self.arms.of_row(fields)
    }
}

impl Kind for BanditSpec {
    fn name(&self) -> &str {
        "bandit"
    }

    fn tools(&self) -> Vec<ToolSpec> {
        vec![ToolSpec {
            name: "pull".to_owned(),
            description: "Pulls an arm; arms are numbered from 0.".to_owned(),
            parameters: json!({
                "type": "object",
                "properties": { "arm": { "type": "integer", "minimum": 0 } },
                "required": ["arm"],
            }),
        }]
    }

    fn open(&self, task: &Arc<Task>, _: &Sandbox, _seed: u64) -> Result<Box<dyn World>, Unscored> {
        Ok(Box::new(BanditWorld {
            arms: self.arms(&Fields::of(&task.row))?,
            chances: Vec::new(),
            horizon: self.horizon.get(),
            pulled: 0,
            compact: self.compact,
        }))
    }
}

/// A live bandit.
struct BanditWorld {
    arms: Arms,
    chances: Vec<f64>,
    horizon: usize,
    pulled: usize,
    compact: bool,
}

#[async_trait::async_trait]
impl World for BanditWorld {
    async fn start(&mut self, chance: &mut Chance) -> Result<Option<String>, Unscored> {
        self.chances = self.arms.draw(chance);
        let (arms, pulls) = (self.chances.len(), self.horizon);
        Ok((!self.compact).then(|| format!("There are {arms} arms, 0 to {}, and {pulls} pulls.", arms - 1)))
    }

    async fn call(&mut self, call: &ToolCall, chance: &mut Chance) -> Result<Effect, Unscored> {
        // A script or a model may write the number as text.
        let arm = match call.arguments.get("arm") {
            Some(Value::Number(number)) => number.as_u64(),
            Some(Value::String(text)) => text.trim().parse().ok(),
            _ => None,
        };
        let Some(&win) = arm.and_then(|arm| self.chances.get(usize::try_from(arm).ok()?)) else {
            let last = self.chances.len() - 1;
            return Ok(Effect::say(format!(
                "error: `arm` must be a number from 0 to {last}"
            )));
        };
        self.pulled += 1;
        let wins = chance.random::<f64>() < win;
        let left = self.horizon - self.pulled;
        let observation = match (self.compact, wins) {
            (true, wins) => u8::from(wins).to_string(),
            (false, true) => format!("win; {left} pulls left"),
            (false, false) => format!("nothing; {left} pulls left"),
        };
        Ok(Effect {
            observation,
            reward: if wins { 1.0 / self.horizon as f64 } else { 0.0 },
            done: left == 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::{self, Purpose};
    use crate::worlds::optimal_value;

    #[test]
    fn the_value_of_exploring_is_that_computed_by_hand() {
        let value = |arms, horizon| {
            let beliefs = Beliefs {
                prior: [1, 1],
                horizon,
            };
            optimal_value(&beliefs, &vec![(0, 0); arms], horizon) * horizon as f64
        };
        // One pull: 1/2. Two: after a win stay (2/3), after a loss change (1/2): 1/2 + 1/2 * 2/3 + 1/2 * 1/2 = 13/12.
        for (arms, horizon, expected) in [(1, 1, 0.5), (2, 1, 0.5), (1, 2, 1.0), (2, 2, 13.0 / 12.0)] {
            assert!(
                (value(arms, horizon) - expected).abs() < 1e-12,
                "{arms} {horizon}"
            );
        }
        // Three pulls of two arms. After W: stay; W again 3/4, then L 1/2. After L: the other; W -> 2/3, L -> 1/2 (a fresh start is over).
        // 1/2 (1 + 2/3 (1 + 3/4) + 1/3 (0 + 1/2)) + 1/2 (0 + 1/2 (1 + 2/3) + 1/2 (0 + 1/3)) = 7/6 + 1/2
        assert!((value(2, 3) - 5.0 / 3.0).abs() < 1e-12, "{}", value(2, 3));
    }

    #[test]
    fn arms_are_drawn_from_their_prior() {
        let mut chance = seed::stream(1, Purpose::Environment, &[0]);
        let draws: Vec<f64> = (0..20_000).map(|_| beta([2, 5], &mut chance)).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
        // Beta(2, 5): mean 2/7, variance 10 / (49 * 8). Four standard errors: 4 * sqrt(0.0255 / 20000), and about 6% of the variance.
        assert!((mean - 2.0 / 7.0).abs() < 0.0046, "{mean}");
        assert!((variance / (10.0 / 392.0) - 1.0).abs() < 0.06, "{variance}");
    }

    #[test]
    fn arms_are_checked() {
        let read = |yaml: &str| serde_saphyr::from_str::<Arms>(yaml);
        assert_eq!(read("[0.5, 1]").unwrap(), Arms::Known(vec![0.5, 1.0]));
        assert_eq!(
            read("{count: 3}").unwrap(),
            Arms::Drawn {
                count: 3,
                prior: [1, 1]
            }
        );
        for bad in [
            "[]",
            "[1.5]",
            "{count: 0}",
            "{count: 2, prior: [0, 1]}",
            "{count: 2, prior: [1, 65]}",
            "3",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
