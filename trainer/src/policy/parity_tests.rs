//! The sampler's engine in f32 and the trainer's forward are written apart; at the same weights they must say the same.

use std::sync::Arc;

use candle_core::Device;
use mipu_agent::{Engine, EngineConfig, ModelConfig, Precision, Weights};

use crate::testing::{quick_start_config, tiny_config, tokens};
use crate::{TrainerPolicy, update};

#[tokio::test]
async fn the_engine_in_f32_gives_the_trainers_log_probs() {
    for family in ["llama", "qwen2", "qwen3"] {
        let tiny = tiny_config(family);
        let config = ModelConfig {
            model_type: tiny.model_type,
            qk_norm: tiny.qk_norm,
            attention_bias: tiny.attention_bias,
            tie_word_embeddings: tiny.tie_word_embeddings,
            ..quick_start_config()
        };
        let weights = Weights::init(Arc::new(config), 3);
        let policy = TrainerPolicy::from_weights(&weights, &Device::Cpu).unwrap();
        let f32s = EngineConfig {
            weights: Precision::F32,
            activations: Precision::F32,
            kv_cache: Precision::F32,
            lm_head: Precision::F32,
            ..EngineConfig::default()
        };
        let engine = Engine::start(f32s, weights, 0, vec![]).unwrap();
        for (i, temperature) in [0.7f32, 1.0, 1.3].into_iter().enumerate() {
            let record = tokens(272, &[(false, 12), (true, 9), (false, 20), (true, 15)], i as u64);
            let ids = Arc::new(record.ids().to_vec());
            // Entry t of the engine's scores belongs to token t + 1.
            let all = engine.score(ids, temperature).await.unwrap();
            let mu = (1..record.len())
                .filter(|&t| record.loss_mask()[t])
                .map(|t| all[t - 1]);
            let pi = update::score(&policy, &[&record], f64::from(temperature))
                .unwrap()
                .remove(0);
            assert_eq!(all.len() + 1, record.len());
            for (pi, mu) in pi.into_iter().zip(mu) {
                assert!(
                    (pi - mu).abs() < 2e-5,
                    "{family} at T = {temperature}: pi {pi}, mu {mu}"
                );
            }
        }
    }
}
