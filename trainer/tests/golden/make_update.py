"""Reference numbers for the trainer: log-probs and entropies of three model families, and one MIPU update.

    pip install torch==2.15.0 transformers==5.24.0
    python make_update.py            # writes forward_{llama,qwen2,qwen3}.json and update.json beside this file

The models are those of `transformers`, in float64. The update is written here a second time, with PyTorch's autograd and
`torch.optim.AdamW`, straight from the equations of arXiv 2606.29526 (appendix form, token level). No code is shared with the crate.
"""
import json, math, pathlib
import torch, transformers
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

HERE = pathlib.Path(__file__).parent
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
VOCAB, TEMPERATURE = 13, 0.8
SHAPE = dict(vocab_size=VOCAB, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=4, rms_norm_eps=1e-6, max_position_embeddings=64,
             rope_parameters={"rope_type": "default", "rope_theta": 1e4}, attn_implementation="eager")


def model(family):
    make = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}[family]
    shape = dict(SHAPE, tie_word_embeddings=family != "qwen2")
    if family == "qwen2":
        shape["num_attention_heads"], shape["num_key_value_heads"] = 2, 1     # Qwen2 derives head_dim from these
    m = AutoModelForCausalLM.from_config(make(**shape)).double().eval()
    with torch.no_grad():
        for name, p in m.named_parameters():
            p.copy_((torch.rand_like(p) - 0.5) * 0.9 + (1.0 if "norm" in name else 0.0))
            p.copy_(p.float().double())                                       # exactly representable in f32
    return m


def describe(m, family):
    c = m.config
    return dict(model_type=family, vocab_size=VOCAB, hidden_size=8, intermediate_size=12, num_hidden_layers=2,
                num_attention_heads=c.num_attention_heads, num_key_value_heads=c.num_key_value_heads, head_dim=4,
                rms_norm_eps=1e-6, rope_theta=1e4, tie_word_embeddings=family != "qwen2", max_position_embeddings=64,
                qk_norm=family == "qwen3", attention_bias=family == "qwen2")


def tensors(m, of=lambda p: p):
    return {n: dict(shape=list(p.shape), values=of(p).detach().flatten().tolist()) for n, p in m.named_parameters()}


def stats(m, ids, mask):
    """Log-probs and entropies at the masked positions, predicted by the position before."""
    logits = m(torch.tensor([ids])).logits[0] / TEMPERATURE
    logp = torch.log_softmax(logits, -1)
    at = [t for t in range(1, len(ids)) if mask[t]]
    rows = logp[[t - 1 for t in at]] if at else logp[:0]
    return rows.gather(1, torch.tensor([[ids[t]] for t in at], dtype=torch.long).view(-1, 1))[:, 0], -(rows.exp() * rows).sum(-1)


def episode(runs, generator):
    ids, mask = [], []
    for sampled, n in runs:
        ids += torch.randint(VOCAB, (n,), generator=generator).tolist()
        mask += [sampled] * n
    return ids, mask


def versions():
    return dict(torch=torch.__version__.split("+")[0], transformers=transformers.__version__)


def forward_golden(family):
    g, m = torch.Generator().manual_seed(1), model(family)
    episodes = []
    for i in range(4):
        ids, mask = episode([(False, 2 + i), (True, 3), (False, 2 * i), (True, 1 + i), (False, 1)], g)
        logprobs, entropies = stats(m, ids, mask)
        episodes.append(dict(ids=ids, loss_mask=mask, logprobs=logprobs.tolist(), entropies=entropies.tolist()))
    out = dict(versions=versions(), config=describe(m, family), temperature=TEMPERATURE, weights=tensors(m), episodes=episodes)
    (HERE / f"forward_{family}.json").write_text(json.dumps(out))


def update_golden():
    g, m, ref = torch.Generator().manual_seed(2), model("qwen3"), model("qwen3")
    start = tensors(m)
    with torch.no_grad():                                                     # the reference is near the policy
        for p, q in zip(ref.parameters(), m.parameters()):
            p.copy_((q + 0.05 * torch.randn(q.shape, generator=g)).float().double())
    c = dict(clip_low=0.2, clip_high=0.28, dual_clip=1.4, w_max=2.0, kl_coefficient=0.05, entropy_bonus=0.01, lr=0.03,
             beta1=0.9, beta2=0.99, eps=1e-4, weight_decay=0.1, max_grad_norm=0.5, epochs=2)
    rewards = [[1, 0, 0, 1], [0.5, 0.5, 0.5], [1.0], [0, 1, 0.25, -0.5, 0.0], [0, 1, 0], [math.nan, 1.0]]
    groups, used = [], []
    for k, group_rewards in enumerate(rewards):
        episodes = []
        for i, reward in enumerate(group_rewards):
            runs = [(False, 2 + i), (True, 2 + (i + k) % 3), (False, 2), (True, 1 + i % 4), (False, k % 2)]
            if k == 4 and i == 2:
                runs = [(False, 5)]                                           # nothing sampled: left out before the statistics
            ids, mask = episode(runs, g)
            with torch.no_grad():
                pi, _ = stats(m, ids, mask)
            gap = 0.3 * torch.randn(pi.shape, generator=g)
            if i == 1 and len(gap):
                gap[0] = -1.3                                                 # w = e^1.3: truncated at w_max
            mu = (pi + gap).float().double()
            full = [0.0] * len(ids)
            for t, v in zip([t for t in range(len(ids)) if mask[t]], mu.tolist()):
                full[t] = v
            episodes.append(dict(ids=ids, loss_mask=mask, sampler_logprobs=full, reward=None if math.isnan(reward) else reward))
        groups.append(episodes)
        kept = [e for e in episodes if any(e["loss_mask"])]
        returns = torch.tensor([math.nan if e["reward"] is None else float(e["reward"]) for e in kept])
        if len(kept) < 2 or not torch.isfinite(returns).all() or returns.std() <= 1e-6:
            continue
        advantages = (returns - returns.mean()) / (returns.std() + 1e-6)
        used += list(zip(kept, advantages.tolist()))

    frozen, reference = [], []
    with torch.no_grad():
        for e, _ in used:
            frozen.append(stats(m, e["ids"], e["loss_mask"])[0])
            reference.append(stats(ref, e["ids"], e["loss_mask"])[0])
    decay = [p for p in m.parameters() if p.dim() > 1]
    plain = [p for p in m.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([dict(params=decay, weight_decay=c["weight_decay"]), dict(params=plain, weight_decay=0.0)],
                                  lr=c["lr"], betas=(c["beta1"], c["beta2"]), eps=c["eps"])
    steps = []
    for _ in range(c["epochs"]):
        optimizer.zero_grad()
        loss, low, high, dual, n = 0.0, 0, 0, 0, 0
        for (e, a), old, base in zip(used, frozen, reference):
            logp, entropy = stats(m, e["ids"], e["loss_mask"])
            mu = torch.tensor([v for v, s in zip(e["sampler_logprobs"], e["loss_mask"]) if s])
            w = (old - mu).exp().clamp(max=c["w_max"])
            r = (logp - old).exp()
            l_clip = torch.minimum(r * a, r.clamp(1 - c["clip_low"], 1 + c["clip_high"]) * a)
            l_dc = l_clip if a >= 0 else torch.maximum(l_clip, torch.tensor(c["dual_clip"] * a))
            d = logp - base
            k3 = (-d).exp() + d - 1
            loss = loss + (-(w * l_dc) + c["kl_coefficient"] * k3 - c["entropy_bonus"] * entropy).mean() / len(used)
            low += int(((r < 1 - c["clip_low"]) & (a < 0)).sum())
            high += int(((r > 1 + c["clip_high"]) & (a > 0)).sum())
            dual += int(((r > c["dual_clip"]) & (a < 0)).sum())
            n += len(r)
        loss.backward()
        gradients = tensors(m, lambda p: p.grad)
        norm = torch.nn.utils.clip_grad_norm_(m.parameters(), c["max_grad_norm"])
        steps.append(dict(loss=loss.item(), grad_norm=norm.item(), clip_low=low, clip_high=high, dual_clip=dual, tokens=n))
        if len(steps) == 1:
            first = gradients
        optimizer.step()
    print(steps)
    out = dict(versions=versions(), config=describe(m, "qwen3"), temperature=TEMPERATURE, settings=c, weights=start,
               reference=tensors(ref), groups=groups, advantages=[a for _, a in used], steps=steps, first_gradient=first,
               final=tensors(m))
    (HERE / "update.json").write_text(json.dumps(out))


for f in ("llama", "qwen2", "qwen3"):
    forward_golden(f)
update_golden()
