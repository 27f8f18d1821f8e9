//! A treasure hunt in text: rooms, locked doors, keys, and a treasure to take.
//!
//! - `go` leads through an exit; with probability `stumble` the agent stays where it is. A locked room cannot be entered.
//! - `open` unlocks the room behind an exit if its key is carried; with probability `jam` the lock jams and stays locked.
//! - `take` picks up what lies in the room, always. Taking the goal pays `goal_reward` and ends the episode.
//! - `look` describes the room again.
//!
//! Each of these but `look` pays `step_reward`. An item with several places lies in one of them, drawn uniformly before the first turn.

mod rules;

use std::collections::BTreeMap;
use std::sync::Arc;

use mipu_sandbox::Sandbox;
use rand::RngExt;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::grid::{no_slip, nothing, one};
use super::{Chance, Effect, Kind, Mdp, World, mdp};
use crate::env::Unscored;
use crate::message::{ToolCall, ToolSpec};
use crate::spec::{Finite, Probability, Setting};
use crate::task::Task;
use crate::template::{Fields, RenderError};
use rules::Rules;
pub use rules::{Action, Hunt, Treasure};

/// A treasure hunt as written in a task file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TreasureSpec {
    /// Rooms by name: `{hall: {text: A cold hall., exits: {north: attic}}}`.
    pub rooms: Setting<BTreeMap<String, Room>>,
    /// The room where the agent begins.
    pub start: Setting<String>,
    /// Where each item lies: `{key: attic, gold: [vault, cellar]}`; of several rooms one is drawn for every episode.
    pub items: Setting<BTreeMap<String, Places>>,
    /// The item to find: taking it pays `goal_reward` and ends the episode.
    pub goal: Setting<String>,
    /// Locked rooms and the item that unlocks each, `{vault: key}`. Default none.
    #[serde(default = "no_locks")]
    pub locks: Setting<BTreeMap<String, String>>,
    /// Chance that `go` leads nowhere and the agent stays. Default 0.
    #[serde(default = "no_slip")]
    pub stumble: Setting<Probability>,
    /// Chance that `open` fails and must be tried again. Default 0.
    #[serde(default = "no_slip")]
    pub jam: Setting<Probability>,
    /// Paid for each action. Default 0.
    #[serde(default = "nothing")]
    pub step_reward: Finite,
    /// Paid for taking the goal. Default 1.
    #[serde(default = "one")]
    pub goal_reward: Finite,
    /// Short observations, `hall;east!,north;key;lamp`: room, exits, what lies here, what is carried. Default false.
    #[serde(default)]
    pub compact: bool,
}

fn no_locks() -> Setting<BTreeMap<String, String>> {
    Setting::fixed(BTreeMap::new())
}

/// A room.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Room {
    /// What it looks like. Default: its name and exits are all that is said.
    #[serde(default)]
    pub text: String,
    /// Exits by name, and the rooms they lead to.
    pub exits: BTreeMap<String, String>,
}

/// One room or several.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Places {
    /// Always here.
    One(String),
    /// In one of these, with equal probability.
    Several(Vec<String>),
}

impl Places {
    fn names(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Several(names) => names,
        }
    }
}

impl TreasureSpec {
    /// The hunt of a row, with its exact probabilities: for [`optimal_value`](crate::worlds::optimal_value) and the like.
    ///
    /// # Errors
    /// When the row does not describe one.
    pub fn of(&self, row: &Map<String, Value>) -> Result<Treasure, Unscored> {
        Ok(self.treasure(&Fields::of(row))?)
    }

    /// The hunt of a row.
    pub(crate) fn treasure(&self, fields: &Fields) -> Result<Treasure, RenderError> {
        let (start, goal) = (self.start.get(fields)?, self.goal.get(fields)?);
        let rules = Rules {
            stumble: self.stumble.get(fields)?.get(),
            jam: self.jam.get(fields)?.get(),
            step_reward: self.step_reward.get(),
            goal_reward: self.goal_reward.get(),
        };
        let (rooms, items, locks) = (
            self.rooms.get(fields)?,
            self.items.get(fields)?,
            self.locks.get(fields)?,
        );
        Treasure::new(&rooms, &items, &locks, (&start, &goal), rules)
            .map_err(|message| self.rooms.problem(message))
    }

    /// What the row decides.
    pub(crate) fn of_row(&self, fields: &Fields) -> Result<Value, RenderError> {
        Ok(json!([
            self.rooms.of_row(fields)?,
            self.start.of_row(fields)?,
            self.items.of_row(fields)?,
            self.goal.of_row(fields)?,
            self.locks.of_row(fields)?,
            self.stumble.of_row(fields)?,
            self.jam.of_row(fields)?,
        ]))
    }
}

impl Kind for TreasureSpec {
    fn name(&self) -> &str {
        "treasure"
    }

    fn tools(&self) -> Vec<ToolSpec> {
        let tool = |name: &str, description: &str, parameter: Option<&str>| {
            let properties: Map<String, Value> = parameter
                .iter()
                .map(|name| ((*name).to_owned(), json!({ "type": "string" })))
                .collect();
            ToolSpec {
                name: name.to_owned(),
                description: description.to_owned(),
                parameters: json!({ "type": "object", "properties": properties, "required": parameter.as_slice() }),
            }
        };
        vec![
            tool("look", "Describes the room.", None),
            tool("go", "Goes through an exit.", Some("direction")),
            tool(
                "open",
                "Unlocks the way through an exit with a key you carry.",
                Some("direction"),
            ),
            tool("take", "Takes an item that lies here.", Some("item")),
        ]
    }

    fn open(&self, task: &Arc<Task>, _: &Sandbox, _seed: u64) -> Result<Box<dyn World>, Unscored> {
        let treasure = self.treasure(&Fields::of(&task.row))?;
        let firsts = treasure.items.iter().map(|item| item.rooms.first().copied());
        Ok(Box::new(TreasureWorld {
            hunt: treasure.hunt(firsts.collect()),
            treasure,
            compact: self.compact,
        }))
    }
}

/// A live hunt.
struct TreasureWorld {
    treasure: Treasure,
    hunt: Hunt,
    compact: bool,
}

#[async_trait::async_trait]
impl World for TreasureWorld {
    async fn start(&mut self, chance: &mut Chance) -> Result<Option<String>, Unscored> {
        for (item, place) in self.treasure.items.iter().zip(&mut self.hunt.items) {
            *place = Some(item.rooms[chance.random_range(0..item.rooms.len())]);
        }
        Ok(Some(self.treasure.describe(&self.hunt, self.compact)))
    }

    async fn call(&mut self, call: &ToolCall, chance: &mut Chance) -> Result<Effect, Unscored> {
        if call.name == "look" {
            return Ok(Effect::say(self.treasure.describe(&self.hunt, self.compact)));
        }
        let action = match self.treasure.action(&self.hunt, call) {
            Ok(action) => action,
            Err(reason) => {
                return Ok(Effect {
                    observation: reason,
                    reward: self.treasure.step_reward,
                    done: false,
                });
            }
        };
        let outcome = mdp::draw(self.treasure.outcomes(&self.hunt, &action), chance);
        let failed = outcome.state == self.hunt;
        self.hunt = outcome.state;
        let described = || self.treasure.describe(&self.hunt, self.compact);
        let observation = match action {
            Action::Go(_) if failed && !self.compact => format!("You stumble. {}", described()),
            Action::Go(_) => described(),
            Action::Open(_) if failed => "The lock jams.".to_owned(),
            Action::Open(_) => "The lock opens.".to_owned(),
            Action::Take(item) => format!("You take the {}.", self.treasure.items[item].name),
        };
        Ok(Effect {
            observation,
            reward: outcome.reward,
            done: outcome.done,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worlds::optimal_value;

    const HUNT: &str = "
rooms:
  hall: { text: A cold hall., exits: { north: attic, east: vault } }
  attic: { exits: { down: hall } }
  vault: { exits: { west: hall } }
start: hall
items: { brass key: attic, gold: vault }
goal: gold
locks: { vault: brass key }
";

    fn hunt(more: &str) -> Result<Treasure, String> {
        let spec: TreasureSpec = serde_saphyr::from_str(&format!("{HUNT}{more}")).unwrap();
        spec.treasure(&Fields::of(&Map::new()))
            .map_err(|error| error.message)
    }

    #[test]
    fn the_value_of_a_small_hunt_is_that_computed_by_hand() {
        let value = |more: &str, horizon| {
            let treasure = hunt(more).unwrap();
            let [(p, start)] = treasure.starts().try_into().unwrap();
            assert!((p - 1.0_f64).abs() < 1e-12);
            optimal_value(&treasure, &start, horizon)
        };
        // north, take, down, open, east, take: six actions that must all succeed.
        assert!(value("", 5).abs() < 1e-12);
        assert!((value("", 6) - 1.0).abs() < 1e-12);
        // Three walks and one lock: 0.9^3 * 0.8 in six actions; one spare action mends one failure:
        // 0.9^3 * 0.8 * (1 + 3 * 0.1 + 0.2).
        let lucky = 0.729 * 0.8;
        let chance = "stumble: 0.1\njam: 0.2";
        assert!((value(chance, 6) - lucky).abs() < 1e-12);
        assert!((value(chance, 7) - lucky * 1.5).abs() < 1e-12);
        // Every action costs.
        assert!((value("step_reward: -0.1", 6) - 0.4).abs() < 1e-12);
    }

    #[test]
    fn items_lie_in_each_of_their_rooms() {
        let spread = HUNT.replace("gold: vault", "gold: [attic, hall, vault]");
        let spec: TreasureSpec = serde_saphyr::from_str(&spread).unwrap();
        let treasure = spec.treasure(&Fields::of(&Map::new())).unwrap();
        // Rooms by name: attic 0, hall 1, vault 2; items: brass key 0, gold 1.
        let starts = treasure.starts();
        assert_eq!(
            starts.iter().map(|(_, hunt)| hunt.items[1]).collect::<Vec<_>>(),
            [Some(0), Some(1), Some(2)]
        );
        assert!(starts.iter().all(|(p, _)| (p - 1.0 / 3.0).abs() < 1e-12));
    }

    #[test]
    fn a_hunt_that_cannot_be_played_is_refused() {
        for (line, replacement, reason) in [
            ("start: hall", "start: hal", "no room `hal`"),
            ("goal: gold", "goal: silver", "no item `silver`"),
            ("down: hall", "down: cellar", "no room `cellar`"),
            ("vault: brass key }", "vualt: brass key }", "no room `vualt`"),
            ("vault: brass key }", "vault: iron key }", "no item `iron key`"),
            ("gold: vault", "gold: []", "item `gold` lies nowhere"),
        ] {
            let spec: TreasureSpec = serde_saphyr::from_str(&HUNT.replace(line, replacement)).unwrap();
            let error = spec.treasure(&Fields::of(&Map::new())).unwrap_err().message;
            assert!(error.contains(reason), "{replacement}: {error}");
        }
    }
}
