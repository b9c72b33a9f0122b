"""The patterns of wrong outputs: each of the usual mistakes is named."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.evalpool.judge.channel.shm import TensorSpec
from forge.evalpool.judge.wide.compare import SAME_FUNCTION, Bytes, Wanted, mismatch
from forge.evalpool.judge.wide.patterns import Values, look, pattern

DRAW = np.random.default_rng(1)
X, Y, Z = DRAW.normal(size=(3, 40, 40))
ROWS = DRAW.normal(size=(12, 50)) + 0.3 * DRAW.normal(size=(12, 1))
SMALL = ROWS * 10.0 ** DRAW.uniform(-2, 0, size=(12, 1))
EQUAL = np.where(np.arange(12)[:, None] == 7, 1.5, ROWS)
LONG = DRAW.normal(size=3000)
WEIGHT, BIAS = DRAW.normal(size=(2, 50))
W30, B30 = DRAW.normal(size=(30, 40)), DRAW.normal(size=30)
IMAGE = DRAW.normal(size=(2, 3, 20, 20))
CHANNEL = DRAW.normal(size=(3,))


def softmax(x: Any, axis: int = 1) -> Any:
    return np.exp(x) / np.exp(x).sum(axis, keepdims=True)


def layer_norm(
    x: Any, *, eps: float = 1e-5, pad: int = 0, ddof: int = 0, affine: bool = True
) -> Any:
    mean = x.mean(1, keepdims=True)
    variance = x.var(1, keepdims=True, ddof=ddof) + pad / x.shape[1] * mean**2
    with np.errstate(all="ignore"):
        y = (x - mean) / np.sqrt(variance + eps)
    return y * WEIGHT + BIAS if affine else y


def gelu(x: Any, approximate: str = "none") -> Any:
    return torch.nn.functional.gelu(torch.as_tensor(x), approximate=approximate).numpy()


def tf32(x: Any) -> Any:
    bits = x.astype(np.float32).view(np.uint32) + np.uint32(0x1000) & np.uint32(0xFFFFE000)
    return bits.view(np.float32).astype(np.float64)


def words(expected: Any, got: Any, operands: Sequence[Any] = (), dtype: Any = np.float64) -> str:
    expected, got = (np.asarray(one, dtype=dtype) for one in (expected, got))
    values = [
        Values.of_bytes(TensorSpec("float64", one.shape), one.tobytes(), name=f"input {number}")
        for number, one in enumerate(np.ascontiguousarray(one) for one in operands)
    ]
    sides = [Bytes(TensorSpec(str(one.dtype), one.shape), one.tobytes()) for one in (expected, got)]
    wanted = Wanted(values=sides[0], question=SAME_FUNCTION)
    return (mismatch(wanted, sides[1], operands=lambda: values) or ("", None))[0]


CASES: dict[str, tuple[Any, Any, Sequence[Any], Sequence[str]]] = {
    "another axis": (softmax(X), softmax(X, 0), [X], ["sums to 1", "dimension 0", "dimension 1"]),
    "masked lanes in a softmax": (
        softmax(X), np.exp(X) / (np.exp(X).sum(1, keepdims=True) + 24), [X],
        ["each row", "24 masked lanes", "other=-inf"],
    ),
    "a remainder lost in a softmax": (
        softmax(X), np.exp(X) / np.exp(X[:, :32]).sum(1, keepdims=True), [X], ["32 of 40"],
    ),
    "ones that are no exp of 0": (X > 1, (X > 1) | (np.abs(X) < 0.3), [], []),
    "a remainder lost in a product": (X @ Y, X[:, :32] @ Y[:32], [X, Y], ["first 32 of 40"]),
    "a first block lost in a product": (X @ Y, X[:, 8:] @ Y[8:], [X, Y], ["last 32 of 40"]),
    "a block added twice": (X @ Y, X @ Y + X[:, 32:] @ Y[32:], [X, Y], ["last 8 of 40", "twice"]),
    "a remainder lost in a linear layer": (
        X @ W30.T + B30, X[:, :32] @ W30.T[:32] + B30, [X, W30, B30], ["first 32 of 40"],
    ),
    "no bias": (X @ W30.T + B30, X @ W30.T, [X, W30, B30], ["minus input 2"]),
    "bias of a channel": (
        IMAGE + CHANNEL[:, None, None], IMAGE, [IMAGE * 2, CHANNEL], ["minus input 1"],
    ),
    "a bias of rows": (
        Y + X[0], Y + X[0][:, None], [Y, X[0]], ["input 1 along dimension 0", "along 1"],
    ),
    "a scale of rows": (Y * X[0], Y * X[0][:, None], [Y, X[0]], ["input 1 along dimension 0"]),
    "a transposed operand": (X @ Y, X @ Y.T, [X, Y], ["input 1 transposed"]),
    "a transposed output": (X @ Y, (X @ Y).T, [X, Y], ["dimensions 0 and 1 exchanged"]),
    "a remainder lost in a sum": (X.sum(1), X[:, :32].sum(1), [X], ["first 32 of 40"]),
    "a sum along another axis": (X.sum(1), X.sum(0), [X], ["sum of input 0", "dimension 0"]),
    "a mean by the block": (X.mean(1), X.sum(1) / 64, [X], ["0.625", "40 elements", "64"]),
    "a sum for a mean": (X.mean(1), X.sum(1), [X], ["40 · expected"]),
    "masked lanes in a maximum": (
        (X - 3).max(1), np.maximum((X - 3).max(1), 0), [X - 3], ["never below 0", "other=-inf"],
    ),
    "masked lanes in a maximum below 0": (
        (X - 9).max(1), 0 * X.max(1), [X - 9], ["maximum of expected and 0", "other=-inf"],
    ),
    "masked lanes in a minimum": (
        (X + 9).min(1), 0 * X.min(1), [X + 9], ["minimum of expected and 0", "other=inf"],
    ),
    "masked lanes in a log of a sum of exp": (
        np.log(np.exp(X).sum(1)), np.log(np.exp(X).sum(1) + 24), [X], ["24 masked", "other=-inf"],
    ),
    "a mean of squares by the block": (
        X / np.sqrt((X * X).mean(1, keepdims=True)),
        X / np.sqrt((X * X).sum(1, keepdims=True) / 64), [X], ["40 elements", "64 under a root"],
    ),
    "another slope": (
        np.where(LONG > 0, LONG, LONG / 50), np.where(LONG > 0, LONG, LONG / 5), [LONG],
        ["input 0 is negative: got = 10 · expected\n"],
    ),
    "masked lanes in a variance": (
        layer_norm(ROWS), layer_norm(ROWS, pad=14), [ROWS, WEIGHT, BIAS],
        ["14 zeros", "50 elements", "masked lanes"],
    ),
    "no epsilon": (
        layer_norm(SMALL), layer_norm(SMALL, eps=0), [SMALL, WEIGHT, BIAS],
        ["1e-05 less", "epsilon"],
    ),
    "no epsilon in rows of one variance": (
        layer_norm(ROWS), layer_norm(ROWS, eps=0), [ROWS, WEIGHT, BIAS], ["1e-05 less", "epsilon"],
    ),
    "an unbiased variance behind an affine part": (
        layer_norm(ROWS), layer_norm(ROWS, ddof=1), [ROWS, WEIGHT, BIAS], ["50 in place of 49"],
    ),
    "no root": (
        layer_norm(ROWS),
        (ROWS - ROWS.mean(1, keepdims=True)) / (ROWS.var(1, keepdims=True) + 1e-5) * WEIGHT + BIAS,
        [ROWS, WEIGHT, BIAS], ["root of the variance is missing"],
    ),
    "no log": (np.log(softmax(X)), softmax(X), [X], ["exp of expected"]),
    "no epsilon where it divides by 0": (
        layer_norm(EQUAL), layer_norm(EQUAL, eps=0), [EQUAL, WEIGHT, BIAS],
        ["variance is 0", "epsilon"],
    ),
    "an unbiased variance": (
        layer_norm(ROWS, affine=False), layer_norm(ROWS, ddof=1, affine=False), [ROWS],
        ["the root of 50 in place of 49"],
    ),
    "another gelu": (gelu(LONG), gelu(LONG, "tanh"), [LONG], ["gelu (tanh)", "gelu (erf)"]),
    "no relu": (np.maximum(LONG, 0), LONG, [LONG], ["input 0 is negative", "got is input 0"]),
    "no slope": (np.where(LONG > 0, LONG, LONG / 7), np.maximum(LONG, 0), [LONG], ["negative"]),
    "a tail": (
        gelu(LONG), np.where(np.arange(3000) < 2816, gelu(LONG), 0), [LONG],
        ["output[2816:]", "last 184", "is 0"],
    ),
    "the last column": (X, np.where(np.arange(40) < 39, X, 7), [Y], ["output[:, 39]", "is 7"]),
    "each second block": (
        X @ Y, np.where(np.arange(40)[:, None] // 8 % 2, 0, X @ Y), [X, Y], ["blocks of 8 rows"],
    ),
    "an exclusive scan": (np.cumsum(X, 1), np.cumsum(X, 1) - X, [X], ["minus input 0"]),
    "shifted by one": (X @ Y, np.roll(X @ Y, 1, 1), [X, Y], ["shifted by one", "dimension 1"]),
    "a scan along another axis": (
        np.cumsum(X, 1), np.cumsum(X, 0), [X], ["running sum of input 0 along dimension 0"],
    ),
    "accumulated": (X @ Y, 3 * (X @ Y), [X, Y], ["3 · expected", "not reset"]),
    "no scale": (X @ Y / 40**0.5, X @ Y, [X, Y], ["6.32456", "the root of 40"]),
    "another base": (np.log(X**2), np.log2(X**2), [X], ["log2 e"]),
    "sign": (X @ Y, -(X @ Y), [X, Y], ["other sign"]),
    "no residual": (X + Y @ Z, Y @ Z, [X, Y, Z], ["minus input 0"]),
    "rounded to half": (X, X.astype(np.float16), [Y], ["half precision"]),
    "a product in TF32": (X @ Y, tf32(X) @ tf32(Y), [X, Y], ["TF32"]),
    "an overflow": (
        softmax(X), np.where(np.arange(40)[:, None] == 3, np.nan, softmax(X)),
        [np.where(np.arange(40)[:, None] == 3, 100 * X, X)], ["output[3, :]", "exp overflows"],
    ),
    "a log of 0": (X, np.where(Y > 2, np.inf, X), [np.where(Y > 2, 0, Y)], ["input 0 is 0"]),
    "noise": (X, DRAW.normal(size=X.shape), [Y], []),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_usual_mistakes_are_named(name: str) -> None:
    expected, got, operands, facts = CASES[name]
    found = words(expected, got, operands) + "\n"
    assert [one for one in facts if one not in found] == [], found
    assert len(found.strip().split("\n")) == (2 if facts else 1), found


def test_a_pattern_is_found_in_float32_too() -> None:
    for name in ("another axis", "masked lanes in a variance", "a remainder lost in a product"):
        expected, got, operands, facts = CASES[name]
        found = words(expected, got, operands, np.float32)
        assert [one for one in facts if one not in found] == [], found


def test_integers_and_one_element_have_words() -> None:
    assert "output[3]: expected 3, got 2" in words(np.arange(5), [0, 1, 2, 2, 4], dtype=np.int64)
    assert "output: expected 1.5, got 1.25; 100%" in words(1.5, 1.25)


@given(
    shape=st.lists(st.integers(0, 9), max_size=4),
    dtype=st.sampled_from(["float64", "float32", "float16", "int64", "int8", "bool", "bfloat16"]),
    kind=st.sampled_from(["normal", "equal", "few", "special", "huge"]),
    seed=st.integers(0, 1 << 20),
)
@settings(deadline=None, max_examples=60)
def test_no_hypothesis_fails_whatever_the_output_holds(
    shape: list[int], dtype: str, kind: str, seed: int
) -> None:
    draw = np.random.default_rng(seed)

    def made(*sizes: int, dtype: str) -> Values:
        spec = TensorSpec(dtype, sizes)
        raw = draw.integers(0, 256, spec.num_bytes, np.uint8)
        if dtype == "float64" and kind != "special":
            scale = {"equal": 0.0, "few": 0.01, "huge": 1e300}.get(kind, 1.0)
            values = 1.0 + scale * draw.normal(size=sizes)
            raw = np.frombuffer((np.floor(values) if kind == "few" else values).tobytes(), np.uint8)
        return Values.of_bytes(spec, raw.tobytes())

    expected, got = (made(*shape, dtype=dtype) for _ in range(2))
    others = [shape, shape[::-1], shape[-1:], [*shape[-1:], 5], [5, *shape]]
    operands = [made(*sizes, dtype="float64") for sizes in others]
    mask = draw.random(shape) < draw.choice([0.02, 0.5, 1.0])
    if mask.any():
        pattern(look(mask, expected, got, operands=operands))
