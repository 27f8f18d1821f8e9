//! Sokoban: push every box onto a goal.
//!
//! Cells, as in XSB files: `#` wall, `@` player, `$` box, `.` goal, `*` box on a goal, `+` player on a goal; a space, `-` or `_` is floor.
//!
//! A move goes in its direction, or (with probability `slip`, half for each) to one of the two sides. A step onto a box pushes it if the
//! cell behind it is free of walls and boxes; otherwise nothing moves. A box that comes onto a goal pays `1 / n`, one that leaves a goal
//! costs `1 / n`, where `n` boxes are off the goals at the start: the return is 1 when all stand on goals, which ends the episode.

use std::sync::Arc;

use mipu_sandbox::Sandbox;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::actions::{Direction, move_tool, slips};
use super::grid::no_slip;
use super::{Chance, Effect, Kind, Mdp, Outcome, World, mdp};
use crate::env::Unscored;
use crate::message::{ToolCall, ToolSpec};
use crate::spec::{Lines, Probability, Setting};
use crate::task::Task;
use crate::template::{Fields, RenderError};

/// A level as written in a task file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SokobanSpec {
    /// The level in XSB letters: `#` wall, `@` player, `$` box, `.` goal, `*` box on goal, `+` player on goal.
    pub level: Setting<Lines>,
    /// Chance that a move goes sideways, half of it to each side. Default 0.
    #[serde(default = "no_slip")]
    pub slip: Setting<Probability>,
    /// Show the level on one line. Default false.
    #[serde(default)]
    pub compact: bool,
}

type Cell = (usize, usize);

/// Where everything that moves stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Position {
    /// Row and column of the player.
    pub player: Cell,
    /// Rows and columns of the boxes, in order.
    pub boxes: Vec<Cell>,
}

/// A level that has been read.
#[derive(Clone, Debug)]
pub struct Sokoban {
    /// True for walls.
    walls: Vec<Vec<bool>>,
    goals: Vec<Cell>,
    start: Position,
    slip: f64,
    /// What a box on a goal is worth.
    worth: f64,
}

impl Sokoban {
    /// Reads a level; lines may differ in length.
    ///
    /// # Errors
    /// On an unknown letter, no player or two, fewer goals than boxes, or nothing to do.
    pub fn new(lines: &[String], slip: f64) -> Result<Self, String> {
        let width = lines
            .iter()
            .map(|line| line.chars().count())
            .max()
            .unwrap_or_default();
        let (mut walls, mut goals, mut boxes, mut player) = (Vec::new(), Vec::new(), Vec::new(), None);
        for (row, line) in lines.iter().enumerate() {
            let mut wall = vec![false; width];
            for (column, letter) in line.chars().enumerate() {
                let at = (row, column);
                match letter {
                    '#' => wall[column] = true,
                    ' ' | '-' | '_' => {}
                    '@' | '+' | '$' | '*' | '.' => {
                        if matches!(letter, '.' | '*' | '+') {
                            goals.push(at);
                        }
                        if matches!(letter, '$' | '*') {
                            boxes.push(at);
                        }
                        if matches!(letter, '@' | '+') && player.replace(at).is_some() {
                            return Err("the level has two players".to_owned());
                        }
                    }
                    other => {
                        return Err(format!(
                            "{other:?} is no cell\nhint: cells are # @ $ . * + and space"
                        ));
                    }
                }
            }
            walls.push(wall);
        }
        let player = player.ok_or("the level has no player\nhint: write `@` where it stands")?;
        if goals.len() < boxes.len() {
            return Err(format!(
                "the level has {} boxes and {} goals",
                boxes.len(),
                goals.len()
            ));
        }
        let off = boxes.iter().filter(|at| !goals.contains(at)).count();
        if off == 0 {
            return Err("every box of the level is on a goal".to_owned());
        }
        Ok(Self {
            walls,
            goals,
            start: Position { player, boxes },
            slip,
            worth: 1.0 / off as f64,
        })
    }

    /// Where everything stands at first.
    pub fn start(&self) -> &Position {
        &self.start
    }

    fn size(&self) -> (usize, usize) {
        (self.walls.len(), self.walls[0].len())
    }

    /// The cell next to `at`, unless a wall or the edge is there.
    fn beside(&self, at: Cell, direction: Direction) -> Option<Cell> {
        direction
            .from(at, self.size())
            .filter(|&(row, column)| !self.walls[row][column])
    }

    fn on_goals(&self, position: &Position) -> usize {
        position.boxes.iter().filter(|at| self.goals.contains(at)).count()
    }

    fn step(&self, position: &Position, direction: Direction) -> Position {
        let stay = || position.clone();
        let Some(to) = self.beside(position.player, direction) else {
            return stay();
        };
        let mut boxes = position.boxes.clone();
        if let Some(pushed) = boxes.iter_mut().find(|at| **at == to) {
            match self.beside(to, direction) {
                Some(behind) if !position.boxes.contains(&behind) => *pushed = behind,
                _ => return stay(),
            }
            boxes.sort_unstable();
        }
        Position { player: to, boxes }
    }

    fn show(&self, position: &Position, compact: bool) -> String {
        let letter = |at: Cell| match (
            self.goals.contains(&at),
            position.boxes.contains(&at),
            position.player == at,
        ) {
            (true, true, _) => '*',
            (false, true, _) => '$',
            (true, _, true) => '+',
            (false, _, true) => '@',
            (true, ..) => '.',
            _ if self.walls[at.0][at.1] => '#',
            _ if compact => '-',
            _ => ' ',
        };
        let (height, width) = self.size();
        let line = |row| (0..width).map(|column| letter((row, column))).collect::<String>();
        let lines: Vec<String> = (0..height).map(|row| line(row).trim_end().to_owned()).collect();
        lines.join(if compact { "/" } else { "\n" })
    }
}

impl Mdp for Sokoban {
    type State = Position;
    type Action = Direction;

    fn actions(&self, _: &Position) -> Vec<Direction> {
        Direction::ALL.to_vec()
    }

    fn outcomes(&self, position: &Position, action: &Direction) -> Vec<Outcome<Position>> {
        let before = self.on_goals(position) as f64;
        slips(*action, self.slip, |direction| {
            let next = self.step(position, direction);
            let after = self.on_goals(&next);
            let done = after == next.boxes.len();
            let reward = (after as f64 - before) * self.worth;
            (next, reward, done)
        })
    }
}

impl SokobanSpec {
    /// The level of a row, with its exact probabilities: for [`optimal_value`](super::optimal_value) and the like.
    ///
    /// # Errors
    /// When the row does not describe one.
    pub fn of(&self, row: &Map<String, Value>) -> Result<Sokoban, Unscored> {
        Ok(self.sokoban(&Fields::of(row))?)
    }

    /// The level of a row.
    pub(crate) fn sokoban(&self, fields: &Fields) -> Result<Sokoban, RenderError> {
        let slip = self.slip.get(fields)?.get();
        Sokoban::new(&self.level.get(fields)?.0, slip).map_err(|message| self.level.problem(message))
    }

    /// What the row decides.
    pub(crate) fn of_row(&self, fields: &Fields) -> Result<Value, RenderError> {
        Ok(json!([self.level.of_row(fields)?, self.slip.of_row(fields)?]))
    }
}

impl Kind for SokobanSpec {
    fn name(&self) -> &str {
        "sokoban"
    }

    fn tools(&self) -> Vec<ToolSpec> {
        vec![move_tool(
            "Moves the player one cell and pushes the box in its way.",
        )]
    }

    fn open(&self, task: &Arc<Task>, _: &Sandbox, _seed: u64) -> Result<Box<dyn World>, Unscored> {
        let level = self.sokoban(&Fields::of(&task.row))?;
        Ok(Box::new(SokobanWorld {
            position: level.start.clone(),
            level,
            compact: self.compact,
        }))
    }
}

/// A live level.
struct SokobanWorld {
    level: Sokoban,
    position: Position,
    compact: bool,
}

#[async_trait::async_trait]
impl World for SokobanWorld {
    async fn start(&mut self, _: &mut Chance) -> Result<Option<String>, Unscored> {
        Ok(Some(self.level.show(&self.position, self.compact)))
    }

    async fn call(&mut self, call: &ToolCall, chance: &mut Chance) -> Result<Effect, Unscored> {
        let direction = match Direction::of(&call.arguments) {
            Ok(direction) => direction,
            Err(reason) => return Ok(Effect::say(reason)),
        };
        let outcome = mdp::draw(self.level.outcomes(&self.position, &direction), chance);
        self.position = outcome.state;
        Ok(Effect {
            observation: self.level.show(&self.position, self.compact),
            reward: outcome.reward,
            done: outcome.done,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worlds::optimal_value;

    fn level(text: &str, slip: f64) -> Result<Sokoban, String> {
        let lines: Vec<String> = text.split('/').map(str::to_owned).collect();
        Sokoban::new(&lines, slip)
    }

    /// Plays moves (`u`, `r`, `d`, `l`) without slipping: the level at the end and the return.
    fn play(text: &str, moves: &str) -> (String, f64, bool) {
        let level = level(text, 0.0).unwrap();
        let (mut position, mut sum, mut done) = (level.start.clone(), 0.0, false);
        for letter in moves.chars() {
            let direction = Direction::ALL
                .into_iter()
                .find(|d| d.name().starts_with(letter))
                .unwrap();
            let [outcome] = level.outcomes(&position, &direction).try_into().unwrap();
            (position, sum, done) = (outcome.state, sum + outcome.reward, outcome.done);
        }
        (level.show(&position, true), sum, done)
    }

    #[test]
    fn pushes_follow_the_rules() {
        for (text, moves, after, sum, done) in [
            ("#####/#@$.#/#####", "r", "#####/#-@*#/#####", 1.0, true),
            // Against a wall, and two boxes in a row: nothing moves.
            ("#####/#.@$#/#####", "r", "#####/#.@$#/#####", 0.0, false),
            ("@$$-..", "r", "@$$-..", 0.0, false),
            ("@*$.", "r", "@*$.", 0.0, false),
            // A box leaves its goal: -1/1.
            ("@*-$.", "r", "-+$$.", -1.0, false),
            ("+$-", "rl", "+-$", 0.0, false),
            // Two boxes: each is worth one half.
            ("@$./-$.", "r", "-@*/-$.", 0.5, false),
            ("@$./-$.", "rldr", "--*/-@*", 1.0, true),
        ] {
            let played = play(text, moves);
            assert_eq!((played.0.as_str(), played.2), (after, done), "{text} {moves}");
            assert!((played.1 - sum).abs() < 1e-12, "{text} {moves}: {}", played.1);
        }
    }

    #[test]
    fn the_value_of_a_slippery_push_is_that_computed_by_hand() {
        // A corridor: sideways is wall, so a slip changes nothing. One push at 1 - slip a try: 1 - 0.25^n in n moves.
        let corridor = level("#####/#@$.#/#####", 0.25).unwrap();
        for (horizon, value) in [(1, 0.75), (2, 0.9375), (3, 0.984375)] {
            assert!((optimal_value(&corridor, corridor.start(), horizon) - value).abs() < 1e-12);
        }
        // Two pushes, each at 0.75: both within two moves.
        let longer = level("######/#@$-.#/######", 0.25).unwrap();
        assert!((optimal_value(&longer, longer.start(), 2) - 0.5625).abs() < 1e-12);
        // Stuck against the upper wall: no plan helps.
        let dead = level("#####/#-$-#/#-@.#/#####", 0.0).unwrap();
        assert!(optimal_value(&dead, dead.start(), 12).abs() < 1e-12);
    }

    #[test]
    fn a_level_that_cannot_be_played_is_refused() {
        for (text, reason) in [
            ("$.", "no player"),
            ("@@$.", "two players"),
            ("@$", "1 boxes and 0 goals"),
            ("@*", "every box of the level is on a goal"),
            ("@$.x", "'x' is no cell"),
        ] {
            let error = level(text, 0.0).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
