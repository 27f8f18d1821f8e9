//! The rules of a hunt: what may be done in a state, and with which probabilities it leads where.

use std::collections::BTreeMap;

use super::{Places, Room};
use crate::diagnostic::suggestion;
use crate::message::ToolCall;
use crate::tools;
use crate::worlds::{Mdp, Outcome};

/// A hunt that has been read; rooms and items are numbered in the order of their names.
#[derive(Clone, Debug)]
pub struct Treasure {
    rooms: Vec<Place>,
    pub(super) items: Vec<Item>,
    start: usize,
    goal: usize,
    stumble: f64,
    jam: f64,
    pub(super) step_reward: f64,
    goal_reward: f64,
}

#[derive(Clone, Debug)]
struct Place {
    name: String,
    text: String,
    exits: Vec<(String, usize)>,
    key: Option<usize>,
}

#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) name: String,
    pub(super) rooms: Vec<usize>,
}

/// Everything that may change in a hunt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hunt {
    /// The room the agent is in.
    pub room: usize,
    /// The room each item lies in; `None` when it is carried.
    pub items: Vec<Option<usize>>,
    /// Which rooms have been unlocked.
    pub unlocked: Vec<bool>,
}

/// What may be done in a hunt, by number of exit or item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Through an exit of the room.
    Go(usize),
    /// Unlock the room behind an exit.
    Open(usize),
    /// Pick up an item.
    Take(usize),
}

/// The rules of a hunt.
pub(super) struct Rules {
    pub(super) stumble: f64,
    pub(super) jam: f64,
    pub(super) step_reward: f64,
    pub(super) goal_reward: f64,
}

impl Treasure {
    pub(super) fn new(
        rooms: &BTreeMap<String, Room>,
        items: &BTreeMap<String, Places>,
        locks: &BTreeMap<String, String>,
        (start, goal): (&str, &str),
        rules: Rules,
    ) -> Result<Self, String> {
        let find = |known: &mut dyn Iterator<Item = &String>, what: &str, name: &str| {
            let names: Vec<&str> = known.map(String::as_str).collect();
            names.iter().position(|known| *known == name).ok_or_else(|| {
                format!(
                    "no {what} `{name}`\nhint: {}",
                    suggestion(name, names.iter().copied())
                )
            })
        };
        let room = |name: &str| find(&mut rooms.keys(), "room", name);
        let item = |name: &str| find(&mut items.keys(), "item", name);
        if let Some(name) = locks.keys().find(|name| !rooms.contains_key(*name)) {
            room(name)?;
        }
        let place = |(name, described): (&String, &Room)| {
            let exits = described.exits.iter();
            Ok(Place {
                name: name.clone(),
                text: described.text.trim().to_owned(),
                exits: exits
                    .map(|(exit, to)| Ok((exit.clone(), room(to)?)))
                    .collect::<Result<_, String>>()?,
                key: locks.get(name).map(|key| item(key)).transpose()?,
            })
        };
        let lying = |(name, places): (&String, &Places)| {
            let places = places.names().iter();
            let rooms: Vec<usize> = places.map(|name| room(name)).collect::<Result<_, String>>()?;
            match rooms.is_empty() {
                true => Err(format!("item `{name}` lies nowhere")),
                false => Ok(Item {
                    name: name.clone(),
                    rooms,
                }),
            }
        };
        let Rules {
            stumble,
            jam,
            step_reward,
            goal_reward,
        } = rules;
        Ok(Self {
            rooms: rooms.iter().map(place).collect::<Result<_, String>>()?,
            items: items.iter().map(lying).collect::<Result<_, String>>()?,
            start: room(start)?,
            goal: item(goal)?,
            stumble,
            jam,
            step_reward,
            goal_reward,
        })
    }

    /// Every beginning and its probability: one for each way the items may lie.
    pub fn starts(&self) -> Vec<(f64, Hunt)> {
        let mut starts = vec![(1.0, Vec::new())];
        for item in &self.items {
            let share = 1.0 / item.rooms.len() as f64;
            let with = |(p, places): &(f64, Vec<Option<usize>>), room: usize| {
                let mut places = places.clone();
                places.push(Some(room));
                (p * share, places)
            };
            starts = starts
                .iter()
                .flat_map(|start| item.rooms.iter().map(move |&room| with(start, room)))
                .collect();
        }
        starts
            .into_iter()
            .map(|(p, items)| (p, self.hunt(items)))
            .collect()
    }

    pub(super) fn hunt(&self, items: Vec<Option<usize>>) -> Hunt {
        Hunt {
            room: self.start,
            items,
            unlocked: vec![false; self.rooms.len()],
        }
    }

    fn locked(&self, hunt: &Hunt, room: usize) -> bool {
        self.rooms[room].key.is_some() && !hunt.unlocked[room]
    }

    /// What the agent means by a call, or what it is told.
    pub(super) fn action(&self, hunt: &Hunt, call: &ToolCall) -> Result<Action, String> {
        let here = &self.rooms[hunt.room];
        let exit = || {
            let said = tools::text(&call.arguments, "direction")?.trim();
            let found = here
                .exits
                .iter()
                .position(|(name, _)| name.eq_ignore_ascii_case(said));
            found.ok_or_else(|| format!("There is no exit {said}."))
        };
        match call.name.as_str() {
            "go" => match exit()? {
                way if self.locked(hunt, here.exits[way].1) => {
                    Err(format!("The way {} is locked.", here.exits[way].0))
                }
                way => Ok(Action::Go(way)),
            },
            "open" => {
                let way = exit()?;
                let (name, room) = &here.exits[way];
                match self.rooms[*room].key {
                    Some(_) if !self.locked(hunt, *room) => Err(format!("The way {name} is open already.")),
                    Some(key) if hunt.items[key].is_some() => {
                        Err(format!("You need the {}.", self.items[key].name))
                    }
                    Some(_) => Ok(Action::Open(way)),
                    None => Err(format!("The way {name} has no lock.")),
                }
            }
            _ => {
                let said = tools::text(&call.arguments, "item")?.trim();
                let named = self
                    .items
                    .iter()
                    .position(|item| item.name.eq_ignore_ascii_case(said));
                let found = named.filter(|&item| hunt.items[item] == Some(hunt.room));
                found
                    .map(Action::Take)
                    .ok_or_else(|| format!("There is no {said} here."))
            }
        }
    }

    pub(super) fn describe(&self, hunt: &Hunt, compact: bool) -> String {
        let here = &self.rooms[hunt.room];
        let names = |at: Option<usize>, separator: &str| {
            let items = self.items.iter().zip(&hunt.items);
            let there: Vec<&str> = items
                .filter(|(_, place)| **place == at)
                .map(|(item, _)| item.name.as_str())
                .collect();
            there.join(separator)
        };
        let exits = |mark: &str, separator: &str| {
            let exits = here
                .exits
                .iter()
                .map(|(name, room)| match self.locked(hunt, *room) {
                    true => format!("{name}{mark}"),
                    false => name.clone(),
                });
            exits.collect::<Vec<_>>().join(separator)
        };
        if compact {
            let parts = [
                here.name.clone(),
                exits("!", ","),
                names(Some(hunt.room), ","),
                names(None, ","),
            ];
            return parts.join(";");
        }
        let mut text = format!("You are in the {}.", here.name);
        if !here.text.is_empty() {
            text.push(' ');
            text.push_str(&here.text);
        }
        text.push_str(&format!(" Exits: {}.", exits(" (locked)", ", ")));
        for (what, list) in [
            ("You see", names(Some(hunt.room), ", ")),
            ("You carry", names(None, ", ")),
        ] {
            if !list.is_empty() {
                text.push_str(&format!(" {what}: {list}."));
            }
        }
        text
    }
}

impl Mdp for Treasure {
    type State = Hunt;
    type Action = Action;

    fn actions(&self, hunt: &Hunt) -> Vec<Action> {
        let exits = self.rooms[hunt.room].exits.iter().enumerate();
        let ways =
            exits.filter_map(
                |(way, &(_, room))| match (self.locked(hunt, room), self.rooms[room].key) {
                    (false, _) => Some(Action::Go(way)),
                    (true, Some(key)) if hunt.items[key].is_none() => Some(Action::Open(way)),
                    (true, _) => None,
                },
            );
        let here = (0..self.items.len()).filter(|&item| hunt.items[item] == Some(hunt.room));
        ways.chain(here.map(Action::Take)).collect()
    }

    fn outcomes(&self, hunt: &Hunt, action: &Action) -> Vec<Outcome<Hunt>> {
        let mut next = hunt.clone();
        let (fails, reward, done) = match *action {
            Action::Go(way) => {
                next.room = self.rooms[hunt.room].exits[way].1;
                (self.stumble, 0.0, false)
            }
            Action::Open(way) => {
                next.unlocked[self.rooms[hunt.room].exits[way].1] = true;
                (self.jam, 0.0, false)
            }
            Action::Take(item) => {
                next.items[item] = None;
                let wins = item == self.goal;
                (0.0, if wins { self.goal_reward } else { 0.0 }, wins)
            }
        };
        let happens = Outcome {
            probability: 1.0 - fails,
            state: next,
            reward: self.step_reward + reward,
            done,
        };
        let nothing = Outcome {
            probability: fails,
            state: hunt.clone(),
            reward: self.step_reward,
            done: false,
        };
        vec![happens, nothing]
    }
}
