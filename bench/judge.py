"""Measures judgements per second and their latency, pool, HTTP and store included.

    python bench/judge.py                               # this machine's CPU, quickstart's problems
    python bench/judge.py --device cuda --sizes small full
    python bench/judge.py --device cuda --sizes small --modes timed --faults 8
    python bench/judge.py --json --out judge.json

Honest kernels that differ in a comment (`--cold`: in the kernel's name too, so that each is
compiled), 1, 4 and 16 in flight, each verdict stored in a run.db. On a GPU: correctness alone, and
with timing; on a CPU nothing is timed. CPU time is that of all processes: unlike wall time it does
not depend on other load. `--faults 8`: every eighth candidate faults on the GPU, as a learning
model's do. Exit code 1 if an honest kernel was not judged correct, or a faulting one was not found
to fault.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import anyio
from judge_workload import SIZES, Task, repeated, tasks

from forge.config.schema import JudgeTable, StoreTable
from forge.evalpool.judge.sandbox.processes import family, read_table
from forge.evalpool.pool import Pool, open_pool
from forge.process.devices import inventory
from forge.process.sockets import open_socket_dir
from forge.records import (
    Completion,
    End,
    Finish,
    Group,
    Purpose,
    Status,
    Trajectory,
    Turn,
    Verdict,
)
from forge.store.write.writer import Writer, open_writer

MODES = {
    "correctness": {"timing": False},
    "timed": {"timing": True},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement."""

    size: str
    mode: str
    in_flight: int
    num_judged: int
    per_s: float
    median_s: float
    p95_s: float
    cpu_s: float
    """CPU seconds per judgement: this process, the judges and all their children."""
    phase_share: dict[str, float]
    """Share of each phase in the latency of all requests; `pool` is the time outside every phase of
    a judge.
    """
    statuses: dict[str, int]


@dataclass(slots=True)
class Tally:
    """Results of the requests of one measurement."""

    latencies: list[float] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    def row(self, *, size: str, mode: str, in_flight: int, wall_s: float, cpu_s: float) -> Row:
        phases: dict[str, float] = defaultdict(float)
        for verdict in self.verdicts:
            for name, seconds in verdict.phase_s.items():
                phases[name] += seconds
        total = sum(self.latencies)
        phases["pool"] = total - sum(phases.values())
        ordered = sorted(self.latencies)
        return Row(
            size=size,
            mode=mode,
            in_flight=in_flight,
            num_judged=len(ordered),
            per_s=round(len(ordered) / wall_s, 2),
            median_s=round(statistics.median(ordered), 4),
            p95_s=round(ordered[int(0.95 * (len(ordered) - 1))], 4),
            cpu_s=round(cpu_s / len(ordered), 4),
            phase_share={name: round(value / total, 3) for name, value in phases.items()},
            statuses=dict(Counter(map(outcome, self.verdicts))),
        )


def outcome(verdict: Verdict) -> str:
    """One line for a verdict, with its detail if an honest kernel should not get it."""
    words = f"{verdict.status}: {verdict.reason}"
    return words if verdict.status is Status.CORRECT else f"{words}: {verdict.detail[:200]}"


async def measure(
    pool: Pool, writer: Writer, work: list[Task], *, size: str, mode: str, in_flight: int
) -> Row:
    """Judges all of `work`, `in_flight` at a time."""
    tally, waiting = Tally(), iter(enumerate(work))
    options = MODES[mode]

    async def play() -> None:
        for number, task in waiting:
            began = time.monotonic()
            verdict = await pool.judge(task.problem, task.code, **options)
            tally.latencies.append(time.monotonic() - began)
            tally.verdicts.append(verdict)
            await writer.put(stored(number, task, verdict))

    began, cpu_before = time.monotonic(), cpu_seconds()
    async with anyio.create_task_group() as tg:
        for _ in range(in_flight):
            tg.start_soon(play)
    await writer.flush()
    wall_s, cpu_s = time.monotonic() - began, cpu_seconds() - cpu_before
    return tally.row(size=size, mode=mode, in_flight=in_flight, wall_s=wall_s, cpu_s=cpu_s)


def cpu_seconds() -> float:
    """CPU seconds of this process and all its descendants, ended ones included."""
    ticks = 0
    for pid in family(os.getpid(), read_table()):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def stored(number: int, task: Task, verdict: Verdict) -> Group:
    """Records of one turn as a run stores it: prompt, tokens with log-probabilities, verdict."""
    tokens = tuple(range(300))
    turn = Turn(
        group_id=number, rollout=0, turn=0, prompt_ids=tokens, prompt_text=task.problem.source,
        completion=Completion(
            token_ids=tokens, logprobs=(-0.5,) * 300, finish=Finish.STOP, min_version=0,
            max_version=0,
        ),
        completion_text=task.code, code=task.code, verdict=verdict, feedback=verdict.detail,
        reward=1.0,
    )  # fmt: skip
    trajectory = Trajectory(
        group_id=number, rollout=0, problem_id=task.problem.problem_id, turns=(turn,),
        end=End.CORRECT, returns=(1.0,),
    )  # fmt: skip
    return Group(
        group_id=number, problem_id=task.problem.problem_id, purpose=Purpose.TRAIN, stage=0,
        step=0, trajectories=(trajectory,),
    )  # fmt: skip


async def measure_all(given: argparse.Namespace) -> list[Row]:
    """Uses one pool for all measurements; each measurement judges new candidates."""
    gpus = inventory()[: given.gpus] if given.device == "cuda" else ()
    workers = given.workers or len(os.sched_getaffinity(0))
    rows: list[Row] = []
    with open_socket_dir() as folder, tempfile.TemporaryDirectory() as run:
        async with (
            open_writer(Path(run), StoreTable()) as writer,
            open_pool(
                JudgeTable(workers=workers), socket_dir=folder, log_dir=Path(run), gpus=gpus
            ) as pool,
        ):
            offset = 0
            for size in given.sizes:
                found = tasks(size, num=given.problems)
                for mode in given.modes if gpus else ["correctness"]:
                    for in_flight in given.in_flight:
                        work = repeated(
                            found,
                            num=given.num,
                            siblings=given.siblings,
                            faults=given.faults,
                            is_cold=given.cold,
                        )
                        work = [renamed(task, offset) for task in work]
                        offset += 1
                        row = await measure(
                            pool, writer, work, size=size, mode=mode, in_flight=in_flight
                        )
                        rows.append(row)
                        sys.stderr.write(f"{row}\n")
    return rows


def renamed(task: Task, offset: int) -> Task:
    """A candidate that no earlier measurement used, so that no verdict is cached."""
    return Task(problem=task.problem, code=f"{task.code}# measurement {offset}\n")


def is_expected(row: Row, faults: int) -> bool:
    """True if honest kernels were correct and faulting ones were found to fault on the GPU."""
    num_faulty = row.num_judged // faults if faults else 0
    num_found = sum(n for words, n in row.statuses.items() if "gpu_fault" in words)
    num_correct = row.statuses.get("correct: ok", 0)
    return num_found == num_faulty and num_correct == row.num_judged - num_faulty


def table(rows: list[Row]) -> str:
    """Results as a Markdown table."""
    names = list(dict.fromkeys(name for row in rows for name in row.phase_share))
    head = ["size", "mode", "in flight", "judged/s", "median", "p95", "CPU", *names]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        shares = [f"{row.phase_share.get(name, 0.0):.0%}" for name in names]
        cells = [row.size, row.mode, str(row.in_flight), f"{row.per_s:.1f}"]
        cells += [f"{row.median_s * 1e3:.0f} ms", f"{row.p95_s * 1e3:.0f} ms"]
        cells += [f"{row.cpu_s * 1e3:.0f} ms", *shares]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Prints a Markdown table, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=None)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="on a GPU")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--num", type=int, default=160, help="candidates a measurement")
    parser.add_argument("--problems", type=int, default=20, help="of the quickstart's")
    parser.add_argument("--siblings", type=int, default=8, help="candidates a problem in a row")
    parser.add_argument("--faults", type=int, default=0, metavar="N", help="on a GPU: each N'th")
    parser.add_argument("--cold", action="store_true", help="no kernel's binary is cached")
    parser.add_argument("--workers", type=int, help="judges on a CPU; default: one a core")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, help="write JSON there too")
    given = parser.parse_args()
    is_cpu = given.device == "cpu"
    given.sizes = given.sizes or (["quickstart", "small"] if is_cpu else ["small", "full"])
    if is_cpu and "full" in given.sizes:
        parser.error("--sizes full: tensors of up to 6 GB, minutes a kernel; use --device cuda")
    if given.device == "cuda" and not inventory():
        parser.error("--device cuda: this machine has no GPU")
    load = os.getloadavg()[0]
    rows = anyio.run(measure_all, given)
    report = {
        "command": " ".join(sys.argv),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(load, 2),
        "rows": [asdict(row) for row in rows],
    }
    notes: list[str] = [f"load before: {load:.2f}, {report['cores']} cores"]
    wrong = [row for row in rows if not is_expected(row, given.faults)]
    notes += [f"not correct: {row.size}, {row.mode}: {row.statuses}" for row in wrong]
    if given.out:
        given.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1) if given.json else "\n".join([table(rows), "", *notes]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
