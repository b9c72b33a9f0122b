"""Memory that a child keeps between its passes over tensors, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
heap.give_back()
print(again / first, faults() / first)
"""


def faults_of(num_bytes: int | None) -> tuple[float, float]:
    """Page faults of the second block of BLOCK bytes, and of the next behind `give_back`: as shares
    of the first one's."""
    script = SCRIPT.format(num_bytes=num_bytes)
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
