"""Memory that a child keeps between its passes over tensors and between draws."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from forge.evalpool.judge.reference import oracle

BLOCK = 64 << 20
SCRIPT = f"""
import resource
from forge.evalpool.judge.channel import heap

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray({BLOCK}).clear()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

heap.keep_freed({{num_bytes}}, memory_bytes=4 << 30)
first, again = faults(), faults()
{{between}}
print(again / first, faults() / first)
"""


def faults_of(num_bytes: int | None, *, between: str = "heap.give_back()") -> tuple[float, float]:
    """Page faults of the second block of BLOCK bytes, and of the next behind `between`: as shares
    of the first one's."""
    script = SCRIPT.format(num_bytes=num_bytes, between=between)
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    again, later = map(float, found.stdout.split())
    return again, later


def test_memory_of_a_small_problem_is_used_again_until_it_is_given_back() -> None:
    again, later = faults_of(BLOCK)
    assert again < 0.1
    assert later > 0.5


@pytest.mark.parametrize("num_bytes", [None, 1 << 30])
def test_memory_of_a_large_or_unknown_problem_goes_back_at_once(num_bytes: int | None) -> None:
    again, _ = faults_of(num_bytes)
    assert again > 0.5


def test_memory_that_is_kept_goes_back_before_a_problem_that_may_need_all_of_it() -> None:
    between = "heap.keep_freed(1 << 30, memory_bytes=4 << 30)"
    assert faults_of(BLOCK, between=between)[1] > 0.5
    assert faults_of(BLOCK, between=f"heap.keep_freed({BLOCK}, memory_bytes=4 << 30)")[1] < 0.1


def test_an_oracle_keeps_the_memory_of_a_large_draw_until_nobody_asks_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge, own = socket.socketpair()
    draws = iter([oracle.LARGE_BYTES, 1, 1, None])
    seen: list[str] = []

    def draw(sock: socket.socket) -> int | None:
        seen.append("draw")
        if len(seen) == 2:
            sock.recv(1)  # nothing more is asked for
        return next(draws)

    monkeypatch.setattr(oracle, "_draw", draw)
    monkeypatch.setattr(oracle.heap, "give_back", lambda: seen.append("back"))
    monkeypatch.setattr(oracle, "KEPT_S", 0.01)
    with judge, own:
        judge.send(b"?")
        oracle.main(own)
    assert seen == ["draw", "draw", "back", "draw", "draw"]
