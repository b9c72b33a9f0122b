"""Rewrites answers that Inductor made into plain Triton, and judges the modules.

    python -m bench.inductor --num 80                                 # this machine's CPU
    python -m bench.inductor --num 80 --kernelbench ~/KernelBench --largest 32
    python -m bench.inductor --num 400 --device cuda --kernelbench ~/KernelBench --out rows.json

Rows come from generated problems, and from levels 1 and 2 of a KernelBench checkout (half of them).
Inductor writes its code for an H100, also where there is none (`bench/inductor_rows.py`); with a
GPU, every second row is one of training, with the outputs that a backward would need. `--largest`
lowers the constants of KernelBench's files, whose sizes take a CPU hours. Each module is judged
under the policy that its rewrite names. Prints shares by class (pointwise, reduction, extern), the
reasons of the rows that were not rewritten, and a line for each module that is not correct. Exit
code 1 if less than 85 % of the pointwise and reduction rows are judged correct.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio
import torch

from bench.inductor_rows import Row, make_row
from forge.config.schema import JudgeTable, ProblemsTable
from forge.data.generator import generate_problems
from forge.data.inductor import NotRewritten, Rewritten, rewrite
from forge.evalpool.pool import Pool, open_pool
from forge.process.devices import inventory
from forge.process.sockets import open_socket_dir
from forge.records import Problem, Split, Status

MIN_SHARE = 0.85
CLASSES = ("pointwise", "reduction", "extern")
NUM_GENERATED = 1000
"""Problems that are generated; rows are a sample of them."""
TIMEOUT_S = 120.0
"""Per stage of the judge: large kernels are evaluated slowly on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of one row."""

    name: str
    kind: str
    """One of CLASSES."""
    reason: str = ""
    """Why it was not rewritten; empty if it was."""
    policy: str = ""
    num_kernels: int = 0
    status: str = ""
    detail: str = ""
    answer: str = ""
    code: str = ""


def sources(given: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Names and sources of problems, KernelBench's and generated ones by turns."""
    table = ProblemsTable(num_problems=NUM_GENERATED, sizes=given.sizes)
    generated = [(one.problem_id, one.source) for one in generate_problems(table, seed=given.seed)]
    random.Random(given.seed).shuffle(generated)
    files: list[tuple[str, str]] = []
    if given.kernelbench:
        root = next(one for one in (given.kernelbench / "KernelBench", given.kernelbench) if (
            one / "level1").is_dir())  # fmt: skip
        files = [
            (path.relative_to(root).as_posix(), _lowered(path.read_text(), given.largest))
            for level in ("level1", "level2")
            for path in sorted((root / level).glob("*.py"))
        ]
        random.Random(given.seed).shuffle(files)
    while generated or files:
        if files:
            yield files.pop()
        if generated:
            yield generated.pop()


def _lowered(source: str, largest: int | None) -> str:
    """The source with the integers that its module assigns at most `largest`."""
    if largest is None:
        return source
    tree = ast.parse(source)
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for one in ast.walk(node.value):
                if isinstance(one, ast.Constant) and isinstance(one.value, int):
                    one.value = min(one.value, largest)
    return ast.unparse(tree)


def make_rows(given: argparse.Namespace) -> list[Row]:
    """Rows of as many problems as asked for; those that do not compile are counted and left out."""
    rows: list[Row] = []
    failed = Counter[str]()
    for number, (name, source) in enumerate(sources(given)):
        if len(rows) == given.num:
            break
        trains = given.device == "cuda" and number % 2 == 1
        try:
            rows.append(make_row(name, source, trains=trains))
        except Exception as err:
            failed[type(err).__name__] += 1
            print(f"no row of {name}: {type(err).__name__}: {str(err)[:100]!r}")
    print(f"{len(rows)} rows made, {failed.total()} problems without one: {dict(failed)}")
    return rows


def kind_of(answer: str) -> str:
    """The class of a row: extern if torch computes a part, else by its kernels."""
    if re.search(r"extern_kernels\.\w+\(|torch\.ops\.aten\.\w+(\.\w+)?\(", answer):
        return "extern"
    return "reduction" if re.search(r"\btriton_(per|red|spl)_", answer) else "pointwise"


def rewrite_all(rows: Sequence[Row]) -> tuple[dict[str, Result], dict[str, Rewritten]]:
    """Results of the rows that are refused, and the modules of the others."""
    refused: dict[str, Result] = {}
    made: dict[str, Rewritten] = {}
    for row in rows:
        try:
            made[row.name] = rewrite(row.answer)
        except NotRewritten as err:
            kind = kind_of(row.answer)
            refused[row.name] = Result(
                name=row.name, kind=kind, reason=err.reason, detail=err.detail, answer=row.answer
            )
    return refused, made


async def judge_all(
    rows: Sequence[Row], made: dict[str, Rewritten], given: argparse.Namespace
) -> dict[str, Result]:
    """Results of the modules, each judged under its policy."""
    results: dict[str, Result] = {}
    gpus = inventory()[:1] if given.device == "cuda" else ()
    for policy in ("own", "hybrid"):
        waiting = iter(
            [row for row in rows if row.name in made and made[row.name].policy == policy]
        )

        async def work(pool: Pool, waiting: Iterator[Row] = waiting) -> None:
            for row in waiting:
                one = made[row.name]
                verdict = await pool.judge(_problem(row), one.code)
                results[row.name] = Result(
                    name=row.name, kind=kind_of(row.answer), policy=one.policy,
                    num_kernels=one.num_kernels, status=verdict.status,
                    detail=f"{verdict.reason}: {verdict.detail}"[:1000],
                    answer=row.answer, code=one.code,
                )  # fmt: skip

        table = JudgeTable(
            workers=given.workers, policy=policy, timing=False,
            compile_timeout_s=TIMEOUT_S, correct_timeout_s=TIMEOUT_S,
        )  # fmt: skip
        with open_socket_dir() as sockets, tempfile.TemporaryDirectory() as logs:
            async with (
                open_pool(table, socket_dir=sockets, log_dir=Path(logs), gpus=gpus) as pool,
                anyio.create_task_group() as tg,
            ):
                for _ in range(2 * given.workers):
                    tg.start_soon(work, pool)
    return results


def _problem(row: Row) -> Problem:
    return Problem(
        problem_id=row.name, source=row.problem, family="inductor", level=1, split=Split.GRPO
    )


def report(results: Sequence[Result]) -> float:
    """Prints the shares; that of pointwise and reduction rows which are correct."""
    for kind in CLASSES:
        rows = [one for one in results if one.kind == kind]
        rewritten = [one for one in rows if not one.reason]
        correct = [one for one in rows if one.status == Status.CORRECT]
        print(f"{kind:<10} {len(rows):>4} rows  {len(rewritten):>4} rewritten  "
              f"{len(correct):>4} judged correct")  # fmt: skip
    for reason, count in Counter(one.reason for one in results if one.reason).most_common():
        print(f"not rewritten: {reason} {count}")
    own = [one for one in results if one.kind != "extern"]
    share = sum(one.status == Status.CORRECT for one in own) / max(len(own), 1)
    print(f"pointwise and reduction: {share:.1%} of {len(own)} judged correct")
    return share


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num", type=int, default=80, help="rows")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--kernelbench", type=Path, help="a checkout")
    parser.add_argument("--largest", type=int, help="largest constant of KernelBench's files")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, help="write all rows with code and verdict as JSON")
    given = parser.parse_args()
    given.sizes = "gpu" if given.device == "cuda" else "small"
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: this machine has no GPU")
    began = time.monotonic()
    rows = make_rows(given)
    refused, made = rewrite_all(rows)
    results = refused | anyio.run(judge_all, rows, made, given)
    ordered = [results[row.name] for row in rows]
    for one in ordered:
        if one.status != Status.CORRECT:
            print(f"{one.name}: {one.reason or one.status}: {one.detail[:300]}")
    share = report(ordered)
    print(f"{time.monotonic() - began:.0f} s")
    if given.out:
        given.out.write_text(json.dumps([asdict(one) for one in ordered], indent=1) + "\n")
    return 0 if share >= MIN_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
