//! The `environment` of a task file: which world the episodes play in.

use std::path::Path;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::Name;
use crate::template::{Fields, RenderError};
use crate::worlds::Kind;
use crate::worlds::bandit::BanditSpec;
use crate::worlds::grid::GridSpec;
use crate::worlds::sokoban::SokobanSpec;
use crate::worlds::treasure::TreasureSpec;

/// The world of the episodes. Without one the agent has the task's tools alone.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Environment {
    /// A grid with slippery ground, holes and goals.
    Grid(Box<GridSpec>),
    /// Boxes to be pushed onto goals.
    Sokoban(Box<SokobanSpec>),
    /// Rooms, locked doors, keys and a treasure, in text.
    Treasure(Box<TreasureSpec>),
    /// Arms that win with unknown chances.
    Bandit(Box<BanditSpec>),
    /// A world written in Rust, by the name of its kind.
    Custom(Name),
}

impl Environment {
    /// The kind, ready to open worlds; `None` for a custom one.
    pub(crate) fn kind(&self, _path: &Path) -> Option<Arc<dyn Kind>> {
        match self {
            Self::Grid(spec) => Some(Arc::new(spec.as_ref().clone())),
            Self::Sokoban(spec) => Some(Arc::new(spec.as_ref().clone())),
            Self::Treasure(spec) => Some(Arc::new(spec.as_ref().clone())),
            Self::Bandit(spec) => Some(Arc::new(spec.as_ref().clone())),
            Self::Custom(_) => None,
        }
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
            Self::Custom(_) => Ok(()),
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
            Self::Custom(_) => Ok(Value::Object(row.clone())),
        }
    }
}
