"""Threads of an oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from forge.evalpool.judge.numbers.called import Unjudgeable
from forge.evalpool.judge.reference import oracle
from forge.records.examination import Flag

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_reference_that_differs_in_several_threads_is_drawn_in_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[int] = []

    def computed(request: dict[str, Any], terms: Any, delivery: Any) -> str:
        used.append(torch.get_num_threads())
        if torch.get_num_threads() > 1:
            raise Unjudgeable("two runs differ", flag=Flag.NONDETERMINISTIC)
        return "drawn"

    monkeypatch.setattr(oracle, "_computed", computed)
    monkeypatch.setattr(oracle, "require_room", lambda *_, **__: 1 << 30)
    monkeypatch.setattr(oracle.heap, "keep_freed", lambda *_, **__: None)
    monkeypatch.setattr(oracle.os, "sched_getaffinity", lambda _: {0, 1, 2})
    request = {
        "source": "", "entry_point": "Model", "precision": "fp32", "device": "cpu", "tf32": False,
        "tf32_products": False, "max_bytes": 1 << 33, "plain": False, "moved": True,
    }  # fmt: skip
    assert oracle._compute(request) == "drawn"
    assert used == [3, 1]
