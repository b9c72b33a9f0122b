"""Feeds mutated programs to the parser, the policies and `explain`; counts how they end.

usage: python -m bench.fuzz_programs [COUNT] [SEED]        100,000 take about two minutes

Ends with a traceback, and writes the bytes to `fuzz-failure.bin`, if anything but InvalidProgram
comes out.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

from forge.evalpool.judge.program.wire import dumps
from tests.evalpool.program.mutations import mutated, outcome
from tests.evalpool.program.programs import addition, everything, tuned


def main(count: int, seed: int) -> None:
    bases = [dumps(program) for program in (addition(), tuned(), everything())]
    ends: Counter[str] = Counter()
    slowest = 0.0
    start = time.monotonic()
    for number in range(count):
        random = Random(seed * count + number)
        data = mutated(random.choice(bases), random)
        began = time.monotonic()
        try:
            ends[outcome(data)] += 1
        except BaseException:
            Path("fuzz-failure.bin").write_bytes(data)
            raise
        slowest = max(slowest, time.monotonic() - began)
    taken = time.monotonic() - start
    print(f"{count} mutated programs in {taken:.0f} s, the slowest in {slowest * 1e3:.0f} ms")
    for end, times in ends.most_common():
        print(f"{times:8} {end}")


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]]
    main(*(numbers + [100_000, 0][len(numbers) :]))
