# pyright: strict
"""Compares `judge.protocol = "kernelbench"` with KernelBench's own evaluation of the same kernels.

    python -m bench.agreement --kernelbench ~/KernelBench --out agreement.json

Candidates: the honest corpus (`tests/corpus`), and each of its kernels twice more with the value of
its stores multiplied, by 1 + 5e-5 (half of the tolerance) and by 1.01; the answers to level 2 of
`kernelbench_answers`, most of which leave work to torch, and each with its stores multiplied by
1.5. KernelBench evaluates them with its static check and five trials, several processes of a
checkout's code on one card; a process that dies counts its kernel as not correct, and the next
process goes on. KernelBench casts every input tensor to fp32, and hands a candidate what the
reference has left of its inputs: problems with indices, masks or half precision, or that change
their inputs, are others there and counted apart, as those that forge cannot judge. Without a GPU
the worker calls the parts of its evaluation that need none, and Triton interprets the kernels:
those that it cannot run are counted apart, too.
Prints each disagreement; exit code 1 if less than 99 % agree.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio

from bench.kernelbench_answers import answers, problems
from forge.config.schema import JudgeTable
from forge.evalpool.pool import Pool, open_pool
from forge.process.devices import inventory
from forge.process.sockets import open_socket_dir
from forge.records import Problem, Split, Status
from tests.corpus.corpus import load

MIN_SHARE = 0.99
CORPUS = {"": None, "half of the tolerance": 1 + 5e-5, "wrong": 1.01}
PARTS = {"": None, "half too much": 1.5}
"""Factors of the stored values by the variant's name. A percent in the middle of a problem may be
below the tolerance at its end in one draw and not in the next."""
CAP = 8
"""Largest size in problems of KernelBench."""
WORKER = Path(__file__).with_name("agreement_worker.py")
IN_FLIGHT = 16


@dataclass(frozen=True, slots=True)
class Case:
    """One candidate for one problem."""

    name: str
    problem: str
    code: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one evaluation."""

    is_correct: bool
    detail: str
    is_other: bool = False
    """True if one of the two judges another problem than the one given, or none."""
    torch_share: float = 0.0
    """By forge's: share of the work that torch does."""


class _Scaled(ast.NodeTransformer):
    """Multiplies the value of every `tl.store`."""

    def __init__(self, factor: float) -> None:
        self.factor, self.num_stores = factor, 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.func) == "tl.store" and len(node.args) > 1:
            self.num_stores += 1
            node.args[1] = ast.BinOp(node.args[1], ast.Mult(), ast.Constant(self.factor))
        return node


def scaled(code: str, factor: float) -> str | None:
    """The code with the stored values multiplied; None if it has no `tl.store` with a value."""
    change = _Scaled(factor)
    tree = change.visit(ast.parse(code))
    return ast.unparse(ast.fix_missing_locations(tree)) if change.num_stores else None


def cases(folder: Path) -> Iterator[Case]:
    """Every kernel of the corpus in each variant, and answers to the problems of a checkout."""
    for pair in load():
        yield from _variants(Case(pair.name, pair.problem, pair.candidate), CORPUS)
    for number, name, source in problems(folder, CAP):
        for kind, code in answers(number, source):
            yield from _variants(Case(f"{name}: {kind}", source, code), PARTS)


def _variants(case: Case, factors: Mapping[str, float | None]) -> Iterator[Case]:
    for variant, factor in factors.items():
        code = case.code if factor is None else scaled(case.code, factor)
        if code is not None:
            name = f"{case.name} ({variant})" if variant else case.name
            yield Case(name, case.problem, code)


async def judge_all(found: Sequence[Case]) -> dict[str, Answer]:
    """Our verdicts under KernelBench's protocol, by name."""
    waiting, verdicts = iter(found), dict[str, Answer]()

    async def work(pool: Pool) -> None:
        for case in waiting:
            problem = Problem(
                problem_id="p", source=case.problem, family="corpus", level=1, split=Split.GRPO
            )
            one = await pool.judge(problem, case.code, timing=False)
            detail = f"{one.status}: {one.reason}: {one.detail[:200]}"
            verdicts[case.name] = Answer(
                one.status is Status.CORRECT, detail, not one.status.is_scored,
                one.torch_share or 0.0,
            )  # fmt: skip

    table = JudgeTable(
        workers=len(os.sched_getaffinity(0)), protocol="kernelbench", correct_timeout_s=60.0
    )
    with open_socket_dir() as sockets, tempfile.TemporaryDirectory() as logs:
        async with (
            open_pool(table, socket_dir=sockets, log_dir=Path(logs), gpus=inventory()[:1]) as pool,
            anyio.create_task_group() as tg,
        ):
            for _ in range(IN_FLIGHT):
                tg.start_soon(work, pool)
    return verdicts


def evaluate_all(found: Sequence[Case], *, folder: Path, num: int) -> dict[str, Answer]:
    """KernelBench's results by name, by `num` processes with the checkout `folder`."""
    paths = [str(folder / "src"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if not inventory():
        env |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    waiting, results, lock = iter(found), dict[str, Answer](), threading.Lock()

    def work() -> None:
        with ExitStack() as running:
            process: subprocess.Popen[str] | None = None
            while True:
                with lock:
                    case = next(waiting, None)
                if case is None:
                    return  # which closes stdin: the process ends
                if process is None or process.poll() is not None:
                    process = running.enter_context(_started(env))
                results[case.name] = _ask(process, case)

    threads = [threading.Thread(target=work) for _ in range(num)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def _started(env: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(WORKER)],
        env=dict(env),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _ask(process: subprocess.Popen[str], case: Case) -> Answer:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps({"reference": case.problem, "code": case.code}) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        line = ""
    if not line:
        return Answer(is_correct=False, detail=f"the process ended ({process.wait()})")
    return Answer(**json.loads(line))


def disagreements(
    ours: Mapping[str, Answer], theirs: Mapping[str, Answer]
) -> list[dict[str, object]]:
    """A row for each candidate that only one of the two finds correct."""
    return [
        {"name": name, "forge": one.detail, "kernelbench": asdict(theirs[name])}
        for name, one in sorted(ours.items())
        if one.is_correct is not theirs[name].is_correct
    ]


def main() -> int:
    """Prints the disagreements and the share of the others."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernelbench", type=Path, metavar="DIR", required=True, help="a checkout")
    parser.add_argument("--processes", type=int, default=4, help="of KernelBench, on one card")
    parser.add_argument("--out", type=Path, help="write all results there as JSON")
    given = parser.parse_args()
    if not (given.kernelbench / "src" / "kernelbench" / "eval.py").is_file():
        parser.error(f"--kernelbench {given.kernelbench}: no checkout (src/kernelbench/eval.py)")
    found = list(cases(given.kernelbench))
    ours = anyio.run(judge_all, found)
    theirs = evaluate_all(found, folder=given.kernelbench, num=given.processes)
    rows = disagreements(ours, theirs)
    for row in rows:
        print(json.dumps(row))
    others = {name for name in ours if ours[name].is_other or theirs[name].is_other}
    counted = {name: one for name, one in ours.items() if name not in others}
    num_rows = len(disagreements(counted, theirs))
    num_both = sum(one.is_correct and theirs[name].is_correct for name, one in counted.items())
    by_torch = {name: one for name, one in counted.items() if one.torch_share}
    print(
        f"{len(counted) - num_rows} of {len(counted)} agree; {num_both} are correct by both; of "
        f"those that leave work to torch "
        f"{len(by_torch) - len(disagreements(by_torch, theirs))} of {len(by_torch)} agree; "
        f"{len(others) - len(rows) + num_rows} of {len(others)} of problems that are others to it"
    )
    if given.out:
        pairs = {name: [asdict(one), asdict(theirs[name])] for name, one in ours.items()}
        given.out.write_text(json.dumps(pairs, indent=1) + "\n")
    return 0 if num_rows <= (1 - MIN_SHARE) * len(counted) else 1


if __name__ == "__main__":
    sys.exit(main())
