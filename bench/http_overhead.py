"""Measures what HTTP adds to a judgement: the same pool in this process, and behind `/v1/`.

    python bench/http_overhead.py                 # one judge per core, 8 rounds of 24 answers
    python bench/http_overhead.py --workers 1 --rounds 12 --answers 16 --in-flight 16

Each round judges the same number of new answers to one problem in three ways: `pool`, in this
process; `http`, one POST /v1/judge an answer, by `forge.client` in a process of its own; `batch`,
one POST /v1/judge/batch, by the same client. The order of the ways is random, with a pause between
them, in which the judges clean up after the way before. As many are in flight as the server names
(`capacity`), or as given. The pool's way starts with the parsed problem and ends with the published
verdict, as HTTP's does: extraction, source check and feedback are in both. `floor` is what a route
of the same libraries costs that parses and serialises nothing: the same client sends the same bytes
to a Starlette route of the same server without a door, which reads the body, judges an answer of
its own and answers `{}`.

Printed for wall time and for CPU time of all processes: milliseconds an answer, the median over the
rounds of a way's time over the pool's of the same round, minus 1, and of the difference. `ends` is
the CPU time of this process and of the client alone: what judges take varies more than HTTP costs,
and is the same in all ways, so the difference of `ends` is the cost of HTTP. CPU time depends less
on other load. Exit code 1 if a verdict is not correct.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from judge import cpu_seconds
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from forge.api.answering import answering_on
from forge.api.http.routes import JudgeApi
from forge.api.subjects import problem_from_text
from forge.api.verdict import Verdict
from forge.client import Judge
from forge.config.schema import JudgeTable
from forge.evalpool.pool import open_pool
from forge.evalpool.served import PoolApp
from forge.process.server.serving import serve_task

if TYPE_CHECKING:
    from starlette.requests import Request

    from forge.api.answering import Answering

WAYS = ("pool", "http", "batch", "floor")
KINDS = ("wall", "cpu", "ends")
FLOOR = ".floor"
"""What the socket of the floor adds to the other's path."""
PAUSE_S = 0.2
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


class Asking(Judge):
    """A client with the requests that only this measurement sends."""

    def judge_batch(self, texts: list[str]) -> list[Verdict]:
        """Verdicts by one request."""
        items = [{"problem": PROBLEM, "answer": text} for text in texts]
        found = self._ask("POST", "/v1/judge/batch", {"items": items})
        return [Verdict.from_json(each["verdict"]) for each in found["results"]]

    def ask_floor(self, texts: list[str], concurrency: int) -> None:
        """Requests with the bodies of POST /v1/judge, whose answers have no verdict."""

        def ask(text: str) -> None:
            body = {"problem": PROBLEM, "answer": text, "timed": None}
            self._ask("POST", "/floor", body)

        with ThreadPoolExecutor(concurrency) as threads:
            list(threads.map(ask, texts))


def ask(url: str, number: int, concurrency: int) -> None:
    """The client process: judges answers for each label on stdin, and answers with `done`."""
    with Asking(url) as judge, Asking(f"{url}{FLOOR}") as floor:
        for line in sys.stdin:
            label = line.strip()
            verdicts: list[Verdict] = []
            texts = answers(label, number)
            if label.startswith("floor"):
                floor.ask_floor(texts, concurrency)
            elif label.startswith("batch"):
                verdicts = judge.judge_batch(texts)
            else:
                pairs = [(PROBLEM, answer) for answer in texts]
                verdicts = list(judge.judge_many(pairs, concurrency=concurrency))
            if not all(verdict.correct for verdict in verdicts):
                sys.exit(f"{label}: {[verdict.reason for verdict in verdicts]}")
            print(time.process_time(), flush=True)


class Floor:
    """The floor of any route that judges."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._problem = problem_from_text(PROBLEM)
        self._number = itertools.count()

    async def answer(self, request: Request) -> Response:
        """Judges an answer of its own."""
        await request.body()
        text = f"{ANSWER}# floor, {next(self._number)}\n"
        verdict = await self._answering.judge(self._problem, text)
        return Response(b"{}" if verdict.correct else b"", media_type="application/json")


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
        self.cpu_s = 0.0
        """CPU time of the process at the end of its last round."""

    def judge(self, label: str) -> None:
        """Judges one round of answers over HTTP."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{label}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{label}: the client ended")
        self.cpu_s = float(line)

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate(timeout=60)


async def measure(given: argparse.Namespace) -> dict[str, list[tuple[float, ...]]]:
    """Seconds of each round in the order of KINDS, by way."""
    table = JudgeTable(workers=given.workers)
    times: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with (
            open_pool(table, socket_dir=folder, log_dir=folder) as pool,
            anyio.create_task_group() as tasks,
        ):
            app, answering = PoolApp(pool), answering_on(pool, table)
            public = JudgeApi(answering, app, known=None, is_timed=False)
            path = folder / "x.sock"
            await tasks.start(serve_task, app.routes(public.routes()), path)
            floor = Starlette(routes=[Route("/floor", Floor(answering).answer, methods=["POST"])])
            await tasks.start(serve_task, floor, Path(f"{path}{FLOOR}"))
            in_flight = given.in_flight or app.ahead
            client = Client(f"unix:{path}", given.answers, in_flight)
            order = random.Random(0)
            for number in range(-1, given.rounds):  # the first round warms all up
                for way in order.sample(WAYS, len(WAYS)):
                    await anyio.sleep(PAUSE_S)
                    label, before = f"{way} {number}", clocks(client)
                    if way == "pool":
                        await through_pool(answering, label, given.answers, in_flight)
                    else:
                        await anyio.to_thread.run_sync(client.judge, label)
                    if number >= 0:
                        pairs = zip(clocks(client), before, strict=True)
                        times[way].append(tuple(now - then for now, then in pairs))
            client.close()
            tasks.cancel_scope.cancel()
    return times


def clocks(client: Client) -> tuple[float, ...]:
    """Readings in the order of KINDS."""
    return time.monotonic(), cpu_seconds(), time.process_time() + client.cpu_s


def report(times: dict[str, list[tuple[float, ...]]], num_answers: int) -> None:
    """Prints a line for each way and kind of time."""
    for index, name in enumerate(KINDS):
        pool = [1e3 * spent[index] / num_answers for spent in times["pool"]]
        print(f"{name}: pool {statistics.median(pool):.2f} ms an answer")
        for way in WAYS[1:]:
            found = [1e3 * spent[index] / num_answers for spent in times[way]]
            line = f"{name}: {way} {statistics.median(found):.2f} ms"
            ratios = [one / other for one, other in zip(found, pool, strict=True)]
            more = [one - other for one, other in zip(found, pool, strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            print(
                f"{line}, {statistics.median(more):+.2f} ms; overhead {middle - 1:+.1%}"
                f" (quartiles {low - 1:+.1%} to {high - 1:+.1%})"
            )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--answers", type=int, default=24)
    parser.add_argument("--in-flight", type=int, default=0, help="0: as many as the server names")
    parser.add_argument("--client", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client:
        url, number, concurrency = given.client
        return ask(url, int(number), int(concurrency))
    report(anyio.run(measure, given), given.answers)


if __name__ == "__main__":
    main()
