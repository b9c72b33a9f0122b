"""Priority of a host's children on a node."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

LOWERED = """
import os
from pathlib import Path
os.nice(7)
Path("/proc/self/oom_score_adj").write_text("1000")
from forge.process.lease import take_parents_priority
print(take_parents_priority(), Path("/proc/self/oom_score_adj").read_text())
"""
SYS_NICE = 23
"""Capability to raise a priority. An OOM score that was raised may be lowered without one."""


def may_raise_priority() -> bool:
    found = re.search(r"^CapEff:\s*(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return bool(int(found[1], 16) >> SYS_NICE & 1)


def test_a_host_takes_the_priority_and_the_oom_score_of_what_started_it() -> None:
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    score = int(Path("/proc/self/oom_score_adj").read_text())
    done = subprocess.run(
        [sys.executable, "-c", LOWERED], capture_output=True, text=True, check=True
    )
    lowered = min(nice + 7, 19)
    expected = [nice if may_raise_priority() else lowered, score]
    assert [int(word) for word in done.stdout.split()] == expected
