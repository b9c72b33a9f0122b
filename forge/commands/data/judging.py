"""Judges the answers of a build with forge's own judge. Verdicts are kept in a log, so that a build
that was killed judges no answer twice.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import xxhash

from forge.commands.counter import open_counter
from forge.evalpool.pool import open_pool
from forge.process.devices import inventory
from forge.process.sockets import open_socket_dir
from forge.records import Problem, Split, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.config.schema import JudgeTable
    from forge.evalpool.pool import Pool
    from forge.process.devices import Gpu

IN_FLIGHT = 32
"""Answers at the judges or in their queue; their texts are in memory."""


class VerdictLog:
    """Status, reason and circumstances by the hash of a module and an answer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, dict[str, str]] = {}
        text = path.read_text() if path.is_file() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # a line that was cut by a kill
            path.write_text(whole)
        for line in whole.splitlines():
            entry = json.loads(line)
            self._known[entry.pop("key")] = entry

    def get(self, key: str) -> dict[str, str] | None:
        """The verdict of a key."""
        return self._known.get(key)

    def add(self, key: str, entry: dict[str, str]) -> None:
        """Keeps a verdict."""
        self._known[key] = entry
        with self._path.open("a") as file:
            file.write(json.dumps({"key": key, **entry}) + "\n")


def judge_rows(
    rows: Iterable[Mapping[str, Any]],
    table: JudgeTable,
    *,
    total: int,
    log: VerdictLog,
    is_shown: bool,
) -> dict[int, dict[str, str]]:
    """Verdicts by the rows' numbers.

    Raises:
        MachineError: no sandbox works on this machine.
    """
    gpus = () if table.url else inventory()
    return anyio.run(partial(_judge_all, iter(rows), table, gpus, total, log, is_shown))


async def _judge_all(
    rows: Iterator[Mapping[str, Any]],
    table: JudgeTable,
    gpus: Sequence[Gpu],
    total: int,
    log: VerdictLog,
    is_shown: bool,
) -> dict[int, dict[str, str]]:
    verdicts: dict[int, dict[str, str]] = {}
    with open_socket_dir() as socket_dir, tempfile.TemporaryDirectory() as log_dir:
        async with (
            open_counter("judged", total=total, is_shown=is_shown) as advance,
            open_pool(table, socket_dir=socket_dir, log_dir=Path(log_dir), gpus=gpus) as pool,
            anyio.create_task_group() as tasks,
        ):

            async def judge_next() -> None:
                for row in rows:
                    entry = await _judge_one(row, pool, log)
                    verdicts[row["number"]] = entry
                    advance(entry["status"])

            for _ in range(IN_FLIGHT):
                tasks.start_soon(judge_next)
    return verdicts


async def _judge_one(row: Mapping[str, Any], pool: Pool, log: VerdictLog) -> dict[str, str]:
    key = xxhash.xxh3_128_hexdigest(
        json.dumps([row["source"], row["entry_point"], row["code"]]).encode()
    )
    found = log.get(key)
    if found is not None:
        return found
    problem = Problem(
        problem_id=row["id"],
        source=row["source"],
        family="build",
        level=1,
        split=Split.SFT,
        entry_point=row["entry_point"],
    )
    verdict = await pool.judge(problem, row["code"], timing=False)
    entry = {
        "status": str(verdict.status), "reason": verdict.reason, "device": verdict.device,
        "harness": verdict.harness,
    }  # fmt: skip
    if verdict.status is not Status.INFRA_ERROR:  # a machine's fault is judged again
        log.add(key, entry)
    return entry
