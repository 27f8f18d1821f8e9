//! A user to talk to: knows facts, tells them when asked, more or less willingly.
//!
//! The agent's final texts are messages to the user; the episode ends with the tool `submit`, which the task file lists. To a message
//! the user answers, in the order of `facts`, the first `per_message` facts that it asks for (a message asks for a fact if one of the
//! fact's `asked_by` stands in it as whole words, whatever the case):
//!
//! - a fact that was told before is told again;
//! - one whose `after` facts have all been told is told with probability `reveal`, else the user says `evade`;
//! - one whose `after` facts have not all been told is evaded.
//!
//! With probability `terse` what is told is the bare `value` instead of `says`. A message that asks for nothing is answered with
//! `unsure`. After each answer the user adds, with probability `volunteer`, the first fact that could be told and was not. With the
//! message number `patience` the user leaves and the episode ends. All draws are independent.

use std::sync::Arc;

use mipu_sandbox::Sandbox;
use rand::RngExt;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::bm25::terms;
use super::{Chance, Effect, Kind, World};
use crate::diagnostic::suggestion;
use crate::env::Unscored;
use crate::message::{ToolCall, ToolSpec};
use crate::spec::{Name, Probability, Setting, Turns};
use crate::task::Task;
use crate::template::{Fields, RenderError, Template};

/// A scripted user with chance in it. The agent's final texts are what it says to the user; list the tool `submit` to end the episode.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(try_from = "RawChatUser")]
pub struct ChatUserSpec {
    /// The first message.
    pub opening: Template,
    /// What the user knows.
    pub facts: Vec<Fact>,
    /// Facts that one message can ask for.
    pub per_message: Turns,
    /// Chance of a bare value.
    pub terse: Setting<Probability>,
    /// Chance of a fact that was not asked for.
    pub volunteer: Setting<Probability>,
    /// Answer to a message that asks for nothing.
    pub unsure: String,
    /// Messages after which the user leaves.
    pub patience: Option<Turns>,
}

/// Something the user knows.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fact {
    /// How other facts refer to it.
    pub name: Name,
    /// The fact itself, which a terse user says alone.
    pub value: Template,
    /// The sentence that tells it. Default: the value.
    #[serde(default)]
    pub says: Option<Template>,
    /// Words or phrases; a message with one of them asks for the fact.
    pub asked_by: Vec<String>,
    /// Chance that it is told when asked for. Default 1.
    #[serde(default = "surely")]
    pub reveal: Setting<Probability>,
    /// What the user says instead. Default `I have to think about that.`
    #[serde(default = "thinking")]
    pub evade: String,
    /// Facts that must have been told before. Default none.
    #[serde(default)]
    pub after: Vec<Name>,
}

fn surely() -> Setting<Probability> {
    Setting::fixed(Probability::try_from(1.0).expect("a default lies in its range"))
}

fn thinking() -> String {
    "I have to think about that.".to_owned()
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RawChatUser {
    /// What the user says first, below the instruction.
    opening: Template,
    /// What the user knows and tells when asked; in a message that asks for several the first of this list count.
    facts: Vec<Fact>,
    /// Facts that one message can ask for. Default 1.
    #[serde(default)]
    per_message: Option<Turns>,
    /// Chance that the user says the bare value instead of the sentence. Default 0.
    #[serde(default = "super::grid::no_slip")]
    terse: Setting<Probability>,
    /// Chance that an answer also tells a fact that was not asked for. Default 0.
    #[serde(default = "super::grid::no_slip")]
    volunteer: Setting<Probability>,
    /// Answer to a message that asks for nothing. Default `I do not know what you mean.`
    #[serde(default)]
    unsure: Option<String>,
    /// With this message the user leaves, which ends the episode. Default: never.
    #[serde(default)]
    patience: Option<Turns>,
}

impl TryFrom<RawChatUser> for ChatUserSpec {
    type Error = String;

    fn try_from(raw: RawChatUser) -> Result<Self, String> {
        if raw.facts.is_empty() {
            return Err(
                "the user knows no fact\nhint: facts: [{name: day, value: Monday, asked_by: [day]}]"
                    .to_owned(),
            );
        }
        let names: Vec<&str> = raw.facts.iter().map(|fact| fact.name.as_str()).collect();
        for (index, fact) in raw.facts.iter().enumerate() {
            let name = fact.name.as_str();
            if names[..index].contains(&name) {
                return Err(format!("two facts have the name `{name}`"));
            }
            if fact.asked_by.iter().all(|phrase| terms(phrase).next().is_none()) {
                return Err(format!("nothing asks for `{name}`: `asked_by` needs a word"));
            }
            // Only earlier facts: so no two wait for each other.
            if let Some(other) = fact
                .after
                .iter()
                .find(|other| !names[..index].contains(&other.as_str()))
            {
                let hint = suggestion(other.as_str(), names[..index].iter().copied());
                return Err(format!(
                    "`{name}` comes after `{}`, which is no earlier fact\nhint: {hint}",
                    other.as_str()
                ));
            }
        }
        Ok(Self {
            opening: raw.opening,
            facts: raw.facts,
            per_message: raw
                .per_message
                .unwrap_or_else(|| Turns::try_from(1).expect("a default lies in its range")),
            terse: raw.terse,
            volunteer: raw.volunteer,
            unsure: raw
                .unsure
                .unwrap_or_else(|| "I do not know what you mean.".to_owned()),
            patience: raw.patience,
        })
    }
}

impl ChatUserSpec {
    /// The user of a row.
    pub(crate) fn user(&self, fields: &Fields) -> Result<User, RenderError> {
        let names: Vec<&str> = self.facts.iter().map(|fact| fact.name.as_str()).collect();
        let known = |fact: &Fact| -> Result<Known, RenderError> {
            let value = fact.value.render(fields)?;
            let position = |other: &Name| names.iter().position(|name| *name == other.as_str());
            Ok(Known {
                says: match &fact.says {
                    Some(says) => says.render(fields)?,
                    None => value.clone(),
                },
                value,
                asked_by: fact
                    .asked_by
                    .iter()
                    .map(|phrase| terms(phrase).collect())
                    .collect(),
                reveal: fact.reveal.get(fields)?.get(),
                evade: fact.evade.clone(),
                after: fact.after.iter().filter_map(position).collect(),
                told: false,
            })
        };
        Ok(User {
            opening: self.opening.render(fields)?,
            facts: self.facts.iter().map(known).collect::<Result<_, _>>()?,
            per_message: self.per_message.get(),
            terse: self.terse.get(fields)?.get(),
            volunteer: self.volunteer.get(fields)?.get(),
            unsure: self.unsure.clone(),
            patience: self.patience.map(Turns::get),
            heard: 0,
        })
    }

    /// What the row decides.
    pub(crate) fn of_row(&self, fields: &Fields) -> Result<Value, RenderError> {
        let facts = self.facts.iter();
        let told: Vec<Value> = facts
            .map(|fact| {
                let says = fact.says.as_ref().map(|says| says.render(fields)).transpose()?;
                Ok(json!([
                    fact.value.render(fields)?,
                    says,
                    fact.reveal.of_row(fields)?
                ]))
            })
            .collect::<Result<_, RenderError>>()?;
        Ok(json!([
            self.opening.render(fields)?,
            told,
            self.terse.of_row(fields)?,
            self.volunteer.of_row(fields)?,
        ]))
    }
}

impl Kind for ChatUserSpec {
    fn name(&self) -> &str {
        "chat_user"
    }

    fn tools(&self) -> Vec<ToolSpec> {
        Vec::new()
    }

    fn open(&self, task: &Arc<Task>, _: &Sandbox, _seed: u64) -> Result<Box<dyn World>, Unscored> {
        Ok(Box::new(self.user(&Fields::of(&task.row))?))
    }
}

/// A live user.
pub(crate) struct User {
    opening: String,
    facts: Vec<Known>,
    per_message: usize,
    terse: f64,
    volunteer: f64,
    unsure: String,
    patience: Option<usize>,
    heard: usize,
}

struct Known {
    value: String,
    says: String,
    asked_by: Vec<Vec<String>>,
    reveal: f64,
    evade: String,
    after: Vec<usize>,
    told: bool,
}

impl Known {
    fn asked(&self, message: &[String]) -> bool {
        let stands = |phrase: &Vec<String>| {
            !phrase.is_empty()
                && message
                    .windows(phrase.len())
                    .any(|words| words == phrase.as_slice())
        };
        self.asked_by.iter().any(stands)
    }
}

impl User {
    /// Whether everything that must come first has been told.
    fn ready(&self, index: usize) -> bool {
        self.facts[index]
            .after
            .iter()
            .all(|&other| self.facts[other].told)
    }

    fn tell(&mut self, index: usize, chance: &mut Chance) -> String {
        let fact = &mut self.facts[index];
        fact.told = true;
        let terse = chance.random::<f64>() < self.terse;
        if terse {
            fact.value.clone()
        } else {
            fact.says.clone()
        }
    }

    fn answer(&mut self, text: &str, chance: &mut Chance) -> String {
        let words: Vec<String> = terms(text).collect();
        let asked: Vec<usize> = (0..self.facts.len())
            .filter(|&index| self.facts[index].asked(&words))
            .take(self.per_message)
            .collect();
        let mut parts = Vec::new();
        for &index in &asked {
            let willing = chance.random::<f64>() < self.facts[index].reveal;
            parts.push(if self.facts[index].told || willing && self.ready(index) {
                self.tell(index, chance)
            } else {
                self.facts[index].evade.clone()
            });
        }
        if asked.is_empty() {
            parts.push(self.unsure.clone());
        }
        let more = (0..self.facts.len()).find(|&index| !self.facts[index].told && self.ready(index));
        if let (true, Some(index)) = (chance.random::<f64>() < self.volunteer, more) {
            parts.push(self.tell(index, chance));
        }
        parts.join(" ")
    }
}

#[async_trait::async_trait]
impl World for User {
    async fn start(&mut self, _: &mut Chance) -> Result<Option<String>, Unscored> {
        Ok(Some(format!("User: {}", self.opening)))
    }

    async fn call(&mut self, call: &ToolCall, _: &mut Chance) -> Result<Effect, Unscored> {
        // The kind has no tools.
        Ok(Effect::say(format!("error: no tool `{}`", call.name)))
    }

    async fn message(&mut self, text: &str, chance: &mut Chance) -> Result<Option<Effect>, Unscored> {
        self.heard += 1;
        if self.patience.is_some_and(|patience| self.heard >= patience) {
            return Ok(Some(Effect::end("Sorry, I have to go.", 0.0)));
        }
        Ok(Some(Effect::say(self.answer(text, chance))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(yaml: &str) -> Result<ChatUserSpec, String> {
        serde_saphyr::from_str(yaml).map_err(|error| error.to_string())
    }

    #[test]
    fn a_user_who_cannot_be_asked_is_refused() {
        for (facts, reason) in [
            ("[]", "knows no fact"),
            ("[{name: a, value: x, asked_by: ['?']}]", "nothing asks for `a`"),
            (
                "[{name: a, value: x, asked_by: [a]}, {name: a, value: x, asked_by: [a]}]",
                "two facts",
            ),
            (
                "[{name: a, value: x, asked_by: [a], after: [b]}, {name: b, value: x, asked_by: [b]}]",
                "no earlier fact",
            ),
            ("[{name: a, value: x, asked_by: [a], reveal: 2}]", "[0, 1]"),
        ] {
            let error = read(&format!("opening: hi\nfacts: {facts}")).unwrap_err();
            assert!(error.contains(reason), "{facts}: {error}");
        }
    }

    #[test]
    fn a_message_asks_by_whole_words() {
        let yaml = "opening: hi\nfacts: [{name: day, value: Monday, asked_by: [day, which date]}]";
        let user = read(yaml)
            .unwrap()
            .user(&Fields::of(&serde_json::Map::new()))
            .unwrap();
        for (text, asks) in [
            ("Which DAY?", true),
            ("which  date, please", true),
            ("Today?", false),
            ("which of the dates", false),
            ("", false),
        ] {
            let words: Vec<String> = terms(text).collect();
            assert_eq!(user.facts[0].asked(&words), asks, "{text}");
        }
    }
}
