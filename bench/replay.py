# pyright: strict
"""Judges the answers of a run's stage again, at the pace at which its rollouts asked for verdicts.

    python bench/replay.py runs/h200-from-scratch-1 --stage 2 --device cuda
    python bench/replay.py runs/quickstart-1 --stage 2 --in-flight 16 --out replay.json

Each rollout waits as long as its turn took to generate, then for its verdict; rollouts start in the
run's order, `--in-flight` at a time. So it measures a judge as GRPO uses it, with new problems,
faults and answers of a learning model, without an engine or a trainer. Reads `run.db` alone.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from forge.config.schema import JudgeTable
from forge.evalpool.pool import Pool, open_pool
from forge.process.devices import inventory
from forge.process.sockets import open_socket_dir
from forge.records.problem import ReferenceModule
from forge.records.verdict import Verdict

TURNS = """
SELECT t.group_id, t.rollout, t.generate_s, t.code, t.status, t.problem_id, p.entry_point,
    p.precision, (SELECT body FROM texts WHERE text_id = p.source_id) AS source
FROM v_turns t JOIN problems p USING (problem_id)
WHERE t.stage = ? AND t.code IS NOT NULL AND t.status <> 'rejected'
ORDER BY t.group_id, t.rollout, t.turn
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One turn of the run."""

    problem: ReferenceModule
    code: str
    generate_s: float
    status: str


@dataclass(slots=True)
class Tally:
    """What the replay has seen."""

    waits_s: list[float] = field(default_factory=list[float])
    verdicts: list[Verdict] = field(default_factory=list[Verdict])
    changes: Counter[str] = field(default_factory=Counter[str])


def read_rollouts(path: Path, *, stage: int) -> list[list[Asked]]:
    """Turns that were judged, by rollout, in the order of their groups."""
    found: defaultdict[tuple[int, int], list[Asked]] = defaultdict(list)
    with sqlite3.connect(f"file:{path / 'run.db'}?mode=ro", uri=True) as db:
        db.row_factory = sqlite3.Row
        for row in db.execute(TURNS, (stage,)):
            problem = ReferenceModule(
                problem_id=row["problem_id"],
                source=row["source"],
                entry_point=row["entry_point"],
                precision=row["precision"],
            )
            asked = Asked(
                problem=problem,
                code=row["code"],
                generate_s=row["generate_s"],
                status=row["status"],
            )
            found[row["group_id"], row["rollout"]].append(asked)
    return list(found.values())


async def play(pool: Pool, rollouts: list[list[Asked]], *, in_flight: int) -> Tally:
    """Plays all rollouts, `in_flight` at a time."""
    tally, room = Tally(), anyio.Semaphore(in_flight)

    async def one(turns: list[Asked]) -> None:
        try:
            for turn in turns:
                await anyio.sleep(turn.generate_s)
                began = time.monotonic()
                verdict = await pool.judge(turn.problem, turn.code)
                tally.waits_s.append(time.monotonic() - began)
                tally.verdicts.append(verdict)
                if verdict.status != turn.status:
                    tally.changes[f"{turn.status} -> {verdict.status} ({verdict.reason})"] += 1
        finally:
            room.release()

    async with anyio.create_task_group() as tg:
        for turns in rollouts:
            await room.acquire()
            tg.start_soon(one, turns)
    return tally


def summary(tally: Tally, *, wall_s: float) -> dict[str, object]:
    """Figures of one replay: seconds, verdicts, means of a verdict's phases."""
    phases: defaultdict[str, list[float]] = defaultdict(list)
    for verdict in tally.verdicts:
        for phase, seconds in verdict.phase_s.items():
            phases[phase].append(seconds)
    num = len(tally.verdicts)
    return {
        "verdicts": num,
        "wall_s": round(wall_s, 2),
        "per_s": round(num / wall_s, 2),
        "wait_s": [round(one, 3) for one in statistics.quantiles(tally.waits_s, n=20)[::3]],
        "statuses": dict(Counter(f"{one.status}" for one in tally.verdicts)),
        "changes": dict(tally.changes),
        "phases_s": {
            phase: [len(seen), round(sum(seen) / num, 4)]
            for phase, seen in sorted(phases.items(), key=lambda item: -sum(item[1]))
        },
        "speedups": [
            round(one.timing.speedup, 3) for one in tally.verdicts if one.timing is not None
        ],
    }


async def measured(given: argparse.Namespace) -> dict[str, object]:
    """The summary of a replay on this machine."""
    rollouts = read_rollouts(given.run, stage=given.stage)[: given.rollouts]
    gpus = inventory()[:1] if given.device == "cuda" else ()
    table = JudgeTable(compile_timeout_s=30)
    with open_socket_dir() as folder, tempfile.TemporaryDirectory() as logs:
        async with open_pool(table, socket_dir=folder, log_dir=Path(logs), gpus=gpus) as pool:
            began = time.monotonic()
            tally = await play(pool, rollouts, in_flight=given.in_flight)
            found = summary(tally, wall_s=time.monotonic() - began)
        if given.logs:
            for log in sorted(Path(logs).rglob("*.log")):
                print(f"{log.name}:\n{log.read_text()[-4000:]}")
    return found


def main() -> None:
    """Prints the summary, or writes it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("run", type=Path, help="directory with a run.db")
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--rollouts", type=int, default=None, help="only the first ones")
    parser.add_argument("--in-flight", type=int, default=48, help="rollouts at a time")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--logs", action="store_true", help="print the judges' logs")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    found = anyio.run(measured, given)
    text = json.dumps(found, indent=1)
    if given.out is not None:
        given.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
