"""The comparison on a card, here on tensors of the CPU, is that of compare.py."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from forge.evalpool.judge.channel.shm import TensorSpec
from forge.evalpool.judge.numbers import blocks
from forge.evalpool.judge.numbers.called import dtype_name
from forge.evalpool.judge.wide import card
from forge.evalpool.judge.wide.card import CardWanted, _mask, agree, mismatch
from forge.evalpool.judge.wide.compare import SAME_FUNCTION, Question, Wanted, differing
from forge.evalpool.judge.wide.compare import real_question as real
from forge.evalpool.judge.wide.patterns import mismatch_words

CASES: dict[str, tuple[torch.dtype, Question, tuple[int, ...]]] = {
    "wide": (torch.float64, SAME_FUNCTION, (40, 33)),
    "three axes": (torch.float64, SAME_FUNCTION, (3, 17, 20)),
    "short rows": (torch.float64, SAME_FUNCTION, (50, 3)),
    "real": (torch.float32, real("float32", "fp32"), (40, 33)),
    "half": (torch.float16, real("float16", "fp16"), (9, 16)),
    "bf16": (torch.bfloat16, real("bfloat16", "bf16"), (9, 16)),
    "number": (torch.float64, SAME_FUNCTION, ()),
    "none": (torch.float32, real("float32", "fp32"), (0, 4)),
    "integers": (torch.int64, SAME_FUNCTION, (500,)),
    "real integers": (torch.int32, real("int32", "fp32"), (50,)),
    "quantised": (torch.int8, real("int8", "fp32"), (9, 16)),
    "alone": (torch.int64, replace(real("int64", "fp32"), is_alone=True), (9, 40)),
    "booleans": (torch.bool, SAME_FUNCTION, (7, 7)),
}


def spec_and_bytes(one: torch.Tensor) -> tuple[TensorSpec, memoryview]:
    raw = one.contiguous().reshape(-1).view(torch.uint8).numpy() if one.numel() else np.zeros(0)
    return TensorSpec(dtype_name(one), tuple(one.shape)), memoryview(raw.tobytes())


@pytest.mark.parametrize("limit", [64, 1 << 17])
@pytest.mark.parametrize("name", CASES)
def test_both_comparisons_say_the_same(
    name: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elements are off by about the tolerance; there are special values and a sentinel. Under the
    lower limit all outputs count as large ones."""
    monkeypatch.setattr(blocks, "CACHED", limit)
    if limit == 64:
        monkeypatch.setattr(card, "CHUNK", 0)
        monkeypatch.setattr(card, "LOOKED_AT", 1)
    kind, question, shape = CASES[name]
    draw = torch.Generator().manual_seed(3)
    verdicts = set[bool]()
    for turn in range(24):
        right = torch.randn(shape, generator=draw, dtype=torch.float64) * 10.0 ** (turn % 3)
        if shape:  # rows of unlike scale
            unlike = 10.0 ** -torch.randint(0, 3, (*shape[:-1], 1), generator=draw)
            right *= unlike if kind.is_floating_point else 1
        if kind.is_floating_point and turn % 4 == 1 and right.numel() > 40:
            right.view(-1)[5:8] = torch.tensor([torch.nan, torch.inf, -torch.inf])
        if kind.is_floating_point and turn % 4 == 2 and kind is not torch.float16 and shape:
            right.view(-1)[::3] = -1e9
        right = (right > 0) if kind is torch.bool else right.to(kind)
        got = right.clone()
        if got.numel():
            at = torch.randint(got.numel(), (1 + 3 * (turn % 3),), generator=draw)
            step = question.tolerance * (0.5 + torch.rand(len(at), generator=draw))
            old = right.view(-1)[at]
            length = shape[-1] if shape else 1
            rows = right.reshape(-1, length).double().nan_to_num(0.0, 0.0, 0.0).abs().mean(-1)
            news = old.double() * (1 + step) + step * rows[at // length] * (turn % 5 == 0)
            news = ~old if kind is torch.bool else news + (not kind.is_floating_point)
            got.view(-1)[at] = news.to(kind) if turn % 6 else torch.zeros_like(old)
        spec, data = spec_and_bytes(right)
        wanted = Wanted(spec=spec, data=data, question=question)
        on_cpu = differing(wanted, spec_and_bytes(got)[1])
        ours = CardWanted(tensor=right, question=question)
        assert agree([(got, ours), (right, ours)]) == [on_cpu is None, True]
        assert bool(ours.allows(_mask(got, ours), got)) == (on_cpu is None)
        found = mismatch(got, ours)
        verdicts.add(found is None)
        assert (found is None) == (on_cpu is None)
        if found is not None and on_cpu is not None:
            words, mask = found
            assert mask is not None
            assert (mask == on_cpu).all()
            assert words == mismatch_words(wanted, spec_and_bytes(got)[1], on_cpu)
    assert verdicts == ({True} if name == "none" else {True, False})


def test_an_element_may_be_as_near_to_float64_as_to_eager() -> None:
    exact = torch.linspace(1.0, 2.0, 64, dtype=torch.float64)
    eager = (exact * (1 + 3e-4)).float()
    got = exact.float()
    question = real("float32", "fp32")
    near = CardWanted(tensor=exact, question=question)
    assert agree([(got, CardWanted(tensor=eager, question=question))]) == [False]
    wanted = CardWanted(tensor=eager, question=question, exact=near)
    assert agree([(got, wanted), (eager, wanted), (exact.float() * 1.001, wanted)]) == [
        True,
        True,
        False,
    ]
    eager, exact = torch.arange(400), torch.arange(400) + 5
    near = CardWanted(tensor=exact, question=question)
    assert agree([(exact, CardWanted(tensor=eager, question=question))]) == [False]
    wanted = CardWanted(tensor=eager, question=question, exact=near)
    assert agree([(exact, wanted), (eager, wanted), (exact + 1, wanted)]) == [True, True, False]
