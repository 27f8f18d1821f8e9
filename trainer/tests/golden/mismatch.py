"""Golden values of the mismatch diagnostics: python3 mismatch.py > mismatch.json (NumPy alone; its version is in the output)."""

import json

import numpy as np

rng = np.random.default_rng(251223075)
f64 = np.float64


def make(episodes, scale, persistent, longest):
    out = []
    for _ in range(episodes):
        tokens = int(rng.integers(longest // 3, longest + 1))
        turns = np.sort(rng.integers(0, 4, tokens))
        mu = -rng.exponential(0.7, tokens).astype(np.float32)
        d = scale * rng.standard_normal(tokens) + persistent * rng.standard_normal()
        out.append({"sampler": mu, "trainer": (mu + d).astype(np.float32), "turn": turns})
    return out


def gaps(e):
    return f64(e["trainer"]) - f64(e["sampler"])


def ess(w):
    return float(1 / np.mean((w / w.mean()) ** 2))


def span(d, mu):
    return {"tokens": len(d), "gap_mean": d.mean(), "abs_logp_diff_mean": np.abs(d).mean(),
            "k3": (np.expm1(d) - d).mean(), "ratio_mean": np.exp(d).mean(), "surprise_mean": -mu.mean()}


def diagnose(eps):
    d = np.concatenate([gaps(e) for e in eps])
    mu = np.concatenate([f64(e["sampler"]) for e in eps])
    pi = np.concatenate([f64(e["trainer"]) for e in eps])
    turn = np.concatenate([e["turn"] for e in eps])
    position = np.concatenate([np.arange(len(e["turn"])) for e in eps])
    seq = np.array([gaps(e).sum() for e in eps])
    ratio = np.exp(d).mean()
    m, n = len(eps), len(d)
    residual = np.array([(np.exp(gaps(e)) - ratio).sum() / n for e in eps])
    totals = {
        "k1": -d.mean(), "k2": (d ** 2).mean() / 2, "k3": (np.exp(d) - d - 1).mean(),
        "abs_logp_diff_mean": np.abs(d).mean(), "abs_logp_diff_max": np.abs(d).max(),
        "abs_logp_diff_p99": np.percentile(np.abs(d), 99), "ratio_mean": ratio,
        "ratio_mean_se": np.sqrt(m / (m - 1) * (residual ** 2).sum()),
        "mult_prob_error": np.exp(np.abs(d)).mean(),
        "prob_diff_mean": np.abs(np.exp(pi) - np.exp(mu)).mean(), "prob_diff_max": np.abs(np.exp(pi) - np.exp(mu)).max(),
        "prob_pearson": np.corrcoef(np.exp(pi), np.exp(mu))[0, 1],
        "chi2_token": np.exp(2 * d).mean() - 1, "chi2_seq": np.exp(2 * seq).mean() - 1,
        "ess": ess(np.exp(d)), "ess_seq": ess(np.exp(seq)),
        "log_ppl_diff": np.mean([-gaps(e).mean() for e in eps]),
    }
    return {
        "totals": totals,
        "by_turn": [span(d[turn == t], mu[turn == t]) for t in np.unique(turn)],
        "first_position": span(d[position == 0], mu[position == 0]),
    }


def slope(x, y):
    return np.polyfit(x, y, 1)


def fit(paths):
    need = max(8, -(-len(paths) // 2))
    grid = [n for n in [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128] if sum(len(p) >= n for p in paths) >= need]
    x = np.log(grid)

    def logvar(ps):
        return np.log([np.var([p[n - 1] for p in ps if len(p) >= n], ddof=1) for n in grid])

    (b, a), covariance = np.polyfit(x, logvar(paths), 1, cov="unscaled")
    residual = logvar(paths) - a - b * x
    left_out = np.array([slope(x, logvar(paths[:i] + paths[i + 1:]))[0] for i in range(len(paths))])
    n = len(paths)
    return {
        "exponent": b, "scale": np.exp(a), "points": len(grid), "last": grid[-1],
        "se": np.sqrt((n - 1) / n * ((left_out - left_out.mean()) ** 2).sum()),
        "residual_se": np.sqrt((residual ** 2).sum() / (len(grid) - 2) * covariance[0, 0]),
    }


def point(paths, n):
    alive = np.array([p[n - 1] for p in paths if len(p) >= n])
    stopped = np.array([p[min(n, len(p)) - 1] for p in paths])
    w = np.exp(stopped)
    return {"n": n, "alive": len(alive), "mean": alive.mean(), "mean_se": np.sqrt(alive.var(ddof=1) / len(alive)),
            "variance": alive.var(ddof=1), "weight_mean": w.mean(),
            "weight_mean_se": w.std(ddof=1) / np.sqrt(len(w)), "ess": ess(w),
            "share_outside": ((w < 0.5) | (w > 2)).mean()}


def accumulate(eps):
    by_token = [np.cumsum(gaps(e)) for e in eps]
    by_turn = [np.array([s[np.flatnonzero(e["turn"] == t)[-1]] for t in np.unique(e["turn"])]) for s, e in zip(by_token, eps)]
    total, length = np.array([p[-1] for p in by_token]), np.array([len(p) for p in by_token])
    drift, m = total.sum() / length.sum(), len(eps)
    return {
        "tokens": int(length.sum()), "drift_per_token": drift,
        "drift_per_token_se": np.sqrt(m / (m - 1) * (((total - drift * length) / length.sum()) ** 2).sum()),
        "points": [point(by_token, n) for n in (1, 7, 20)], "turn_points": [point(by_turn, n) for n in (1, 2, 3)],
        "fit": fit(by_token),
    }


def plain(x):
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, list):
        return [plain(v) for v in x]
    return x.tolist() if hasattr(x, "tolist") else x


cases = []
for name, eps in [
    ("random walk", make(40, 0.05, 0.0, 48)),
    ("persistent gap", make(40, 0.05, 0.05, 48)),
    ("harsh", make(24, 0.4, 0.02, 30)),
]:
    cases.append({"name": name, "episodes": eps, "diagnostics": diagnose(eps), "accumulation": accumulate(eps)})
print(json.dumps({"numpy": np.__version__, "cases": plain(cases)}))
