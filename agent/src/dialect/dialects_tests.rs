use mipu_envs::Role;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::chat::tests::{CHATML, model};
use super::*;

const CHAT: [&str; 5] = ["hermes", "llama3", "fenced", "tags", "react"];

fn with(dialect: &str, few_shot: Vec<Shot>) -> Result<Arc<dyn Renderer>, ModelError> {
    let config = DialectConfig {
        dialect: Some(dialect.to_owned()),
        few_shot,
    };
    renderer_with(&model(CHATML), &config)
}

fn tool(name: &str, parameters: &[&str]) -> ToolSpec {
    let properties: Map<String, Value> = parameters
        .iter()
        .map(|p| ((*p).to_owned(), json!({"type": "string"})))
        .collect();
    ToolSpec {
        name: name.to_owned(),
        description: format!("Does {name}."),
        parameters: json!({"type": "object", "properties": properties, "required": parameters}),
    }
}

fn tools() -> Vec<ToolSpec> {
    vec![
        tool("python", &["code"]),
        tool("search", &["query", "page"]),
        tool("look", &[]),
    ]
}

/// Ids of text in the byte-level test vocabulary, an end token behind it.
fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).chain([257]).collect()
}

fn parse(dialect: &str, text: &str) -> Reply {
    with(dialect, vec![]).unwrap().parse(&ids(text), false, &tools())
}

fn python(code: &str) -> Reply {
    Reply {
        tool_calls: vec![ToolCall {
            name: "python".into(),
            arguments: Map::from_iter([("code".to_owned(), json!(code))]),
        }],
        ..Reply::default()
    }
}

#[test]
fn every_dialect_reads_its_calls() {
    let code = |code: &str| vec![("python".to_owned(), json!({ "code": code }))];
    let page = || vec![("search".to_owned(), json!({"query": "x", "page": "2"}))];
    let look = || vec![("look".to_owned(), json!({}))];
    let fenced_json = "<tool_call>\n```json\n{\"name\": \"python\", \"arguments\": {\"code\": \"a\nb\"}}\n```\n</tool_call>";
    let two =
        "{\"name\": \"python\", \"parameters\": {\"code\": \"x\"}}; {\"name\": \"look\", \"parameters\": {}}";
    let made_up = "Thought: hm\nAction: python\nAction Input: print(1)\nObservation: 1\nFinal Answer: 1";
    for (dialect, text, want) in [
        (
            "hermes",
            "<tool_call>{'name': 'python', 'arguments': {'code': 'f()'}}",
            code("f()"),
        ),
        ("hermes", fenced_json, code("a\nb")),
        (
            "hermes",
            r#"<tool_call>{"name": "python", "parameters": {"code": "x"}}</tool_call>"#,
            code("x"),
        ),
        (
            "hermes",
            r#"<tool_call>{"name": "python", "arguments": "{\"code\": \"x\"}"}</tool_call>"#,
            code("x"),
        ),
        (
            "llama3",
            r#"{"name": "python", "parameters": {"code": "x"}}"#,
            code("x"),
        ),
        (
            "llama3",
            r#"<|python_tag|>{"name": "python", "arguments": {"code": "x"}}"#,
            code("x"),
        ),
        ("llama3", "<|python_tag|>print(1)", code("print(1)")),
        (
            "llama3",
            r#"<function=search>{"query": "x", "page": "2"}</function>"#,
            page(),
        ),
        ("llama3", two, [code("x"), look()].concat()),
        (
            "fenced",
            "I run it.\n```python\nprint(1)\n```\nand wait",
            code("print(1)"),
        ),
        ("fenced", "```py\nprint(1)", code("print(1)")),
        (
            "fenced",
            "````python\na = \"\n```\n\"\n````",
            code("a = \"\n```\n\""),
        ),
        (
            "fenced",
            "```search\n{\"query\": \"x\", \"page\": \"2\"}\n```",
            page(),
        ),
        ("tags", "So <python>\nprint(1)\n</python>", code("print(1)")),
        ("tags", "<python>1 < 2", code("1 < 2")),
        (
            "tags",
            "<search>{\"query\": \"x\", \"page\": \"2\"}</search>",
            page(),
        ),
        ("react", made_up, code("print(1)")),
        (
            "react",
            "Action: search\nAction Input: {\"query\": \"x\", \"page\": \"2\"}",
            page(),
        ),
        (
            "react",
            "Action: python\nAction Input: 1\nFinal Answer: 7",
            code("1"),
        ),
        ("react", "Action: look", look()),
    ] {
        let reply = parse(dialect, text);
        let calls = reply.tool_calls.iter();
        let calls: Vec<_> = calls
            .map(|c| (c.name.clone(), Value::Object(c.arguments.clone())))
            .collect();
        assert_eq!((calls, &reply.malformed), (want, &None), "{dialect}: {text}");
    }
}

#[test]
fn every_dialect_reads_its_answers() {
    for (dialect, text, want) in [
        ("hermes", " 42 ", "42"),
        ("llama3", "{\"answer\": 42}", "{\"answer\": 42}"),
        ("fenced", "It is\n```json\n{}\n```", "It is\n```json\n{}\n```"),
        ("tags", "So <answer>42</answer>.", "42"),
        ("tags", "42", "42"),
        ("react", "Thought: I know\nFinal Answer: 42\n", "42"),
    ] {
        assert_eq!(
            parse(dialect, text).answer.as_deref(),
            Some(want),
            "{dialect}: {text}"
        );
    }
    let block = "```python\nx\n```";
    let reply = with("fenced", vec![]).unwrap().parse(&ids(block), false, &[]);
    assert_eq!(
        reply.answer.as_deref(),
        Some(block),
        "without tools a block is the answer"
    );
}

#[test]
fn mistakes_tell_the_agent_what_was_expected() {
    for (dialect, text, want) in [
        (
            "llama3",
            "{\"name\": \"python\", \"parameters\": {",
            "must be JSON: expected a quoted key",
        ),
        (
            "llama3",
            "{\"name\": \"f\", \"parameters\": {}} so",
            "says nothing else",
        ),
        ("llama3", "<function=f>{} more", "must end with </function>"),
        ("fenced", "```look\n1\n```", "tool `look` takes no argument"),
        ("tags", "<look>1</look>", "tool `look` takes no argument"),
        (
            "react",
            "hello",
            "`Action:` and `Action Input:`, or `Final Answer:`",
        ),
        (
            "react",
            "Action: fly\nAction Input: 1",
            "there is no tool `fly`; there are: python, search, look",
        ),
    ] {
        let reason = parse(dialect, text).malformed;
        let reason = reason.unwrap_or_else(|| panic!("{dialect}: {text} is malformed"));
        assert!(reason.contains(want), "{dialect}: {text}: {reason}");
    }
    // What the token budget cut is not run.
    for (dialect, text) in [
        ("hermes", "<tool_call>{\"name\": \"look\"}"),
        ("fenced", "```python\nrm("),
        ("tags", "<python>rm("),
        ("react", "Action: python\nAction Input: rm("),
    ] {
        let mut cut = ids(text);
        cut.pop();
        let reply = with(dialect, vec![]).unwrap().parse(&cut, true, &tools());
        assert!(reply.malformed.is_some(), "{dialect}: {text}");
    }
}

#[test]
fn tools_and_results_reach_the_model() {
    let json = r#"{"type": "function", "function": {"name": "python""#;
    for (dialect, told, result) in [
        (
            "fenced",
            "- search(query, page): Does search.",
            "<|im_start|>user\nOutput:\n7<|im_end|>",
        ),
        (
            "tags",
            "write <python>...</python>",
            "<|im_start|>user\n<result>7</result><|im_end|>",
        ),
        (
            "react",
            "Action: one of python, search, look",
            "<|im_start|>user\nObservation: 7<|im_end|>",
        ),
        ("hermes", json, "<tool_response>\n7\n</tool_response>"),
        ("llama3", json, "<|im_start|>ipython\n7<|im_end|>"),
    ] {
        let renderer = with(dialect, vec![]).unwrap();
        let mut history = vec![Message::new(Role::User, "u")];
        let prompt = renderer.decode(&renderer.prompt(&history, &tools()).unwrap());
        assert!(prompt.contains(told), "{dialect}: {prompt}");
        let turn = renderer.render_reply(&python("3+4")).unwrap();
        history.push(Message::new(Role::Assistant, renderer.decode(&turn)));
        let seven = [Message::tool("python", "7")];
        let glue = renderer.observation(&history, &tools(), &turn, &seven).unwrap();
        let glue = renderer.decode(&glue);
        assert!(glue.contains(result), "{dialect}: {glue}");
    }
}

fn shots() -> Vec<Shot> {
    let config: DialectConfig = serde_json::from_value(json!({"few_shot": [
        {"user": "12+30?"},
        {"call": {"name": "python", "arguments": {"code": "print(12+30)"}}},
        {"result": "42"},
        {"answer": "42"},
    ]}))
    .unwrap();
    config.few_shot
}

#[test]
fn examples_stand_before_the_episode_in_the_words_of_the_dialect() {
    let hermes =
        "<tool_call>\n{\"name\": \"python\", \"arguments\": {\"code\": \"print(12+30)\"}}\n</tool_call>";
    for (dialect, call) in [
        ("hermes", hermes),
        ("fenced", "```python\nprint(12+30)\n```"),
        ("tags", "<python>print(12+30)</python>"),
        ("react", "Action: python\nAction Input: print(12+30)"),
    ] {
        let renderer = with(dialect, shots()).unwrap();
        let history = [
            Message::new(Role::System, "Be brief."),
            Message::new(Role::User, "1+1?"),
        ];
        let text = renderer.decode(&renderer.prompt(&history, &tools()).unwrap());
        let places = ["Be brief.", "user\n12+30?", call, "42<|im_end|>", "user\n1+1?"].map(|part| {
            text.find(part)
                .unwrap_or_else(|| panic!("{dialect}: {part} is missing in\n{text}"))
        });
        assert!(places.is_sorted(), "{dialect}: {text}");
        assert!(text.ends_with("<|im_start|>assistant\n"));
    }
}

#[test]
fn a_config_that_cannot_work_says_why() {
    let error = |dialect: &str, shots: Vec<Shot>| with(dialect, shots).err().unwrap().to_string();
    assert!(error("yaml", vec![]).contains("hint: one of hermes, llama3, fenced, tags, react, compact"));
    assert!(error("compact", shots()).contains("takes no few-shot examples"));
    let bad = vec![Shot::Answer("<tool_call>{}</tool_call>".to_owned())];
    assert!(error("hermes", bad).contains("would be read as another"));
    let unknown = serde_json::from_value::<DialectConfig>(json!({"few_shots": []}));
    assert!(unknown.unwrap_err().to_string().contains("few_shots"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Any text is a call, an answer or a mistake, cut or not.
    #[test]
    fn any_turn_has_one_meaning(
        dialect in 0usize..5, cut: bool, truncated: bool,
        parts in prop::collection::vec(prop::sample::select(vec![
            "<python>", "</python>", "```python", "```", "\n", "Action:", "Action Input:", "Final Answer:", "Observation:",
            "<tool_call>", "</tool_call>", "{\"name\": \"look\"", ", \"parameters\": {}", "}", "<function=", "<|python_tag|>", "python",
            " x", "é", "'", "<think>", "</think>", "<look>", "</look>",
        ]), 0..14),
    ) {
        let mut turn = ids(&parts.concat());
        if cut {
            turn.pop();
        }
        let reply = with(CHAT[dialect], vec![]).unwrap().parse(&turn, truncated, &tools());
        let outcomes = [reply.answer.is_some(), !reply.tool_calls.is_empty(), reply.malformed.is_some()];
        prop_assert_eq!(outcomes.iter().filter(|o| **o).count(), 1);
    }

    /// What a dialect agrees to write is read back as it was.
    #[test]
    fn parse_inverts_render(
        dialect in 0usize..5, which in 0usize..3, before in "[ -~\n]{0,12}", after in "[ -~]{0,6}",
        mark in prop::sample::select(vec!["", "\n```\n", "</python>", "\n\nObservation: ", "{\"code\": 1}", "é", "\n"]),
    ) {
        let text = format!("{before}{mark}{after}");
        let renderer = with(CHAT[dialect], vec![]).unwrap();
        let reply = match which {
            0 => python(&text),
            1 => {
                let mut reply = python("");
                reply.tool_calls[0].name = "search".to_owned();
                reply.tool_calls[0].arguments = Map::from_iter([("query".to_owned(), json!(text)), ("page".to_owned(), json!("3"))]);
                reply
            }
            _ => Reply { answer: Some(text.trim().to_owned()), ..Reply::default() },
        };
        match renderer.render_reply(&reply) {
            Ok(ids) => {
                let read = renderer.parse(&ids, false, &tools());
                prop_assert_eq!((read.tool_calls, read.answer), (reply.tool_calls, reply.answer));
            }
            // Only a text that holds marks of the dialect may be refused.
            Err(e) => prop_assert!(!text.chars().all(|c| c.is_alphanumeric()), "{text:?}: {e}"),
        }
    }
}
