//! The compact dialect of tiny byte-level policies: one opening token, text, one closing token.
//!
//! ```text
//! <bos>instruction | <python>code<end_call> | <obs>text<end_obs> | <answer>text<end>
//! ```

use mipu_envs::{Message, Reply, Role, ToolCall, ToolSpec};
use serde_json::{Map, Value};

use super::Renderer;
use crate::model::ModelError;
use crate::tokenizer::Tokenizer;

/// The compact dialect over a tokenizer that has its special tokens.
pub struct Compact {
    tokenizer: Tokenizer,
    bos: u32,
    /// Tools with their own opening token.
    named: [(u32, &'static str); 2],
    call: u32,
    obs: u32,
    end_obs: u32,
    answer: u32,
    /// `<end_call>`, `<end>`.
    stops: [u32; 2],
}

impl Compact {
    /// Looks its special tokens up.
    ///
    /// # Errors
    /// When the tokenizer lacks one.
    pub fn new(tokenizer: Tokenizer) -> Result<Self, ModelError> {
        let id = |name: &str| {
            let missing =
                || ModelError::Tokenizer(format!("the compact dialect needs the special token `{name}`"));
            tokenizer.added_id(name).ok_or_else(missing)
        };
        Ok(Self {
            bos: id("<bos>")?,
            named: [(id("<python>")?, "python"), (id("<run_tests>")?, "run_tests")],
            call: id("<call>")?,
            obs: id("<obs>")?,
            end_obs: id("<end_obs>")?,
            answer: id("<answer>")?,
            stops: [id("<end_call>")?, id("<end>")?],
            tokenizer,
        })
    }

    fn parse_call(&self, open: u32, body: &str, tools: &[ToolSpec]) -> Result<ToolCall, String> {
        if let Some((_, name)) = self.named.iter().find(|(id, _)| *id == open) {
            let spec = tools.iter().find(|t| t.name == *name);
            let spec = spec.ok_or_else(|| format!("there is no tool `{name}` in this task"))?;
            let argument = first_parameter(spec).ok_or_else(|| format!("tool `{name}` takes no argument"))?;
            let arguments = Map::from_iter([(argument.to_owned(), Value::String(body.to_owned()))]);
            return Ok(ToolCall {
                name: (*name).to_owned(),
                arguments,
            });
        }
        let (name, json) = body.split_once(' ').unwrap_or((body, "{}"));
        match serde_json::from_str(json) {
            Ok(arguments) => Ok(ToolCall {
                name: name.to_owned(),
                arguments,
            }),
            Err(e) => Err(format!("the arguments of `{name}` must be a JSON object: {e}")),
        }
    }
}

impl Renderer for Compact {
    fn prompt(&self, messages: &[Message], _tools: &[ToolSpec]) -> Result<Vec<u32>, ModelError> {
        if let Some(m) = messages
            .iter()
            .find(|m| !matches!(m.role, Role::System | Role::User))
        {
            return Err(ModelError::Template(format!(
                "a prompt holds system and user messages; got {:?}",
                m.role
            )));
        }
        let text = messages
            .iter()
            .map(|m| m.content.as_str())
            .collect::<Vec<_>>()
            .join("\n");
        let mut ids = vec![self.bos];
        ids.extend(self.tokenizer.encode(&text)?);
        Ok(ids)
    }

    fn observation(&self, _turn: &[u32], observations: &[Message]) -> Result<Vec<u32>, ModelError> {
        let mut ids = Vec::new();
        for message in observations {
            ids.push(self.obs);
            ids.extend(self.tokenizer.encode(&message.content)?);
            ids.push(self.end_obs);
        }
        Ok(ids)
    }

    fn parse(&self, turn: &[u32], truncated: bool, tools: &[ToolSpec]) -> Reply {
        let mut reply = Reply {
            content: self.tokenizer.decode(turn),
            truncated,
            ..Reply::default()
        };
        let malformed = |reason: &str| Some(reason.to_owned());
        let [end_call, end] = self.stops;
        let (open, body, close) = match turn {
            [open, body @ .., close] if self.stops.contains(close) => (*open, body, *close),
            [.., close] if self.stops.contains(close) => {
                reply.malformed = malformed("the turn is empty");
                return reply;
            }
            _ => {
                reply.malformed = malformed("the turn has no end token");
                return reply;
            }
        };
        if body.iter().any(|&id| self.tokenizer.added_text(id).is_some()) {
            reply.malformed = malformed("a special token stands inside the turn");
            return reply;
        }
        let text = self.tokenizer.decode(body);
        let calls = open == self.call || self.named.iter().any(|(id, _)| *id == open);
        if open == self.answer && close == end {
            reply.answer = Some(text);
        } else if calls && close == end_call {
            match self.parse_call(open, &text, tools) {
                Ok(call) => reply.tool_calls.push(call),
                Err(reason) => reply.malformed = Some(reason),
            }
        } else if calls || open == self.answer {
            reply.malformed = malformed("the turn's end token does not match its opening");
        } else {
            reply.malformed = malformed("a turn opens with <answer>, <call> or a tool's token");
        }
        reply
    }

    fn render_reply(&self, reply: &Reply) -> Result<Vec<u32>, ModelError> {
        let [end_call, end] = self.stops;
        let (open, text, close) = match (reply.tool_calls.as_slice(), &reply.answer) {
            ([], Some(answer)) => (self.answer, answer.clone(), end),
            ([call], None) => match self.named.iter().find(|(_, name)| *name == call.name) {
                Some((open, name)) => {
                    let mut values = call.arguments.values();
                    let (Some(Value::String(body)), None) = (values.next(), values.next()) else {
                        return Err(ModelError::Template(format!(
                            "`{name}` takes one string argument"
                        )));
                    };
                    (*open, body.clone(), end_call)
                }
                None if call.name.contains(' ') => {
                    return Err(ModelError::Template(format!(
                        "tool name `{}` contains a space",
                        call.name
                    )));
                }
                None => {
                    let json = Value::Object(call.arguments.clone());
                    (self.call, format!("{} {json}", call.name), end_call)
                }
            },
            _ => {
                let reason = "a compact turn is one tool call or one answer";
                return Err(ModelError::Template(reason.to_owned()));
            }
        };
        let mut ids = vec![open];
        ids.extend(self.tokenizer.encode(&text)?);
        ids.push(close);
        Ok(ids)
    }

    fn stop_ids(&self) -> &[u32] {
        &self.stops
    }

    fn decode(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids)
    }
}

/// The first required property of a tool's JSON Schema, else its first property.
fn first_parameter(spec: &ToolSpec) -> Option<&str> {
    let required = spec.parameters.get("required").and_then(Value::as_array);
    let first = required.and_then(|names| names.first()).and_then(Value::as_str);
    first.or_else(|| {
        Some(
            spec.parameters
                .get("properties")?
                .as_object()?
                .keys()
                .next()?
                .as_str(),
        )
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn compact() -> Compact {
        Compact::new(Tokenizer::compact().unwrap()).unwrap()
    }

    fn tools() -> Vec<ToolSpec> {
        let spec = |name: &str| ToolSpec {
            name: name.to_owned(),
            description: String::new(),
            parameters: json!({"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}),
        };
        vec![spec("python"), spec("run_tests")]
    }

    fn call(name: &str, arguments: Value) -> Reply {
        let arguments = arguments.as_object().unwrap().clone();
        Reply {
            tool_calls: vec![ToolCall {
                name: name.to_owned(),
                arguments,
            }],
            ..Reply::default()
        }
    }

    /// Parsing what was rendered gives the reply back, with its text.
    fn round_trip(reply: Reply) {
        let compact = compact();
        let ids = compact.render_reply(&reply).unwrap();
        let expected = Reply {
            content: compact.decode(&ids),
            ..reply
        };
        assert_eq!(compact.parse(&ids, false, &tools()), expected);
    }

    #[test]
    fn an_episode_reads_as_the_contract_says() {
        let c = compact();
        let mut ids = c.prompt(&[Message::new(Role::User, "1+1?")], &tools()).unwrap();
        let turn = c
            .render_reply(&call("python", json!({"code": "print(1+1)"})))
            .unwrap();
        ids.extend(&turn);
        ids.extend(c.observation(&turn, &[Message::tool("python", "2")]).unwrap());
        ids.extend(
            c.render_reply(&Reply {
                answer: Some("2".into()),
                ..Reply::default()
            })
            .unwrap(),
        );
        assert_eq!(
            c.decode(&ids),
            "<bos>1+1?<python>print(1+1)<end_call><obs>2<end_obs><answer>2<end>"
        );
    }

    #[test]
    fn mistakes_are_data() {
        let c = compact();
        let (end_call, end) = (261, 265);
        for (turn, expected) in [
            (vec![], "no end token"),
            (vec![end], "empty"),
            (vec![258, 65], "no end token"),
            (vec![258, 65, end], "does not match"),
            (vec![264, 65, end_call], "does not match"),
            (vec![65, 66, end], "opens with"),
            (vec![264, 258, end], "special token stands inside"),
            (vec![260, 65, 32, 91, 93, end_call], "must be a JSON object"),
        ] {
            let reply = c.parse(&turn, false, &tools());
            let reason = reply.malformed.expect("malformed");
            assert!(reason.contains(expected), "{turn:?}: {reason}");
            assert!(reply.answer.is_none() && reply.tool_calls.is_empty());
        }
        let without = c.parse(&[259, 65, end_call], false, &tools()[..1]);
        assert_eq!(
            without.malformed.as_deref(),
            Some("there is no tool `run_tests` in this task")
        );
    }

    proptest! {
        #[test]
        fn parse_inverts_render(body in ".{0,40}", name in "[a-z_]{1,8}", kind in 0..4) {
            match kind {
                0 => round_trip(Reply { answer: Some(body), ..Reply::default() }),
                1 => round_trip(call("python", json!({"code": body}))),
                2 => round_trip(call("run_tests", json!({"code": body}))),
                _ if name == "python" || name == "run_tests" => (),
                _ => round_trip(call(&name, json!({"path": body, "n": 3}))),
            }
        }

        #[test]
        fn any_ids_parse(turn in prop::collection::vec(0u32..280, 0..20), truncated: bool) {
            let reply = compact().parse(&turn, truncated, &tools());
            let outcomes = usize::from(reply.answer.is_some()) + reply.tool_calls.len() + usize::from(reply.malformed.is_some());
            prop_assert_eq!(outcomes, 1);
            prop_assert_eq!(reply.truncated, truncated);
        }
    }
}
