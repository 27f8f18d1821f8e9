//! A grid with slippery ground, after FrozenLake: reach a goal, avoid the holes.
//!
//! Cells: `S` start (one), `G` goal, `H` hole, `#` wall, `.` (or `F`) ground. Goals and holes are terminal.
//!
//! A move in direction `d` goes to `d` with probability `1 - slip` and to each of the two directions at right angles with `slip / 2`;
//! into a wall or off the map it stays where it is. (FrozenLake's own ice is `slip: 0.6667`.) A move pays `step_reward`, entering a goal
//! `goal_reward` and a hole `hole_reward` in addition.

use std::sync::Arc;

use mipu_sandbox::Sandbox;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::actions::{Direction, move_tool, slips};
use super::{Chance, Effect, Kind, Mdp, Outcome, World, mdp};
use crate::env::Unscored;
use crate::message::{ToolCall, ToolSpec};
use crate::spec::{Finite, Lines, Probability, Setting};
use crate::task::Task;
use crate::template::{Fields, RenderError};

/// A grid as written in a task file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GridSpec {
    /// The cells, a line for each row: `S` start, `G` goal, `H` hole, `#` wall, `.` ground. One text of several lines, or a list.
    pub map: Setting<Lines>,
    /// Chance that a move goes sideways, half of it to each side (FrozenLake's own ice is 0.6667). Default 0.
    #[serde(default = "no_slip")]
    pub slip: Setting<Probability>,
    /// Paid for each move. Default 0.
    #[serde(default = "nothing")]
    pub step_reward: Finite,
    /// Paid for entering a goal. Default 1.
    #[serde(default = "one")]
    pub goal_reward: Finite,
    /// Paid for entering a hole. Default 0.
    #[serde(default = "nothing")]
    pub hole_reward: Finite,
    /// What the agent sees after a move. Default `map`.
    #[serde(default)]
    pub view: View,
    /// Short observations for tiny models: `.@./.HG`, `1,2`, `#.H.`. Default false.
    #[serde(default)]
    pub compact: bool,
}

pub(super) fn no_slip() -> Setting<Probability> {
    Setting::fixed(Probability::try_from(0.0).expect("a default lies in its range"))
}

pub(super) fn nothing() -> Finite {
    Finite::try_from(0.0).expect("a default lies in its range")
}

pub(super) fn one() -> Finite {
    Finite::try_from(1.0).expect("a default lies in its range")
}

/// What the agent sees of a grid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum View {
    /// The whole map with the agent as `@`.
    #[default]
    Map,
    /// Row and column, counted from 0 at the top left.
    Position,
    /// The four neighbouring cells.
    Around,
}

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Ground,
    Wall,
    Hole,
    Goal,
}

impl Cell {
    fn letter(self) -> char {
        match self {
            Self::Ground => '.',
            Self::Wall => '#',
            Self::Hole => 'H',
            Self::Goal => 'G',
        }
    }
}

/// A grid that has been read: its states are `(row, column)`.
#[derive(Clone, Debug)]
pub struct Grid {
    cells: Vec<Vec<Cell>>,
    start: (usize, usize),
    slip: f64,
    step_reward: f64,
    goal_reward: f64,
    hole_reward: f64,
}

impl Grid {
    /// Reads a map.
    ///
    /// # Errors
    /// On an unknown letter, a ragged map, no start or more than one, or no goal.
    pub fn new(lines: &[String], slip: f64, rewards: [f64; 3]) -> Result<Self, String> {
        let (mut start, mut goals) = (None, 0);
        let mut cells = Vec::with_capacity(lines.len());
        for (row, line) in lines.iter().enumerate() {
            let mut cell = |(column, letter)| {
                Ok(match letter {
                    '.' | 'F' => Cell::Ground,
                    '#' => Cell::Wall,
                    'H' => Cell::Hole,
                    'G' => {
                        goals += 1;
                        Cell::Goal
                    }
                    'S' if start.is_none() => {
                        start = Some((row, column));
                        Cell::Ground
                    }
                    'S' => return Err("the map has two starts".to_owned()),
                    other => return Err(format!("{other:?} is no cell\nhint: cells are S G H # .")),
                })
            };
            let line = line.trim();
            cells.push(
                line.chars()
                    .enumerate()
                    .map(&mut cell)
                    .collect::<Result<Vec<_>, String>>()?,
            );
        }
        let width = cells.first().map_or(0, Vec::len);
        if let Some(row) = cells.iter().position(|line| line.len() != width) {
            return Err(format!(
                "line {} of the map has {} cells; the first has {width}",
                row + 1,
                cells[row].len()
            ));
        }
        let [step_reward, goal_reward, hole_reward] = rewards;
        match start {
            None => Err("the map has no start\nhint: write `S` where the agent begins".to_owned()),
            Some(_) if goals == 0 => Err("the map has no goal\nhint: write `G` where it must go".to_owned()),
            Some(start) => Ok(Self {
                cells,
                start,
                slip,
                step_reward,
                goal_reward,
                hole_reward,
            }),
        }
    }

    /// Where an episode begins.
    pub fn start(&self) -> (usize, usize) {
        self.start
    }

    fn cell(&self, (row, column): (usize, usize)) -> Cell {
        self.cells[row][column]
    }

    /// The cell that a step from `at` leads to.
    fn step(&self, at: (usize, usize), direction: Direction) -> (usize, usize) {
        let size = (self.cells.len(), self.cells[0].len());
        direction
            .from(at, size)
            .filter(|&to| self.cell(to) != Cell::Wall)
            .unwrap_or(at)
    }

    fn show(&self, at: (usize, usize), view: View, compact: bool) -> String {
        match (view, compact) {
            (View::Map, _) => {
                let line = |row: usize| -> String {
                    let cells = self.cells[row].iter().enumerate();
                    cells
                        .map(|(column, cell)| if (row, column) == at { '@' } else { cell.letter() })
                        .collect()
                };
                let lines: Vec<String> = (0..self.cells.len()).map(line).collect();
                lines.join(if compact { "/" } else { "\n" })
            }
            (View::Position, true) => format!("{},{}", at.0, at.1),
            (View::Position, false) => format!("You are at row {}, column {}.", at.0, at.1),
            (View::Around, _) => {
                let size = (self.cells.len(), self.cells[0].len());
                let letter = |d: Direction| d.from(at, size).map_or('#', |to| self.cell(to).letter());
                if compact {
                    return Direction::ALL.map(letter).into_iter().collect();
                }
                let seen = Direction::ALL.map(|d| format!("{} {}", d.name(), letter(d)));
                format!("Around you: {}.", seen.join(", "))
            }
        }
    }
}

impl Mdp for Grid {
    type State = (usize, usize);
    type Action = Direction;

    fn actions(&self, _: &Self::State) -> Vec<Direction> {
        Direction::ALL.to_vec()
    }

    fn outcomes(&self, at: &Self::State, action: &Direction) -> Vec<Outcome<Self::State>> {
        slips(*action, self.slip, |direction| {
            let to = self.step(*at, direction);
            let (extra, done) = match self.cell(to) {
                Cell::Goal => (self.goal_reward, true),
                Cell::Hole => (self.hole_reward, true),
                Cell::Ground | Cell::Wall => (0.0, false),
            };
            (to, self.step_reward + extra, done)
        })
    }
}

impl GridSpec {
    /// The grid of a row, with its exact probabilities: for [`optimal_value`](super::optimal_value) and the like.
    ///
    /// # Errors
    /// When the row does not describe one.
    pub fn of(&self, row: &Map<String, Value>) -> Result<Grid, Unscored> {
        Ok(self.grid(&Fields::of(row))?)
    }

    /// The grid of a row.
    pub(crate) fn grid(&self, fields: &Fields) -> Result<Grid, RenderError> {
        let rewards = [self.step_reward, self.goal_reward, self.hole_reward].map(Finite::get);
        let map = self.map.get(fields)?;
        Grid::new(&map.0, self.slip.get(fields)?.get(), rewards).map_err(|message| self.map.problem(message))
    }

    /// What the row decides.
    pub(crate) fn of_row(&self, fields: &Fields) -> Result<Value, RenderError> {
        Ok(json!([self.map.of_row(fields)?, self.slip.of_row(fields)?]))
    }
}

impl Kind for GridSpec {
    fn name(&self) -> &str {
        "grid"
    }

    fn tools(&self) -> Vec<ToolSpec> {
        vec![move_tool("Moves one cell.")]
    }

    fn open(&self, task: &Arc<Task>, _: &Sandbox, _seed: u64) -> Result<Box<dyn World>, Unscored> {
        let grid = self.grid(&Fields::of(&task.row))?;
        Ok(Box::new(GridWorld {
            at: grid.start,
            grid,
            view: self.view,
            compact: self.compact,
        }))
    }
}

/// A live grid.
struct GridWorld {
    grid: Grid,
    at: (usize, usize),
    view: View,
    compact: bool,
}

#[async_trait::async_trait]
impl World for GridWorld {
    async fn start(&mut self, _: &mut Chance) -> Result<Option<String>, Unscored> {
        Ok(Some(self.grid.show(self.at, self.view, self.compact)))
    }

    async fn call(&mut self, call: &ToolCall, chance: &mut Chance) -> Result<Effect, Unscored> {
        let direction = match Direction::of(&call.arguments) {
            Ok(direction) => direction,
            Err(reason) => return Ok(Effect::say(reason)),
        };
        let outcome = mdp::draw(self.grid.outcomes(&self.at, &direction), chance);
        self.at = outcome.state;
        Ok(Effect {
            observation: self.grid.show(self.at, self.view, self.compact),
            reward: outcome.reward,
            done: outcome.done,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worlds::{best_action, optimal_value};

    fn grid(map: &str, slip: f64) -> Grid {
        let lines: Vec<String> = map.split('/').map(str::to_owned).collect();
        Grid::new(&lines, slip, [0.0, 1.0, 0.0]).unwrap()
    }

    #[test]
    fn the_value_of_a_tiny_grid_is_that_computed_by_hand() {
        // From S, right: 0.8 to G, 0.1 up (stays), 0.1 down (H). Up: 0.8 stays, 0.1 left (stays), 0.1 right to G.
        // v1 = 0.8; v2 = max(0.8 + 0.1 v1, 0.1 + 0.9 v1) = 0.88; v3 = max(0.888, 0.1 + 0.9 * 0.88) = 0.892.
        let tiny = grid("SG/H.", 0.2);
        for (horizon, value) in [(0, 0.0), (1, 0.8), (2, 0.88), (3, 0.892)] {
            assert!(
                (optimal_value(&tiny, &(0, 0), horizon) - value).abs() < 1e-12,
                "{horizon}"
            );
        }
        assert_eq!(best_action(&tiny, &(0, 0), 2), Some(Direction::Right));
        assert_eq!(best_action(&tiny, &(0, 0), 3), Some(Direction::Up));
        // Without slipping the goal is two steps away.
        let dry = grid("S.G", 0.0);
        assert!((optimal_value(&dry, &(0, 0), 1)).abs() < 1e-12);
        assert!((optimal_value(&dry, &(0, 0), 2) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn outcomes_are_the_documented_ones() {
        let outcomes = grid("S#/.H/G.", 0.5).outcomes(&(1, 0), &Direction::Down);
        let seen: Vec<_> = outcomes
            .iter()
            .map(|o| (o.probability, o.state, o.done))
            .collect();
        assert_eq!(
            seen,
            [(0.5, (2, 0), true), (0.25, (1, 0), false), (0.25, (1, 1), true)]
        );
        let blocked = grid("S#/.H/G.", 0.5).outcomes(&(0, 0), &Direction::Right);
        assert_eq!(
            blocked.iter().map(|o| o.state).collect::<Vec<_>>(),
            [(0, 0), (0, 0), (1, 0)]
        );
    }

    #[test]
    fn views_show_the_same_place() {
        let grid = grid("S.#/H.G", 0.0);
        for (view, compact, expected) in [
            (View::Map, false, ".@#\nH.G"),
            (View::Map, true, ".@#/H.G"),
            (View::Position, false, "You are at row 0, column 1."),
            (View::Position, true, "0,1"),
            (View::Around, false, "Around you: up #, right #, down ., left .."),
            (View::Around, true, "##.."),
        ] {
            assert_eq!(grid.show((0, 1), view, compact), expected);
        }
    }

    #[test]
    fn a_map_that_cannot_be_played_is_refused() {
        for (map, reason) in [
            ("..G", "no start"),
            ("S..", "no goal"),
            ("SS.G", "two starts"),
            ("S.x", "'x' is no cell"),
            ("S.G/..", "line 2 of the map has 2 cells; the first has 3"),
        ] {
            let lines: Vec<String> = map.split('/').map(str::to_owned).collect();
            let error = Grid::new(&lines, 0.0, [0.0; 3]).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
