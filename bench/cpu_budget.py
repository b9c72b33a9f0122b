"""Do candidates stay within the judges' cores? Many at once, each burning with several threads.

    python bench/cpu_budget.py --candidates 64 --threads 8 --workers 2

Prints CPU seconds that judges and all their children used per second of wall time, beside the
budget (a core a worker), and how long an honest candidate beside them takes. `--no-budget` shows
what they would take. Uses the pool, as a run does.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio

from forge.config.schema import JudgeTable
from forge.evalpool import pool as pool_module
from forge.evalpool.judge.sandbox.processes import family, read_table
from forge.evalpool.pool import Pool, open_pool
from forge.process.sockets import open_socket_dir
from forge.records.problem import Problem, Split

TICKS = os.sysconf("SC_CLK_TCK")

REFERENCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
def get_inputs():
    return [torch.randn(16, 64)]
def get_init_inputs():
    return []
"""
KERNEL = """
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.maximum(tl.load(x + i, mask=i < n), 0.0), mask=i < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        {burn}
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
"""
BURN = "torch.set_num_threads({threads}); [x.new_ones(2000, 2000).exp_().exp_() for _ in range(1000000 + {number})]"  # noqa: E501
"""Runs tensor work on all threads until the deadline; `number` makes the candidate unique, so that
the pool does not reuse a verdict.
"""


def used_s() -> float:
    """CPU seconds of judges, zygotes and their ended children. Between candidates this is complete,
    since a zygote waits for each child.
    """
    total = 0
    for pid in family(os.getpid(), read_table()) - {os.getpid()}:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(int(field) for field in fields[11:15])
    return total / TICKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    candidates: int
    threads: int
    workers: int
    machine_cores: int
    wall_s: float
    cpu_s: float
    cores_used: float
    """CPU seconds per second of wall time; the budget is `workers`."""
    honest_s: list[float]
    """Judgements of an honest candidate, one after another, beside the burning ones."""
    statuses: dict[str, int]


async def measure(*, candidates: int, threads: int, table: JudgeTable) -> Measured:
    """Runs all candidates against one pool."""
    problem = Problem(
        problem_id="burn", source=REFERENCE, family="bench", level=1, split=Split.GRPO,
        precision="fp32",
    )  # fmt: skip
    statuses: dict[str, int] = {}
    with open_socket_dir() as sockets, tempfile.TemporaryDirectory() as logs:
        async with open_pool(table, socket_dir=sockets, log_dir=Path(logs)) as pool:
            await pool.judge(problem, KERNEL.format(burn="pass"))
            before, started = used_s(), time.monotonic()
            honest_s = await _judge_all(pool, problem, statuses, candidates, threads)
            wall_s, cpu_s = time.monotonic() - started, used_s() - before
    return Measured(
        candidates=candidates, threads=threads, workers=table.workers,
        machine_cores=len(os.sched_getaffinity(0)), wall_s=wall_s, cpu_s=cpu_s,
        cores_used=cpu_s / wall_s, honest_s=honest_s, statuses=statuses,
    )  # fmt: skip


async def _judge_all(
    pool: Pool, problem: Problem, statuses: dict[str, int], candidates: int, threads: int
) -> list[float]:
    honest_s: list[float] = []

    async def burn(number: int) -> None:
        code = KERNEL.format(burn=BURN.format(threads=threads, number=number))
        status = str((await pool.judge(problem, code)).status)
        statuses[status] = statuses.get(status, 0) + 1

    async def be_honest() -> None:
        for number in range(3):
            started = time.monotonic()
            await pool.judge(problem, f"{KERNEL.format(burn='pass')}\n# {number}")
            honest_s.append(time.monotonic() - started)

    async with anyio.create_task_group() as tg:
        for number in range(candidates):
            tg.start_soon(burn, number)
        tg.start_soon(be_honest)
    return honest_s


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--candidates", type=int, default=64)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--timeout-s", type=float, default=1.0, help="each candidate's deadline")
    parser.add_argument("--isolation", default="auto")
    parser.add_argument("--no-budget", action="store_true", help="let them run on any core")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.no_budget:
        pool_module.seat_cores = lambda cores, **_: ()
    table = JudgeTable.model_validate(
        {
            "workers": args.workers,
            "compile_timeout_s": args.timeout_s,
            "correct_timeout_s": args.timeout_s,
            "isolation": args.isolation,
        }
    )
    found = anyio.run(
        lambda: measure(candidates=args.candidates, threads=args.threads, table=table)
    )
    if args.json:
        print(json.dumps(asdict(found)))
        return
    print(f"{found.candidates} candidates of {found.threads} threads, {found.workers} workers")
    print(f"{found.cpu_s:.1f} CPU s in {found.wall_s:.1f} s: {found.cores_used:.2f} cores used,")
    print(f"budget {found.workers}, machine {found.machine_cores}; statuses {found.statuses}")
    print("honest beside them:", ", ".join(f"{one:.2f} s" for one in found.honest_s))


if __name__ == "__main__":
    main()
