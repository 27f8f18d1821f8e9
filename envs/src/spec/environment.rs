//! The `environment` of a task file: which world the episodes play in.

use std::path::Path;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::Name;
use crate::diagnostic::Diagnostic;
use crate::template::{Fields, RenderError};
use crate::worlds::Kind;
use crate::worlds::bandit::BanditSpec;
use crate::worlds::chat_user::ChatUserSpec;
use crate::worlds::grid::GridSpec;
use crate::worlds::python::PythonSpec;
use crate::worlds::search::SearchSpec;
use crate::worlds::sokoban::SokobanSpec;
use crate::worlds::treasure::TreasureSpec;

/// The world of the episodes. Without one the agent has the task's tools alone.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Environment {
    /// A grid with slippery ground, holes and goals: the tool `move {direction}`. It pays `goal_reward` in a goal.
    Grid(Box<GridSpec>),
    /// Boxes to be pushed onto goals: the tool `move {direction}`. Its return is the share of boxes brought onto goals.
    Sokoban(Box<SokobanSpec>),
    /// Rooms, locked doors, keys and a treasure, in text: the tools `look`, `go {direction}`, `open {direction}`, `take {item}`.
    Treasure(Box<TreasureSpec>),
    /// Arms that win with unknown chances: the tool `pull {arm}`. Its return is the share of wins.
    Bandit(Box<BanditSpec>),
    /// A corpus to be searched: the tools `search {query}` and `open {id}`. It pays nothing: reward the answer.
    Search(Box<SearchSpec>),
    /// A user to talk to: the agent's final texts are its messages. It pays nothing: reward what `submit` is given.
    ChatUser(Box<ChatUserSpec>),
    /// A world written in Python, run in the sandbox, with tools of its own.
    Python(Box<PythonSpec>),
    /// A world written in Rust, by the name of its kind.
    Custom(Name),
}

/// A kind, and the bytes of the file it was read from.
pub(crate) type KindAndFile = (Arc<dyn Kind>, Vec<u8>);

impl Environment {
    /// The kind, ready to open worlds, and the bytes of the file it was read from, if any; `None` for a custom one.
    ///
    /// # Errors
    /// When a file beside the task file at `path` cannot be read.
    pub(crate) fn read(&self, path: &Path) -> Result<Option<KindAndFile>, Diagnostic> {
        let kind: Arc<dyn Kind> = match self {
            Self::Grid(spec) => Arc::new(spec.as_ref().clone()),
            Self::Sokoban(spec) => Arc::new(spec.as_ref().clone()),
            Self::Treasure(spec) => Arc::new(spec.as_ref().clone()),
            Self::Bandit(spec) => Arc::new(spec.as_ref().clone()),
            Self::ChatUser(spec) => Arc::new(spec.as_ref().clone()),
            Self::Search(spec) => {
                let (kind, bytes) = spec.read(path)?;
                return Ok(Some((Arc::new(kind), bytes)));
            }
            Self::Python(spec) => {
                let (kind, bytes) = spec.read(path)?;
                return Ok(Some((Arc::new(kind), bytes)));
            }
            Self::Custom(_) => return Ok(None),
        };
        Ok(Some((kind, Vec::new())))
    }

    /// Builds what the row describes, to see whether it can be built.
    ///
    /// # Errors
    /// With what is wrong and where.
    pub(crate) fn check(&self, fields: &Fields) -> Result<(), RenderError> {
        match self {
            Self::Grid(spec) => spec.grid(fields).map(drop),
            Self::Sokoban(spec) => spec.sokoban(fields).map(drop),
            Self::Treasure(spec) => spec.treasure(fields).map(drop),
            Self::Bandit(spec) => spec.arms(fields).map(drop),
            Self::Search(spec) => spec.check(fields),
            Self::ChatUser(spec) => spec.user(fields).map(drop),
            Self::Python(_) | Self::Custom(_) => Ok(()),
        }
    }

    /// Everything about the world that the row decides; two rows with equal values are the same problem.
    ///
    /// # Errors
    /// On a field the row does not have.
    pub(crate) fn of_row(
        &self,
        fields: &Fields,
        row: &serde_json::Map<String, Value>,
    ) -> Result<Value, RenderError> {
        match self {
            Self::Grid(spec) => spec.of_row(fields),
            Self::Sokoban(spec) => spec.of_row(fields),
            Self::Treasure(spec) => spec.of_row(fields),
            Self::Bandit(spec) => spec.of_row(fields),
            Self::Search(spec) => spec.of_row(fields),
            Self::ChatUser(spec) => spec.of_row(fields),
            Self::Python(_) | Self::Custom(_) => Ok(Value::Object(row.clone())),
        }
    }
}
