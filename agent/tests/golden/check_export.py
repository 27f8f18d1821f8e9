"""Loads exported directories of SmolLM2-135M-Instruct in transformers and compares what they say.

    pip install torch transformers compressed-tensors accelerate
    mipu model import SmolLM2-135M-Instruct.Q4_1.gguf --out f32
    for format in bf16 fp8-channel fp8-block; do mipu model export f32 --format $format --out $format; done
    for format in fp8-channel fp8-block; do mipu model export $format --format f32 --out $format-back; done
    python check_export.py .

- f32: greedy text of the chats of gguf/smollm2.json, which is transformers' own on an independently converted model.
- bf16, fp8-channel, fp8-block: load, write text, and hold the values that mipu reads from the same directory (`-back`).
Versions used: torch 2.15.0, transformers 5.24.0, compressed-tensors as pip resolves for them.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, CompressedTensorsConfig, FineGrainedFP8Config

ROOT = pathlib.Path(sys.argv[1])
GOLDEN = json.loads((pathlib.Path(__file__).parent / "gguf" / "smollm2.json").read_text())


def load(name):
    options = {"fp8-channel": {"quantization_config": CompressedTensorsConfig(run_compressed=False)},
               "fp8-block": {"quantization_config": FineGrainedFP8Config(dequantize=True)}}.get(name, {})
    return AutoModelForCausalLM.from_pretrained(ROOT / name, torch_dtype=torch.float32, **options).eval()


def texts(name, net):
    tokenizer = AutoTokenizer.from_pretrained(ROOT / name)
    for case in GOLDEN["greedy"]:
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": case["user"]}], add_generation_prompt=True,
                                               tokenize=False)
        ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        assert ids["input_ids"][0].tolist() == case["prompt"], "the prompt's ids differ"
        with torch.no_grad():
            out = net.generate(**ids, do_sample=False, max_new_tokens=len(case["ids"]))
        yield case, tokenizer.decode(out[0, len(case["prompt"]):], skip_special_tokens=False)


for name in ["f32", "bf16", "fp8-channel", "fp8-block"]:
    if not (ROOT / name).exists():
        print(f"{name}: skipped, no such directory")
        continue
    net = load(name)
    said = list(texts(name, net))
    same = sum(text == case["text"] for case, text in said)
    print(f"{name}: loads; {same} of {len(said)} greedy texts equal the f32 reference; {said[0][1]!r}")
    if name == "f32":
        assert same == len(said)
    back = ROOT / f"{name}-back" / "model.safetensors"
    if back.exists():
        state, ours = net.state_dict(), load_file(back)
        worst = max((state[key].float() - value).abs().max().item() / (value.abs().max().item() or 1) for key, value in ours.items())
        print(f"{name}: largest difference from what mipu reads, relative to each tensor's largest value: {worst:.2e}")
        assert worst < 1e-6 or worst < 2 ** -8 and name == "fp8-block", worst
