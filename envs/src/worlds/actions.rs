//! Directions, and arguments that a model may write in several ways.

use serde_json::{Map, Value, json};

use super::Outcome;
use crate::message::ToolSpec;

/// A direction on a map; rows count downwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// One row up.
    Up,
    /// One column to the right.
    Right,
    /// One row down.
    Down,
    /// One column to the left.
    Left,
}

impl Direction {
    /// Clockwise from above.
    pub const ALL: [Self; 4] = [Self::Up, Self::Right, Self::Down, Self::Left];

    /// `up`, `right`, `down`, `left`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Right => "right",
            Self::Down => "down",
            Self::Left => "left",
        }
    }

    /// The two directions at right angles to it.
    pub fn sideways(self) -> [Self; 2] {
        match self {
            Self::Up | Self::Down => [Self::Left, Self::Right],
            Self::Left | Self::Right => [Self::Up, Self::Down],
        }
    }

    /// What a move in this direction comes to on slippery ground: itself with `1 - slip`, each side with `slip / 2`.
    pub(super) fn slipping(self, slip: f64) -> Vec<(f64, Self)> {
        if slip <= 0.0 {
            return vec![(1.0, self)];
        }
        let [one, other] = self.sideways();
        vec![(1.0 - slip, self), (slip / 2.0, one), (slip / 2.0, other)]
    }

    /// Row and column one step away from `(row, column)`, if they lie within `height` and `width`.
    pub(super) fn from(
        self,
        (row, column): (usize, usize),
        (height, width): (usize, usize),
    ) -> Option<(usize, usize)> {
        let (row, column) = match self {
            Self::Up => (row.checked_sub(1)?, column),
            Self::Down => (row + 1, column),
            Self::Left => (row, column.checked_sub(1)?),
            Self::Right => (row, column + 1),
        };
        (row < height && column < width).then_some((row, column))
    }

    /// The `direction` of a call: a name or its first letter.
    ///
    /// # Errors
    /// With the observation for the agent.
    pub(super) fn of(arguments: &Map<String, Value>) -> Result<Self, String> {
        let said = crate::tools::text(arguments, "direction")?
            .trim()
            .to_ascii_lowercase();
        let known = Self::ALL
            .into_iter()
            .find(|d| d.name() == said || d.name()[..1] == said);
        known.ok_or_else(|| format!("error: no direction `{said}`; use up, right, down or left"))
    }
}

/// The tool `move`.
pub(super) fn move_tool(description: &str) -> ToolSpec {
    let names = Direction::ALL.map(Direction::name);
    ToolSpec {
        name: "move".to_owned(),
        description: description.to_owned(),
        parameters: json!({
            "type": "object",
            "properties": { "direction": { "type": "string", "enum": names } },
            "required": ["direction"],
        }),
    }
}

/// Outcomes of a move: one for each way it may slip.
pub(super) fn slips<S>(
    direction: Direction,
    slip: f64,
    mut go: impl FnMut(Direction) -> (S, f64, bool),
) -> Vec<Outcome<S>> {
    let ways = direction.slipping(slip).into_iter();
    ways.map(|(probability, direction)| {
        let (state, reward, done) = go(direction);
        Outcome {
            probability,
            state,
            reward,
            done,
        }
    })
    .collect()
}
