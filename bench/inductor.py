"""Makes answers with Inductor, rewrites them into plain Triton and judges the modules.

    python -m bench.inductor --num 80                                 # this machine's CPU
    python -m bench.inductor --num 80 --kernelbench ~/KernelBench --max-mb 0.2
    python -m bench.inductor --num 400 --device cuda --kernelbench ~/KernelBench --out rows.json

Rows come from generated problems, and from levels 1 and 2 of a KernelBench checkout (half of them).
Inductor writes its code for an H100, also where there is none (`bench/inductor_rows.py`); with a
GPU, half of the rows are of training, with the outputs that a backward would need. A problem whose
inputs and parameters have more than `--max-mb` gets lower constants, `--largest` lowers those of
all. Each module is judged under the policy that its rewrite names. Prints progress, shares by class
(pointwise, reduction, extern), the reasons of the rows that were not rewritten, and a line for
each module that is not correct. After `--limit-s`, at SIGTERM or Ctrl-C the rows that are not
judged by then are left out of the shares; `--out` has them all. Exit code 1 if less than 85 % of
the pointwise and reduction rows are judged correct, 4 if rows were not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from types import FrameType

import anyio

from bench.inductor_problems import sources
from bench.inductor_workers import Made, Task, make_all
from forge.config.schema import JudgeTable
from forge.evalpool.pool import Pool, open_pool
from forge.process.devices import inventory
from forge.process.sockets import open_socket_dir
from forge.records import Problem, Split, Status

MIN_SHARE = 0.85
CLASSES = ("pointwise", "reduction", "extern")
SPARE = 1.1
"""Problems tried for each row asked for: some give none."""
MAKING = 0.5
"""Share of the time limit in which rows are made."""
EVERY_S = 5.0
"""Time between two lines of progress, and between two writings of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of one row."""

    made: Made
    status: str = ""
    """Of the verdict; empty if there is none."""
    detail: str = ""
    judge_s: float = 0.0

    @property
    def kind(self) -> str:
        """One of CLASSES."""
        return kind_of(self.made.answer)

    @property
    def is_open(self) -> bool:
        """True if the module has not been judged."""
        return not self.made.reason and not self.status

    def as_json(self) -> dict[str, object]:
        judged = {"status": self.status, "verdict": self.detail, "judge_s": self.judge_s}
        return {**asdict(self.made), "kind": self.kind, **judged}


@dataclass(slots=True, kw_only=True)
class Session:
    """Time limit, results so far, and the file that has them."""

    until: float
    out: Path | None
    results: dict[str, Result] = field(default_factory=dict[str, Result])
    stopped: bool = False
    began: float = field(default_factory=time.monotonic)
    told: float = 0.0

    def stop(self, number: int, _frame: FrameType | None) -> None:
        self.stopped = True
        print(f"signal {number}: writing what there is", flush=True)

    @property
    def is_over(self) -> bool:
        return self.stopped or time.monotonic() > self.until

    def tell(self, words: str, *, now: bool = False) -> None:
        """Prints a line and writes the file, at most once in EVERY_S seconds."""
        if not now and time.monotonic() - self.told < EVERY_S:
            return
        self.told = time.monotonic()
        print(f"{self.told - self.began:6.1f} s  {words}", flush=True)
        if self.out:
            rows = [one.as_json() for one in self.results.values()]
            beside = self.out.with_name(f"{self.out.name}.part")
            beside.write_text(json.dumps(rows, indent=1) + "\n")
            beside.replace(self.out)


def choose_tasks(given: argparse.Namespace) -> list[Task]:
    """Problems for the rows asked for, and some to spare."""
    is_gpu = given.device == "cuda"
    most = None if given.max_mb is None else int(given.max_mb * 1e6)
    named = sources(given.kernelbench, sizes="gpu" if is_gpu else "small", seed=given.seed)
    return [
        Task(
            name=name, problem=source, largest=given.largest, max_bytes=most,
            trains=is_gpu and number // 2 % 2 == 1,  # of both sources, which alternate
        )
        for number, (name, source) in enumerate(islice(named, int(given.num * SPARE) + 1))
    ]  # fmt: skip


def make_rows(given: argparse.Namespace, session: Session) -> list[Made]:
    """Rows of the first problems that have one; those without are counted and left out."""
    tasks = choose_tasks(given)
    until = time.monotonic() + MAKING * (session.until - time.monotonic())
    found: dict[str, Made] = {}
    workers = min(given.workers, len(tasks))
    for made in make_all(tasks, workers=workers, until=until, stopped=lambda: session.stopped):
        found[made.name] = made
        session.tell(f"{len(found)} of {len(tasks)} problems compiled")
    failed = [one for one in found.values() if one.error]
    for one in failed:
        print(f"no row of {one.name}: {one.error}")
    rows = [found[task.name] for task in tasks if task.name in found]
    rows = [one for one in rows if not one.error][: given.num]
    print(f"{len(rows)} rows made ({sum(one.trains for one in rows)} of training), {len(failed)} "
          f"problems without one, {len(tasks) - len(found)} given up")  # fmt: skip
    return rows


def kind_of(answer: str) -> str:
    """The class of a row: extern if torch computes a part, else by its kernels."""
    if re.search(r"extern_kernels\.\w+\(|torch\.ops\.aten\.\w+(\.\w+)?\(", answer):
        return "extern"
    return "reduction" if re.search(r"\btriton_(per|red|spl)_", answer) else "pointwise"


async def judge_all(rows: Sequence[Made], given: argparse.Namespace, session: Session) -> None:
    """Judges the modules, each under its policy, until the session is over."""
    gpus = inventory()[:1] if given.device == "cuda" else ()
    for policy in ("own", "hybrid"):
        chosen = [one for one in rows if one.policy == policy]
        if not chosen or session.is_over:
            continue
        table = JudgeTable(
            workers=given.workers, policy=policy, timing=False,
            compile_timeout_s=given.timeout_s, correct_timeout_s=given.timeout_s,
        )  # fmt: skip
        with open_socket_dir() as sockets, tempfile.TemporaryDirectory() as logs:
            async with (
                open_pool(table, socket_dir=sockets, log_dir=Path(logs), gpus=gpus) as pool,
                anyio.create_task_group() as tg,
            ):
                await _judge_some(pool, chosen, given.in_flight, session)
                tg.cancel_scope.cancel()


async def _judge_some(pool: Pool, rows: Sequence[Made], in_flight: int, session: Session) -> None:
    """Judges `in_flight` modules at a time; those in flight at the end are given up."""
    waiting = iter(rows)

    async def work() -> None:
        for made in waiting:
            began = time.monotonic()
            verdict = await pool.judge(_problem(made), made.code)
            session.results[made.name] = Result(
                made=made, status=verdict.status,
                detail=f"{verdict.reason}: {verdict.detail}"[:1000],
                judge_s=round(time.monotonic() - began, 3),
            )  # fmt: skip

    async def watch() -> None:
        while not session.is_over and any(session.results[one.name].is_open for one in rows):
            num_open = sum(one.is_open for one in session.results.values())
            session.tell(f"{num_open} of {len(session.results)} rows to be judged")
            await anyio.sleep(0.2)
        tg.cancel_scope.cancel()

    async with anyio.create_task_group() as tg:
        tg.start_soon(watch)
        for _ in range(in_flight):
            tg.start_soon(work)


def _problem(made: Made) -> Problem:
    return Problem(
        problem_id=made.name, source=made.problem, family="inductor", level=1, split=Split.GRPO
    )


def report(results: Sequence[Result]) -> float:
    """Prints the shares; that of pointwise and reduction rows which are correct."""
    for one in results:
        if one.status != Status.CORRECT and not one.is_open:
            words = f"{one.made.reason or one.status}: {(one.made.detail or one.detail)[:300]}"
            print(f"{one.made.name}: {words}")
    known = [one for one in results if not one.is_open]
    for kind in CLASSES:
        rows = [one for one in known if one.kind == kind]
        rewritten = sum(not one.made.reason for one in rows)
        correct = sum(one.status == Status.CORRECT for one in rows)
        print(f"{kind:<10} {len(rows):>4} rows  {rewritten:>4} rewritten  "
              f"{correct:>4} judged correct")  # fmt: skip
    reasons = Counter(one.made.reason for one in known if one.made.reason)
    for reason, count in reasons.most_common():
        print(f"not rewritten: {reason} {count}")
    own = [one for one in known if one.kind != "extern"]
    share = sum(one.status == Status.CORRECT for one in own) / max(len(own), 1)
    print(f"pointwise and reduction: {share:.1%} of {len(own)} judged correct")
    return share


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--num", type=int, default=80, help="rows")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--kernelbench", type=Path, help="a checkout")
    parser.add_argument("--largest", type=int, help="largest constant of each problem")
    parser.add_argument("--max-mb", type=float, help="of inputs and parameters (cuda: 64)")
    parser.add_argument("--workers", type=int, default=cores, help="processes")
    parser.add_argument("--in-flight", type=int, default=min(2 * cores, 16))
    parser.add_argument("--timeout-s", type=float, help="of each stage of the judge (20; cpu: 120)")
    parser.add_argument("--limit-s", type=float, help="of the whole (cuda: 140)")
    parser.add_argument("--out", type=Path, help="write all rows with code and verdict as JSON")
    given = parser.parse_args()
    is_gpu = given.device == "cuda"
    if is_gpu and not inventory():
        parser.error("--device cuda: this machine has no GPU")
    given.timeout_s = given.timeout_s or (20.0 if is_gpu else 120.0)
    given.limit_s = given.limit_s or (140.0 if is_gpu else float("inf"))
    given.max_mb = 64.0 if given.max_mb is None and is_gpu else given.max_mb
    return given


def main() -> int:
    given = arguments()
    session = Session(until=time.monotonic() + given.limit_s, out=given.out)
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, session.stop)
    rows = make_rows(given, session)
    session.results = {one.name: Result(made=one) for one in rows}
    session.tell(f"{len(rows)} rows, {sum(not one.reason for one in rows)} rewritten", now=True)
    anyio.run(judge_all, rows, given, session)
    results = list(session.results.values())
    share = report(results)
    num_open = sum(one.is_open for one in results)
    session.tell(f"the end; {num_open} rows were not judged", now=True)
    if num_open:
        return 4
    return 0 if share >= MIN_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
