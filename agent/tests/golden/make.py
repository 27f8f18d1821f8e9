"""Makes the golden files of this directory from independent implementations.

    pip install torch transformers numpy ml_dtypes safetensors
    python make.py

Versions used: torch 2.15.0, transformers 5.24.0, numpy 2.4.6, ml_dtypes 0.6.0.

- e4m3.json: every E4M3 code's value, and the code of ties, neighbours of ties and random floats (ml_dtypes; values are clamped to
  +-448 first, since ml_dtypes does not saturate).
- {llama,qwen2,qwen3}/: a tiny random model as transformers saves it, and the log-probs of a sequence in f64.
"""

import json
import pathlib

import ml_dtypes
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent


def e4m3():
    codes = np.arange(256, dtype=np.uint8)
    values = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    finite = np.sort(values[np.isfinite(values)])
    middles = ((finite[:-1].astype(np.float64) + finite[1:]) / 2).astype(np.float32)
    rng = np.random.default_rng(0)
    spread = np.exp2(rng.uniform(-14, 10, 600)) * rng.choice([-1, 1], 600)
    inputs = np.concatenate(
        [middles, np.nextafter(middles, np.float32(np.inf)), np.nextafter(middles, np.float32(-np.inf)), spread,
         [1e9, -1e9, 448.0, 449.0, 463.9, 464.0, 465.0, 0.0, -0.0, 1e-40, -1e-40]]
    ).astype(np.float32)
    coded = np.clip(inputs, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    golden = {
        "value_bits": [int(b) if np.isfinite(v) else None for b, v in zip(values.view(np.uint32), values)],
        "encode": [[int(b), int(c)] for b, c in zip(inputs.view(np.uint32), coded)],
    }
    (HERE / "e4m3.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


def model(family, **extra):
    config = AutoConfig.for_model(
        family, vocab_size=67, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, **extra,
    )
    torch.manual_seed(len(family))
    net = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(torch.randn_like(p) * 0.2 + (1.0 if "norm" in name else 0.0))
    out = HERE / family
    net.save_pretrained(out)
    ids = torch.randint(0, 67, (1, 45))
    with torch.no_grad():
        logits = net.double()(ids).logits[0]
    targets = ids[0, 1:]
    golden = {"ids": ids[0].tolist()}
    for temperature in (1.0, 0.7):
        logprobs = torch.log_softmax(logits / temperature, -1)
        golden[f"logprobs_{temperature}"] = logprobs[:-1].gather(1, targets[:, None])[:, 0].tolist()
    (out / "logprobs.json").write_text(json.dumps(golden) + "\n")
    (out / "generation_config.json").unlink(missing_ok=True)


e4m3()
model("llama", rope_theta=50000.0, rms_norm_eps=1e-5, tie_word_embeddings=False)
model("qwen2", tie_word_embeddings=True, use_sliding_window=False)
model("qwen3", head_dim=16, tie_word_embeddings=True, use_sliding_window=False)
