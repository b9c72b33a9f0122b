"""A writer under load: its speed beside readers, and its losses after SIGKILL (`bench/store.py`).

Readers are separate processes that poll as the TUI does: `data_version`, then the newest turns,
the curve and the failures. The killed writer prints after each flush how many groups it has put;
none of them may be missing afterwards.
"""

from __future__ import annotations

import multiprocessing
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from store_records import Maker

from forge.config.schema import StoreTable
from forge.records import Sample, SampleUse, Turn
from forge.store import open_run, open_writer

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from forge.store.write.rows import Record

NUM_READERS = 3
POLL_S = 0.1
"""Seconds between two polls of a reader; a screen polls once a second."""
POLLS = (
    "SELECT turn_id, status, reward FROM v_turns ORDER BY group_id DESC, rollout, turn LIMIT 50",
    "SELECT * FROM v_steps ORDER BY stage DESC, step DESC LIMIT 100",
    "SELECT status, sum(num_turns) FROM v_failures GROUP BY status",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """Results of one reader."""

    num_polls: int
    worst_ms: float
    errors: tuple[str, ...]
    """Errors, such as `database is locked`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One measurement of the writer."""

    num_turns: int
    turns_per_s: float
    cpu_us_a_turn: float
    """CPU seconds per turn of the writing process, all threads: its cost when other work uses the
    cores.
    """
    run_db_bytes_a_turn: float
    tokens_db_bytes_a_turn: float
    text_bytes_a_turn: float
    """Bytes of the texts before deduplication and compression."""
    readers: tuple[Polled, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One SIGKILL: acknowledged rows, and rows found afterwards."""

    num_acknowledged: int
    num_lost: int
    is_whole: bool
    """True if `PRAGMA integrity_check` of both databases says ok and every turn has its tokens."""
    reader_errors: tuple[str, ...]


async def measure_write(
    root: Path, *, num_turns: int, text_bytes: int, num_tokens: int, program_bytes: int
) -> Written:
    """Writes turns one by one beside three polling readers, until all are on disk."""
    maker = Maker(text_bytes=text_bytes, num_tokens=num_tokens, program_bytes=program_bytes)
    records = list(maker.records(num_turns))
    puts = list(as_puts(records))
    num_turns, num_text_bytes = maker.num_turns, 0
    for record in records:
        num_text_bytes += _text_bytes(record)
    make_root(root)
    async with open_writer(root, StoreTable(), clock=lambda: 1.0) as writer:
        await writer.flush()
        with _readers(root) as polled:
            began, cpu = time.perf_counter(), time.process_time()
            for put in puts:
                await writer.put(*put)
            await writer.flush()
            seconds = time.perf_counter() - began
            cpu = time.process_time() - cpu
    sizes = {name: (root / name).stat().st_size / num_turns for name in ("run.db", "tokens.db")}
    return Written(
        num_turns=num_turns,
        turns_per_s=round(num_turns / seconds),
        cpu_us_a_turn=round(1e6 * cpu / num_turns),
        run_db_bytes_a_turn=round(sizes["run.db"]),
        tokens_db_bytes_a_turn=round(sizes["tokens.db"]),
        text_bytes_a_turn=round(num_text_bytes / num_turns),
        readers=tuple(polled),
    )


def as_puts(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Portions of records as a run puts them: a step's samples together, the rest one by one."""
    for kind, group in groupby(records, key=type):
        if kind in (Sample, SampleUse):
            yield list(group)
        else:
            yield from ([record] for record in group)


def _text_bytes(record: Any) -> int:
    texts = ("prompt_text", "completion_text", "code", "feedback")
    detail = record.verdict.detail if hasattr(record, "verdict") else ""
    return sum(len(getattr(record, name, "")) for name in texts) + len(detail)


def measure_kills(parent: Path, *, num_kills: int) -> Iterator[Kill]:
    """Kills a child that writes a new run, each time a little later."""
    for number in range(num_kills):
        root = parent / f"killed-{number}"
        make_root(root)
        yield _kill_once(root, after_s=0.3 + 0.13 * number)


def _kill_once(root: Path, *, after_s: float) -> Kill:
    here = Path(__file__).with_name("store.py")
    argv = [sys.executable, str(here), "put", str(root)]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    told = child.stdout.readline()  # the first acknowledgement: now it writes
    with _readers(root) as polled:
        time.sleep(after_s)
        child.send_signal(signal.SIGKILL)
        rest, _ = child.communicate()
    num_acknowledged = max(int(line) for line in [told, *rest.split()])
    with open_run(root) as reader:
        kept = reader.value("SELECT count(*) FROM turns WHERE turn_row <= ?", (num_acknowledged,))
        keys = "SELECT group_id, rollout, turn FROM"
        torn = reader.value(f"SELECT count(*) FROM ({keys} turns EXCEPT {keys} tokens.tokens)")
    whole = all(_check(root / name) == "ok" for name in ("run.db", "tokens.db"))
    return Kill(
        num_acknowledged=num_acknowledged,
        num_lost=num_acknowledged - kept,
        is_whole=whole and torn == 0,
        reader_errors=tuple(error for each in polled for error in each.errors),
    )


def _check(path: Path) -> str:
    connection = sqlite3.connect(path)
    found = connection.execute("PRAGMA integrity_check").fetchone()[0]
    connection.close()
    return found


async def put_until_killed(root: Path) -> None:
    """The child: prints the number of acknowledged turns after each flush."""
    maker, num_put = Maker(text_bytes=12_000), 0
    async with open_writer(root, StoreTable()) as writer:
        for number, records in enumerate(as_puts(maker.records(1 << 40))):
            await writer.put(*records)
            num_put += sum(isinstance(record, Turn) for record in records)
            if number % 97 == 96:
                await writer.flush()
                print(num_put, flush=True)


def make_root(root: Path) -> None:
    root.mkdir(parents=True)
    (root / "experiment.toml").write_text('name = "big"\n', encoding="utf-8")


@contextmanager
def _readers(root: Path) -> Iterator[list[Polled]]:
    """Runs three polling readers; their results are in the list afterwards."""
    context = multiprocessing.get_context("spawn")
    found: list[Polled] = []
    pairs = [context.Pipe() for _ in range(NUM_READERS)]
    children = [context.Process(target=_poll, args=(str(root), theirs)) for _, theirs in pairs]
    for child, (ours, theirs) in zip(children, pairs, strict=True):
        child.start()
        theirs.close()  # of a reader that dies, recv says EOFError
        ours.recv()  # it is reading
    try:
        yield found
    finally:
        for child, (ours, _) in zip(children, pairs, strict=True):
            ours.send("stop")
            found.append(ours.recv())
            child.join()


def _poll(root: str, pipe: Connection) -> None:
    num_polls, worst_ms, errors = 0, 0.0, []
    with open_run(root) as reader:
        pipe.send("reading")
        version = -1
        while not pipe.poll(POLL_S):
            try:
                began = time.perf_counter()
                if reader.data_version() != version:
                    version = reader.data_version()
                    for sql in POLLS:
                        reader.query(sql)
                num_polls += 1
                worst_ms = max(worst_ms, 1000 * (time.perf_counter() - began))
            except sqlite3.Error as error:
                errors.append(str(error))
    pipe.send(Polled(num_polls=num_polls, worst_ms=round(worst_ms, 1), errors=tuple(errors)))
