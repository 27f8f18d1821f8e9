//! Against transformers and ml_dtypes (`golden/make.py`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mipu_agent::quant::e4m3;
use mipu_agent::{Engine, EngineConfig, ModelConfig, Policy, Precision, Sampling, Weights};
use serde_json::Value;

use crate::support::{bits, block_on, request};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

fn json(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(golden(name)).unwrap()).unwrap()
}

fn floats(value: &Value) -> Vec<f64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_f64().unwrap())
        .collect()
}

fn family(name: &str) -> (Weights, Vec<u32>, Value) {
    let dir = golden(name);
    let config = Arc::new(ModelConfig::read(&dir.join("config.json")).unwrap());
    let expected = json(&format!("{name}/logprobs.json"));
    let ids = floats(&expected["ids"]).into_iter().map(|id| id as u32).collect();
    (Weights::read_dir(config, &dir).unwrap(), ids, expected)
}

/// Largest absolute difference between the engine's log-probs and the golden ones.
fn worst(name: &str, config: EngineConfig, temperature: &str) -> f64 {
    let (weights, ids, expected) = family(name);
    let engine = Engine::start(config, weights, 0, vec![]).unwrap();
    let got = block_on(engine.score(Arc::new(ids), temperature.parse().unwrap())).unwrap();
    let want = floats(&expected[format!("logprobs_{temperature}")]);
    assert_eq!(got.len(), want.len());
    got.iter()
        .zip(want)
        .map(|(g, w)| (f64::from(*g) - w).abs())
        .fold(0.0, f64::max)
}

#[test]
fn the_f32_engine_agrees_with_transformers() {
    for name in ["llama", "qwen2", "qwen3"] {
        for temperature in ["1.0", "0.7"] {
            let worst = worst(name, EngineConfig::f32(), temperature);
            assert!(worst < 5e-5, "{name} at {temperature}: {worst}");
        }
    }
}

#[test]
fn lower_precision_moves_logprobs_by_its_own_step() {
    let f32 = EngineConfig::f32();
    let half = EngineConfig {
        weights: Precision::F16,
        activations: Precision::F16,
        kv_cache: Precision::F16,
        ..f32
    };
    let bf16 = EngineConfig {
        weights: Precision::Bf16,
        activations: Precision::Bf16,
        ..half
    };
    for name in ["llama", "qwen2", "qwen3"] {
        let (half, bf16) = (worst(name, half, "1.0"), worst(name, bf16, "1.0"));
        let fp8 = worst(name, EngineConfig::default(), "1.0");
        assert!(
            half > 5e-5 && half < bf16 && bf16 < fp8 && fp8 < 3.0,
            "{name}: {half} {bf16} {fp8}"
        );
    }
}

/// What is recorded at sampling is the log-prob at the sampling temperature, not that of T = 1 divided afterwards.
#[test]
fn logprobs_divided_by_temperature_after_the_fact() {
    let (weights, ids, expected) = family("qwen3");
    let engine = Engine::start(EngineConfig::f32(), weights, 0, vec![]).unwrap();
    let mut request = request(1, &ids[..20], 1, 0);
    request.sampling = Sampling::at(0.7);
    let golden = floats(&expected["logprobs_0.7"])[19];
    // Draw until the golden's own token comes up.
    let found = block_on(async {
        for seed in 0..3000 {
            request.seed = seed;
            let turn = engine.sample(request.clone()).await.unwrap();
            if turn.ids[0] == ids[20] {
                return Some(f64::from(turn.logprobs[0]));
            }
        }
        None
    });
    let found = found.expect("the token is likely enough");
    assert!((found - golden).abs() < 5e-5, "{found} {golden}");
    let greedy = block_on(async {
        request.sampling = Sampling::at(0.0);
        engine.sample(request).await.unwrap()
    });
    let all = Arc::new([&ids[..20], &greedy.ids].concat());
    let at_one = block_on(engine.score(all, 1.0)).unwrap();
    assert_eq!(
        bits(&greedy.logprobs),
        bits(&at_one[19..]),
        "greedy log-probs are those of temperature 1"
    );
}

#[test]
fn e4m3_agrees_with_ml_dtypes() {
    let golden = json("e4m3.json");
    for (code, bits) in golden["value_bits"].as_array().unwrap().iter().enumerate() {
        let value = e4m3::decode(code as u8);
        match bits.as_u64() {
            Some(bits) => assert_eq!(u64::from(value.to_bits()), bits, "code {code}"),
            None => assert!(value.is_nan(), "code {code}"),
        }
    }
    let pairs = golden["encode"].as_array().unwrap();
    assert!(pairs.len() > 1000);
    for pair in pairs {
        let x = f32::from_bits(pair[0].as_u64().unwrap() as u32);
        assert_eq!(u64::from(e4m3::encode(x)), pair[1].as_u64().unwrap(), "{x}");
        assert_eq!(
            e4m3::round(x).to_bits(),
            e4m3::decode(e4m3::encode(x)).to_bits(),
            "{x}"
        );
    }
}
