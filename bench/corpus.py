"""Judges the honest corpus (`tests/corpus`), and names every candidate that is not correct.

    python -m bench.corpus                          # on this machine's CPU
    python -m bench.corpus --device cuda --out corpus.json

Exit code 1 if less than 97 % are correct.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import anyio

from forge.config.schema import JudgeTable
from forge.evalpool.pool import Pool, open_pool
from forge.process.devices import inventory
from forge.process.sockets import open_socket_dir
from forge.records import Problem, Split, Status, Verdict
from tests.corpus.corpus import Pair, load

MIN_SHARE = 0.97


async def judge_all(given: argparse.Namespace) -> dict[str, Verdict]:
    """Verdicts by the pair's name, `given.in_flight` candidates at a time."""
    gpus = inventory()[:1] if given.device == "cuda" else ()
    waiting, verdicts = iter(load()), dict[str, Verdict]()

    async def work(pool: Pool) -> None:
        for pair in waiting:
            verdicts[pair.name] = await pool.judge(problem(pair), pair.candidate)

    table = JudgeTable(workers=len(os.sched_getaffinity(0)))
    with open_socket_dir() as sockets, tempfile.TemporaryDirectory() as logs:
        async with (
            open_pool(table, socket_dir=sockets, log_dir=Path(logs), gpus=gpus) as pool,
            anyio.create_task_group() as tg,
        ):
            for _ in range(given.in_flight):
                tg.start_soon(work, pool)
    return verdicts


def problem(pair: Pair) -> Problem:
    """The pair's problem as the judge gets it."""
    return Problem(
        problem_id=pair.name, source=pair.problem, family="corpus", level=1, split=Split.GRPO
    )


def main() -> int:
    """Prints one line for each candidate that is not correct, and the share of the others."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--out", type=Path, help="write all verdicts there as JSON")
    given = parser.parse_args()
    if given.device == "cuda" and not inventory():
        parser.error("--device cuda: this machine has no GPU")
    began = time.monotonic()
    verdicts = anyio.run(judge_all, given)
    wall_s = time.monotonic() - began
    missed = {name: one for name, one in verdicts.items() if one.status is not Status.CORRECT}
    for name, one in sorted(missed.items()):
        print(f"{name}: {one.status}: {one.reason}: {one.detail[:300]}")
    num_correct = len(verdicts) - len(missed)
    print(f"{num_correct} of {len(verdicts)} correct in {wall_s:.0f} s")
    if given.out:
        rows = {
            name: {
                "status": one.status,
                "reason": one.reason,
                "detail": one.detail,
                "candidate_us": one.timing.candidate_us if one.timing else None,
                "baseline_us": one.timing.baseline_us if one.timing else None,
            }
            for name, one in sorted(verdicts.items())
        }
        given.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if num_correct >= MIN_SHARE * len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
