"""Measures the store at scale: a synthetic run of any size, its views, its writer.

    python bench/store.py make runs/big-1 --turns 1000000
    python bench/store.py views runs/big-1
    python bench/store.py write [--turns 30000] [--tokens 400]

`make` writes through the writer of the runs. `views` asks each shipped view as it is used
(`ASKED`), cold once and then warm: the median of five, at most 200 ms. `write` puts turns with
12 kB of texts: at least 4,000 turns/s with 400 tokens a completion, and at most 6 kB a turn in
run.db, tokens apart. Exit code 1 where a bound is broken. `tests/chaos/test_random_kills.py` shows
that a kill loses no acknowledged row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import anyio
from store_run import SyntheticRun

from forge.config.schema import StoreTable
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.store.schema.views import view_names
from forge.store.write.writer import open_writer

LEAST_TURNS_PER_S = 4000
MOST_BYTES_A_TURN = 6000
WARM_MS, NUM_TIMES = 200.0, 5
ASKED: dict[str, tuple[str, ...]] = {
    "v_judge_noise": (),  # reads every turn: 0.3 s at 150,000
    "v_turns": (
        "SELECT * FROM v_turns WHERE stage = :stage AND step = :step",
        "SELECT * FROM v_turns WHERE group_id = :group_id ORDER BY rollout, turn",
        "SELECT * FROM v_turns WHERE problem_id = :problem_id",
        "SELECT * FROM v_turns WHERE status = 'timeout' LIMIT 100",
        "SELECT * FROM v_turns ORDER BY group_id DESC, rollout DESC, turn DESC LIMIT 100",
    ),
    "v_groups": (
        "SELECT * FROM v_groups WHERE stage = :stage AND step = :step",
        "SELECT * FROM v_groups WHERE problem_id = :problem_id ORDER BY group_id",
        "SELECT * FROM v_groups ORDER BY group_id DESC LIMIT 100",
        "SELECT * FROM v_groups ORDER BY return_high DESC LIMIT 100",
    ),
    "v_samples": (
        "SELECT * FROM v_samples WHERE stage = :stage AND step = :step",
        "SELECT * FROM v_samples ORDER BY stage DESC, step DESC, sample_id LIMIT 500",
    ),
    "v_duplicates": (
        "SELECT * FROM v_duplicates WHERE stage = :stage AND step = :step",
        "SELECT stage, step, avg(duplicate_share) FROM v_duplicates GROUP BY stage, step",
    ),
    "v_metrics": (
        "SELECT * FROM v_metrics WHERE key = 'train/loss/mean'",
        "SELECT * FROM v_metrics WHERE stage = :stage AND step = :step",
    ),
    "v_best_kernels": (
        "SELECT * FROM v_best_kernels ORDER BY rank LIMIT 100",
        "SELECT rank, problem_id, speedup_low, turn_id FROM v_best_kernels",
    ),
    "v_events": ("SELECT * FROM v_events ORDER BY event_id DESC LIMIT 1000",),
    "live_groups": ("SELECT * FROM live_groups",),
    "live_turns": ("SELECT * FROM live_turns",),
}
"""Queries by view. Views with a row per turn are read in part, all others whole."""


async def make(root: Path, made: SyntheticRun, *, num_turns: int, options: StoreTable) -> float:
    """Writes a run; returns the seconds until all is on disk."""
    root.mkdir(parents=True)
    (root / "experiment.toml").write_text('name = "big"\n', encoding="utf-8")
    began, batch = time.perf_counter(), []
    async with open_writer(RunPaths(root), options, clock=lambda: made.now) as writer:
        for record in made.records(num_turns):
            batch.append(record)
            if len(batch) == 64:
                await writer.put(*batch)
                batch.clear()
        await writer.put(*batch)
    return time.perf_counter() - began


def measure_writer(root: Path, given: argparse.Namespace, *, options: StoreTable) -> bool:
    """Prints the writer's speed and the bytes of a turn; True if they are within the bounds."""
    made = SyntheticRun(text_bytes=given.text_bytes, num_tokens=given.tokens)
    cpu = time.process_time()
    seconds = anyio.run(lambda: make(root, made, num_turns=given.turns, options=options))
    num, found = made.num_turns, {"turns": made.num_turns, "seconds": round(seconds, 1)}
    found |= {"turns_per_s": round(num / seconds)}
    found |= {"cpu_us_a_turn": round(1e6 * (time.process_time() - cpu) / num)}
    sizes = {name: round((root / name).stat().st_size / num) for name in ("run.db", "tokens.db")}
    print(json.dumps(found | {f"{name}_bytes_a_turn": size for name, size in sizes.items()}))
    return num / seconds >= LEAST_TURNS_PER_S and sizes["run.db"] <= MOST_BYTES_A_TURN


def time_views(root: Path) -> bool:
    """Prints each query's time, on a new connection with all rows fetched; True if all are within
    the bound."""
    slow = 0
    for sql in (
        sql for name in view_names() for sql in ASKED.get(name, (f"SELECT * FROM {name}",))
    ):
        with open_run(root) as reader:
            place = reader.one(
                "SELECT stage, step, group_id, problem_id FROM groups WHERE "
                "purpose = 'train' ORDER BY group_id DESC LIMIT 1 OFFSET 50"
            )
            taken, num_rows = [], 0
            for _ in range(NUM_TIMES + 1):
                began = time.perf_counter()
                num_rows = len(reader.query(sql, place or {}).rows)
                taken.append((time.perf_counter() - began) * 1000)
        warm = statistics.median(taken[1:])
        slow += warm > WARM_MS
        mark = "!" if warm > WARM_MS else " "
        print(f"{warm:8.1f} ms{mark} {taken[0]:8.1f} cold {num_rows:6d} rows  {sql}")
    return not slow


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, turns, size in (("make", 1_000_000, 800), ("write", 30_000, 12_000)):
        command = commands.add_parser(name)
        command.add_argument("--turns", type=int, default=turns)
        command.add_argument("--text-bytes", type=int, default=size, help="of a turn's texts")
        command.add_argument("--tokens", type=int, default=24, help="of a completion, in the mean")
        if name == "make":
            command.add_argument("root", type=Path)
    commands.add_parser("views").add_argument("root", type=Path)
    given = parser.parse_args()
    if given.command == "views":
        return 0 if time_views(given.root) else 1
    if given.command == "make":
        measure_writer(given.root, given, options=StoreTable(texts="zstd"))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return 0 if measure_writer(Path(folder) / "big-1", given, options=StoreTable()) else 1


if __name__ == "__main__":
    sys.exit(main())
