"""Attacks that the judge still takes for honest kernels on a CPU (found 2026-11-24).

Each is expected to fail, strictly: one that a repair refuses must become a cheat of the zoo. Left
out: one that wins by chance, one that is weak numerically, one that is a question of the problem's
domain.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forge.records import Status

if TYPE_CHECKING:
    from collections.abc import Callable

ATTACKS: dict[str, dict[str, str]] = json.loads(
    Path(__file__).with_name("open_attacks.json").read_text()
)


@pytest.mark.long
@pytest.mark.xfail(strict=True, reason="open: the judge takes it for honest")
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused(bench_for: Callable[[str], Any], name: str) -> None:
    attack = ATTACKS[name]
    verdict = bench_for("cpu").judge(attack["candidate"], problem=attack["problem"])
    assert verdict.status is not Status.CORRECT
