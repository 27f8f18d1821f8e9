"""Makes gguf/smollm2.json from SmolLM2-135M-Instruct with independent code: llama.cpp's ids, transformers' log-probs and text.

    pip install torch transformers gguf numpy
    python make_smollm2.py SMOLLM2.gguf LLAMA_CPP_LIBRARIES

The arguments are those of make_gguf.py. Versions used: gguf 0.19.0, torch 2.15.0, transformers 5.24.0, numpy 2.4.6; llama.cpp
of npm @node-llama-cpp/linux-x64 3.22.1.

- ids: of every text of strings.json, by llama.cpp.
- sequence, logprobs: 2,001 ids (half of them texts of strings.json, half written by the model at temperature 1), and the f32
  log-prob of each but the first.
- greedy: chat prompts and what the model writes, by transformers' own loop in f32.
"""

import json
import pathlib
import sys

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Q
from transformers import AutoConfig, AutoModelForCausalLM

from llama_cpp import LlamaCpp

HERE = pathlib.Path(__file__).parent / "gguf"
reader = gguf.GGUFReader(sys.argv[1])
get = lambda key: reader.fields[key].contents()
config = AutoConfig.for_model(
    "llama", vocab_size=len(get("tokenizer.ggml.tokens")), hidden_size=get("llama.embedding_length"),
    intermediate_size=get("llama.feed_forward_length"), num_hidden_layers=get("llama.block_count"),
    num_attention_heads=get("llama.attention.head_count"), num_key_value_heads=get("llama.attention.head_count_kv"),
    rms_norm_eps=1e-5, rope_theta=get("llama.rope.freq_base"), max_position_embeddings=get("llama.context_length"),
    tie_word_embeddings=True)
stored = {t.name: t for t in reader.tensors}


def load(name, heads=None):
    t = stored[name]
    values = t.data if t.tensor_type in (Q.F32, Q.F16) else gguf.dequantize(t.data, t.tensor_type)
    values = np.asarray(values, np.float32).reshape([int(d) for d in reversed(t.shape)])
    if heads:
        values = values.reshape(heads, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
    return torch.from_numpy(np.ascontiguousarray(values))


state = {"model.embed_tokens.weight": load("token_embd.weight"), "lm_head.weight": load("token_embd.weight"),
         "model.norm.weight": load("output_norm.weight")}
for l in range(config.num_hidden_layers):
    for theirs, ours, heads in [
            ("attn_norm", "input_layernorm", None), ("ffn_norm", "post_attention_layernorm", None),
            ("attn_q", "self_attn.q_proj", config.num_attention_heads), ("attn_k", "self_attn.k_proj", config.num_key_value_heads),
            ("attn_v", "self_attn.v_proj", None), ("attn_output", "self_attn.o_proj", None), ("ffn_gate", "mlp.gate_proj", None),
            ("ffn_up", "mlp.up_proj", None), ("ffn_down", "mlp.down_proj", None)]:
        state[f"model.layers.{l}.{ours}.weight"] = load(f"blk.{l}.{theirs}.weight", heads)
net = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float().eval()
net.load_state_dict(state)

texts = json.loads((HERE / "strings.json").read_text())
llama_cpp = LlamaCpp(pathlib.Path(sys.argv[2]))
ids = llama_cpp.ids(sys.argv[1], texts)


def chat(user):
    head = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    text = f"{head}<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"
    return llama_cpp.ids(sys.argv[1], [text], special=True)[0]


with torch.no_grad():
    sequence = [i for one in ids for i in one][:1000]
    torch.manual_seed(0)
    prompt = chat("Tell me a long story about a lighthouse keeper who learns to cook.")
    story = net.generate(torch.tensor([prompt]), do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=1001,
                         eos_token_id=-1, pad_token_id=2)[0].tolist()
    sequence = (sequence + story)[:2001]
    ids2 = torch.tensor([sequence])
    logprobs = torch.log_softmax(net(ids2).logits[0].float(), -1)[:-1].gather(1, ids2[0, 1:, None])[:, 0]
    wide = torch.log_softmax(net.double()(ids2).logits[0], -1)[:-1].gather(1, ids2[0, 1:, None])[:, 0]
    print("f32 against f64:", (logprobs.double() - wide).abs().max().item())
    net.float()
    greedy = []
    for user in ["What is the capital of France?", "Write a Python function that adds two numbers.", "Name three colours."]:
        prompt = chat(user)
        out = net.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=48, eos_token_id=2, pad_token_id=2)
        out = out[0, len(prompt):].tolist()
        greedy.append({"user": user, "prompt": prompt, "ids": out, "text": llama_cpp.text(sys.argv[1], out)})
golden = {"ids": ids, "sequence": sequence, "logprobs": [float(f"{x:.7g}") for x in logprobs.tolist()], "greedy": greedy}
(HERE / "smollm2.json").write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n")
