"""Measures what HTTP adds to a judgement: the same pool in this process, and behind `/v1/judge`.

    python bench/http_overhead.py                 # one judge per core, 8 rounds of 24 answers
    python bench/http_overhead.py --workers 1 --rounds 12 --answers 16

Each round judges the same number of new answers to one problem in both ways, in an order that
alternates, with as many in flight as the server names (`capacity`). The client is a process of its
own. The overhead is the median over the rounds of HTTP's time over the pool's, minus 1, for the CPU
time of all processes and for wall time; CPU time depends less on other load. Exit code 1 if a
verdict is not correct.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from judge import cpu_seconds

from forge.api.answering import answering_on
from forge.api.http.routes import JudgeApi
from forge.api.subjects import problem_from_text
from forge.client import Judge
from forge.config.schema import JudgeTable
from forge.evalpool.pool import open_pool
from forge.evalpool.served import PoolApp
from forge.process.server.serving import serve_task

if TYPE_CHECKING:
    from forge.api.answering import Answering

PROBLEM = "def f(x): return torch.relu(x)"
ANSWER = """import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.maximum(tl.load(x + i, mask=i < n), 0.0), mask=i < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
"""


def answers(label: str, number: int) -> list[str]:
    """Answers that no cache knows."""
    return [f"{ANSWER}# {label} {index}\n" for index in range(number)]


def ask(url: str, number: int, concurrency: int) -> None:
    """The client process: judges answers for each label on stdin, and answers with `done`."""
    with Judge(url) as judge:
        for line in sys.stdin:
            label = line.strip()
            pairs = [(PROBLEM, answer) for answer in answers(label, number)]
            verdicts = list(judge.judge_many(pairs, concurrency=concurrency))
            if not all(verdict.correct for verdict in verdicts):
                sys.exit(f"{label}: {[verdict.reason for verdict in verdicts]}")
            print("done", flush=True)


async def through_pool(answering: Answering, label: str, number: int, concurrency: int) -> None:
    """Judges in this process."""
    problem = problem_from_text(PROBLEM)
    limit = anyio.CapacityLimiter(concurrency)

    async def judge(answer: str) -> None:
        async with limit:
            verdict = await answering.judge(problem, answer)
        if not verdict.correct:
            sys.exit(f"{label}: {verdict.reason}")

    async with anyio.create_task_group() as tasks:
        for answer in answers(label, number):
            tasks.start_soon(judge, answer)


class Client:
    """A client process."""

    def __init__(self, url: str, number: int, concurrency: int) -> None:
        argv = [sys.executable, __file__, "--client", url, str(number), str(concurrency)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)

    def judge(self, label: str) -> None:
        """Judges one round of answers over HTTP."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{label}\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "done\n":
            sys.exit(f"{label}: the client ended")

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate(timeout=60)


async def measure(given: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """Wall and CPU seconds of each round, by way."""
    table = JudgeTable(workers=given.workers)
    times: dict[str, list[tuple[float, float]]] = {"pool": [], "http": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with (
            open_pool(table, socket_dir=folder, log_dir=folder) as pool,
            anyio.create_task_group() as tasks,
        ):
            app, answering = PoolApp(pool), answering_on(pool, table)
            public = JudgeApi(answering, app, known=None, is_timed=False)
            await tasks.start(serve_task, app.routes(public.routes()), folder / "x.sock")
            client = Client(f"unix:{folder / 'x.sock'}", given.answers, app.ahead)
            for number in range(-1, given.rounds):  # the first round warms both up
                for way in ("pool", "http") if number % 2 else ("http", "pool"):
                    label, began, cpu_before = f"{way} {number}", time.monotonic(), cpu_seconds()
                    if way == "pool":
                        await through_pool(answering, label, given.answers, app.ahead)
                    else:
                        await anyio.to_thread.run_sync(client.judge, label)
                    if number >= 0:
                        spent = time.monotonic() - began, cpu_seconds() - cpu_before
                        times[way].append(spent)
            client.close()
            tasks.cancel_scope.cancel()
    return times


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--answers", type=int, default=24)
    parser.add_argument("--client", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client:
        url, number, concurrency = given.client
        return ask(url, int(number), int(concurrency))
    times = anyio.run(measure, given)
    for index, name in enumerate(("wall", "cpu")):
        ratios = [
            http[index] / pool[index]
            for pool, http in zip(times["pool"], times["http"], strict=True)
        ]
        each_ms = {
            way: 1e3 * statistics.median(spent[index] for spent in found) / given.answers
            for way, found in times.items()
        }
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"{name}: pool {each_ms['pool']:.1f} ms, http {each_ms['http']:.1f} ms an answer; "
            f"overhead {middle - 1:+.1%} (quartiles {low - 1:+.1%} to {high - 1:+.1%})"
        )


if __name__ == "__main__":
    main()
