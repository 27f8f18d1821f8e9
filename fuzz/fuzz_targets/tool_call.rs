//! Any ids as a turn, in any dialect: it is understood or told to be malformed, and calls that were understood can be written again.

#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use mipu_agent::dialect::{DIALECTS, DialectConfig, renderer_with};
use mipu_agent::tokenizer::Tokenizer;
use mipu_agent::{LoadedModel, ModelConfig, Renderer, Weights};
use mipu_envs::ToolSpec;
use serde_json::{Value, json};

const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
/// Added tokens, from id 256 on.
const ADDED: [&str; 7] = [
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<|endoftext|>",
    "<think>",
    "</think>",
];

/// A byte-level vocabulary with a chat model's tokens.
fn model() -> LoadedModel {
    let compact = Tokenizer::compact().expect("the embedded tokenizer is sound");
    let mut json: Value = serde_json::from_str(compact.json()).expect("it is JSON");
    let token = |(id, content): (usize, &str)| json!({"id": id, "content": content, "special": id < 258, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false});
    json["added_tokens"] = (256..).zip(ADDED).map(token).collect();
    let path = std::env::temp_dir().join(format!("mipu-fuzz-{}.json", std::process::id()));
    std::fs::write(&path, json.to_string()).expect("the temporary directory can be written");
    let tokenizer = Tokenizer::read(&path).expect("the tokenizer was just written");
    std::fs::remove_file(&path).expect("it was just written");
    LoadedModel {
        weights: Weights::init(Arc::new(ModelConfig::tiny()), 0),
        tokenizer,
        chat_template: Some(TEMPLATE.to_owned()),
        tokenizer_config: json!({"eos_token": "<|im_end|>"}),
        generation_config: json!({"eos_token_id": [257, 260]}),
        dialect: None,
    }
}

static RENDERERS: LazyLock<Vec<Arc<dyn Renderer>>> = LazyLock::new(|| {
    let model = model();
    let compact = LoadedModel::init_compact(ModelConfig::tiny(), 0).expect("the quick start's own model");
    let with = |name: &&str| {
        let config = DialectConfig {
            dialect: Some((*name).to_owned()),
            ..DialectConfig::default()
        };
        renderer_with(if *name == "compact" { &compact } else { &model }, &config)
            .expect("the model has what the dialect needs")
    };
    DIALECTS.iter().map(with).collect()
});

fn tool(name: &str, parameters: &[&str]) -> ToolSpec {
    let properties: Value = parameters
        .iter()
        .map(|name| ((*name).to_owned(), json!({"type": "string"})))
        .collect::<serde_json::Map<_, _>>()
        .into();
    ToolSpec {
        name: name.to_owned(),
        description: String::new(),
        parameters: json!({"type": "object", "properties": properties, "required": parameters}),
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&head, body)) = bytes.split_first() else { return };
    let renderer = &RENDERERS[usize::from(head & 7) % RENDERERS.len()];
    let tools = [tool("python", &["code"]), tool("search", &["query", "page"]), tool("look", &[])];
    // A byte below 0xf8 is itself, above it is an added token.
    let ids: Vec<u32> = body
        .iter()
        .map(|&byte| if byte >= 0xf8 { 256 + u32::from(byte - 0xf8) } else { u32::from(byte) })
        .filter(|&id| id < 256 + ADDED.len() as u32)
        .collect();
    let reply = renderer.parse(&ids, head & 8 != 0, &tools);
    assert!(reply.malformed.is_none() || reply.tool_calls.is_empty() && reply.answer.is_none());
    // A dialect may be unable to express what another wrote, but must not fail over it.
    let _written = renderer.render_reply(&reply);
    let _shown = renderer.decode(&ids);
});
