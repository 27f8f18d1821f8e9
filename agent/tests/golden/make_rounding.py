"""Makes rounding.json: a small matrix in every weight format, by NumPy and ml_dtypes in f32.

    pip install numpy ml_dtypes
    python make_rounding.py

Versions used: numpy 2.4.6, ml_dtypes 0.6.0. Values are bits. The matrix is wider than a block of 128, has rows of different size
and a row of zeros.
"""

import json
import pathlib

import ml_dtypes
import numpy as np

f32 = np.float32
rng = np.random.default_rng(4)
x = (rng.normal(0, 1, (4, 140)) * np.array([[1.0], [0.01], [30.0], [0.0]])).astype(f32)


def e4m3(v, scale):
    scale = scale.astype(f32)
    codes = np.clip(v / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(f32)
    return (codes * scale).astype(f32)


def scale(v, largest, ue8m0=False):
    s = np.maximum(np.abs(v).max(axis=-1, keepdims=True).astype(f32) / f32(largest), f32(1e-12)).astype(f32)
    return np.exp2(np.ceil(np.log2(s.astype(np.float64)))).astype(f32) if ue8m0 else s


def blocks(v, ue8m0):
    out = np.empty_like(v)
    for c in range(0, v.shape[1], 128):
        part = v[:, c:c + 128]
        out[:, c:c + 128] = e4m3(part, scale(part.reshape(1, -1), 448, ue8m0))
    return out


def integers(v, group, largest):
    out = np.empty_like(v)
    for c in range(0, v.shape[1], group):
        part = v[:, c:c + group]
        s = scale(part, largest)
        out[:, c:c + group] = np.clip(np.rint((part / s).astype(f32)), -largest, largest).astype(f32) * s
    return out


golden = {
    "fp8_channel": e4m3(x, scale(x, 448)), "fp8_tensor": e4m3(x, scale(x.reshape(1, -1), 448)), "fp8_block": blocks(x, False),
    "fp8_channel_ue8m0": e4m3(x, scale(x, 448, True)), "fp8_block_ue8m0": blocks(x, True), "int8": integers(x, 140, 127),
    "int4": integers(x, 32, 7), "values": x,
}
golden = {"inputs": 140} | {k: np.ascontiguousarray(v, f32).reshape(-1).view(np.uint32).tolist() for k, v in golden.items()}
(pathlib.Path(__file__).parent / "rounding.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
