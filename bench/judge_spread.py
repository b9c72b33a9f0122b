"""Measures the spread of a kernel's time between judgements, and checks its speed-up.

    python bench/judge_spread.py                        # 30 judgements at each of four sizes
    python bench/judge_spread.py --num 10 --sizes 8192

`relu(x) * 2` over n × n fp32, each judgement in a fresh runner, through the pool. Beside it
`triton.testing.do_bench` of the same kernel and of eager, both in this process. Needs a GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio
import torch
from triton.testing import do_bench

from forge.config.schema import JudgeTable
from forge.evalpool.pool import Pool, open_pool
from forge.process.devices import inventory
from forge.process.sockets import open_socket_dir
from forge.records.problem import Problem, Split

MODEL = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2

def get_inputs():
    return [torch.randn({n}, {n})]

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
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 4096),)](x, y, x.numel(), BLOCK=4096)
        return y
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """All judgements at one size; times in microseconds."""

    n: int
    num_judged: int
    candidate_us: float
    spread: float
    """Interquartile range of `candidate_us` over its median."""
    baseline_us: float
    speedup: float
    do_bench_candidate_us: float
    do_bench_eager_us: float
    do_bench_speedup: float


async def measure(pool: Pool, n: int, *, num: int) -> Row:
    """`num` judgements, one after another, and `do_bench` of the same kernel.

    Raises:
        RuntimeError: A judgement was not timed.
    """
    problem = Problem(
        problem_id=f"relu-{n}", source=MODEL.format(n=n), family="bench", level=1, split=Split.GRPO
    )
    timings = []
    for number in range(num):
        verdict = await pool.judge(problem, f"{KERNEL}# {n}, {number}\n", timing=True)
        if verdict.timing is None:
            raise RuntimeError(f"n = {n}, judgement {number}: {verdict.status}: {verdict.detail}")
        timings.append(verdict.timing)
    times = [timing.candidate_us for timing in timings]
    first, median, third = statistics.quantiles(times, n=4)
    candidate_us, eager_us = in_this_process(n)
    return Row(
        n=n,
        num_judged=num,
        candidate_us=median,
        spread=(third - first) / median,
        baseline_us=statistics.median(timing.baseline_us for timing in timings),
        speedup=statistics.median(timing.speedup for timing in timings),
        do_bench_candidate_us=candidate_us,
        do_bench_eager_us=eager_us,
        do_bench_speedup=eager_us / candidate_us,
    )


def in_this_process(n: int) -> tuple[float, float]:
    """Median times of candidate and eager by `do_bench`, in microseconds."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(KERNEL)
        file.flush()
        spec = importlib.util.spec_from_file_location("candidate", file.name)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        x = torch.randn(n, n, device="cuda")
        model = module.ModelNew()
        candidate = do_bench(lambda: model(x), return_mode="median")
        eager = do_bench(lambda: torch.relu(x) * 2, return_mode="median")
    assert isinstance(candidate, float)
    assert isinstance(eager, float)
    return 1e3 * candidate, 1e3 * eager


async def measure_all(given: argparse.Namespace) -> list[Row]:
    """Judges at every size with one pool."""
    with open_socket_dir() as folder, tempfile.TemporaryDirectory() as run:
        table = JudgeTable(workers=1)
        async with open_pool(
            table, socket_dir=folder, log_dir=Path(run), gpus=inventory()[:1]
        ) as pool:
            rows = []
            for n in given.sizes:
                rows.append(await measure(pool, n, num=given.num))
                sys.stderr.write(f"{rows[-1]}\n")
            return rows


def main() -> int:
    """Prints a Markdown table, and JSON to `--out`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num", type=int, default=30, help="judgements a size")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2048, 4096, 8192, 16384])
    parser.add_argument("--out", type=Path, help="write JSON there too")
    given = parser.parse_args()
    if not inventory():
        parser.error("this machine has no GPU")
    rows = anyio.run(measure_all, given)
    if given.out:
        given.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    print("| n | candidate | IQR / median | baseline | speed-up | do_bench: both, ratio |")
    print("|---" * 6 + "|")
    for row in rows:
        print(
            f"| {row.n} | {row.candidate_us:.1f} us | {row.spread:.2%} | {row.baseline_us:.1f} us "
            f"| {row.speedup:.3f} | {row.do_bench_candidate_us:.1f} us, "
            f"{row.do_bench_eager_us:.1f} us, {row.do_bench_speedup:.3f} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
