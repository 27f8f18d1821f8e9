"""Makes sampling.json: which ids the filters of transformers keep, and their log-probs.

    pip install torch transformers numpy
    python make_sampling.py

Versions used: torch 2.15.0, transformers 5.24.0, numpy 2.4.6. The order is transformers': temperature, top-k, top-p, min-p.
"""

import json
import pathlib

import numpy as np
import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

rng = np.random.default_rng(3)
cases = []
for spread in [0.5, 2.0, 5.0]:
    logits = rng.normal(0, spread, 97).astype(np.float32)
    for temperature, k, p, m in [(1.0, 0, 1.0, 0.0), (1.0, 5, 1.0, 0.0), (0.7, 0, 0.9, 0.0), (1.3, 0, 1.0, 0.05), (0.8, 20, 0.8, 0.1),
                                 (1.0, 1, 1.0, 0.0), (2.0, 60, 0.5, 0.0), (1.0, 0, 0.01, 0.0), (1.0, 0, 1.0, 1.0)]:
        x = torch.from_numpy(logits.astype(np.float64))[None]
        x = TemperatureLogitsWarper(temperature)(None, x)
        full = torch.log_softmax(x, -1)[0]
        if k:
            x = TopKLogitsWarper(k)(None, x)
        if p < 1:
            x = TopPLogitsWarper(p)(None, x)
        if m > 0:
            x = MinPLogitsWarper(m)(None, x)
        kept = torch.isfinite(x[0]).nonzero()[:, 0].tolist()
        logprobs = torch.log_softmax(x, -1)[0]
        cases.append({"logits": [int(b) for b in logits.view(np.uint32)], "temperature": temperature, "top_k": k, "top_p": p, "min_p": m,
                      "kept": kept, "logprobs": [logprobs[i].item() for i in kept], "unfiltered": [full[i].item() for i in kept]})
path = pathlib.Path(__file__).parent / "sampling.json"
path.write_text(json.dumps(cases, separators=(",", ":")) + "\n")
