"""Measures how long questions, filters and comparisons take on a run of any size.

    .venv/bin/python bench/store.py make runs/big-1 --turns 1000000
    .venv/bin/python bench/questions.py runs/big-1 [--json]

Each runs once, then five times: the median counts, all rows fetched. Exit code 1 if a named query
takes more than 200 ms.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forge.views.api import Run, open_run
from forge.views.compare import compare
from forge.views.run.rollouts import Filter, load_rollouts
from forge.views.sql.named_queries import QUERIES

WARM_MS = 200.0
NUM_TIMES = 5

FILTERS = {
    "latest": Filter(),
    "one step": Filter(step=20),
    "timeouts": Filter(status="timeout"),
    "one family": Filter(family="softmax"),
    "a level's correct ones": Filter(level=3, status="correct"),
    "best of a step": Filter(best=True, step=20),
    "best of all": Filter(best=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One query to measure."""

    what: str
    warm_ms: float
    is_bound: bool
    """True if it has to stay within `WARM_MS`."""


def time_questions(run: Run) -> list[Asked]:
    found = [_time(name, lambda name=name: run.ask(name), is_bound=True) for name in QUERIES]
    found += [
        _time(f"rollouts: {name}", lambda wanted=wanted: load_rollouts(run, wanted))
        for name, wanted in FILTERS.items()
    ]
    found.append(_time("compare with itself", lambda: compare(run, run)))
    found.append(_time("show", run.show))
    return found


def _time(what: str, ask: Callable[[], Any], *, is_bound: bool = False) -> Asked:
    taken: list[float] = []
    for _ in range(NUM_TIMES + 1):
        began = time.perf_counter()
        ask()
        taken.append((time.perf_counter() - began) * 1000)
    return Asked(what=what, warm_ms=round(statistics.median(taken[1:]), 1), is_bound=is_bound)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with open_run(asked.run) as run:
        found = time_questions(run)
        num_turns = run.value("SELECT count(*) FROM turns")
    if asked.json:
        print(json.dumps({"turns": num_turns, "asked": [asdict(each) for each in found]}))
    else:
        print(f"{num_turns} turns")
        for each in sorted(found, key=lambda each: -each.warm_ms):
            print(f"{each.warm_ms:8.1f} ms  {each.what}")
    return any(each.is_bound and each.warm_ms > WARM_MS for each in found)


if __name__ == "__main__":
    sys.exit(main())
