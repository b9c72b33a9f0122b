"""Measures the store at scale: a synthetic run of any size, its views, its writer under load.

    .venv/bin/python bench/store.py make runs/big-1 --turns 1000000
    .venv/bin/python bench/store.py views runs/big-1 [--json]
    .venv/bin/python bench/store.py write [--turns 30000] [--json]
    .venv/bin/python bench/store.py steps [--turns 12000]
    .venv/bin/python bench/store.py kill [--kills 20] [--json]

`make` writes through the writer of the runs. `views` asks each shipped view as it is used
(`store_views.ASKED`), cold once and then warm: the median of five, at most 200 ms. `write` puts
turns with 12 kB of texts while three readers poll: at least 5,000 turns/s and at most 6 kB a turn
in run.db, tokens apart. `steps` times a step end on the writer's thread: at most 2 ms. `kill` ends
a writing process by SIGKILL again and again: no acknowledged row may be lost, and no reader may see
"database is locked". Exit code 1 where a bound is broken.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyio
from store_load import Kill, Written, measure_kills, measure_write, put_until_killed
from store_records import Maker
from store_steps import measure_steps
from store_views import time_views

from forge.config.schema import StoreTable
from forge.store import RunPaths, open_writer

LEAST_TURNS_PER_S = 5000
MOST_BYTES_A_TURN = 6000
MOST_STEP_MS = 2.0


async def make(root: Path, *, num_turns: int, text_bytes: int) -> dict[str, Any]:
    """Writes the run, with a line of progress on stderr every 20,000 turns."""
    root.mkdir(parents=True)
    (root / "experiment.toml").write_text('name = "big"\n', encoding="utf-8")
    maker, began, told = Maker(text_bytes=text_bytes), time.perf_counter(), 0
    options = StoreTable(texts="zstd")
    async with open_writer(RunPaths(root), options, clock=lambda: maker.now) as writer:
        batch = []
        for record in maker.records(num_turns):
            batch.append(record)
            if len(batch) == 64:
                await writer.put(*batch)
                batch.clear()
            if maker.num_turns >= told + 20_000:
                told = maker.num_turns
                rate = told / (time.perf_counter() - began)
                print(f"{told} turns, {rate:.0f}/s", file=sys.stderr)
        await writer.put(*batch)
    seconds = time.perf_counter() - began
    return {"turns": maker.num_turns, "seconds": round(seconds, 1)} | sizes(root, maker.num_turns)


def sizes(root: Path, num_turns: int) -> dict[str, float]:
    names = {"run_db_bytes_a_turn": "run.db", "tokens_db_bytes_a_turn": "tokens.db"}
    return {key: round((root / name).stat().st_size / num_turns) for key, name in names.items()}


def tell_views(root: Path, *, as_json: bool) -> int:
    found = time_views(root)
    if as_json:
        print(json.dumps([asdict(each) for each in found]))
    else:
        for each in found:
            mark = " " if each.is_within else "!"
            times = f"{each.warm_ms:8.1f} ms{mark} {each.cold_ms:8.1f} cold"
            print(f"{times} {each.num_rows:6d} rows  {each.sql}")
    slow = [each for each in found if not each.is_within]
    return 1 if slow else 0


def tell_write(folder: Path, asked: argparse.Namespace) -> int:
    found: Written = anyio.run(
        lambda: measure_write(
            folder / "big-1",
            num_turns=asked.turns,
            text_bytes=asked.text_bytes,
            num_tokens=asked.tokens,
            program_bytes=asked.program_bytes,
        )
    )
    print(json.dumps(asdict(found), indent=None if asked.json else 2))
    is_fast = found.turns_per_s >= LEAST_TURNS_PER_S
    return 0 if is_fast and found.run_db_bytes_a_turn <= MOST_BYTES_A_TURN else 1


def tell_steps(folder: Path, asked: argparse.Namespace) -> int:
    found = anyio.run(
        lambda: measure_steps(folder / "big-1", num_turns=asked.turns, text_bytes=asked.text_bytes)
    )
    print(json.dumps(asdict(found)))
    return 0 if found.writer_median_ms <= MOST_STEP_MS else 1


def tell_kills(folder: Path, asked: argparse.Namespace) -> int:
    found: list[Kill] = []
    for kill in measure_kills(folder, num_kills=asked.kills):
        found.append(kill)
        print(json.dumps(asdict(kill)))
    is_kept = all(not kill.num_lost and kill.is_whole for kill in found)
    return 0 if is_kept and not any(kill.reader_errors for kill in found) else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--dir", type=Path, help="where write and kill make their runs")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("make")
    command.add_argument("root", type=Path)
    command.add_argument("--turns", type=int, default=1_000_000)
    command.add_argument("--text-bytes", type=int, default=800, help="of a turn's texts")
    command = commands.add_parser("write")
    command.add_argument("--turns", type=int, default=30_000)
    command.add_argument("--text-bytes", type=int, default=12_000)
    command.add_argument("--tokens", type=int, default=400, help="of a completion, in the mean")
    command.add_argument(
        "--program-bytes", type=int, default=0, help="of a captured program, compressed"
    )
    command = commands.add_parser("steps")
    command.add_argument("--turns", type=int, default=12_000)
    command.add_argument("--text-bytes", type=int, default=12_000)
    command = commands.add_parser("kill")
    command.add_argument("--kills", type=int, default=20)
    command = commands.add_parser("put", help="what kill kills")
    command.add_argument("root", type=Path)
    command = commands.add_parser("views")
    command.add_argument("root", type=Path)
    asked = parser.parse_args()
    if asked.command == "views":
        return tell_views(asked.root, as_json=asked.json)
    if asked.command == "put":
        anyio.run(put_until_killed, asked.root)
        return 0
    if asked.command in ("write", "steps", "kill"):
        with tempfile.TemporaryDirectory(dir=asked.dir) as folder:
            if asked.command == "steps":
                return tell_steps(Path(folder), asked)
            if asked.command == "write":
                return tell_write(Path(folder), asked)
            return tell_kills(Path(folder), asked)
    found = anyio.run(lambda: make(asked.root, num_turns=asked.turns, text_bytes=asked.text_bytes))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
