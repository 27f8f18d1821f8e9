"""Golden values of the gate statistic: python3 gate.py > gate.json (NumPy alone; versions are in the output)."""

import itertools
import json
import math

import numpy as np

rng = np.random.default_rng(20260629)


def grpo(returns):
    """(R - mean) / (std_{n-1} + 1e-6), zero when the group says nothing."""
    r = np.asarray(returns, dtype=np.float64)
    if len(r) < 2 or r.std(ddof=1) <= 1e-6:
        return np.zeros(len(r))
    return (r - r.mean()) / (r.std(ddof=1) + 1e-6)


def make_group(size, scale, success, empty=()):
    episodes = []
    for i in range(size):
        tokens = 0 if i in empty else int(rng.integers(3, 12))
        mu = -rng.exponential(0.7, tokens).astype(np.float32)
        pi = (mu + scale * rng.standard_normal(tokens)).astype(np.float32)
        episodes.append({
            "sampler": [float(x) for x in mu],
            "trainer": [float(x) for x in pi],
            "ret": float(success[i] if isinstance(success, list) else rng.random() < success),
        })
    return episodes


def measure(groups, exact):
    rhos, advs, sizes = [], [], []
    for group in groups:
        kept = [e for e in group if e["sampler"]]
        if not kept:
            continue
        rhos.append(np.array([math.exp(np.mean(np.float64(e["trainer"]) - np.float64(e["sampler"]))) for e in kept]))
        advs.append(grpo([e["ret"] for e in kept]))
        sizes.append(len(kept))
    n = sum(sizes)
    products = np.concatenate([r * a for r, a in zip(rhos, advs)])
    t_hat = -products.mean()
    informative = [g for g in range(len(sizes)) if np.any(advs[g] != 0)]
    n_inf = sum(sizes[g] for g in informative)
    t_inf = -sum((rhos[g] * advs[g]).sum() for g in informative) / n_inf
    m = len(sizes)
    totals = np.array([-(r * a).sum() for r, a in zip(rhos, advs)])
    se = math.sqrt(m / (m - 1) * (((totals - t_hat * np.array(sizes)) / n) ** 2).sum())
    # Covariance form: -mean over episodes of the group's population covariance.
    cov = -sum(s * np.mean((r - r.mean()) * (a - a.mean())) for r, a, s in zip(rhos, advs, sizes)) / n
    bar = -t_hat * n - 1e-12
    if exact:
        null = np.zeros(1)
        for g in informative:
            perms = np.array([(rhos[g] * np.array(p)).sum() for p in set(itertools.permutations(advs[g]))])
            null = (null[:, None] + perms[None, :]).ravel()
        p_value, null_sd = float((null >= bar).mean()), float((null / n).std())
    else:
        draws = 200_000
        null = np.zeros(draws)
        for g in informative:
            order = rng.permuted(np.tile(advs[g], (draws, 1)), axis=1)
            null += order @ rhos[g]
        p_value = float((1 + (null >= bar).sum()) / (1 + draws))
        null_sd = math.sqrt(sum(
            ((rhos[g] - rhos[g].mean()) ** 2).sum() * (advs[g] ** 2).sum() / (sizes[g] - 1) for g in informative)) / n
    return {
        "t_hat": float(t_hat), "t_hat_informative": float(t_inf), "covariance_form": float(cov), "se": se,
        "p_value": p_value, "null_sd": null_sd, "exact": exact,
        "n_episodes": n, "n_groups": m, "n_informative": len(informative),
        "reward": float(np.concatenate([[e["ret"] for e in g if e["sampler"]] for g in groups]).mean()),
    }


cases = []
for name, groups, exact in [
    ("two groups of four, every arrangement", [make_group(4, 0.1, [1, 0, 0, 1]), make_group(4, 0.1, [0, 0.5, 1, 0]), make_group(4, 0.1, 1.0)], True),
    ("unequal sizes and empty episodes", [make_group(5, 0.3, [1, 1, 0, 0, 1], empty=(1,)), make_group(7, 0.3, [0, 1, 1, 0, 1, 1, 1]), make_group(3, 0.3, 0.0)], True),
    ("quick-start shape", [make_group(8, 0.03, 0.6) for _ in range(16)], False),
    ("harsh mismatch", [make_group(8, 0.5, 0.4) for _ in range(16)], False),
]:
    cases.append({"name": name, "groups": groups, "expected": measure(groups, exact)})

print(json.dumps({"numpy": np.__version__, "cases": cases}))
